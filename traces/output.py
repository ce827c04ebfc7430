"""Writes a file whole or not at all: beside its place first, then renamed onto it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from vtsim.errors import ConfigError


def check_writable(path: str | Path) -> None:
    """Refuses, before any work, an output path that cannot be written. Changes nothing."""
    if str(path) == "-":
        return
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"{target}: is a folder, not a file to write")
    if target.exists():
        if not os.access(target, os.W_OK):
            raise ConfigError(f"{target}: cannot be written")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: folder {target.parent} does not exist")
    if not target.exists() and not os.access(target.parent, os.W_OK):
        raise ConfigError(f"{target}: folder {target.parent} cannot be written")


@contextmanager
def writing(path: str | Path) -> Iterator[IO[str]]:
    """A text stream (UTF-8, LF). A device, a pipe or `-` is written in place."""
    check_writable(path)
    if str(path) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    target = Path(path)
    if target.exists() and not target.is_file():
        with open(target, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
        return
    target = target.resolve()  # a link keeps pointing at what it points at
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(aside, "x", encoding="utf-8", newline="\n") as stream:
            yield stream
        os.replace(aside, target)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        aside.unlink(missing_ok=True)
