"""Many Azure rows at once: lines of exactly `YYYY-MM-DD hh:mm:ss.fffffff,digits,digits`.

All 2023 files are such lines. A block with any other line is refused, and read line by line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vtsim.request import IntArray

_STAMP = 27
_PLACES = np.array(
    [*range(0, 4), 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, *range(20, 27)], dtype=np.int64
)
_MARKS = ((4, "-"), (7, "-"), (10, " "), (13, ":"), (16, ":"), (19, "."))
_MOST_DIGITS = 9


class Block(NamedTuple):
    """Columns of a block."""

    nanoseconds: IntArray
    """Since 1970."""
    prompt: IntArray
    output: IntArray


def parse_block(data: bytes) -> Block | None:
    """The rows of `data`, which ends behind a line; None if any line is not of the plain form."""
    text = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate(([0], ends[:-1] + 1))
    ends = ends - (text[ends - 1] == ord("\r"))
    commas = np.flatnonzero(text == ord(","))
    if len(commas) != 2 * len(starts):
        return None
    first, second = commas[::2], commas[1::2]
    if not bool(((first - starts == _STAMP) & (second > first) & (second < ends)).all()):
        return None
    nanoseconds = _stamps(text, starts)
    prompt = _counts(text, first + 1, second)
    output = _counts(text, second + 1, ends)
    if nanoseconds is None or prompt is None or output is None:
        return None
    return Block(nanoseconds, prompt, output)


def _stamps(text: NDArray[np.uint8], starts: IntArray) -> IntArray | None:
    for place, mark in _MARKS:
        if bool((text[starts + place] != ord(mark)).any()):
            return None
    digits = text[starts[:, None] + _PLACES].astype(np.int64) - ord("0")
    if bool(((digits < 0) | (digits > 9)).any()):
        return None

    def number(low: int, high: int) -> IntArray:
        value: IntArray = digits[:, low].copy()
        for place in range(low + 1, high):
            value = value * 10 + digits[:, place]
        return value

    year, month, day = number(0, 4), number(4, 6), number(6, 8)
    hour, minute, second = number(8, 10), number(10, 12), number(12, 14)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    in_month = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
    good = (year >= 1900) & (year <= 2100) & (month >= 1) & (month <= 12)
    if not bool(good.all()):
        return None
    good = (day >= 1) & (day <= in_month[month] + (leap & (month == 2)))
    good &= (hour <= 23) & (minute <= 59) & (second <= 59)
    if not bool(good.all()):
        return None
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - 719162
    days += np.cumsum(in_month)[month - 1] + (leap & (month > 2)) + day - 1
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    return seconds * 10**9 + number(14, 21) * 100


def _counts(text: NDArray[np.uint8], starts: IntArray, ends: IntArray) -> IntArray | None:
    lengths = ends - starts
    longest = int(lengths.max())
    if int(lengths.min()) < 1 or longest > _MOST_DIGITS:
        return None
    total = np.zeros(len(starts), dtype=np.int64)
    for place in range(longest):
        inside = lengths > place
        digit = text[starts + np.minimum(place, lengths - 1)].astype(np.int64) - ord("0")
        if bool(((digit < 0) | (digit > 9)).any()):
            return None
        total = np.where(inside, total * 10 + digit, total)
    return total
