"""VmmTimes: how long the memory worker is busy with counted operations on a GPU profile.

Medians by default. With a seed, each VMM call of a plan is drawn from the lognormal through the
profile's median and 99th percentile; calls without a published 99th percentile stay at the median.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from math import log
from random import Random

from vtsim.request import TICKS_PER_S, Tick
from vtsim.spec import AllocationCosts, CallCost, GpuSpec, VmmCosts

Z99 = 2.3263478740408408
"""The standard normal's 99th percentile."""


def _between(low: int, high: int, at: int, low_value: int, high_value: int) -> int:
    """Linear interpolation (and beyond `high`: continuation), in integers."""
    return low_value + (high_value - low_value) * (at - low) // (high - low)


def call_costs(gpu: GpuSpec, chunk_bytes: int) -> VmmCosts:
    """Costs of calls on handles of `chunk_bytes`: the profile's tables, interpolated between page
    sizes, constant outside them (the cost is per handle, not per byte)."""
    pages = [costs.page_bytes for costs in gpu.vmm]
    i = bisect_left(pages, chunk_bytes)
    if i == len(pages):
        return gpu.vmm[-1]
    if i == 0 or pages[i] == chunk_bytes:
        return gpu.vmm[i]
    low, high = gpu.vmm[i - 1], gpu.vmm[i]

    def mix(a: CallCost, b: CallCost) -> CallCost:
        at = (low.page_bytes, high.page_bytes, chunk_bytes)
        tail = _between(*at, a.p99, b.p99) if a.p99 and b.p99 else 0
        return CallCost(_between(*at, a.median, b.median), tail)

    return VmmCosts(
        chunk_bytes,
        reserve=mix(low.reserve, high.reserve),
        create=mix(low.create, high.create),
        map=mix(low.map, high.map),
        set_access=mix(low.set_access, high.set_access),
        unmap=mix(low.unmap, high.unmap),
        release=mix(low.release, high.release),
        address_free=mix(low.address_free, high.address_free),
    )


def allocation_ticks(costs: AllocationCosts, nbytes: int) -> tuple[Tick, Tick]:
    """(cudaMalloc, cudaFree) of `nbytes`: interpolated, the last slope continued."""
    sizes = costs.sizes_bytes
    if nbytes <= sizes[0] or len(sizes) == 1:
        return costs.allocate[0], costs.free[0]
    i = min(bisect_left(sizes, nbytes), len(sizes) - 1)
    at = (sizes[i - 1], sizes[i], nbytes)
    return (
        _between(*at, costs.allocate[i - 1], costs.allocate[i]),
        _between(*at, costs.free[i - 1], costs.free[i]),
    )


def _spread(call: CallCost) -> tuple[Tick, float]:
    """(median, sigma) of the lognormal through the median and the 99th percentile."""
    return call.median, log(call.p99 / call.median) / Z99


class VmmTimes:
    """A `MemoryTimes` for one chunk size. `tail` is a seed, or None for medians.

    Map counts cuMemMap and cuMemSetAccess. Copies run at the attained copy bandwidth, each byte
    read and written; swaps at the host link's. `max_chunk_bytes`: chunks have several sizes, up to
    that. Create, map and unmap then cost for all what they cost for the dearest size (they cost the
    same, FACTS); release costs more by the byte, on the line between the smallest and the largest.
    """

    def __init__(
        self, gpu: GpuSpec, chunk_bytes: int, tail: int | None = None, max_chunk_bytes: int = 0
    ) -> None:
        costs = call_costs(gpu, chunk_bytes)
        self._larger = (0, 1)
        if max_chunk_bytes > chunk_bytes:
            most = call_costs(gpu, max_chunk_bytes)
            more = most.release.median - costs.release.median
            self._larger = (max(0, more), max_chunk_bytes - chunk_bytes)
            dearest = {
                name: max(getattr(costs, name), getattr(most, name), key=lambda call: call.median)
                for name in ("create", "map", "set_access", "unmap")
            }
            costs = replace(costs, **dearest)
        self.costs = costs
        self._reserve = costs.reserve.median
        self._free = costs.address_free.median
        self._create = costs.create.median
        self._destroy = costs.release.median
        self._map = costs.map.median + costs.set_access.median
        self._unmap = costs.unmap.median
        self._copy_rate = gpu.copy_bytes_per_s
        self._swap_rate = gpu.links.host_bytes_per_s
        self._allocation = gpu.allocation
        self._allocation_ticks: dict[int, tuple[Tick, Tick]] = {}
        # Per count of a plan (in OpKind order): the spread of each call it stands for.
        kinds = (
            (costs.reserve,),
            (costs.address_free,),
            (costs.create,),
            (costs.release,),
            (costs.map, costs.set_access),
            (costs.unmap,),
        )
        self._spread = [[_spread(call) for call in calls if call.p99] for calls in kinds]
        drawn = tail is not None and any(self._spread)
        self._random = Random(tail) if drawn else None

    @property
    def random(self) -> bool:
        """True if two equal plans may differ in time: a seed was given, and the profile has
        a 99th percentile for some call."""
        return self._random is not None

    def counts(
        self, counts: list[int], allocation_bytes: int, copied_bytes: int, swapped_bytes: int
    ) -> Tick:
        """Ticks of so many operations by kind, executed one after another."""
        reserve, free, create, destroy, mapped, unmapped, _, _, _, allocate, deallocate = counts
        ticks = create * self._create + mapped * self._map + unmapped * self._unmap
        if destroy or reserve or free:
            ticks += destroy * self._destroy + reserve * self._reserve + free * self._free
        if allocate or deallocate:
            costs = self._allocation_ticks.get(allocation_bytes)
            if costs is None:
                costs = allocation_ticks(self._allocation, allocation_bytes)
                self._allocation_ticks[allocation_bytes] = costs
            ticks += allocate * costs[0] + deallocate * costs[1]
        if copied_bytes:
            ticks += round(2 * copied_bytes * TICKS_PER_S / self._copy_rate)
        if swapped_bytes:
            ticks += round(swapped_bytes * TICKS_PER_S / self._swap_rate)
        if self._random is not None:
            ticks += self._excess(counts, self._random)
        return ticks

    def larger(self, nbytes: int) -> Tick:
        """Ticks of releasing handles beyond what as many of the smallest size take; `nbytes`: how
        much larger they are together."""
        ticks, per_bytes = self._larger
        return nbytes * ticks // per_bytes

    def _excess(self, counts: list[int], random: Random) -> Tick:
        """What the drawn durations add to the medians (often negative)."""
        draw = random.lognormvariate
        total = 0
        for count, calls in zip(counts, self._spread, strict=False):
            for _ in range(count):
                for median, sigma in calls:
                    total += round(median * draw(0.0, sigma)) - median
        return total
