"""Writes long texts piece by piece, whole or not at all, compressed where the name says so.

What may be written, and what names an open file, is `vtsim.metrics.output`'s business; that module
writes texts held in memory, this one streams. A device, a pipe or `-` is written in place.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from vtsim.errors import ConfigError
from vtsim.metrics.output import aside_of, check_file, is_stdout

COMPRESSED = (".gz", ".zst")
"""Endings of names that are written compressed."""


def check_writable(path: str | Path) -> None:
    """Refuses, before any work, an output path that cannot be written. Changes nothing."""
    if not str(path):
        raise ConfigError("cannot write: the file's name is empty")
    try:
        check_file(path)
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None


def bare_name(path: str | Path) -> str:
    """The name without the ending that says how it is compressed."""
    text = str(path)
    return next((text[: -len(end)] for end in COMPRESSED if text.lower().endswith(end)), text)


@contextmanager
def writing(path: str | Path) -> Iterator[IO[str]]:
    """A text stream (UTF-8, LF), compressed if `path` ends in .gz or .zst.

    ConfigError for whatever keeps it from being written; only BrokenPipeError passes, as the
    reader's leave. The bytes depend on the text alone: no time stamp, no name.
    """
    try:
        if is_stdout(path):
            check_writable(path)
            with _stdout() as stream:
                yield stream
            return
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _refused(path, error) from None
    with writing_bytes(path) as raw, _encoded(raw, path) as stream:
        yield stream


@contextmanager
def writing_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """The same for bytes as they are."""
    check_writable(path)
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            with open(target, "wb") as raw:
                yield raw
            return
        aside = aside_of(target)
        try:
            with open(aside, "xb") as raw:
                yield raw
            if target.exists():
                shutil.copymode(target, aside)
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _refused(path, error) from None


@contextmanager
def _encoded(raw: IO[bytes], path: str | Path) -> Iterator[IO[str]]:
    with ExitStack() as stack:
        if str(path).lower().endswith(".gz"):
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
            raw = cast(IO[bytes], stack.enter_context(packed))
        elif str(path).lower().endswith(".zst"):
            import zstandard

            compressor = zstandard.ZstdCompressor().stream_writer(raw, closefd=False)
            raw = cast(IO[bytes], stack.enter_context(compressor))
        stream = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
        yield stream
        stream.flush()
        stream.detach()


@contextmanager
def _stdout() -> Iterator[IO[str]]:
    """Standard output through a buffer of its own: what cannot be written does not stay behind in
    `sys.stdout`, to fail again at exit."""
    if sys.stdout is None:
        raise ConfigError("cannot write -: standard output is closed")
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file: a notebook, a test
        yield sys.stdout
        sys.stdout.flush()
        return
    with open(descriptor, "w", encoding="utf-8", newline="\n", closefd=False) as stream:
        yield stream


def _refused(path: str | Path, error: Exception) -> ConfigError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ConfigError(f"cannot write {path}: {reason}")
