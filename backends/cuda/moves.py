"""Bytes in motion: tail copies, swaps and fills, on a stream beside the one that computes.

They start when the kernels that use their slots have ended, and are waited for once a plan, so the
launching thread never waits. Swapped bytes lie in pinned host memory under a name until a plan that
brought them back was done. It must not know operations or page tables.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from vtsim.backends.cuda.driver import CudaDriver
from vtsim.backends.cuda.fence import Fence
from vtsim.backends.cuda.owners import PinnedBytes, PinnedPool


class Mover:
    """The side stream, and what it was given since `finish`."""

    def __init__(self, driver: CudaDriver, fence: Fence) -> None:
        self._driver = driver
        self._fence = fence
        self._stream: Any = None
        self.busy = False
        """True if something may still be moving."""
        self._pinned = PinnedPool(driver)
        self._swapped: dict[Hashable, tuple[PinnedBytes, int]] = {}
        self._written: list[Hashable] = []
        self._read: list[Hashable] = []

    @property
    def host_bytes(self) -> int:
        """Bytes swapped out."""
        return sum(nbytes for _, nbytes in self._swapped.values())

    def swapped_bytes(self, name: Hashable) -> int:
        """Bytes swapped out under a name; 0 if none."""
        found = self._swapped.get(name)
        return 0 if found is None else found[1]

    def _begin(self, after: tuple[Hashable, ...]) -> Any:
        if self._stream is None:
            self._stream = self._driver.create_stream()
        for thing in after:
            self._fence.order(self._stream, thing)
        self.busy = True
        return self._stream

    def copy(self, target: int, source: int, nbytes: int, after: tuple[Hashable, ...]) -> None:
        """Device to device, once the kernels that use `after` have ended."""
        self._driver.copy(target, source, nbytes, self._begin(after))

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self._driver.fill(address, byte, nbytes, self._begin(()))

    def swap_out(self, name: Hashable, source: int, nbytes: int, after: Hashable) -> None:
        buffer = self._pinned.take(nbytes)
        self._swapped[name] = (buffer, nbytes)
        self._written.append(name)
        self._driver.copy_to_host(buffer.address, source, nbytes, self._begin((after,)))

    def swap_in(self, name: Hashable, target: int, nbytes: int, after: Hashable) -> None:
        buffer, _ = self._swapped[name]
        self._read.append(name)
        self._driver.copy_from_host(target, buffer.address, nbytes, self._begin((after,)))

    def finish(self) -> None:
        """Block until nothing moves any more."""
        if self.busy:
            self.busy = False
            self._driver.synchronize_stream(self._stream)

    def commit(self) -> None:
        """The plan was done: what it brought back needs no host memory."""
        self.finish()
        if self._read:
            for name in self._read:
                self._pinned.give(self._swapped.pop(name)[0])
            self._read.clear()
        self._written.clear()

    def abort(self) -> None:
        """The plan was undone: what it swapped out is still where it was."""
        self.finish()
        for name in self._written:
            self._pinned.give(self._swapped.pop(name)[0])
        self._written.clear()
        self._read.clear()

    def close(self) -> None:
        """Give back the stream and all host memory."""
        self.finish()
        for buffer, _ in self._swapped.values():
            buffer.close()
        self._swapped.clear()
        self._pinned.close()
        if self._stream is not None:
            self._driver.destroy_stream(self._stream)
            self._stream = None
