"""The comparison that a replay prints: one column a policy, one row a figure.

A row is a label and how to read a run's summary (docs/metrics.md defines the figures); nothing is
computed here but differences between policies. Columns that do not fit the width go to a second
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from vtsim.metrics.definitions import CATEGORIES
from vtsim.metrics.result import PolicyRun, RunResult
from vtsim.quantities import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LABEL_WIDTH = 23
COLUMN_WIDTH = 13


class Row(NamedTuple):
    """One figure. `best` picks the run that is best in it, if one is."""

    label: str
    show: Callable[[Any], str]
    value: Callable[[Any], float | None] | None = None
    best: Callable[[list[float]], float] | None = None


def _at(*keys: str) -> Callable[[PolicyRun], Any]:
    def get(run: PolicyRun) -> Any:
        found: Any = run.summary
        for key in keys:
            found = found[key]
        return found

    return get


def shown(
    label: str,
    get: Callable[[Any], Any],
    form: Callable[[Any], str],
    best: Callable[[list[float]], float] | None = None,
) -> Row:
    return Row(label, lambda run: "-" if get(run) is None else form(get(run)), get, best)


def count(value: float) -> str:
    return f"{value:,.0f}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def share(value: float) -> str:
    return f"{value:.2%}".replace("%", " %")


def service(at: Callable[..., Callable[[Any], Any]]) -> tuple[Row, ...]:
    """What requests get, of the summary that `at(*keys)` looks into."""
    return (
        shown("completed", at("requests", "completed"), count, max),
        shown("rejected", at("requests", "rejected"), count, min),
        shown("preemptions", at("requests", "preemptions"), count, min),
        shown("output tokens/s", at("throughput", "output_tokens_per_s"), rate, max),
        shown("TTFT p50", at("latency", "ttft_s", "p50"), format_seconds, min),
        shown("TTFT p99", at("latency", "ttft_s", "p99"), format_seconds, min),
        shown("TPOT p50", at("latency", "tpot_s", "p50"), format_seconds, min),
        shown("TPOT p99", at("latency", "tpot_s", "p99"), format_seconds, min),
    )


def _held_mean(run: PolicyRun) -> float:
    mean = run.summary["memory"]["mean_bytes"]
    return float(sum(mean[category] for category in CATEGORIES[3:] if category != "free"))


def _held_peak(run: PolicyRun) -> float:
    memory = run.summary["memory"]
    fixed = sum(memory["peak_bytes"][category] for category in CATEGORIES[:3])
    return float(memory["peak_used_bytes"] - fixed)


SECTIONS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    (
        "memory",
        (
            shown("KV memory held, mean", _held_mean, format_bytes, min),
            shown("KV memory held, peak", _held_peak, format_bytes, min),
            shown("  live tokens, mean", _at("memory", "mean_bytes", "kv_live"), format_bytes),
            shown("free, mean", _at("memory", "mean_bytes", "free"), format_bytes, max),
            shown("free 99 % of the time", _at("memory", "free_bytes", "p1"), format_bytes, max),
            shown("free, least", _at("memory", "free_bytes", "min"), format_bytes, max),
        ),
    ),
    (
        "service",
        (
            *service(_at),
            shown("prefix hit rate", _at("prefix", "hit_rate"), share, max),
        ),
    ),
    (
        "memory work",
        (
            Row("operations", lambda run: count(sum(run.summary["vmm"]["calls"].values()))),
            shown(
                "  per 1,000 output tok.",
                _at("vmm", "calls_per_1000_output_tokens"),
                rate,
            ),
            shown("busy", _at("vmm", "busy_s"), format_seconds),
            shown("exposed", _at("vmm", "exposed_s"), format_seconds, min),
            Row("attention kernel", lambda run: run.kernel),
        ),
    ),
)

DETAILS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    (
        "mean by category",
        tuple(shown(name, _at("memory", "mean_bytes", name), format_bytes) for name in CATEGORIES),
    ),
    (
        "latency",
        tuple(
            shown(f"{name.upper()} {part}", _at("latency", f"{name}_s", part), format_seconds)
            for name in ("ttft", "tpot", "e2e", "queue")
            for part in ("mean", "p50", "p90", "p99")
        ),
    ),
)


def comparison(result: RunResult, width: int, verbose: bool = False) -> Iterator[RenderableType]:
    """Tables that fit `width`, then the differences in words. `verbose` adds categories,
    latencies, and operations by kind."""
    sections = _with_kept(result) + (DETAILS + (_operations(result),) if verbose else ())
    columns = max(1, (width - LABEL_WIDTH - 4) // (COLUMN_WIDTH + 3))
    for start in range(0, len(result.runs), columns):
        yield grid(list(result.runs[start : start + columns]), sections)
    words = [*_rejections(result), *_details(result), *_in_words(result)]
    yield from ("", *words) if words else ()


def _with_kept(result: RunResult) -> tuple[tuple[str, tuple[Row, ...]], ...]:
    """SECTIONS, with what is held for later in the first one, where any policy holds some."""
    kept = tuple(
        shown(f"  {words}, mean", _at("memory", "mean_bytes", name), format_bytes)
        for name, words in (("kv_prefix", "kept prefixes"), ("kv_pooled", "pooled"))
        if any(run.summary["memory"]["mean_bytes"][name] for run in result.runs)
    )
    (title, rows), *others = SECTIONS
    return ((title, (*rows[:3], *kept, *rows[3:])), *others)


def _operations(result: RunResult) -> tuple[str, tuple[Row, ...]]:
    used = [
        kind
        for kind in result.runs[0].summary["vmm"]["calls"]
        if any(run.summary["vmm"]["calls"][kind] for run in result.runs)
    ]
    calls = tuple(shown(kind, _at("vmm", "calls", kind), count) for kind in used)
    exposed = tuple(
        shown(f"exposed, {phase}", _at("vmm", "exposed_by_phase_s", phase), format_seconds)
        for phase in ("create", "prefill", "extend", "retire", "preempt")
    )
    return "operations", calls + exposed


def grid(runs: list[Any], sections: tuple[tuple[str, tuple[Row, ...]], ...]) -> Table:
    """One table: a column for each of `runs`, under its `label`."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(sections[0][0], width=LABEL_WIDTH, no_wrap=True, header_style="dim")
    for run in runs:
        label = escape(run.label)
        table.add_column(label, justify="right", min_width=COLUMN_WIDTH, max_width=COLUMN_WIDTH)
    for number, (title, rows) in enumerate(sections):
        if number:
            table.add_section()
            table.add_row(f"[dim]{title}[/dim]")
        for row in rows:
            table.add_row(row.label, *_cells(row, runs))
    return table


