"""A picture of a trace: arrivals over time and lengths. matplotlib is asked for here only."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from vtsim.errors import ConfigError
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, IntArray, Trace
from vtsim.traces.output import check_writable, writing_bytes

ENDINGS = ("png", "svg", "pdf")
_PARTS = 100
"""The span is shown in so many parts, as `trace info` counts its busiest."""
_UNDATED: dict[str, dict[str, object]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}
"""Without a date the same trace makes the same file."""


def check_plot(path: str | Path) -> None:
    """Refuses, before any work, a plot that could not be made. Changes nothing."""
    if _ending(path) not in ENDINGS:
        raise ConfigError(f"plot {path}: the name must end in .png, .svg or .pdf")
    check_writable(path)
    if find_spec("matplotlib") is None:
        raise ConfigError("a plot needs matplotlib: pip install matplotlib (the extra vtsim[plot])")


def _ending(path: str | Path) -> str:
    return Path(path).suffix[1:].lower()


def plot_trace(trace: Trace, path: str | Path) -> None:
    """Writes the plot, whole or not at all; the ending of `path` chooses the format. ConfigError as
    by `check_plot`."""
    check_plot(path)
    matplotlib: Any = import_module("matplotlib")
    figure = import_module("matplotlib.figure").Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplot_mosaic([["rate", "rate"], ["prompt", "output"]])
    _arrivals(panels["rate"], trace)
    for label, values in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        _lengths(panels[label], label, values)
    with matplotlib.rc_context({"svg.hashsalt": trace.sha256}), writing_bytes(path) as stream:
        figure.savefig(stream, format=_ending(path), metadata=_UNDATED[_ending(path)])


def _arrivals(axes: Any, trace: Trace) -> None:
    timed = trace.arrival[trace.arrival != NO_ARRIVAL] / TICKS_PER_S
    span = float(timed[-1])
    waiting = len(trace) - len(timed)
    title = f"{trace.name}: {len(trace):,} requests"
    if waiting:
        title += f", of which {waiting:,} wait for others and are not shown"
    axes.set_title(title, parse_math=False)
    if span == 0:
        axes.text(0.5, 0.5, "all arrive at 0 s", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    counts, edges = np.histogram(timed, bins=_PARTS, range=(0.0, span))
    axes.stairs(counts / np.diff(edges), edges, fill=True)
    axes.axhline((len(timed) - 1) / span, color="black", linewidth=1, label="mean")
    axes.legend(loc="upper right")
    axes.set(xlabel="time, s", ylabel="arrivals a second", xlim=(0, span))


def _lengths(axes: Any, label: str, values: IntArray) -> None:
    """Requests by length, from the shortest to the longest; those without any are not shown."""
    positive = values[values > 0]
    if len(positive):
        low, high = int(positive.min()), int(positive.max())
        axes.hist(positive, bins=np.geomspace(low, max(high, low + 1), 60))
    axes.set(xscale="log", xlabel=f"{label} tokens", ylabel="requests")
