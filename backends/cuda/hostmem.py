"""Where the fake driver's memory lies: nowhere (sizes only), or in real host pages.

`HostMemory` gives the fake the same virtual memory that a card has, by the kernel's own page
tables: a reservation is inaccessible address space, a handle a memory file, a map an `mmap` of it
there. Aliases, poison and torn tails are then real on a CPU. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Protocol

from vtsim.errors import ConfigError

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS, _NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
_FAILED = ctypes.c_void_p(-1).value


class Memory(Protocol):
    """What the fake driver needs of the place its bytes are in. Callers have checked everything."""

    def reserve(self, nbytes: int, alignment: int) -> int: ...
    def unreserve(self, address: int, nbytes: int) -> None: ...
    def create(self, nbytes: int) -> int: ...
    def destroy(self, file: int) -> None: ...
    def map(self, address: int, nbytes: int, file: int) -> None: ...
    def protect(self, address: int, nbytes: int, readable: bool, writable: bool) -> None: ...
    def unmap(self, address: int, nbytes: int) -> None: ...
    def move(self, target: int, source: int, nbytes: int) -> None: ...
    def fill(self, address: int, byte: int, nbytes: int) -> None: ...


class NoMemory:
    """Addresses without bytes behind them: for books of any size."""

    def __init__(self) -> None:
        self._next = 1 << 45
        self._files = 0

    def reserve(self, nbytes: int, alignment: int) -> int:
        address = -(-self._next // alignment) * alignment
        self._next = address + nbytes
        return address

    def create(self, nbytes: int) -> int:
        self._files += 1
        return self._files

    def unreserve(self, address: int, nbytes: int) -> None:
        pass

    def destroy(self, file: int) -> None:
        pass

    def map(self, address: int, nbytes: int, file: int) -> None:
        pass

    def protect(self, address: int, nbytes: int, readable: bool, writable: bool) -> None:
        pass

    def unmap(self, address: int, nbytes: int) -> None:
        pass

    def move(self, target: int, source: int, nbytes: int) -> None:
        pass

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        pass


class HostMemory:
    """Addresses of this process, backed by memory files."""

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigError("a fake device with real bytes needs Linux (memfd_create, mmap)")
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_long,
        ]  # fmt: skip
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc = libc

    def _mmap(self, address: int, nbytes: int, flags: int, file: int = -1) -> int:
        got = self._libc.mmap(address or None, nbytes, _PROT_NONE, flags, file, 0)
        if got is None or got == _FAILED:
            raise MemoryError(os.strerror(ctypes.get_errno()))
        return int(got)

    def _vacate(self, address: int, nbytes: int, fixed: int = 0) -> int:
        return self._mmap(address, nbytes, _PRIVATE | _ANONYMOUS | _NORESERVE | fixed)

    def reserve(self, nbytes: int, alignment: int) -> int:
        start = self._vacate(0, nbytes + alignment)
        address = -(-start // alignment) * alignment
        if address > start:
            self._libc.munmap(start, address - start)
        if rest := start + alignment - address:
            self._libc.munmap(address + nbytes, rest)
        return address

    def unreserve(self, address: int, nbytes: int) -> None:
        self._libc.munmap(address, nbytes)

    def create(self, nbytes: int) -> int:
        file = os.memfd_create("vtsim-chunk")
        os.ftruncate(file, nbytes)
        return file

    def destroy(self, file: int) -> None:
        os.close(file)

    def map(self, address: int, nbytes: int, file: int) -> None:
        self._mmap(address, nbytes, _SHARED | _FIXED, file)

    def protect(self, address: int, nbytes: int, readable: bool, writable: bool) -> None:
        bits = (_PROT_READ if readable else 0) | (_PROT_WRITE if writable else 0)
        if self._libc.mprotect(address, nbytes, bits):
            raise MemoryError(os.strerror(ctypes.get_errno()))

    def unmap(self, address: int, nbytes: int) -> None:
        self._vacate(address, nbytes, _FIXED)

    def move(self, target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        ctypes.memset(address, byte, nbytes)
