"""`load`: from a path to a `Trace`: open, detect, read, then limit and speed."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from vtsim.errors import ConfigError
from vtsim.request import Trace
from vtsim.traces.registry import ReadOptions, detect, get_reader
from vtsim.traces.source import Source
from vtsim.traces.transform import limit_requests, scale_speed


def load(
    path: str | Path,
    *,
    from_format: str | None = None,
    speed: float | str | Decimal | Fraction = 1.0,
    limit: int | None = None,
    block_size: int | None = None,
    **options: object,
) -> Trace:
    """Reads a trace file of any known format.

    `from_format` overrides detection (names: `reader_names()`). `block_size` says how many tokens a
    hash id stands for where the file does not. `limit` keeps the first requests, by arrival, in
    whole sessions. `speed` divides arrivals (2 = twice as fast), rounded once to a picosecond;
    waits of closed-loop requests keep their length. `options` are the reader's own.

    Raises TraceFormatError for what is wrong with the file, ConfigError for options.
    """
    source = Source(path)
    reader = detect(source) if from_format is None else get_reader(from_format)
    given = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(set(given) - set(reader.options))
    if unknown:
        known = ", ".join(reader.options) or "none"
        raise ConfigError(f"format {reader.name} has no option {unknown[0]!r}; it has: {known}")
    if block_size is not None and not 1 <= block_size <= 2**20:
        raise ConfigError(f"block size {block_size} is not between 1 and {2**20}")
    trace = reader.read(source, ReadOptions(block_size, given))
    if limit is not None:
        trace = limit_requests(trace, limit)
    return scale_speed(trace, speed)
