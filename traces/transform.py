"""Changes to a whole trace after it is read: which requests, and how fast they come.

Nothing is left out silently: every row that goes is counted by reason in the report.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

import numpy as np

from vtsim.errors import ConfigError
from vtsim.request import NO_ARRIVAL, IntArray, Trace
from vtsim.traces.number import MAX_TICK

V = TypeVar("V")


def select(trace: Trace, rows: IntArray, reason: str) -> Trace:
    """The trace of `rows` (ascending), arrivals relative to the first of them.

    The others are counted as dropped for `reason`. A row whose `after` goes is taken to wait for
    nothing any more: callers keep sessions whole, or say so. ConfigError if no row is left.
    """
    if len(rows) == 0:
        raise ConfigError(f"{trace.name}: no requests left ({len(trace)} dropped: {reason})")
    if len(rows) == len(trace):
        return trace
    place = {int(row): i for i, row in enumerate(rows)}
    lost = len(trace) - len(rows)
    report = dataclasses.replace(
        trace.report,
        rows_kept=len(rows),
        dropped={**trace.report.dropped, reason: trace.report.dropped.get(reason, 0) + lost},
        warnings=list(trace.report.warnings),
    )
    lengths = np.diff(trace.run_offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    runs = np.repeat(trace.run_offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    arrival = trace.arrival[rows].copy()
    after: dict[int, tuple[int, ...]] = {}
    for row, parents in trace.after.items():
        if row in place:
            kept = tuple(place[p] for p in parents if p in place)
            if kept:
                after[place[row]] = kept
            else:
                raise ConfigError(
                    f"{trace.name}: request {trace.id_of(row)!r} waits for requests cut off"
                )
    timed = arrival != NO_ARRIVAL
    if timed.any():
        first = int(arrival[timed].min())
        arrival[timed] -= first
        report.removed_offset_s += first / 10**12

    def kept_of(column: Mapping[int, V]) -> dict[int, V]:
        return {place[row]: value for row, value in column.items() if row in place}

    return dataclasses.replace(
        trace,
        arrival=arrival,
        prompt_tokens=trace.prompt_tokens[rows],
        output_tokens=trace.output_tokens[rows],
        priority=trace.priority[rows],
        session=trace.session[rows],
        turn=trace.turn[rows],
        run_offsets=offsets,
        run_first=trace.run_first[runs],
        run_count=trace.run_count[runs],
        ids=tuple(trace.id_of(int(row)) for row in rows),
        after=after,
        wait=kept_of(trace.wait),
        recorded=kept_of(trace.recorded),
        extra=kept_of(trace.extra),
        report=report,
    )


def groups(trace: Trace) -> IntArray:
    """The conversation of each row: its session, else one of its own; rows tied by `after` share.

    Numbers are those of the first row of the group.
    """
    root = np.arange(len(trace), dtype=np.int64)
    if not (trace.session >= 0).any() and not trace.after:
        return root
    parent = root.tolist()

    def find(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    first_of: dict[int, int] = {}
    for row, session in enumerate(trace.session.tolist()):
        if session >= 0:
            a, b = find(first_of.setdefault(session, row)), find(row)
            parent[max(a, b)] = min(a, b)
    for row, parents in trace.after.items():
        for other in parents:
            a, b = find(other), find(row)
            parent[max(a, b)] = min(a, b)
    return np.array([find(row) for row in range(len(trace))], dtype=np.int64)


def limit_requests(trace: Trace, limit: int) -> Trace:
    """The first conversations, by arrival, that together have at most `limit` requests.

    Conversations stay whole; without sessions these are the first `limit` rows. ConfigError if
    the first conversation alone is larger.
    """
    if limit < 1:
        raise ConfigError(f"limit {limit}: must be at least 1")
    if limit >= len(trace):
        return trace
    group = groups(trace)
    sizes = np.bincount(group, minlength=len(trace))
    starts = np.flatnonzero(sizes)
    fits = np.cumsum(sizes[starts]) <= limit
    if not fits.any():
        raise ConfigError(
            f"limit {limit}: the first conversation alone has {sizes[starts[0]]} requests"
        )
    keep = np.zeros(len(trace), dtype=bool)
    keep[starts[fits]] = True
    return select(trace, np.flatnonzero(keep[group]), "limit")


def scale_speed(trace: Trace, speed: float | str | Decimal | Fraction) -> Trace:
    """Divides arrivals by `speed`, rounding once (half to even) to a picosecond.

    Acts on the trace's clock only: waits of closed-loop requests, a user's or a tool's time, stay.
    """
    factor = speed_factor(speed)
    if factor == 1:
        return trace
    top, bottom = factor.numerator, factor.denominator
    arrival = trace.arrival.copy()
    timed = np.flatnonzero(arrival != NO_ARRIVAL)
    last = int(arrival[timed].max()) if len(timed) else 0
    if last * bottom > MAX_TICK * top:
        raise ConfigError(f"speed {speed}: the trace becomes longer than 64-bit picoseconds hold")
    if last * bottom * 2 < MAX_TICK and top * 2 < MAX_TICK:
        product = arrival[timed] * bottom
        whole, rest = np.divmod(product, top)
        up = (2 * rest > top) | ((2 * rest == top) & (whole % 2 == 1))
        arrival[timed] = whole + up
    else:
        arrival[timed] = [round(Fraction(a * bottom, top)) for a in arrival[timed].tolist()]
    return dataclasses.replace(trace, arrival=arrival)


def speed_factor(speed: float | str | Decimal | Fraction) -> Fraction:
    """`speed` as the decimal number that was written; ConfigError unless positive and finite."""
    try:
        if isinstance(speed, float) and not math.isfinite(speed):
            raise ValueError
        factor = Fraction(repr(speed) if isinstance(speed, float) else speed)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"speed {speed}: not a positive number") from None
    if factor <= 0:
        raise ConfigError(f"speed {speed}: not a positive number")
    return factor
