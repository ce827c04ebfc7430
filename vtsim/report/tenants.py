"""The comparison that a replay of tenants prints: one column a policy; the GPU, then each tenant.

Nothing is computed here. Columns that do not fit the width go to a second table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vtsim.metrics.definitions import CATEGORIES
from vtsim.metrics.tenants import GpuRun, TenantsResult
from vtsim.quantities import format_bytes, format_seconds
from vtsim.report.table import (
    COLUMN_WIDTH,
    LABEL_WIDTH,
    Row,
    count,
    grid,
    rate,
    service,
    share,
    shown,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

Get = Callable[[GpuRun], Any]


def _gpu(*keys: str) -> Get:
    return lambda run: _at(run.summary, keys)


def _own(order: int, *keys: str) -> Get:
    return lambda run: _at(run.runs[order].summary, keys)


def _at(found: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        found = found[key]
    return found


GPU_ROWS: tuple[Row, ...] = (
    Row("memory", lambda run: "elastic" if run.elastic else "static"),
    shown("free, mean", _gpu("memory", "mean_bytes", "free"), format_bytes, max),
    shown("free 99 % of the time", _gpu("memory", "free_bytes", "p1"), format_bytes, max),
    shown("completed", _gpu("requests", "completed"), count, max),
    shown("rejected", _gpu("requests", "rejected"), count, min),
    shown("preemptions", _gpu("requests", "preemptions"), count, min),
    shown("output tokens/s", _gpu("throughput", "output_tokens_per_s"), rate, max),
    shown("compute in use", _gpu("compute_share"), share),
    shown("duration", _gpu("duration_s"), format_seconds, min),
)


def _tenant_rows(order: int) -> tuple[Row, ...]:
    def own(*keys: str) -> Get:
        return _own(order, *keys)

    return (
        shown("sure of", own("shared", "floor_bytes"), format_bytes),
        shown("at most", lambda run: run.runs[order].limit_bytes, format_bytes),
        shown("live tokens, mean", own("memory", "mean_bytes", "kv_live"), format_bytes),
        *service(own),
        shown("gave back for others", own("shared", "gave_bytes"), format_bytes),
    )


def _details(order: int) -> tuple[Row, ...]:
    """More of a tenant: means by category, memory work."""
    categories = [*CATEGORIES[:-1], "others", "free"]
    return (
        *(shown(n, _own(order, "memory", "mean_bytes", n), format_bytes) for n in categories),
        shown("queue p99", _own(order, "latency", "queue_s", "p99"), format_seconds, min),
        shown("prefix hit rate", _own(order, "prefix", "hit_rate"), share, max),
        shown("memory work", _own(order, "vmm", "busy_s"), format_seconds),
        shown("exposed", _own(order, "vmm", "exposed_s"), format_seconds, min),
        shown("waits for memory", _own(order, "shared", "memory_waits"), count, min),
    )


def comparison(
    result: TenantsResult, width: int, verbose: bool = False
) -> Iterator[RenderableType]:
    """Tables that fit `width`, then who was rejected and what was given back, in words."""
    sections: list[tuple[str, tuple[Row, ...]]] = [("GPU", GPU_ROWS)]
    for order, name in enumerate(result.tenants):
        sections.append((f"tenant {name}"[:LABEL_WIDTH], _tenant_rows(order)))
        if verbose:
            sections.append((f"{name}, mean by category"[:LABEL_WIDTH], _details(order)))
    columns = max(1, (width - LABEL_WIDTH - 4) // (COLUMN_WIDTH + 3))
    for start in range(0, len(result.runs), columns):
        yield grid(list(result.runs[start : start + columns]), tuple(sections))
    words = list(_in_words(result))
    yield from ("", *words) if words else ()


def _in_words(result: TenantsResult) -> Iterator[str]:
    for run in result.runs:
        for name, own in zip(result.tenants, run.runs, strict=True):
            reasons = own.summary["requests"]["rejected_by_reason"]
            if reasons:
                each = ", ".join(f"{number:,}: {reason}" for reason, number in reasons.items())
                yield f"{run.label}, {name}: rejected {each}"
        for moved in run.reclaimed:
            yield (
                f"{run.label}: {moved.giver} gave {format_bytes(moved.nbytes)} back for "
                f"{moved.taker}, in {moved.times:,} times"
            )
