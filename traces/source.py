"""Opens what the user named: plain, gzip or zstd, as lines, CSV rows or text, with its SHA-256.

Things that are no trace are named for what they are (Git LFS pointer, HTML page, zip, parquet).
Line numbers are physical: blank lines count, a byte order mark and CRLF do not disturb them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import zstandard

from vtsim.errors import TraceFormatError
from vtsim.traces.number import Where
from vtsim.traces.pipe import Pipe

HEAD_BYTES = 1 << 16
MOST_LINE = 64 << 20
"""Bytes of a line: a longer one is no request, and would fill the memory."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPED = frozenset(bytes((low, 0x2A, 0x4D, 0x18)) for low in range(0x50, 0x60))
"""What begins the skippable frames of zstd: pzstd puts them first."""
_PACKED = "is compressed with %s: decompress it first (gzip and zstd are read as they are)"
_TABLE = "is %s; no reader takes that: convert it to CSV or JSONL"
_NO_TRACE = (
    (
        b"version https://git-lfs.github.com/spec/",
        "is a Git LFS pointer, not the data: run git lfs pull",
    ),
    (b"PK\x03\x04", "is a zip archive: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive: unpack it first"),
    (_GZIP, "is compressed twice: decompress it once"),
    (_ZSTD, "is compressed twice: decompress it once"),
    (b"\xfd7zXZ\x00", _PACKED % "xz"),
    (b"BZh", _PACKED % "bzip2"),
    (b"\x04\x22\x4d\x18", _PACKED % "lz4"),
    (b"\x1f\x9d", _PACKED % "compress"),
    (b"PAR1", _TABLE % "a Parquet file"),
    (b"ARROW1", _TABLE % "an Arrow file"),
    (b"\x93NUMPY", _TABLE % "a NumPy array"),
    (b"SQLite format 3\x00", _TABLE % "an SQLite database"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _TABLE % "an Excel or other Office file"),
    (b"%PDF", "is a PDF document, not a trace"),
    (b"\xff\xfe\x00\x00", "is UTF-32 text: save it as UTF-8"),
    (b"\xff\xfe", "is UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text: save it as UTF-8"),
)
_TAR_AT = 257


def what_it_is(head: bytes) -> str | None:
    """Why a file that begins so is no trace; None if it may be one."""
    for magic, what in _NO_TRACE:
        if head.startswith(magic):
            return what
    if head[_TAR_AT : _TAR_AT + 5] == b"ustar":
        return "is a tar archive: unpack it first"
    start = head[:512].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not a trace: download the raw file"
    if not head.strip(b"\xef\xbb\xbf \t\r\n"):
        return "is empty"
    if b"\0" in head:
        if any(head[1:512:2]) is not any(head[0:512:2]):  # every other byte
            return "is UTF-16 text: save it as UTF-8"
        return "holds NUL bytes: it is no text file"
    return None


class Source:
    """One input file (or a folder of them; `-` is standard input), opened as often as a reader
    needs."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path("/dev/stdin" if str(path) == "-" else path)
        self._pipe: Pipe | None = None
        if not str(path):
            raise TraceFormatError("the file's name is empty", path="''")
        try:
            self.path.stat()
        except FileNotFoundError:
            raise TraceFormatError("no such file", path=path) from None
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error
            raise TraceFormatError(f"cannot be read: {said}", path=path) from None
        self.is_dir = self.path.is_dir()
        if not self.is_dir:
            try:
                if not self.path.is_file():  # a pipe can be read once only
                    self._pipe = Pipe(self.path)
                self.head_bytes = self._check_head()
            except OSError as error:
                raise TraceFormatError(f"cannot be read: {error.strerror}", path=path) from None
            except TraceFormatError:
                self.close()
                raise

    def close(self) -> None:
        """Lets go of a pipe, so that who writes to it is not kept waiting."""
        if self._pipe is not None:
            self._pipe.close()

    def _too_long(self, line: int | None) -> TraceFormatError:
        return TraceFormatError(
            f"more than {MOST_LINE >> 20} MiB without a line end", path=self.path, line=line
        )

    @property
    def name(self) -> str:
        return self.path.name

    def where(self) -> Where:
        return Where(str(self.path))

    def _raw(self) -> IO[bytes]:
        return open(self.path, "rb") if self._pipe is None else self._pipe.open()

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The decompressed bytes. Damage found while reading is a `TraceFormatError`."""
        try:
            with self._raw() as raw:
                magic = raw.read(4)
                raw.seek(0)
                if magic.startswith(_GZIP):
                    with gzip.open(raw) as stream:
                        yield cast(IO[bytes], stream)
                elif magic == _ZSTD or magic in _SKIPPED:
                    yield io.BufferedReader(_Frames(raw), 1 << 20)
                else:
                    yield raw
        except (gzip.BadGzipFile, zlib.error, EOFError, zstandard.ZstdError) as error:
            raise TraceFormatError(f"damaged compressed data: {error}", path=self.path) from None
        except OSError as error:
            raise TraceFormatError(f"cannot be read: {error}", path=self.path) from None

    def _check_head(self) -> bytes:
        with self.open() as stream:
            head = stream.read(HEAD_BYTES)
        what = what_it_is(head)
        if what is not None:
            raise TraceFormatError(what, path=self.path)
        return head

    def sha256(self) -> str:
        """Of the file's bytes as they are on disk; of names and sums of the files of a folder."""
        digest = hashlib.sha256()
        if self.is_dir:
            for path in self.files():
                digest.update(f"{path.name}\0{Source(path).sha256()}\n".encode())
            return digest.hexdigest()
        with self._raw() as raw:
            while block := raw.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def files(self) -> list[Path]:
        """The JSON files of a folder, by name."""
        endings = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".json.zst", ".jsonl.zst")
        return sorted(p for p in self.path.iterdir() if p.is_file() and p.name.endswith(endings))

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(physical line number, line without its end and outer blanks) of non-blank lines."""
        number = 0
        with self.open() as stream:
            while line := stream.readline(MOST_LINE + 1):
                number += 1
                if len(line) > MOST_LINE:
                    raise self._too_long(number)
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                line = line.strip()
                if line:
                    yield number, line

    def text_lines(self, number: list[int]) -> Iterator[str]:
        """Every line as it is, blank ones too; `number[0]` follows."""
        with self.open() as stream:
            while line := stream.readline(MOST_LINE + 1):
                number[0] += 1
                if len(line) > MOST_LINE:
                    raise self._too_long(number[0])
                if number[0] == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                try:
                    yield line.decode()
                except UnicodeDecodeError:
                    raise TraceFormatError(
                        "is not UTF-8 text", path=self.path, line=number[0]
                    ) from None


class _Frames(io.RawIOBase):
    """The data of successive zstd frames. ZstdError if the last one is cut off."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = self._data = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while not self._data:
            packed = self._packed or self._raw.read(1 << 13)
            if not packed:
                if self._frame is not None:
                    raise zstandard.ZstdError("the data ends inside a frame (cut off?)")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._data = self._frame.decompress(packed)
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(view), len(self._data))
        view[:count] = self._data[:count]
        self._data = self._data[count:]
        return count
