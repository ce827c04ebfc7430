"""A strict fake of `cuda.bindings.driver`: the functions vtsim calls, same names, same tuples.

It keeps the driver's books and refuses what a card refuses (`tests/cuda/test_driver_rules.py` runs
every rule on both). It is stricter where a card lets faults pass (driver 580): it refuses to unmap
what is not mapped and to map across the end of a reservation, and `leaks()` names what was not
given back.
It runs out of memory at a set size and fails the k-th call on request. Kernels are what a test
launches with `launch`: they wait, and then read or write their ranges, as late as a real one would.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vtsim.backends.cuda.fake_streams import StreamCalls, Streams
from vtsim.backends.cuda.fake_types import (
    CUdevice_attribute,
    CUevent_flags,
    CUmemAccess_flags,
    CUmemAllocationGranularity_flags,
    CUmemAllocationType,
    CUmemLocationType,
    CUresult,
    CUstream_flags,
)
from vtsim.backends.cuda.hostmem import HostMemory, Memory, NoMemory

MIB = 1 << 20
Result = tuple[Any, ...]


OK = CUresult.CUDA_SUCCESS
INVALID = CUresult.CUDA_ERROR_INVALID_VALUE
OUT_OF_MEMORY = CUresult.CUDA_ERROR_OUT_OF_MEMORY
STICKY = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS


@dataclass
class _Handle:
    nbytes: int
    file: int
    references: int = 1
    mappings: int = 0


@dataclass
class _Mapping:
    nbytes: int
    handle: int
    access: int = 0


@dataclass
class _Reservation:
    start: int
    nbytes: int
    mappings: dict[int, _Mapping] = field(default_factory=dict)
    cells: dict[int, int] = field(default_factory=dict)
    """Address of each mapped granule -> start of the mapping it belongs to."""


class FakeCuda(StreamCalls):
    """Stands where the module `cuda.bindings.driver` stands. One device, one process.

    `backed`: the bytes are real, in host memory (Linux). `context_bytes` are in use from the start.
    `refuse`: call number, counted from 1 over `fallible` functions -> status it fails with, once.
    """

    CUresult = CUresult
    CUmemAccess_flags = CUmemAccess_flags
    CUmemAllocationType = CUmemAllocationType
    CUmemLocationType = CUmemLocationType
    CUmemAllocationGranularity_flags = CUmemAllocationGranularity_flags
    CUdevice_attribute = CUdevice_attribute
    CUstream_flags = CUstream_flags
    CUevent_flags = CUevent_flags
    CUmemLocation = staticmethod(lambda: SimpleNamespace(type=0, id=0))
    CUmemAccessDesc = staticmethod(lambda: SimpleNamespace(location=None, flags=0))
    CUmemAllocationProp = staticmethod(lambda: SimpleNamespace(type=0, location=None))

    fallible = frozenset(
        "cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap "
        "cuMemSetAccess cuMemAlloc cuMemFree cuMemHostAlloc cuMemcpyDtoDAsync cuMemcpyDtoHAsync "
        "cuMemcpyHtoDAsync cuMemsetD8Async".split()
    )

    def __init__(
        self,
        *,
        total_bytes: int = 8 << 30,
        granularity_bytes: int = 2 * MIB,
        va_bytes: int = 64 << 40,
        context_bytes: int = 0,
        backed: bool = False,
        vmm: bool = True,
        name: str = "Fake GPU",
        refuse: Mapping[int, int] | None = None,
    ) -> None:
        self.total_bytes = total_bytes
        self.granularity_bytes = granularity_bytes
        self.va_bytes = va_bytes
        self.backed = backed
        self.name = name
        self.vmm = vmm
        self.refuse = {call: CUresult(status) for call, status in (refuse or {}).items()}
        self.calls: dict[str, int] = {}
        """Function -> times called."""
        self.elsewhere_bytes = context_bytes
        """In use by others; a test may raise and lower it."""
        self.failure = None
        """Once a kernel has touched what it may not, every later call answers with this."""
        self._memory: Memory = HostMemory() if backed else NoMemory()
        self._lock = threading.RLock()
        self._fallible_calls = 0
        self._initialized = False
        self._contexts = 0
        self._current = threading.local()
        self._next_handle = 1
        self._handles: dict[int, _Handle] = {}
        self._reservations: dict[int, _Reservation] = {}
        self._starts: list[int] = []
        """Of the reservations, sorted."""
        self._allocations: dict[int, tuple[int, int]] = {}
        self._host: dict[int, tuple[int, int]] = {}
        self._used = 0
        self.streams = Streams(self._lock)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("cu") and callable(value):
            return self._entry(name, value)
        return value

    def _entry(self, name: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """Every call: counted, one at a time, failing where it was told to."""

        def call(*arguments: Any) -> Result:
            with self._lock:
                self.calls[name] = self.calls.get(name, 0) + 1
                self.streams.drain_all()
                if name != "cuInit" and not self._initialized:
                    return _failed(name, CUresult.CUDA_ERROR_NOT_INITIALIZED)
                if self.failure is not None and name not in ("cuCtxSetCurrent",):
                    return _failed(name, self.failure)
                if name in self.fallible:
                    self._fallible_calls += 1
                    status = self.refuse.pop(self._fallible_calls, None)
                    if status is not None:
                        return _failed(name, status)
                if name not in _BLOCKING:
                    return function(*arguments)
            return function(*arguments)

        return call

    @property
    def fallible_calls(self) -> int:
        """Calls so far that could have been told to fail."""
        return self._fallible_calls

    @property
    def used_bytes(self) -> int:
        """In use by this process."""
        return self._used

    def leaks(self) -> dict[str, int]:
        """What is not given back, by kind; empty when all is."""
        left = {
            "reservations": len(self._reservations),
            "mappings": sum(len(r.mappings) for r in self._reservations.values()),
            "handles": len(self._handles),
            "allocations": len(self._allocations),
            "host allocations": len(self._host),
            "streams": self.streams.stream_count,
            "events": self.streams.event_count,
            "contexts": self._contexts,
        }
        return {kind: count for kind, count in left.items() if count}

    # -- kernels, for tests -----------------------------------------------------------------------

    def launch(
        self,
        stream: int = 0,
        *,
        reads: tuple[tuple[int, int], ...] = (),
        until: threading.Event | None = None,
        body: Callable[[], None] | None = None,
    ) -> None:
        """A kernel: waits for `until` (spinning), then touches `reads` (address, bytes), then runs
        `body`. Touching what is not mapped with access breaks the context for good, as on a card.
        """

        def run() -> None:
            for address, nbytes in reads:
                if not self._accessible(address, nbytes, write=False):
                    self.failure = STICKY
                    return
            if body is not None:
                body()

        self.streams.enqueue(stream, run, until)

    def _accessible(self, address: int, nbytes: int, *, write: bool) -> bool:
        """True if every byte is in an allocation or in mappings that grant the access."""
        for start, (size, _) in self._allocations.items():
            if start <= address and address + nbytes <= start + size:
                return True
        found = self._find(address)
        if found is None:
            return False
        at = address
        while at < address + nbytes:
            start = found.cells.get(at - at % self.granularity_bytes, -1)
            if start < 0 or found.mappings[start].access & (2 if write else 1) == 0:
                return False
            at = start + found.mappings[start].nbytes
        return True

    def _find(self, address: int) -> _Reservation | None:
        """The reservation that `address` lies in."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        found = self._reservations[self._starts[at]]
        return found if address < found.start + found.nbytes else None

    # -- device and context -----------------------------------------------------------------------

    def cuInit(self, flags: int) -> Result:
        self._initialized = True
        return (OK,)

    def cuDeviceGet(self, ordinal: int) -> Result:
        return (OK, 0) if ordinal == 0 else (CUresult.CUDA_ERROR_INVALID_DEVICE, None)

    def cuDeviceGetName(self, length: int, device: int) -> Result:
        return OK, self.name.encode().ljust(length, b"\0")

    def cuDriverGetVersion(self) -> Result:
        return OK, 13000

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> Result:
        return OK, int(self.vmm)

    def cuDevicePrimaryCtxRetain(self, device: int) -> Result:
        self._contexts += 1
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device: int) -> Result:
        self._contexts -= 1
        return (OK,)

    def cuCtxSetCurrent(self, context: Any) -> Result:
        self._current.context = context
        return (OK,)

    def cuMemGetAllocationGranularity(self, properties: Any, option: int) -> Result:
        return OK, self.granularity_bytes

    def cuMemGetInfo(self) -> Result:
        if not self._has_context():
            return CUresult.CUDA_ERROR_INVALID_CONTEXT, None, None
        return OK, max(0, self.total_bytes - self.elsewhere_bytes - self._used), self.total_bytes

    def _has_context(self) -> bool:
        return getattr(self._current, "context", None) is not None

    def _room(self, nbytes: int) -> bool:
        return self._used + self.elsewhere_bytes + nbytes <= self.total_bytes

    # -- virtual memory management ----------------------------------------------------------------

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> Result:
        if size <= 0 or size % self.granularity_bytes or alignment & (alignment - 1):
            return INVALID, None
        if sum(r.nbytes for r in self._reservations.values()) + size > self.va_bytes:
            return OUT_OF_MEMORY, None
        start = self._memory.reserve(size, max(alignment, self.granularity_bytes))
        self._reservations[start] = _Reservation(start, size)
        insort(self._starts, start)
        return OK, start

    def cuMemAddressFree(self, address: int, size: int) -> Result:
        reservation = self._reservations.get(address)
        if reservation is None or reservation.nbytes != size or reservation.mappings:
            return (INVALID,)
        del self._reservations[address]
        self._starts.remove(address)
        self._memory.unreserve(address, size)
        return (OK,)

    def cuMemCreate(self, size: int, properties: Any, flags: int) -> Result:
        pinned = properties.type == CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        if size <= 0 or size % self.granularity_bytes or not pinned:
            return INVALID, None
        if not self._room(size):
            return OUT_OF_MEMORY, None
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = _Handle(size, self._memory.create(size))
        self._used += size
        return OK, handle

    def cuMemRelease(self, handle: int) -> Result:
        found = self._handles.get(handle)
        if found is None or found.references == 0:
            return (INVALID,)
        found.references -= 1
        self._drop(handle)
        return (OK,)

    def _drop(self, handle: int) -> None:
        """Memory goes when nobody refers to the handle and it is mapped nowhere."""
        found = self._handles[handle]
        if found.references == 0 and found.mappings == 0:
            del self._handles[handle]
            self._memory.destroy(found.file)
            self._used -= found.nbytes

    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> Result:
        found, handle_books = self._find(address), self._handles.get(handle)
        if handle_books is None or handle_books.references == 0 or found is None:
            return (INVALID,)
        if size <= 0 or size % self.granularity_bytes or address % self.granularity_bytes:
            return (INVALID,)
        if offset:
            return (INVALID,)
        if size != handle_books.nbytes:
            return (CUresult.CUDA_ERROR_NOT_SUPPORTED,)
        if address + size > found.start + found.nbytes:
            return (INVALID,)
        cells = range(address, address + size, self.granularity_bytes)
        if any(cell in found.cells for cell in cells):
            return (INVALID,)
        found.mappings[address] = _Mapping(size, handle)
        found.cells.update(dict.fromkeys(cells, address))
        handle_books.mappings += 1
        self._memory.map(address, size, handle_books.file)
        return (OK,)

    def _whole(self, address: int, size: int) -> tuple[_Reservation, list[int]] | None:
        """The mappings that [address, address + size) consists of; None if it does not."""
        found = self._find(address)
        if found is None or size <= 0:
            return None
        starts: list[int] = []
        at = address
        while at < address + size:
            if at not in found.mappings:
                return None
            starts.append(at)
            at += found.mappings[at].nbytes
        return (found, starts) if at == address + size else None

    def cuMemUnmap(self, address: int, size: int) -> Result:
        whole = self._whole(address, size)
        if whole is None:
            return (INVALID,)
        reservation, starts = whole
        for at in starts:
            mapping = reservation.mappings.pop(at)
            for cell in range(at, at + mapping.nbytes, self.granularity_bytes):
                del reservation.cells[cell]
            self._memory.unmap(at, mapping.nbytes)
            self._handles[mapping.handle].mappings -= 1
            self._drop(mapping.handle)
        return (OK,)

    def cuMemSetAccess(self, address: int, size: int, grants: list[Any], count: int) -> Result:
        whole = self._whole(address, size)
        if whole is None or len(grants) != count:
            return (INVALID,)
        access = int(grants[0].flags)
        for at in whole[1]:
            mapping = whole[0].mappings[at]
            mapping.access = access
            self._memory.protect(at, mapping.nbytes, access & 1 != 0, access & 2 != 0)
        return (OK,)

    def cuMemGetAccess(self, location: Any, address: int) -> Result:
        mapping = self._mapping_at(address)
        return (INVALID, None) if mapping is None else (OK, mapping.access)

    def cuMemRetainAllocationHandle(self, address: int) -> Result:
        mapping = self._mapping_at(address)
        if mapping is None:
            return INVALID, None
        self._handles[mapping.handle].references += 1
        return OK, mapping.handle

    def _mapping_at(self, address: int) -> _Mapping | None:
        found = self._find(address)
        if found is None:
            return None
        start = found.cells.get(address - address % self.granularity_bytes)
        return None if start is None else found.mappings[start]

    # -- ordinary memory --------------------------------------------------------------------------

    def cuMemAlloc(self, size: int) -> Result:
        if not self._has_context():
            return CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        if size <= 0:
            return INVALID, None
        granule = self.granularity_bytes
        taken = -(-size // granule) * granule
        if not self._room(taken):
            return OUT_OF_MEMORY, None
        start = self._memory.reserve(taken, granule)
        self._memory.protect(start, taken, True, True)
        self._allocations[start] = (size, taken)
        self._used += taken
        return OK, start

    def cuMemFree(self, address: int) -> Result:
        """Waits for all that is enqueued, as on a card."""
        if address not in self._allocations:
            return (INVALID,)
        self.streams.wait_idle()
        with self._lock:
            _, taken = self._allocations.pop(address)
            self._memory.unreserve(address, taken)
            self._used -= taken
        return (OK,)

    def cuMemHostAlloc(self, size: int, flags: int) -> Result:
        if not self._has_context():
            return CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        if size <= 0:
            return INVALID, None
        taken = -(-size // 4096) * 4096
        start = self._memory.reserve(taken, 4096)
        self._memory.protect(start, taken, True, True)
        self._host[start] = (size, taken)
        return OK, start

    def cuMemFreeHost(self, address: int) -> Result:
        if address not in self._host:
            return (INVALID,)
        _, taken = self._host.pop(address)
        self._memory.unreserve(address, taken)
        return (OK,)

    # -- bytes ------------------------------------------------------------------------------------

    def _in_host(self, address: int, nbytes: int) -> bool:
        return any(
            start <= address and address + nbytes <= start + size
            for start, (size, _) in self._host.items()
        )

    def _transfer(
        self, stream: int, reads: tuple[int, int] | None, writes: tuple[int, int] | None, run: Any
    ) -> Result:
        """A copy or fill on a stream. A device range without access is refused; one that loses it
        before the stream gets there breaks the context."""
        if not self._has_context():
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        if not self.streams.known(stream):
            return (CUresult.CUDA_ERROR_INVALID_HANDLE,)
        for place, write in ((reads, False), (writes, True)):
            if place is not None and not self._accessible(*place, write=write):
                return (INVALID,)

        def body() -> None:
            readable = reads is None or self._accessible(*reads, write=False)
            writable = writes is None or self._accessible(*writes, write=True)
            if readable and writable:
                run()
            else:
                self.failure = STICKY

        self.streams.enqueue(stream, body)
        return (OK,)

    def cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: int) -> Result:
        run = lambda: self._memory.move(target, source, size)  # noqa: E731
        return self._transfer(stream, (source, size), (target, size), run)

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> Result:
        if not self._in_host(target, size):
            return (INVALID,)
        run = lambda: self._memory.move(target, source, size)  # noqa: E731
        return self._transfer(stream, (source, size), None, run)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> Result:
        if not self._in_host(source, size):
            return (INVALID,)
        run = lambda: self._memory.move(target, source, size)  # noqa: E731
        return self._transfer(stream, None, (target, size), run)

    def cuMemsetD8Async(self, address: int, byte: int, size: int, stream: int) -> Result:
        run = lambda: self._memory.fill(address, byte, size)  # noqa: E731
        return self._transfer(stream, None, (address, size), run)


_BLOCKING = ("cuStreamSynchronize", "cuEventSynchronize", "cuMemFree")
"""Calls that wait, and must not keep others from calling meanwhile."""
_BAD_HANDLE = CUresult.CUDA_ERROR_INVALID_HANDLE
_RESULTS = {"cuMemGetInfo": 2} | dict.fromkeys(
    "cuDeviceGet cuDeviceGetName cuDriverGetVersion cuDeviceGetAttribute cuMemHostAlloc "
    "cuDevicePrimaryCtxRetain cuMemGetAllocationGranularity cuMemAddressReserve cuMemCreate "
    "cuMemGetAccess cuMemRetainAllocationHandle cuMemAlloc cuStreamCreate cuEventCreate".split(),
    1,
)


def _failed(name: str, status: CUresult) -> Result:
    """The tuple a failing call of this name returns: its values are None."""
    return (status, *[None] * _RESULTS.get(name, 0))
