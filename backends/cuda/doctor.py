"""What this machine can do with real memory: driver, card, kernels, and what calls cost here.

Collects values; the command line prints them. Nothing is imported that is only looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from vtsim.backends.cuda.driver import open_driver
from vtsim.backends.cuda.measure import Spread, time_calls
from vtsim.errors import VtsimError
from vtsim.spec import GpuSpec, VmmCosts

PACKAGES = {
    "cuda-bindings": "cuda.bindings",
    "torch": "torch",
    "transformers": "transformers",
    "flash-attn": "flash_attn",
    "flash-attn-3": "flash_attn_interface",
    "flashinfer-python": "flashinfer",
    "vllm": "vllm",
    "nvidia-ml-py": "pynvml",
}
"""Distribution -> the module it brings: the bindings, and what brings attention kernels."""


@dataclass(frozen=True, slots=True)
class Card:
    """One device, as its driver tells."""

    name: str
    driver: str
    granularity_bytes: int
    free_bytes: int
    total_bytes: int
    calls: Mapping[str, Spread]
    """On chunks of the granularity's size."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`card` None: real memory cannot be used, and `trouble` says why."""

    packages: Mapping[str, str]
    """Distribution -> version, "" where it is missing."""
    card: Card | None
    trouble: str


def diagnose(ordinal: int = 0, api: object = None, chunks: int = 256) -> Diagnosis:
    """Look at everything. Never raises for what is missing."""
    packages = {name: _version(name, module) for name, module in PACKAGES.items()}
    try:
        driver = open_driver(ordinal, api)
    except VtsimError as error:
        return Diagnosis(packages, None, str(error))
    try:
        free, total = driver.memory()
        granularity = driver.granularity_bytes
        calls = time_calls(driver, granularity, chunks)
        card = Card(driver.name, driver.version, granularity, free, total, calls)
    except VtsimError as error:
        return Diagnosis(packages, None, str(error))
    finally:
        driver.close()
    return Diagnosis(packages, card, "")


def _version(distribution: str, module: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        pass
    try:
        return "installed" if find_spec(module) is not None else ""
    except ModuleNotFoundError:
        return ""


def profile_for(name: str, profiles: Mapping[str, GpuSpec]) -> GpuSpec | None:
    """The profile a card's name points to: `NVIDIA H200` to h200; None if none does."""
    words = name.lower().replace("-", " ").split()
    for profile in profiles.values():
        if profile.name.split("-")[0] in words:
            return profile
    return None


def profile_costs(gpu: GpuSpec, chunk_bytes: int) -> dict[str, tuple[float, float]]:
    """Call -> (median, p99) in microseconds that a profile has for chunks of this size."""
    table: VmmCosts = next((t for t in gpu.vmm if t.page_bytes >= chunk_bytes), gpu.vmm[-1])
    calls = ("reserve", "create", "map", "set_access", "unmap", "release", "address_free")
    return {
        call: (getattr(table, call).median / 1e6, getattr(table, call).p99 / 1e6) for call in calls
    }
