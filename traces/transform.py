"""Which requests of a trace are kept, and in what order.

Nothing is left out silently: every row that goes is counted by reason in the report.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vtsim.errors import ConfigError, TraceFormatError
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, IntArray, Trace
from vtsim.traces.draw import Draw
from vtsim.traces.number import MAX_TICK
from vtsim.traces.order import rows_in_order

V = TypeVar("V")
_ENOUGH, _FAR_BELOW = 10, 0.5
"""Of a window: starts expected at the mean rate, fewer say nothing; and the share of them that is
far below."""
OVERFLOW_MODES = ("reject", "drop", "error")


def select(trace: Trace, rows: IntArray, reason: str) -> Trace:
    """The trace of `rows` (ascending), arrivals relative to the first of them.

    The others are counted as dropped for `reason`. ConfigError if no row is left, or one that is
    waits for one that is not.
    """
    if len(rows) == 0:
        raise ConfigError(f"{trace.name}: no requests left ({len(trace)} dropped: {reason})")
    if len(rows) == len(trace):
        return trace
    lost = len(trace) - len(rows)
    report = dataclasses.replace(
        trace.report,
        rows_kept=len(rows),
        dropped={**trace.report.dropped, reason: trace.report.dropped.get(reason, 0) + lost},
        warnings=list(trace.report.warnings),
    )
    cut = take(dataclasses.replace(trace, report=report), rows)
    timed = cut.arrival != NO_ARRIVAL
    if not timed.any():
        raise ConfigError(f"{trace.name}: no request that is left has an arrival")
    first = int(cut.arrival[timed].min())
    cut.arrival[timed] -= first
    report.removed_offset_s += first / TICKS_PER_S
    return cut


def take(trace: Trace, rows: IntArray) -> Trace:
    """The requests `rows`, in that order, unchanged. ConfigError if one waits for a row that is
    not among them."""
    place = {row: i for i, row in enumerate(rows.tolist())}
    numbered = not trace.ids and bool((rows == np.arange(len(rows))).all())
    lengths = np.diff(trace.run_offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    runs = np.repeat(trace.run_offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    after: dict[int, tuple[int, ...]] = {}
    for row, parents in trace.after.items():
        if row in place:
            if not all(parent in place for parent in parents):
                raise ConfigError(
                    f"{trace.name}: request {trace.id_of(row)!r} waits for requests cut off"
                )
            after[place[row]] = tuple(place[parent] for parent in parents)

    def kept_of(column: Mapping[int, V]) -> dict[int, V]:
        return {place[row]: value for row, value in column.items() if row in place}

    return dataclasses.replace(
        trace,
        arrival=trace.arrival[rows],
        prompt_tokens=trace.prompt_tokens[rows],
        output_tokens=trace.output_tokens[rows],
        priority=trace.priority[rows],
        session=trace.session[rows],
        turn=trace.turn[rows],
        run_offsets=offsets,
        run_first=trace.run_first[runs],
        run_count=trace.run_count[runs],
        ids=() if numbered else tuple(trace.id_of(row) for row in rows.tolist()),
        after=after,
        wait=kept_of(trace.wait),
        recorded=kept_of(trace.recorded),
        extra=kept_of(trace.extra),
        lines=None if trace.lines is None else trace.lines[rows],
        files=kept_of(trace.files),
    )


def without(trace: Trace, keep: NDArray[np.bool_]) -> Trace:
    """The same trace, where no kept request waits for one that is not kept.

    One that is dropped took no time: what waits for it waits for those that it waited for, and its
    wait is added where all that was waited for is dropped. If none of these is left, the request
    arrives by itself, when it would have come.
    """
    arrival = trace.arrival.copy()
    after, wait = dict(trace.after), dict(trace.wait)
    for row in sorted(after):  # parents stand before those that wait for them
        parents = after[row]
        left = [parent for parent in parents if keep[parent]]
        if len(left) == len(parents):
            continue
        gone = [parent for parent in parents if not keep[parent]]
        behind = [p for parent in gone for p in after.get(parent, ())]
        if not left:
            wait[row] = wait.get(row, 0) + max(wait.get(parent, 0) for parent in gone)
            if wait[row] > MAX_TICK:
                raise ConfigError(f"{trace.name}: waits are longer than 64-bit picoseconds hold")
        if left or behind:
            after[row] = tuple(dict.fromkeys([*left, *behind]))
            continue
        begins = max(int(arrival[parent]) for parent in gone) + wait.pop(row)
        if begins > MAX_TICK:
            raise ConfigError(f"{trace.name}: the trace is longer than 64-bit picoseconds hold")
        arrival[row] = begins
        del after[row]
    return dataclasses.replace(trace, arrival=arrival, after=after, wait=wait)


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


def first_arrivals(trace: Trace, group: IntArray) -> IntArray:
    """Of each row, the first arrival in its conversation; `group` is what `groups` says. Where a
    row stands says nothing: one that waits has no time."""
    first = np.full(len(trace), MAX_TICK, dtype=np.int64)
    timed = trace.arrival != NO_ARRIVAL
    np.minimum.at(first, group[timed], trace.arrival[timed])
    first[first == MAX_TICK] = 0  # nobody in it has one
    return first[group]


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


def limit_rows(trace: Trace, limit: int) -> Trace:
    """The first `limit` requests by arrival, even if that cuts conversations; said in a warning."""
    if limit < 1:
        raise ConfigError(f"limit {limit}: must be at least 1")
    if limit >= len(trace):
        return trace
    cut = select(trace, np.arange(limit, dtype=np.int64), "limit")
    group = groups(trace)
    broken = len(np.intersect1d(group[:limit], group[limit:]))
    if broken:
        cut.report.warnings.append(f"limit cuts {broken} conversations short")
    return cut


def sample_requests(trace: Trace, count: int, seed: int) -> Trace:
    """Whole conversations, chosen at random until another one would exceed `count` requests."""
    if count < 1:
        raise ConfigError(f"requests {count}: must be at least 1")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"sample seed {seed}: must be 0 or more")
    group = groups(trace)
    sizes = np.bincount(group, minlength=len(trace))
    starts = np.flatnonzero(sizes)
    chosen = starts[np.argsort(Draw(seed).uniform(len(starts)), kind="stable")]
    keep = np.zeros(len(trace), dtype=bool)
    keep[chosen[np.cumsum(sizes[chosen]) <= count]] = True
    return select(trace, np.flatnonzero(keep[group]), "not_sampled")


def window(trace: Trace, start_s: float, end_s: float) -> Trace:
    """Conversations that start in [start_s, end_s) of the trace's clock, whole.

    A warning says so if far fewer start in it than at the whole trace's mean rate.
    """
    if not (math.isfinite(start_s) and start_s >= 0 and end_s > start_s):
        raise ConfigError(f"window {start_s}:{end_s}: wanted is 0 <= start < end, in seconds")
    begin = round(Fraction(repr(float(start_s))) * TICKS_PER_S)
    end = MAX_TICK
    if math.isfinite(end_s):
        end = min(round(Fraction(repr(float(end_s))) * TICKS_PER_S), MAX_TICK)
    group = groups(trace)
    starts = first_arrivals(trace, group)
    cut = select(trace, np.flatnonzero((starts >= begin) & (starts < end)), "outside_window")
    firsts = starts[np.unique(group)]
    span = int(firsts.max())
    length = min(end, span) - begin
    if span and length > 0:
        inside = int(((firsts >= begin) & (firsts < end)).sum())
        expected = len(firsts) * length / span
        if expected >= _ENOUGH and inside < expected * _FAR_BELOW:
            seconds = length / TICKS_PER_S
            cut.report.warnings.append(
                f"the window's rate is far below the mean: {inside / seconds:.4g} conversations "
                f"start in a second, in the whole trace {expected / seconds:.4g}; it says little "
                "about the load"
            )
    return cut


def reorder(trace: Trace) -> Trace:
    """Puts rows in time order again (stable), waiting rows behind all that they wait for."""
    order = rows_in_order(trace.arrival.tolist(), trace.after)
    return trace if order is None else take(trace, order)


def overflow(trace: Trace, max_context: int) -> dict[int, str]:
    """Row -> reason, of the requests that do not fit into `max_context` tokens."""
    if max_context < 1:
        raise ConfigError(f"max context {max_context}: must be at least 1")
    total = trace.prompt_tokens + trace.output_tokens
    reasons: dict[int, str] = {}
    for row in np.flatnonzero(total > max_context).tolist():
        prompt = int(trace.prompt_tokens[row])
        reasons[row] = (
            f"prompt {prompt} > {max_context}"
            if prompt > max_context
            else f"prompt+output {int(total[row])} > {max_context}"
        )
    return reasons


def apply_max_context(trace: Trace, max_context: int, mode: str = "reject") -> Trace:
    """What becomes of requests over `max_context`: `reject` keeps them, marked in
    `extra.overflow` and counted in a warning; `drop` drops and counts them; `error` is a
    TraceFormatError for the first, with its place in the file."""
    if mode not in OVERFLOW_MODES:
        raise ConfigError(f"on-overflow {mode!r} is not one of {', '.join(OVERFLOW_MODES)}")
    reasons = overflow(trace, max_context)
    if not reasons:
        return trace
    first = min(reasons)
    if mode == "error":
        prompt, output = int(trace.prompt_tokens[first]), int(trace.output_tokens[first])
        fields, counts = trace.report.fields, (prompt, output)
        alone = prompt > max_context
        raise TraceFormatError(
            f"request {trace.id_of(first)!r} does not fit: {reasons[first]}",
            path=trace.files.get(first, trace.report.path or trace.name),
            line=None if trace.lines is None else int(trace.lines[first]) or None,
            field=fields[0] if alone else " + ".join(fields),
            value=prompt if alone else sum(counts),
        )
    if mode == "drop":
        keep = np.ones(len(trace), dtype=bool)
        keep[list(reasons)] = False
        return reorder(select(without(trace, keep), np.flatnonzero(keep), "over_max_context"))
    extra = dict(trace.extra)
    for row, reason in reasons.items():
        extra[row] = {**extra.get(row, {}), "overflow": reason}
    report = dataclasses.replace(
        trace.report,
        warnings=[
            *trace.report.warnings,
            f"{len(reasons)} requests do not fit into {max_context} tokens (extra.overflow)",
        ],
    )
    return dataclasses.replace(trace, extra=extra, report=report)
