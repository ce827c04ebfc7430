"""When requests come: speed, rate, idle gaps, repetition. Each says which clock it acts on.

The trace's clock are its arrivals; a conversation's clock are the waits of closed-loop requests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction

import numpy as np

from vtsim.errors import ConfigError
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, Trace
from vtsim.traces.number import MAX_TICK
from vtsim.traces.schedule import Schedule
from vtsim.traces.transform import first_arrivals, groups, reorder

MOST_DIGITS = 1000
"""Of a number's exponent: a larger one would only cost memory."""
MOST_REQUESTS = 10**8
"""That repetition or generation may make: columns of them take about 10 GB."""


def scale_speed(trace: Trace, speed: float | str | Decimal | Fraction) -> Trace:
    """Divides arrivals by `speed`, rounding once (half to even) to a picosecond.

    Acts on the trace's clock only: waits of closed-loop requests, a user's or a tool's time, stay.
    """
    return _divided(trace, positive(speed, "speed"), f"speed {speed}")


def _divided(trace: Trace, factor: Fraction, asked: str) -> Trace:
    """`asked` is what the user said, for errors."""
    if factor == 1:
        return trace
    top, bottom = factor.numerator, factor.denominator
    arrival = trace.arrival.copy()
    timed = np.flatnonzero(arrival != NO_ARRIVAL)
    last = int(arrival[timed].max()) if len(timed) else 0
    if last * bottom > MAX_TICK * top:
        raise ConfigError(f"{asked}: the trace becomes longer than 64-bit picoseconds hold")
    if last > 0 and 2 * last * bottom <= top:
        raise ConfigError(f"{asked}: all requests of {trace.name} would arrive at once")
    if last * bottom < MAX_TICK and top < MAX_TICK // 2:
        whole, rest = np.divmod(arrival[timed] * bottom, top)
        up = (2 * rest > top) | ((2 * rest == top) & (whole % 2 == 1))
        arrival[timed] = whole + up
    else:
        arrival[timed] = [round(Fraction(a * bottom, top)) for a in arrival[timed].tolist()]
    return dataclasses.replace(trace, arrival=arrival)


def positive(value: float | str | Decimal | Fraction, name: str) -> Fraction:
    """The decimal number that was written, exactly; ConfigError unless positive and finite."""
    try:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        if isinstance(value, Decimal) or (isinstance(value, str) and "/" not in value):
            number = Decimal(value)
            if number.is_finite() and number and abs(number.adjusted()) > MOST_DIGITS:
                raise ConfigError(f"{name} {value}: out of range")
        factor = Fraction(repr(value) if isinstance(value, float) else value)
    except (ValueError, OverflowError, ZeroDivisionError, InvalidOperation):
        raise ConfigError(f"{name} {value}: not a positive number") from None
    if factor <= 0:
        raise ConfigError(f"{name} {value}: not a positive number")
    return factor


def scale_to_rate(trace: Trace, rate: float) -> Trace:
    """Scales the trace's clock so that its mean rate is `rate` requests a second; the shape of
    arrivals stays. In a closed loop only those that arrive by themselves have one, which a warning
    says. ConfigError if all arrive at once."""
    wanted = positive(rate, "rate")
    timed = trace.arrival[trace.arrival != NO_ARRIVAL]
    span = int(timed.max())
    if span == 0:
        raise ConfigError(
            f"rate {rate:g}: all requests of {trace.name} arrive at once; --arrival spreads them"
        )
    factor = wanted * Fraction(span, (len(timed) - 1) * TICKS_PER_S)
    scaled = _divided(trace, factor, f"rate {rate:g}")
    if len(timed) == len(trace):
        return scaled
    said = (
        f"rate {rate:g}: {len(trace) - len(timed)} of {len(trace)} requests wait for others; the "
        f"rate is that of the {len(timed)} that arrive by themselves"
    )
    report = dataclasses.replace(trace.report, warnings=[*trace.report.warnings, said])
    return dataclasses.replace(scaled, report=report)


def reschedule(trace: Trace, schedule: Schedule) -> Trace:
    """Draws the starts of conversations anew; times within a conversation stay as they are.

    Conversations keep their order. Acts on the trace's clock.
    """
    group = groups(trace)
    starts, which = np.unique(group, return_inverse=True)
    inside = trace.arrival - first_arrivals(trace, group)
    begins = schedule.times(len(starts))[which]
    waiting = trace.arrival == NO_ARRIVAL
    inside[waiting] = 0
    if int(inside.max()) + int(begins.max()) > MAX_TICK:
        raise ConfigError(f"{schedule}: the trace is longer than 64-bit picoseconds hold")
    arrival = begins + inside
    arrival[waiting] = NO_ARRIVAL
    report = dataclasses.replace(trace.report, arrivals_made=str(schedule))
    return reorder(dataclasses.replace(trace, arrival=arrival, report=report))