def _cells(row: Row, runs: list[Any]) -> list[str]:
    """The row's text for each run, the best in bold where they differ."""
    texts = [row.show(run) for run in runs]
    if row.best is None or row.value is None or len(set(texts)) == 1:
        return texts
    values = [row.value(run) for run in runs]
    best = row.best([value for value in values if value is not None])
    return [
        f"[bold]{text}[/bold]" if value == best else text
        for text, value in zip(texts, values, strict=True)
    ]


def _rejections(result: RunResult) -> Iterator[str]:
    for run in result.runs:
        reasons = run.summary["requests"]["rejected_by_reason"]
        if reasons:
            each = ", ".join(f"{count:,}: {reason}" for reason, count in reasons.items())
            yield f"{run.label}: rejected {each}"


def _details(result: RunResult) -> Iterator[str]:
    """Facts of one policy only, such as the derived and the measured size of its pool."""
    for run in result.runs:
        if run.details:
            facts = (
                f"{name.replace('_', ' ')} {value:,}" if type(value) is int else f"{name} {value}"
                for name, value in run.details.items()
            )
            yield f"{run.label}: {', '.join(facts)}"


def _in_words(result: RunResult) -> Iterator[str]:
    """What the last policy leaves free and answers compared with each other one."""
    *others, subject = result.runs
    for other in others:
        mine, theirs = subject.summary, other.summary
        free = mine["memory"]["mean_bytes"]["free"] - theirs["memory"]["mean_bytes"]["free"]
        rate, base = (run["throughput"]["output_tokens_per_s"] for run in (mine, theirs))
        speed = f", {rate / base:.2f}x the tokens/s" if base else ""
        more = "more" if free >= 0 else "less"
        worst = mine["memory"]["free_bytes"]["min"] - theirs["memory"]["free_bytes"]["min"]
        worst_words = f"{format_bytes(abs(worst))} {'more' if worst >= 0 else 'less'} at worst"
        speed += _ratio("TTFT p50", mine, theirs) + _ratio("TPOT p50", mine, theirs)
        done, others = (run["requests"]["completed"] for run in (mine, theirs))
        if done != others:
            yield (
                f"{subject.label} completed {done:,} requests, {other.label} {others:,}: "
                "their figures do not compare"
            )
            continue
        kernels = f" (kernels differ: {subject.kernel} vs {other.kernel})"
        note = kernels if subject.kernel != other.kernel else ""
        yield (
            f"{subject.label} leaves {format_bytes(abs(free))} {more} free than {other.label} "
            f"on average, {worst_words}{speed}{note}"
        )


def _ratio(name: str, mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """`, 0.98x the TTFT p50`; nothing where one of them has none."""
    latency, part = name.casefold().split()
    own, base = (run["latency"][f"{latency}_s"][part] for run in (mine, theirs))
    return f", {own / base:.2f}x the {name}" if own is not None and base else ""
