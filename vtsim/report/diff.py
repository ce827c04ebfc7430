"""The first decision in which two saved runs part, with the state before it in both, in words.

Times are not decisions: that steps take longer elsewhere is said, and what is decided goes on being
compared. Decides nothing and computes no metric.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from vtsim.quantities import format_bytes, format_seconds
from vtsim.report.saved import Decision, Saved

WIDTH = 80
BEFORE, AFTER = 3, 4
"""Decisions that are shown on either side."""
_RUNS = frozenset(("admit", "readmit"))
_ENDS = frozenset(("finish", "reject"))
_ABSENT = "-"
"""An input that only the other run has."""


def same(left: Saved, right: Saved) -> bool:
    """Whether decisions, requests and memory are the same, times included."""
    return (
        left.decisions == right.decisions
        and _rows(left.requests) == _rows(right.requests)
        and _rows(left.timeline) == _rows(right.timeline)
    )


def diff(left: Saved, right: Saved) -> Iterator[str]:
    """Lines about how the two runs differ, or that they do not."""
    yield from _heads(left, right)
    if same(left, right):
        yield (
            f"the same: {len(left.decisions):,} decisions, {len(left.timeline):,} memory samples "
            f"and {len(left.requests):,} requests"
        )
        return
    at = _first(left, right, lambda decision: decision.what)
    timed = _first(left, right, lambda decision: (decision.what, decision.step, decision.time_s))
    if timed is not None and (at is None or timed < at):
        yield from _timed(left, right, timed)
    if at is None:
        yield f"all {len(left.decisions):,} decisions are the same"
        if timed is None:
            yield from _elsewhere(left, right)
        return
    yield f"the first {at:,} decisions are the same" if at else "no decision is the same"
    for decision in left.decisions[max(0, at - BEFORE) : at]:
        yield "  " + _shown(decision)
    yield ""
    for name, side, other in (("A", left, right), ("B", right, left)):
        yield from _parting(name, side, other, at)


def _heads(left: Saved, right: Saved) -> Iterator[str]:
    for name, side in (("A", left), ("B", right)):
        yield f"{name}  {side.folder}: {side.label}"
    ours, theirs = left.inputs(), right.inputs()
    for key in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(key, _ABSENT), theirs.get(key, _ABSENT)
        if one != other:
            yield from _wrapped(f"input {key}: {_value(key, one)} | {_value(key, other)}")
    yield ""


def _value(key: str, value: object) -> str:
    if value is None:
        return "none"
    if key.endswith(("_bytes", "_memory")) and type(value) is int:
        return format_bytes(value)
    return str(value)[:12] if key.endswith("sha256") else str(value)


def _first(left: Saved, right: Saved, key: Any) -> int | None:
    """The number of the first decision that differs by `key`; None: none does."""
    missing = object()
    pairs = zip_longest(left.decisions, right.decisions, fillvalue=missing)
    for number, (one, other) in enumerate(pairs):
        if one is missing or other is missing or key(one) != key(other):
            return number
    return None


def _timed(left: Saved, right: Saved, at: int) -> Iterator[str]:
    one, other = left.decisions[at], right.decisions[at]
    yield from _wrapped(
        f"times part at decision {at:,} ({one.decision} of request {one.request}): step {one.step} "
        f"at {one.time_s:.6f} s | step {other.step} at {other.time_s:.6f} s"
    )


def _elsewhere(left: Saved, right: Saved) -> Iterator[str]:
    """Equal decisions at equal times: where memory or requests differ."""
    for name, one, other in (
        ("memory", left.timeline, right.timeline),
        ("requests", left.requests, right.requests),
    ):
        pairs = zip_longest(_rows(one), _rows(other))
        row = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
        if row is not None:
            yield f"{name} part in row {row:,}:"
            for side, table in (("A", one), ("B", other)):
                shown = "no such row"
                if row < len(table):
                    values = table.iloc[row].drop("policy").to_dict()
                    shown = ", ".join(f"{key} {_value(key, v)}" for key, v in values.items())
                yield from _wrapped(f"{side}  {shown}")
            return


def _parting(name: str, side: Saved, other: Saved, at: int) -> Iterator[str]:
    """What one run decided there, the state before, and what came next."""
    if at >= len(side.decisions):
        yield f"{name}  has no more decisions"
        return
    decision = side.decisions[at]
    yield from _wrapped(f"{name}  {_shown(decision)}")
    if at < len(other.decisions) and other.decisions[at].request != decision.request:
        yield from _wrapped(f"   the other run on request {decision.request}: "
                            f"{_next_about(other, decision.request, at)}")  # fmt: skip
    running, waiting = _queues(side, at, decision.time_s)
    yield f"   before: {running:,} run, {waiting:,} wait"
    memory = _memory(side, decision.time_s)
    if memory:
        yield from _wrapped("   memory: " + memory)
    for following in side.decisions[at + 1 : at + 1 + AFTER]:
        yield from _wrapped("   then " + _shown(following))
    yield ""


def _next_about(side: Saved, request: str, at: int) -> str:
    for decision in side.decisions[at:]:
        if decision.request == request:
            return _shown(decision)
    earlier = [decision for decision in side.decisions[:at] if decision.request == request]
    return _shown(earlier[-1]) if earlier else "nothing was decided"


def _queues(side: Saved, at: int, now_s: float) -> tuple[int, int]:
    """Who ran and who had arrived and waited, as far as decisions tell."""
    running: set[str] = set()
    ended: set[str] = set()
    for decision in side.decisions[:at]:
        if decision.decision in _RUNS:
            running.add(decision.request)
        elif decision.decision == "preempt":
            running.discard(decision.request)
        elif decision.decision in _ENDS:
            running.discard(decision.request)
            ended.add(decision.request)
    arrived = side.requests["request"][side.requests["arrival_s"] <= now_s].astype(str)
    return len(running), len(set(arrived) - running - ended)


def _memory(side: Saved, now_s: float) -> str:
    """The last sample at or before `now_s`, what is not empty of it."""
    before = side.timeline[side.timeline["time_s"] <= now_s]
    if not len(before):
        return ""
    sample = before.iloc[-1]
    parts = [
        f"{name.removeprefix('kv_')} {format_bytes(int(sample[name]))}"
        for name in side.timeline.columns
        if name not in ("policy", "time_s") and sample[name]
    ]
    return f"{', '.join(parts)} (sampled at {sample['time_s']:.6f} s)"


def _shown(decision: Decision) -> str:
    short = f", {format_bytes(decision.bytes_short)} short" if decision.bytes_short > 0 else ""
    reason = f": {decision.reason}" if decision.reason else ""
    step = f"step {decision.step}, " if decision.step >= 0 else ""
    return (
        f"request {decision.request}, {step}{format_seconds(decision.time_s)}: "
        f"{decision.decision}{reason}{short}"
    )


def _rows(table: Any) -> list[list[Any]]:
    """Rows without their label; what is not a number equals itself."""
    plain = table.drop(columns="policy").astype(object)
    rows: list[list[Any]] = plain.where(plain.notna(), None).values.tolist()
    return rows


def _wrapped(text: str) -> Iterator[str]:
    indent = " " * (len(text) - len(text.lstrip()))
    yield from textwrap.wrap(
        text.strip(),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "     ",
        break_on_hyphens=False,
    )
