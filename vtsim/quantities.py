"""Sizes in words: `parse_bytes("40GiB")`, `format_bytes(42949672960)`.

GB is 1e9 bytes, GiB is 2**30. Only text is handled here; what a size means is its reader's affair.
"""

from __future__ import annotations

import re
from fractions import Fraction

from vtsim.errors import ConfigError

UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_BY_FOLDED = {unit.casefold(): size for unit, size in UNITS.items()}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


MOST_BYTES = 1 << 62
"""Byte counts are kept in 64 bits."""


def parse_bytes(text: str | int, what: str = "size") -> int:
    """Bytes in `text`: a whole number, or a number with one of `UNITS` (any case).

    Raises `ConfigError`, naming `what`, for anything else: a sign, a bare `G`, a size that is not
    a whole number of bytes.
    """
    if isinstance(text, int):
        if isinstance(text, bool) or text < 0:
            raise ConfigError(f"{what}: {text!r} is not a size in bytes")
        if text > MOST_BYTES:
            raise ConfigError(f"{what}: {text} is more than {MOST_BYTES >> 60} EiB")
        return text
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{what}: {text!r} is not a size (examples: 40GiB, 2MiB, 80GB, 1048576)")
    number, unit = found.groups()
    scale = _BY_FOLDED.get((unit or "B").casefold())
    if scale is None:
        raise ConfigError(f"{what}: unknown unit {unit!r} in {text!r} (known: {', '.join(UNITS)})")
    # Before the exact value is made: 1e999999999 has a billion digits.
    if float(number) * scale > 2.0 * MOST_BYTES:
        raise ConfigError(f"{what}: {text!r} is more than {MOST_BYTES >> 60} EiB")
    value = Fraction(number) * scale
    if value.denominator != 1:
        raise ConfigError(f"{what}: {text!r} is not a whole number of bytes")
    if value > MOST_BYTES:
        raise ConfigError(f"{what}: {text!r} is more than {MOST_BYTES >> 60} EiB")
    return int(value)


def format_bytes(nbytes: float) -> str:
    """A size for people: the largest binary unit that leaves at least 1, three digits or so."""
    size = abs(nbytes)
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            value = nbytes / UNITS[unit]
            return f"{value:.1f} {unit}" if abs(value) >= 9.995 else f"{value:.2f} {unit}"
    return f"{nbytes:.0f} B"


def exact_bytes(nbytes: int) -> str:
    """A size that `parse_bytes` reads back as the same number: 2MiB, 1000B."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if nbytes and nbytes % UNITS[unit] == 0:
            return f"{nbytes // UNITS[unit]}{unit}"
    return f"{nbytes}B"


def format_seconds(seconds: float) -> str:
    """A duration for people: µs, ms, s or h:mm:ss."""
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    if size < 1:
        return f"{seconds * 1e3:.1f} ms"
    if size < 1e4:
        return f"{seconds:.2f} s" if size < 100 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"
