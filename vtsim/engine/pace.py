"""Arithmetic of steps whose costs grow linearly: step j costs `first + j * slope` ticks. Exact."""

from __future__ import annotations

from math import sqrt

from vtsim.request import Tick


def steps_until(gap: Tick, first: Tick, slope: Tick, at_most: int) -> int:
    """The most steps, from step 0 on and up to `at_most`, that end before `gap` ticks are over."""
    if gap <= 0 or at_most <= 0:
        return 0
    if at_most * first + slope * (at_most * (at_most - 1) // 2) < gap:
        return at_most
    if not slope:
        return (gap - 1) // first
    # n * first + slope * n * (n - 1) / 2 < gap, solved for n in floats, then corrected in integers.
    b = 2 * first - slope
    n = min(at_most, int((sqrt(float(b * b + 8 * slope * gap)) - b) / (2 * slope)))
    while n > 0 and n * first + slope * (n * (n - 1) // 2) >= gap:
        n -= 1
    while n < at_most and (n + 1) * first + slope * ((n + 1) * n // 2) < gap:
        n += 1
    return n
