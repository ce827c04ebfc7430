"""What the driver's memory calls cost on this machine: medians and tails, in microseconds.

Everything is given back. It measures on an idle device; what a busy one costs is another question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from vtsim.backends.cuda.driver import CudaDriver, DeviceOutOfMemory

CALLS = ("reserve", "create", "map", "set_access", "unmap", "release", "address_free")
"""In the order of a chunk's life; the names profiles use."""
ALLOCATION_SIZES = (2 << 20, 64 << 20, 1 << 30, 8 << 30)


@dataclass(frozen=True, slots=True)
class Spread:
    """Durations of one kind of call, microseconds."""

    p50: float
    p99: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return cls(
            ordered[last // 2] * 1e6, ordered[min(last, round(last * 0.99))] * 1e6, len(ordered)
        )


class _Stopwatch:
    """Durations of calls, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def time(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        begin = perf_counter()
        result = call(*arguments)
        self.seconds.setdefault(name, []).append(perf_counter() - begin)
        return result

    def spreads(self) -> dict[str, Spread]:
        return {name: Spread.of(seconds) for name, seconds in self.seconds.items()}


def time_calls(driver: CudaDriver, chunk_bytes: int, chunks: int = 256) -> dict[str, Spread]:
    """Each VMM call on `chunks` handles of `chunk_bytes`; fewer if the device has no more.

    Raises DeviceOutOfMemory if it has not even one.
    """
    watch = _Stopwatch()
    span = chunks * chunk_bytes
    _warm_up(driver, chunk_bytes)
    for _ in range(20):
        address = watch.time("reserve", driver.reserve, span)
        watch.time("address_free", driver.free_addresses, address, span)
    address = driver.reserve(span)
    handles: list[Any] = []
    try:
        for _ in range(chunks):
            try:
                handles.append(watch.time("create", driver.create, chunk_bytes))
            except DeviceOutOfMemory:
                if not handles:
                    raise
                break
        places = [address + index * chunk_bytes for index in range(len(handles))]
        for place, handle in zip(places, handles, strict=True):
            watch.time("map", driver.map, place, chunk_bytes, handle)
            watch.time("set_access", driver.set_access, place, chunk_bytes)
        for place in places:
            watch.time("unmap", driver.unmap, place, chunk_bytes)
    finally:
        for handle in handles:
            watch.time("release", driver.release, handle)
        driver.free_addresses(address, span)
    spreads = watch.spreads()
    return {name: spreads[name] for name in CALLS}


def _warm_up(driver: CudaDriver, chunk_bytes: int) -> None:
    """The first call of each kind pays for what the driver sets up once."""
    address, handle = driver.reserve(chunk_bytes), driver.create(chunk_bytes)
    driver.map(address, chunk_bytes, handle)
    driver.set_access(address, chunk_bytes)
    driver.unmap(address, chunk_bytes)
    driver.release(handle)
    driver.free_addresses(address, chunk_bytes)


def time_allocations(
    driver: CudaDriver, sizes: Sequence[int] = ALLOCATION_SIZES, repeats: int = 7
) -> dict[int, tuple[Spread, Spread]]:
    """Size -> (allocate, free) of ordinary memory; sizes that do not fit are left out."""
    found: dict[int, tuple[Spread, Spread]] = {}
    for size in sizes:
        watch = _Stopwatch()
        try:
            for _ in range(repeats):
                address = watch.time("allocate", driver.allocate, size)
                watch.time("free", driver.free, address)
        except DeviceOutOfMemory:
            break
        spreads = watch.spreads()
        found[size] = (spreads["allocate"], spreads["free"])
    return found


def map_rate(driver: CudaDriver, chunk_bytes: int, chunks: int) -> float:
    """map + set access per second in a bare loop over the bindings: what no backend can beat."""
    address = driver.reserve(chunks * chunk_bytes)
    handles = [driver.create(chunk_bytes) for _ in range(chunks)]
    api = driver.api
    map_call, grant_call, grants = api.cuMemMap, api.cuMemSetAccess, driver.grants("readwrite")
    begin = perf_counter()
    for index, handle in enumerate(handles):
        place = address + index * chunk_bytes
        map_call(place, chunk_bytes, 0, handle, 0)
        grant_call(place, chunk_bytes, grants, 1)
    seconds = perf_counter() - begin
    driver.unmap(address, chunks * chunk_bytes)
    for handle in handles:
        driver.release(handle)
    driver.free_addresses(address, chunks * chunk_bytes)
    return chunks / seconds
