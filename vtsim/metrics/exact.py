"""Statistics on integers, exact until the last rounding, so that equal runs print equal bytes.

The rule for every float that is printed: the exact quotient of two integers, rounded half to even
to a fixed number of decimals, then to the nearest float. bytes x picoseconds overflows int64, so
integrals are Python integers.
"""

from __future__ import annotations

import numpy as np

from vtsim.request import TICKS_PER_S, IntArray, Tick

_LIMB = 21
_MASK = 2**_LIMB - 1
_BLOCK = 2**20
"""Products of two limbs stay below 2**42; this many of them sum below 2**62."""


def ratio(numerator: int, denominator: int, digits: int = 9) -> float:
    """numerator / denominator by the rule above; 0.0 for 0 / 0."""
    if denominator == 0:
        if numerator:
            raise ZeroDivisionError(f"{numerator} / 0")
        return 0.0
    scale: int = 10**digits
    whole, rest = divmod(numerator * scale, denominator)
    twice = 2 * rest
    if twice > denominator or (twice == denominator and whole % 2):
        whole += 1
    return whole / scale


def seconds(ticks: Tick, denominator: int = 1) -> float:
    """`ticks` / `denominator` in seconds, to the nanosecond."""
    return ratio(ticks, denominator * TICKS_PER_S)


def dot(left: IntArray, right: IntArray) -> int:
    """Exact sum of products of two arrays of non-negative integers."""
    total = 0
    for start in range(0, len(left), _BLOCK):
        a, b = left[start : start + _BLOCK], right[start : start + _BLOCK]
        for i in range(3):
            limb = (a >> (i * _LIMB)) & _MASK
            if not limb.any():
                continue
            for j in range(3):
                part = int(np.dot(limb, (b >> (j * _LIMB)) & _MASK))
                total += part << ((i + j) * _LIMB)
    return total


def total(values: IntArray) -> int:
    """Exact sum of non-negative integers."""
    return dot(values, np.ones_like(values))


def percentile(ordered: IntArray, percent: int) -> tuple[int, int]:
    """Linearly interpolated percentile of sorted values, as (numerator, denominator).

    Position (n - 1) x percent / 100, as numpy's default. Raises `IndexError` for no values.
    """
    low, part = divmod((len(ordered) - 1) * percent, 100)
    value = int(ordered[low]) * 100
    if part:
        value += (int(ordered[low + 1]) - int(ordered[low])) * part
    return value, 100


def weighted_percentiles(
    values: IntArray, weights: IntArray, percents: tuple[int, ...]
) -> list[int]:
    """Smallest value v such that `values` <= v for at least each percentage of the total weight."""
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order])
    whole = int(cumulated[-1])
    found = []
    for percent in percents:
        target = max(1, -(-whole * percent // 100))
        found.append(int(values[order[int(np.searchsorted(cumulated, target))]]))
    return found
