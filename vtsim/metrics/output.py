"""Writes outputs so that nothing half-written stays behind, and refuses bad paths beforehand.

A regular or new file is written aside, then renamed over the target; a device, a pipe or `-`
(standard output) is written in place. What a killed process left aside goes at the next write to
the same place. A name that ends in .gz or .zst is written compressed. This module knows no formats.
"""

from __future__ import annotations

import glob
import gzip
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vtsim.errors import ConfigError

_DESCRIPTOR = re.compile(r"/dev/fd/(\d+)|/proc/self/fd/(\d+)")


def _descriptor(path: str | Path) -> int | None:
    """The open file that `path` names, if it names one: -, /dev/stdout, /dev/fd/63, ..."""
    text = str(path)
    if text in ("-", "/dev/stdout"):
        return 1
    if text == "/dev/stderr":
        return 2
    found = _DESCRIPTOR.fullmatch(text)
    return int(found[1] or found[2]) if found else None


def is_stdout(path: str | Path) -> bool:
    """True if writing to `path` writes to standard output."""
    return _descriptor(path) == 1


def check_file(path: str | Path) -> None:
    """Raises `ConfigError` if `path` cannot be written. Leaves nothing behind."""
    descriptor = _descriptor(path)
    text = os.fspath(path)
    try:
        if descriptor is not None:
            os.fstat(descriptor)
            return
        if not text or text.endswith(os.sep):
            raise ConfigError(f"cannot write {text!r}: that is no file's name")
        target = _real(path)
        if target.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder")
        if target.exists() and not os.access(target, os.W_OK):
            raise ConfigError(f"cannot write {path}: permission denied")
        if not _in_place(target):
            _check_parent(path, target.parent)
            _try_out(target)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def check_folder(path: str | Path, mark: str) -> None:
    """Raises `ConfigError` if `path` can neither be made nor be written into, or holds files
    but not `mark`, which tells that they are an earlier run's. Leaves nothing behind."""
    target = _real(path)
    if not os.fspath(path) or target == target.parent:
        raise ConfigError(f"cannot write into {os.fspath(path)!r}: name a folder of its own")
    try:
        if os.path.lexists(target) and not target.exists():
            raise ConfigError(f"cannot write into {path}: too many levels of symbolic links")
        if target.exists():
            if not target.is_dir():
                raise ConfigError(f"cannot write into {path}: it is not a folder")
            if not os.access(target, os.W_OK | os.X_OK):
                raise ConfigError(f"cannot write into {path}: permission denied")
            if not (target / mark).is_file() and any(target.iterdir()):
                raise ConfigError(
                    f"cannot write into {path}: it holds files, but no earlier run ({mark})"
                )
        parent, name = target.parent, target.name
        while not os.path.lexists(parent):
            parent, name = parent.parent, parent.name
        _check_parent(path, parent)
        _try_out(parent / name)
    except OSError as error:
        raise ConfigError(f"cannot write into {path}: {error.strerror or error}") from error


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, compressed where the name says so. The old file stands until the new
    one is complete."""
    descriptor = _descriptor(path)
    target = _real(path)
    try:
        if descriptor == 1:  # behind what is buffered there already
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        if descriptor is not None:
            with open(descriptor, "w", encoding="utf-8", newline="", closefd=False) as stream:
                stream.write(text)
            return
        data = _packed(path, text.encode())
        if _in_place(target):
            with open(target, "wb") as raw:
                raw.write(data)
            return
        aside = aside_of(target)
        with _removed_on_failure(aside):
            with open(aside, "xb") as raw:
                raw.write(data)
            if target.exists():
                shutil.copymode(target, aside)
            os.replace(aside, target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def _packed(path: str | Path, data: bytes) -> bytes:
    """Compressed as the name's ending says. The bytes depend on `data` alone: no time, no name."""
    name = os.fspath(path).lower()
    if name.endswith(".gz"):
        return gzip.compress(data, mtime=0)
    if name.endswith(".zst"):
        import zstandard

        return zstandard.compress(data)
    return data


def write_plain(path: Path, text: str) -> None:
    """Write `text` as UTF-8 where nothing stands yet: into a folder that is written aside."""
    with open(path, "x", encoding="utf-8", newline="") as stream:
        stream.write(text)


def write_folder(
    path: str | Path, writers: dict[str, Callable[[Path], None]], known: frozenset[str]
) -> None:
    """Write files (name -> what writes it at a path) into a folder, all of them or none. A name may
    begin with a folder in it: `chat/requests.csv`.

    Files in `known` that are not written this time are removed: they tell of an earlier run.
    Others are left alone.
    """
    target = _real(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = aside_of(target)
        with _removed_on_failure(aside):
            aside.mkdir()
            for name, write in writers.items():
                (aside / name).parent.mkdir(exist_ok=True)
                write(aside / name)
            if not target.exists():
                os.rename(aside, target)
                return
            for name in writers:
                (target / name).parent.mkdir(exist_ok=True)
                os.replace(aside / name, target / name)
            for name in known - writers.keys():
                (target / name).unlink(missing_ok=True)
            shutil.rmtree(aside)
    except OSError as error:
        raise ConfigError(f"cannot write into {path}: {error.strerror or error}") from error


def _real(path: str | Path) -> Path:
    """The path with links followed, so that a link stays a link when its target is replaced."""
    return Path(os.path.realpath(path))


def _in_place(target: Path) -> bool:
    try:
        return not stat.S_ISREG(target.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def aside_of(target: Path) -> Path:
    """Where to write what is then renamed to `target`. Removes what processes that run no more, or
    an earlier one of this number, left aside of it."""
    name = _aside_name(target)
    pattern = glob.escape(name) + ".*.part"
    for left in target.parent.glob(pattern):
        number = left.name[len(name) + 1 : -len(".part")]
        if number.isdecimal() and not _runs(int(number)):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    return target.with_name(f"{name}.{os.getpid()}.part")


def _aside_name(target: Path) -> str:
    # Cut, so that it is no longer than any name may be, where the target's own is not.
    return f".{target.name[:50]}"


def _runs(process: int) -> bool:
    """True if another process of that number runs on this machine, or may."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def _try_out(target: Path) -> None:
    """Make what would be written aside, and take it away: some folders (/proc) only look right."""
    aside = aside_of(target)
    with _removed_on_failure(aside):
        aside.mkdir()
    aside.rmdir()


def _check_parent(path: str | Path, parent: Path) -> None:
    if not parent.is_dir():
        raise ConfigError(f"cannot write {path}: no folder {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write {path}: folder {parent} is not writable")


@contextmanager
def _removed_on_failure(aside: Path) -> Iterator[None]:
    """Also on Ctrl-C, which is not an `Exception`."""
    try:
        yield
    except BaseException:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)
        raise
