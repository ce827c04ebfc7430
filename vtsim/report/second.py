"""Which second model fits beside a replay: by the memory that was free 99 % of the time.

What a model needs is told by others; this only compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vtsim.metrics.result import RunResult
from vtsim.quantities import format_bytes


class Need(NamedTuple):
    """A model as a second tenant."""

    model: str
    weights_bytes: int
    total_bytes: int
    """Weights, workspace, context, and KV memory of one sequence of `tokens`."""
    tokens: int


def largest(free_bytes: int, needs: Iterable[Need]) -> Need | None:
    """The model with the most weights (then by name) of those that fit; None: none does."""
    fitting = [need for need in needs if need.total_bytes <= free_bytes]
    return max(fitting, key=lambda need: (need.weights_bytes, need.model), default=None)


def lines(result: RunResult, needs: Iterable[Need]) -> Iterator[str]:
    """One line: the largest second model for each policy."""
    known = tuple(needs)
    found = []
    for run in result.runs:
        free = run.summary["memory"]["free_bytes"]["p1"]
        need = largest(free, known)
        found.append(
            f"{run.label} none"
            if need is None
            else f"{run.label} {need.model} ({format_bytes(need.total_bytes)} with a sequence of "
            f"{need.tokens:,} tokens)"
        )
    yield f"largest second model in what is free 99 % of the time: {', '.join(found)}"
