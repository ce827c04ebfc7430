"""What comes through a pipe or from a device: taken as it is asked for, and held to be read again.

A pipe can be read once only and may never end, but readers open a file several times and stop at
what is wrong with it. So no more is taken than somebody reads.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO

from vtsim.errors import TraceFormatError

MOST_BYTES = 4 << 30
"""All of it is held in memory."""
_BLOCK = 1 << 16


class Pipe:
    """The bytes of a pipe; `open` reads them from the start, as often as it is called."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: IO[bytes] = open(path, "rb", buffering=0)
        self._held = bytearray()
        self._ended = False

    def open(self) -> IO[bytes]:
        """A stream over all of it, seekable."""
        return io.BufferedReader(_Window(self), _BLOCK)

    def close(self) -> None:
        """Takes no more; what is held can still be read."""
        self._ended = True
        self._stream.close()

    def part(self, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on; none at the end. TraceFormatError if there are more
        than can be held."""
        held = self._held
        while len(held) <= start and not self._ended:
            block = self._stream.read(_BLOCK)
            if not block:
                self.close()
            held += block
            if len(held) > MOST_BYTES:
                raise TraceFormatError(
                    f"more than {MOST_BYTES >> 20:,} MiB through a pipe: save it in a file",
                    path=self._path,
                )
        return bytes(held[start : start + size])


class _Window(io.RawIOBase):
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._pipe.part(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end of a pipe is not known")
        self._at = offset + (self._at if whence == io.SEEK_CUR else 0)
        return self._at
