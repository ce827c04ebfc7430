"""Who owns what on the device: a reservation, a handle, a mapping, an allocation, pinned bytes.

Each is made by one constructor and given back by one `close()`, once; closing out of order (a
handle that is mapped, a range that tensors still view) is refused, because the driver would not
refuse it. They must not know plans, chunks' names or slots.
"""

from __future__ import annotations

import weakref
from typing import Any

from vtsim.backends.cuda.driver import CudaDriver
from vtsim.errors import InvariantError


class Reservation:
    """A range of device addresses, empty until something is mapped into it."""

    __slots__ = ("address", "driver", "mappings", "nbytes", "viewers")

    def __init__(self, driver: CudaDriver, nbytes: int) -> None:
        self.driver = driver
        self.nbytes = nbytes
        self.mappings = 0
        """Live mappings in the range."""
        self.viewers: weakref.WeakSet[Any] = weakref.WeakSet()
        """What tensors hold on to; while one lives the range is not freed."""
        self.address = driver.reserve(nbytes)

    def close(self) -> None:
        """Raises InvariantError while anything is mapped in the range or views it."""
        if not self.address:
            return
        if self.mappings:
            raise InvariantError(
                "driver-reserve", f"{self.mappings} mappings are in the range to be freed"
            )
        viewers = len(self.viewers)
        if viewers:
            raise InvariantError(
                "driver-reserve", f"{viewers} tensors still view the range to be freed"
            )
        self.driver.free_addresses(self.address, self.nbytes)
        self.address = 0


class Handle:
    """Physical memory of a fixed size. `name` is what its owner calls it."""

    __slots__ = ("driver", "mappings", "name", "nbytes", "value")

    def __init__(self, driver: CudaDriver, nbytes: int, name: int) -> None:
        self.driver = driver
        self.name = name
        self.nbytes = nbytes
        self.mappings = 0
        self.value: Any = driver.create(nbytes)

    def close(self) -> None:
        """Raises InvariantError while it is mapped: the driver would keep the memory silently."""
        if self.value is None:
            return
        if self.mappings:
            raise InvariantError("driver-destroy", f"the handle is mapped {self.mappings} times")
        self.driver.release(self.value)
        self.value = None


class Mapping:
    """A handle, whole, at an address inside a reservation. Nobody may touch it before `grant`."""

    __slots__ = ("address", "handle", "reservation")

    def __init__(self, reservation: Reservation, offset: int, handle: Handle) -> None:
        self.address = address = reservation.address + offset
        reservation.driver.map(address, handle.nbytes, handle.value)
        self.handle = handle
        self.reservation = reservation
        handle.mappings += 1
        reservation.mappings += 1

    def close(self) -> None:
        if not self.address:
            return
        handle, reservation = self.handle, self.reservation
        reservation.driver.unmap(self.address, handle.nbytes)
        self.address = 0
        handle.mappings -= 1
        reservation.mappings -= 1


def grant(driver: CudaDriver, mapped: dict[int, int]) -> None:
    """Let the device read and write mappings (address -> bytes); neighbours in one call.

    A call over n handles takes n times as long as over one (FACTS), but the memory thread takes and
    gives up Python's lock once instead of n times, which the launching thread feels.
    """
    ordered = sorted(mapped.items())
    start = end = ordered[0][0]
    for address, nbytes in ordered:
        if address != end:
            driver.set_access(start, end - start)
            start = address
        end = address + nbytes
    driver.set_access(start, end - start)


class Allocation:
    """Ordinary device memory (`cuMemAlloc`). Giving it back may wait for kernels."""

    __slots__ = ("address", "driver", "nbytes")

    def __init__(self, driver: CudaDriver, nbytes: int) -> None:
        self.driver = driver
        self.nbytes = nbytes
        self.address = driver.allocate(nbytes)

    def close(self) -> None:
        if self.address:
            self.driver.free(self.address)
            self.address = 0


class PinnedBytes:
    """Host memory that the device copies to and from at full speed."""

    __slots__ = ("address", "driver", "nbytes")

    def __init__(self, driver: CudaDriver, nbytes: int) -> None:
        self.driver = driver
        self.nbytes = nbytes
        self.address = driver.allocate_host(nbytes)

    def close(self) -> None:
        if self.address:
            self.driver.free_host(self.address)
            self.address = 0


class PinnedPool:
    """Pinned buffers kept for reuse: pinning a page costs far more than copying it."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._idle: list[PinnedBytes] = []

    @property
    def idle_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._idle)

    def take(self, nbytes: int) -> PinnedBytes:
        """A buffer of at least `nbytes`: the smallest idle one that fits, else a new one."""
        fitting = [buffer for buffer in self._idle if buffer.nbytes >= nbytes]
        if not fitting:
            return PinnedBytes(self._driver, nbytes)
        best = min(fitting, key=lambda buffer: buffer.nbytes)
        self._idle.remove(best)
        return best

    def give(self, buffer: PinnedBytes) -> None:
        self._idle.append(buffer)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
