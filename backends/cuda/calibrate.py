"""A GPU profile with measured memory: another profile's text, its memory tables written anew.

What was not measured (compute, kernels, links) stays as the base profile says, sources and all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vtsim.backends.cuda.backend import VA_BYTES
from vtsim.backends.cuda.driver import CudaDriver
from vtsim.backends.cuda.measure import Spread, time_allocations, time_calls
from vtsim.errors import ConfigError

CHUNK_SIZES = (2 << 20, 64 << 20)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a card's memory was found to be."""

    device: str
    driver: str
    capacity_bytes: int
    context_bytes: int
    granularity_bytes: int
    calls: Mapping[int, Mapping[str, Spread]]
    """Chunk size -> call -> cost."""
    allocations: Mapping[int, tuple[Spread, Spread]]


def measure(driver: CudaDriver, chunks: int = 256) -> Measured:
    """Measure a card; takes a few seconds and gives everything back.

    `context_bytes` is what is in use on the card while this process holds nothing but its context:
    on a card that others use, too, it is too high.
    """
    free, total = driver.memory()
    granularity = driver.granularity_bytes
    sizes = sorted({max(size, granularity) for size in CHUNK_SIZES})
    calls: dict[int, Mapping[str, Spread]] = {}
    for size in sizes:
        count = max(8, min(chunks, free // 4 // size))
        calls[size] = time_calls(driver, size, count)
    allocations = time_allocations(driver)
    return Measured(
        driver.name, driver.version, total, total - free, granularity, calls, allocations
    )


def profile_text(base: Path, name: str, measured: Measured) -> str:
    """The profile `base` under another name, with what was measured in place of its memory tables.

    Raises ConfigError if it cannot be read.
    """
    try:
        lines = base.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{base}: cannot be read: {error.strerror}") from None
    kept: list[str] = [
        f"# {name}: memory measured by `vtsim calibrate memory` on {measured.device}, CUDA "
        f"{measured.driver}.",
        f"# Everything else is that of {base.name}.",
    ]
    table = ""
    for line in lines:
        stripped = line.strip()
        if stripped.startswith("["):
            table = stripped[1:].split("]")[0]
        if table.split(".")[0] in ("memory", "vmm", "allocation"):
            continue
        if not table and stripped.startswith("#"):
            continue
        if not table and stripped.split("=")[0].strip() == "name":
            line = f'name = "{name}"'
        kept.append(line)
    while kept and not kept[-1]:
        kept.pop()
    return (
        "\n".join([*kept, "", *_memory(measured), *_vmm(measured), *_allocation(measured)]) + "\n"
    )


def _source(measured: Measured) -> str:
    return f'source = "measured by vtsim calibrate on {measured.device}, CUDA {measured.driver}"'


def _memory(measured: Measured) -> list[str]:
    return [
        "[memory]",
        _source(measured),
        f"nominal_bytes = {measured.capacity_bytes}",
        f"capacity_bytes = {measured.capacity_bytes}",
        f"context_bytes = {measured.context_bytes}",
        f"granularity_bytes = {measured.granularity_bytes}",
        f'va_bytes = {{ value = {VA_BYTES}, source = "FACTS: reservations up to 64 TiB work" }}',
        "",
    ]


def _vmm(measured: Measured) -> list[str]:
    lines: list[str] = []
    for size, calls in measured.calls.items():
        lines += [f"[vmm.{size >> 20}MiB]", _source(measured), f"page_bytes = {size}"]
        for call, spread in calls.items():
            p50, p99 = round(spread.p50, 2), round(spread.p99, 2)
            tail = f"{{ value = {p50}, p99 = {p99} }}" if 0 < p50 <= p99 else f"{p50}"
            lines.append(f"{call}_us = {tail}")
        lines.append("")
    return lines


def _allocation(measured: Measured) -> list[str]:
    sizes = list(measured.allocations)
    spreads = list(measured.allocations.values())
    return [
        "[allocation]",
        _source(measured),
        f"sizes_bytes = {sizes}",
        f"allocate_us = {[round(allocate.p50, 1) for allocate, _ in spreads]}",
        f"free_us = {[round(free.p50, 1) for _, free in spreads]}",
    ]
