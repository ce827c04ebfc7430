"""`load`: from a path to a `Trace`: open, detect, read, then choose requests and pace them."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from vtsim.errors import ConfigError
from vtsim.request import Trace
from vtsim.traces.ids import MAX_BLOCK
from vtsim.traces.origin import with_origin
from vtsim.traces.pace import cap_idle, repeat, reschedule, scale_speed, scale_to_rate
from vtsim.traces.registry import ReadOptions, detect, get_reader
from vtsim.traces.schedule import Schedule
from vtsim.traces.source import Source
from vtsim.traces.transform import apply_max_context, limit_requests, limit_rows, window

LIMITS = {"session": limit_requests, "row": limit_rows}


def load(
    path: str | Path,
    *,
    from_format: str | None = None,
    speed: float | str | Decimal | Fraction = 1.0,
    limit: int | None = None,
    limit_by: str = "session",
    block_size: int | None = None,
    window_s: tuple[float, float] | None = None,
    max_context: int | None = None,
    on_overflow: str = "reject",
    idle_cap_s: float | None = None,
    rate: float | None = None,
    arrival: str | None = None,
    cv: float = 2.0,
    seed: int = 0,
    repeats: int = 1,
    **options: object,
) -> Trace:
    """Reads a trace file of any known format.

    `from_format` overrides detection (names: `reader_names()`); `block_size` says how many tokens a
    hash id stands for where the file does not; `options` are the reader's own.

    Then, in this order: `window_s` keeps conversations that start in [a, b) seconds; `limit` the
    first requests, in whole conversations (`limit_by="row"`: cutting them); `max_context` finds
    those too long (`on_overflow`: reject, drop, error); `idle_cap_s` shortens gaps and waits;
    `rate` scales the trace to a mean rate, or with `arrival` (poisson, gamma with `cv`, uniform)
    draws the starts of conversations anew from `seed`; `speed` divides arrivals (2 = twice as
    fast), rounded once to a picosecond; `repeats` appends copies that share nothing. A file without
    arrivals gets them from `rate`, `arrival` (poisson) and `seed`. `source` says what was asked
    for (`vtsim.traces.origin`).

    Raises TraceFormatError for what is wrong with the file, ConfigError for options, also for one
    that the file's format or the other options leave without effect.
    """
    given = {name: value for name, value in options.items() if value is not None}
    asked: dict[str, object] = {
        "from": from_format,
        "block_size": block_size,
        **given,
        "window_s": window_s,
        "limit": limit,
        "limit_by": None if limit_by == "session" else limit_by,
        "max_context": max_context,
        "on_overflow": None if on_overflow == "reject" else on_overflow,
        "idle_cap_s": idle_cap_s,
        "rate": rate,
        "arrival": arrival,
        "cv": None if cv == 2.0 else cv,
        "seed": seed if rate is not None and seed else None,
        "speed": None if speed in (1, "1") else speed,
        "repeats": None if repeats == 1 else repeats,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    for name, needed in (("limit_by", "limit"), ("on_overflow", "max_context")):
        if name in asked and needed not in asked:
            raise ConfigError(f"{name} {asked[name]} needs {needed}: without it it does nothing")
    if "cv" in asked and arrival != "gamma":
        raise ConfigError(f"cv {cv:g} needs arrival gamma: without it it does nothing")
    if block_size is not None and not 1 <= block_size <= MAX_BLOCK:
        raise ConfigError(f"block size {block_size} is not between 1 and {MAX_BLOCK}")
    if limit_by not in LIMITS:
        raise ConfigError(f"limit by {limit_by!r} is not one of {', '.join(LIMITS)}")
    if arrival is not None and rate is None:
        raise ConfigError("arrival needs a rate")
    schedule = None if rate is None else Schedule(rate, arrival or "poisson", cv, seed)
    source = Source(path)
    try:
        trace = _read(source, from_format, ReadOptions(block_size, schedule, given))
    finally:
        source.close()
    if window_s is not None:
        trace = window(trace, *window_s)
    if limit is not None:
        trace = LIMITS[limit_by](trace, limit)
    if max_context is not None:
        trace = apply_max_context(trace, max_context, on_overflow)
    if idle_cap_s is not None:
        trace = cap_idle(trace, idle_cap_s)
    if rate is not None and not trace.report.arrivals_made:
        assert schedule is not None
        trace = reschedule(trace, schedule) if arrival else scale_to_rate(trace, rate)
    return with_origin(repeat(scale_speed(trace, speed), repeats), asked)


def _read(source: Source, from_format: str | None, options: ReadOptions) -> Trace:
    reader = detect(source) if from_format is None else get_reader(from_format)
    asked = {*options.named, *(() if options.block_size is None else ("block_size",))}
    unknown = sorted(asked - set(reader.options))
    if unknown:
        known = ", ".join(reader.options) or "none"
        raise ConfigError(f"format {reader.name} has no option {unknown[0]!r}; it has: {known}")
    trace = reader.read(source, options)
    if options.block_size is not None and not trace.has_hashes:
        said = f"no request has hash ids: block_size {options.block_size} does nothing"
        trace.report.warnings.append(said)
    return trace
