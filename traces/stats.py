"""What a trace holds, in numbers: counts, lengths, arrivals, sharing, sessions.

The ideal prefix hit is that of an infinite cache that requests enter in row order: every token of
a prompt's leading run counts, even a whole prompt. Nothing here knows memory or time costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vtsim.request import NO_ARRIVAL, TICKS_PER_S, IntArray, Run, Trace
from vtsim.traces.transform import groups

PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99)

_Node = dict[int, "_Edge"]


class _Edge:
    """A run of addresses and what was seen to follow it."""

    __slots__ = ("length", "node")

    def __init__(self, length: int, node: _Node) -> None:
        self.length = length
        self.node = node


class PrefixTree:
    """A radix tree over runs of token addresses: what an infinite prefix cache would hold."""

    def __init__(self) -> None:
        self._root: _Node = {}
        self.tokens = 0
        """Tokens held, a shared prefix counted once."""

    def add(self, runs: tuple[Run, ...]) -> int:
        """Tokens of the leading part of `runs` that are held already; then holds all of them."""
        node = self._root
        matched = 0
        matching = True
        for first, length in runs:
            while length:
                edge = node.get(first)
                if edge is None:
                    matching = False
                    edge = node[first] = _Edge(length, {})
                    self.tokens += length
                common = min(edge.length, length)
                if matching:
                    matched += common
                if common < edge.length:
                    self._split(edge, first, common)
                node = edge.node
                first += common
                length -= common
        return matched

    @staticmethod
    def _split(edge: _Edge, first: int, length: int) -> None:
        """A run that ends or goes on elsewhere inside an edge cuts it in two."""
        edge.node = {first + length: _Edge(edge.length - length, edge.node)}
        edge.length = length


def ideal_prefix_hits(trace: Trace, *, with_outputs: bool = True) -> IntArray:
    """Tokens of each prompt that an infinite cache would hold, in row order.

    `with_outputs`: outputs that sessions name (`Trace.output_content`) enter the cache too.
    """
    tree = PrefixTree()
    hits = np.zeros(len(trace), dtype=np.int64)
    for row in range(len(trace)):
        content = trace.content(row)
        if content:
            hits[row] = tree.add(content)
            if with_outputs:
                behind = trace.output_content(row)
                if behind:
                    tree.add(content + behind)
    return hits


def distinct_blocks(trace: Trace) -> int:
    """Hash ids that occur in the trace."""
    if not trace.has_hashes:
        return 0
    order = np.argsort(trace.run_first, kind="stable")
    first = trace.run_first[order]
    end = first + trace.run_count[order]
    reached = np.concatenate(([0], np.maximum.accumulate(end)[:-1]))
    return int(np.maximum(end - np.maximum(first, reached), 0).sum())


@dataclass(frozen=True, slots=True)
class Sharing:
    """Ideal prefix hits, in tokens."""

    known_tokens: int
    """Prompt tokens whose content has a name."""
    hit_tokens: int
    hit_rate: float
    """Of all prompt tokens."""
    hit_tokens_prompts_only: int
    distinct_blocks: int
    block_size: int


def sharing_is_known(trace: Trace) -> bool:
    """False where nothing tells what prompts share: no hash ids, and no turn that continues the one
    before. Then nothing is known to be shared, which is not that nothing is."""
    if trace.has_hashes:
        return True
    return any(trace.naming.next_of(row) >= 0 for row in range(len(trace)))


def sharing(trace: Trace) -> Sharing | None:
    """None where it is not known."""
    if not sharing_is_known(trace):
        return None
    known = sum(length for row in range(len(trace)) for _, length in trace.content(row))
    if known == 0:
        return None
    hits = int(ideal_prefix_hits(trace).sum())
    continued = any(trace.naming.next_of(row) >= 0 for row in range(len(trace)))
    prompts_only = int(ideal_prefix_hits(trace, with_outputs=False).sum()) if continued else hits
    return Sharing(
        known_tokens=known,
        hit_tokens=hits,
        hit_rate=hits / int(trace.prompt_tokens.sum()),
        hit_tokens_prompts_only=prompts_only,
        distinct_blocks=distinct_blocks(trace),
        block_size=trace.block_size,
    )


def arrivals(trace: Trace) -> dict[str, object]:
    """Rate and burstiness of the timed requests.

    `interval_cv` is the coefficient of variation of the times between arrivals (1: Poisson);
    `peak_to_mean` that of the busiest of 100 equal parts; `resolution_s` the greatest common
    divisor of all arrivals.
    """
    timed = trace.arrival[trace.arrival != NO_ARRIVAL]
    span = int(timed[-1])
    result: dict[str, object] = {
        "timed": len(timed),
        "waiting": len(trace) - len(timed),
        "span_s": span / TICKS_PER_S,
        "rate_per_s": None,
        "interval_cv": None,
        "peak_to_mean": None,
        "resolution_s": None,
        "at_start": int((timed == 0).sum()),
        "made": trace.report.arrivals_made,
    }
    if span > 0 and len(timed) > 1:
        result["rate_per_s"] = (len(timed) - 1) * TICKS_PER_S / span
        gaps = np.diff(timed).astype(np.float64)
        result["interval_cv"] = float(gaps.std() / gaps.mean())
        parts = np.bincount(np.minimum(timed // max(-(-span // 100), 1), 99))
        result["peak_to_mean"] = float(parts.max() / (len(timed) / 100))
        result["resolution_s"] = int(np.gcd.reduce(timed)) / TICKS_PER_S
    return result


def lengths(values: IntArray) -> dict[str, object]:
    """Total, mean, extremes and percentiles (nearest rank) of a column of token counts."""
    ranked = np.sort(values)
    at = {f"p{p}": int(ranked[max(-(-len(ranked) * p // 100) - 1, 0)]) for p in PERCENTILES}
    return {
        "total": int(values.sum()),
        "mean": float(values.mean()),
        "min": int(ranked[0]),
        **at,
        "max": int(ranked[-1]),
    }


def sessions(trace: Trace) -> dict[str, object]:
    """Conversations (a request without a session is one of its own) and their turns."""
    sizes = np.bincount(groups(trace))
    sizes = sizes[sizes > 0]
    return {
        "named": len(np.unique(trace.session[trace.session >= 0])),
        "conversations": len(sizes),
        "requests_mean": float(sizes.mean()),
        "requests_max": int(sizes.max()),
        "without_session": int((trace.session < 0).sum()),
        "waiting_requests": len(trace.after),
    }


def warnings(trace: Trace) -> list[str]:
    """What a user should know before trusting the trace's times."""
    found = list(trace.report.warnings)
    timed = trace.arrival[trace.arrival != NO_ARRIVAL]
    instants, at_once = np.unique(timed, return_counts=True)
    if len(timed) > 1 and len(instants) == 1:
        found.append("all requests arrive at the same time")
    elif len(timed) >= 100 and int(at_once[at_once > 1].sum()) > len(timed) // 2:
        steps, seen = np.unique(np.diff(instants), return_counts=True)
        step = int(steps[seen.argmax()]) / TICKS_PER_S
        found.append(
            f"arrivals are coarse: {len(timed)} requests arrive at {len(instants)} instants, most "
            f"often {step:g} s apart; requests of one instant arrive together"
        )
    if len(timed) >= 1000 and timed[-1] > 0:
        parts = np.bincount(
            np.minimum(timed // max(-(-int(timed[-1]) // 100), 1), 99), minlength=100
        )
        quiet = int((parts < len(timed) / 1000).sum())
        if quiet:
            found.append(
                f"{quiet} hundredths of the span have less than a tenth of the mean rate: a window "
                "there says little about the load"
            )
    if trace.report.rows_moved:
        found.append(f"{trace.report.rows_moved} rows stood out of time order and were moved")
    return found


def rows_text(trace: Trace) -> str:
    """Rows read = kept + dropped by reason, and what was taken off all arrivals, in one line."""
    report = trace.report
    dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(report.dropped.items()))
    rows = "row" if report.rows_read == 1 else "rows"
    said = f"{report.rows_read} {rows} read = {report.rows_kept} kept + "
    said += f"{sum(report.dropped.values())} dropped ({dropped})" if dropped else "0 dropped"
    if report.removed_offset_s:
        said += f"; the first arrival, {report.removed_offset_s:.16g} s, is taken as 0"
    return said


def describe(trace: Trace) -> dict[str, object]:
    """All of it, as plain values for JSON."""
    report = trace.report
    arriving = arrivals(trace)
    shared = sharing(trace)
    return {
        "trace": {"path": trace.name, "sha256": trace.sha256, "format": report.format},
        "source": trace.source,
        "rows": {
            "read": report.rows_read,
            "kept": report.rows_kept,
            "dropped": dict(sorted(report.dropped.items())),
            "moved": report.rows_moved,
            "removed_offset_s": report.removed_offset_s,
        },
        "rows_text": rows_text(trace),
        "requests": len(trace),
        "prompt_tokens": lengths(trace.prompt_tokens),
        "output_tokens": lengths(trace.output_tokens),
        "arrivals": arriving,
        "sharing": None
        if shared is None
        else {name: getattr(shared, name) for name in Sharing.__dataclass_fields__},
        "sessions": sessions(trace),
        "recorded": sorted({key for row in trace.recorded.values() for key in row}),
        "warnings": warnings(trace),
    }