def cap_idle(trace: Trace, cap_s: float) -> Trace:
    """Shortens every gap between successive arrivals (trace's clock) and every wait of a
    closed-loop request (conversation's clock) to at most `cap_s` seconds."""
    cap = round(positive(cap_s, "idle cap") * TICKS_PER_S)
    arrival = trace.arrival.copy()
    timed = np.flatnonzero(arrival != NO_ARRIVAL)
    arrival[timed[1:]] = np.cumsum(np.minimum(np.diff(arrival[timed]), cap))
    wait = {row: min(ticks, cap) for row, ticks in trace.wait.items()}
    return dataclasses.replace(trace, arrival=arrival, wait=wait)


def repeat(trace: Trace, times: int) -> Trace:
    """The trace `times` times, one after the other, sharing nothing: each copy has its own hash
    ids, sessions and request ids. A copy starts one mean interval behind the one before's last
    arrival (trace's clock); the report says that rows are copies."""
    if times < 1:
        raise ConfigError(f"repeat {times}: must be at least 1")
    if times == 1:
        return trace
    rows, runs = len(trace), len(trace.run_first)
    if rows * times > MOST_REQUESTS:
        raise ConfigError(f"repeat {times}: more than {MOST_REQUESTS:,} requests")
    timed = trace.arrival != NO_ARRIVAL
    span = int(trace.arrival[timed].max())
    step = span + max(span // max(int(timed.sum()) - 1, 1), 1)
    if step * times > MAX_TICK:
        raise ConfigError(f"repeat {times}: the trace is longer than 64-bit picoseconds hold")
    copy = np.arange(times, dtype=np.int64)
    of_row, of_run = np.repeat(copy, rows), np.repeat(copy, runs)
    ids = int((trace.run_first + trace.run_count).max()) if runs else 0
    arrival = np.tile(trace.arrival, times) + of_row * step
    arrival[np.tile(~timed, times)] = NO_ARRIVAL
    session = np.tile(trace.session, times)
    session[session >= 0] += (of_row * len(trace.session_names))[session >= 0]
    report = dataclasses.replace(
        trace.report,
        warnings=[
            *trace.report.warnings,
            f"repeated {times} times: {rows} requests are {times} copies",
        ],
    )

    def tiled(column: dict[int, object]) -> dict[int, object]:
        return {k * rows + row: value for k in range(times) for row, value in column.items()}

    return dataclasses.replace(
        trace,
        arrival=arrival,
        prompt_tokens=np.tile(trace.prompt_tokens, times),
        output_tokens=np.tile(trace.output_tokens, times),
        priority=np.tile(trace.priority, times),
        session=session,
        turn=np.tile(trace.turn, times),
        run_offsets=np.concatenate(
            ([0], (trace.run_offsets[1:] + copy[:, None] * runs).reshape(-1))
        ),
        run_first=np.tile(trace.run_first, times) + of_run * ids,
        run_count=np.tile(trace.run_count, times),
        ids=_copied(trace.ids, times),
        session_names=tuple(map(str, _copied(trace.session_names, times))),
        after={
            k * rows + row: tuple(k * rows + parent for parent in parents)
            for k in range(times)
            for row, parents in trace.after.items()
        },
        wait=tiled(dict(trace.wait)),  # type: ignore[arg-type]
        recorded=tiled(dict(trace.recorded)),  # type: ignore[arg-type]
        extra=tiled(dict(trace.extra)),  # type: ignore[arg-type]
        lines=None if trace.lines is None else np.tile(trace.lines, times),
        files=tiled(dict(trace.files)),  # type: ignore[arg-type]
        report=report,
    )


def _copied(names: Sequence[object], times: int) -> tuple[object, ...]:
    """`names`, then those of each copy: with `#` and its number, and more `#` where somebody has
    that name already."""
    copies = list(names)
    taken = set(copies)
    for k in range(1, times):
        for name in names:
            copy = f"{name}#{k}"
            while copy in taken:
                copy += "#"
            taken.add(copy)
            copies.append(copy)
    return tuple(copies)
