"""A picture of a trace: arrivals over time and lengths. matplotlib is asked for here only."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np

from vtsim.errors import ConfigError
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, Trace


def plot_trace(trace: Trace, path: str | Path) -> None:
    """Writes the plot; the ending of `path` chooses the format. ConfigError without matplotlib."""
    try:
        figure_class = import_module("matplotlib.figure").Figure
    except ImportError:
        raise ConfigError("a plot needs matplotlib: pip install matplotlib") from None
    timed = trace.arrival[trace.arrival != NO_ARRIVAL] / TICKS_PER_S
    figure = figure_class(figsize=(9, 6), layout="constrained")
    above, left, right = figure.subplot_mosaic([["rate", "rate"], ["prompt", "output"]]).values()
    span = max(float(timed[-1]), 1e-9)
    counts, edges = np.histogram(timed, bins=100, range=(0.0, span))
    above.stairs(counts / np.diff(edges), edges, fill=True)
    above.set(title=trace.name, xlabel="time, s", ylabel="arrivals a second")
    for axes, label, values in (
        (left, "prompt", trace.prompt_tokens),
        (right, "output", trace.output_tokens),
    ):
        axes.hist(values, bins=np.geomspace(1, max(int(values.max()), 2), 60))
        axes.set(xscale="log", xlabel=f"{label} tokens", ylabel="requests")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
