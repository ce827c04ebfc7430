"""GpuSpec: what the simulator believes of a GPU, every number with its source or marked assumed.

Pure data; `vtsim._profile` parses it from TOML, and where profiles lie is `vtsim.backends.gpus`'s
business. Times are ticks (picoseconds), rates are per second, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from vtsim.request import Tick


class Provenance(NamedTuple):
    """Where a number of a profile comes from."""

    key: str
    """Dotted name in the profile, such as `linear.efficiency`."""
    source: str
    assumed: bool


class CallCost(NamedTuple):
    """Duration of one driver call. `p99` is 0 where no tail was measured."""

    median: Tick
    p99: Tick = 0


@dataclass(frozen=True, slots=True)
class VmmCosts:
    """Driver calls on handles of `page_bytes`: a handle costs the same at any size in between."""

    page_bytes: int
    reserve: CallCost
    create: CallCost
    map: CallCost
    set_access: CallCost
    unmap: CallCost
    release: CallCost
    address_free: CallCost


@dataclass(frozen=True, slots=True)
class AllocationCosts:
    """Ordinary cudaMalloc and cudaFree by size: points to interpolate between."""

    sizes_bytes: tuple[int, ...]
    allocate: tuple[Tick, ...]
    free: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class LinearCosts:
    """Matrix products: `kernel` each, then the slower of streaming weights and computing."""

    kernel: Tick
    weight_bytes_per_s: float
    tokens: tuple[int, ...]
    efficiency: tuple[float, ...]
    """Share of the bf16 peak reached at `tokens`; below the first point proportional to tokens."""


@dataclass(frozen=True, slots=True)
class ElementwiseCosts:
    """Norms, rotary embedding, activation: bound by memory."""

    kernel: Tick
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class DecodeKernel:
    """One attention kernel family in decode: one launch a layer."""

    kernel: Tick
    bytes_per_s: float
    """KV bytes read."""
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class PrefillKernel:
    """One attention kernel family in prefill: attending a prefix and itself differ in speed."""

    kernel: Tick
    bytes_per_s: float
    prefix_flops_per_s: float
    causal_flops_per_s: float


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Links of one GPU, one direction each."""

    peer_bytes_per_s: float
    peer_latency: Tick
    """Of one all-reduce."""
    host_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What the engine's own work adds to each step: not hidden by the GPU."""

    per_step: Tick
    per_sequence: Tick


@dataclass(frozen=True, slots=True, eq=False)
class GpuSpec:
    """One GPU profile."""

    name: str
    title: str
    memory_bytes: int
    """Nominal."""
    capacity_bytes: int
    """What cuMemGetInfo gives as total."""
    context_bytes: int
    granularity_bytes: int
    """Of the stock driver."""
    patched_granularity_bytes: int
    """With vAttention's patched driver; equal to `granularity_bytes` where none is known."""
    va_bytes: int
    bf16_flops_per_s: float
    fp32_flops_per_s: float
    dram_bytes_per_s: float
    copy_bytes_per_s: float
    """Attained by a device-to-device copy, read and written bytes together."""
    linear: LinearCosts
    elementwise: ElementwiseCosts
    decode: Mapping[str, DecodeKernel]
    prefill: Mapping[str, PrefillKernel]
    links: LinkCosts
    host: HostCosts
    vmm: tuple[VmmCosts, ...]
    """By rising page size."""
    allocation: AllocationCosts
    provenance: tuple[Provenance, ...]
    sha256: str
    """Of the profile file's bytes."""

    def assumed(self) -> list[str]:
        """Dotted names of the numbers that no source backs."""
        return [entry.key for entry in self.provenance if entry.assumed]

    def sources(self) -> dict[str, str]:
        """Dotted name -> source of every number ("" where it is assumed without a remark)."""
        return {entry.key: entry.source for entry in self.provenance}

    def with_capacity(self, capacity_bytes: int) -> GpuSpec:
        """The same card with another amount of memory."""
        return replace(self, memory_bytes=capacity_bytes, capacity_bytes=capacity_bytes)
