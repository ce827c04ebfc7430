"""Turns a recorder's columns into the numbers of a run, by the definitions of docs/metrics.md.

Pure: reads the recorder and the trace, changes neither. Everything is integers until the one
rounding of `vtsim.metrics.exact`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vtsim.metrics import exact
from vtsim.metrics.definitions import CATEGORIES, FREE_AMOUNTS, LATENCY_PERCENTILES
from vtsim.metrics.recorder import SAMPLE_COLUMNS, UNSET, Outcome, Recorder
from vtsim.plan import OpKind, Phase
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, IntArray, Tick, Trace

SERVING = tuple(phase for phase in Phase if phase not in (Phase.SETUP, Phase.TEARDOWN))
"""The phases that happen while requests are served; set-up and teardown lie outside the run."""


def samples_of(recorder: Recorder) -> IntArray:
    """Memory samples, shape (samples, len(SAMPLE_COLUMNS)); a view, so recording must be over."""
    flat = np.frombuffer(recorder.samples, dtype=np.int64)
    return flat.reshape(-1, len(SAMPLE_COLUMNS))


@dataclass(frozen=True, slots=True, eq=False)
class Completed:
    """Times of the completed requests, in ticks, one entry a request (tpot: of those with more
    than one token)."""

    rows: IntArray
    ttft: IntArray
    tpot: IntArray
    e2e: IntArray
    queue: IntArray


def arrivals(trace: Trace, recorder: Recorder) -> IntArray:
    """When each request arrived, in ticks. One that waits for others arrives its `wait` after the
    last of them was answered; NO_ARRIVAL where one never was."""
    open_loop = trace.arrival != NO_ARRIVAL
    if open_loop.all():
        return trace.arrival
    column = trace.arrival.copy()
    finished = recorder.finished_at
    for row in np.flatnonzero(~open_loop).tolist():
        answers = [finished[before] for before in trace.after.get(row, ())]
        if UNSET not in answers:
            column[row] = max(answers, default=0) + trace.wait.get(row, 0)
    return column


def completed(trace: Trace, recorder: Recorder) -> Completed:
    """Times of completed requests. TPOT is rounded to the picosecond."""
    outcome = np.frombuffer(bytes(recorder.outcome), dtype=np.uint8)
    rows = np.flatnonzero(outcome == Outcome.COMPLETED)
    arrival = arrivals(trace, recorder)[rows]
    first = np.array(recorder.first_token_at, dtype=np.int64)[rows]
    last = np.array(recorder.finished_at, dtype=np.int64)[rows]
    admitted = np.array(recorder.admitted_at, dtype=np.int64)[rows]
    between = trace.output_tokens[rows] - 1
    several = between > 0
    tpot = _rounded_quotient((last - first)[several], between[several])
    return Completed(rows, first - arrival, tpot, last - arrival, admitted - arrival)


def _rounded_quotient(numerator: IntArray, denominator: IntArray) -> IntArray:
    rounded: IntArray = (2 * numerator + denominator) // (2 * denominator)
    return rounded


def summarize(trace: Trace, recorder: Recorder) -> dict[str, Any]:
    """The measured part of a run's JSON object: duration, requests, throughput, latency, memory,
    prefix, vmm, steps. Keys in their fixed order."""
    done = completed(trace, recorder)
    prompt = exact.total(trace.prompt_tokens[done.rows])
    output = exact.total(trace.output_tokens[done.rows])
    return {
        "duration_s": exact.seconds(recorder.end),
        "requests": _requests(recorder),
        "throughput": {
            "output_tokens_per_s": _rate(output, recorder.end),
            "total_tokens_per_s": _rate(prompt + output, recorder.end),
            "requests_per_s": _rate(len(done.rows), recorder.end),
        },
        "latency": {
            "ttft_s": spread(done.ttft),
            "tpot_s": spread(done.tpot),
            "e2e_s": spread(done.e2e),
            "queue_s": spread(done.queue),
        },
        "memory": memory_numbers(recorder),
        "prefix": _prefix(trace, recorder),
        "vmm": _vmm(recorder, output),
        "steps": {
            "count": recorder.steps,
            "compute_s": exact.seconds(recorder.compute_ticks),
        },
    }


def _rate(count: int, ticks: Tick) -> float:
    return exact.ratio(count * TICKS_PER_S, ticks) if ticks else 0.0


def _requests(recorder: Recorder) -> dict[str, Any]:
    by_reason: dict[str, int] = {}
    for reason in recorder.reasons.values():
        by_reason[reason] = by_reason.get(reason, 0) + 1
    return {
        "completed": recorder.outcome.count(Outcome.COMPLETED),
        "rejected": recorder.outcome.count(Outcome.REJECTED),
        "preemptions": sum(recorder.preemptions),
        "rejected_by_reason": dict(sorted(by_reason.items())),
    }


def spread(ticks: IntArray) -> dict[str, float | None]:
    """Mean and percentiles in seconds; all None for no values."""
    names = ["mean", *(f"p{percent}" for percent in LATENCY_PERCENTILES)]
    if not len(ticks):
        return dict.fromkeys(names)
    ordered = np.sort(ticks)
    values: list[float] = [exact.seconds(exact.total(ordered), len(ordered))]
    values += [
        exact.seconds(*exact.percentile(ordered, percent)) for percent in LATENCY_PERCENTILES
    ]
    return dict(zip(names, values, strict=True))


def memory_numbers(recorder: Recorder) -> dict[str, Any]:
    """The `memory` object of a run's summary: of one policy, or of a GPU that tenants share."""
    samples = samples_of(recorder)
    constant = {
        "weights": recorder.weights_bytes,
        "workspace": recorder.workspace_bytes,
        "context": recorder.context_bytes,
    }
    free = samples[:, SAMPLE_COLUMNS.index("free")]
    held = np.diff(samples[:, 0], prepend=0)
    span = int(samples[-1, 0]) if len(samples) else 0
    peak: dict[str, int] = {}
    mean: dict[str, float] = {}
    for category in CATEGORIES:
        if category in constant:
            peak[category] = constant[category]
            mean[category] = float(constant[category])
            continue
        values = samples[:, SAMPLE_COLUMNS.index(category)]
        peak[category] = int(values.max()) if len(values) else 0
        mean[category] = exact.ratio(exact.dot(values, held), span, digits=3) if span else 0.0
    idle = recorder.capacity_bytes - sum(constant.values())
    if not len(samples):  # nothing was ever served: all that is not constant is free
        peak["free"] = idle
        mean["free"] = float(idle)
    elif not span:  # everything happened at tick 0: the last state stands for the mean
        for category in CATEGORIES[len(constant) :]:
            mean[category] = float(samples[-1, SAMPLE_COLUMNS.index(category)])
    low = int(free.min()) if len(samples) else idle
    p1, p5 = exact.weighted_percentiles(free, held, (1, 5)) if span else (low, low)
    return {
        "capacity_bytes": recorder.capacity_bytes,
        "peak_bytes": peak,
        "peak_used_bytes": recorder.capacity_bytes - low,
        "mean_bytes": mean,
        "free_bytes": {"min": low, "p1": p1, "p5": p5},
        "longest_free_s": {
            str(amount): exact.seconds(longest_free(samples, amount))
            for amount in FREE_AMOUNTS
            if amount <= recorder.capacity_bytes
        },
        "samples": len(samples),
    }


def longest_free(samples: IntArray, nbytes: int) -> Tick:
    """Longest unbroken time during which at least `nbytes` were free."""
    if not len(samples):
        return 0
    enough = samples[:, SAMPLE_COLUMNS.index("free")] >= nbytes
    since = np.concatenate(([0], samples[:-1, 0]))
    until = samples[:, 0]
    # Only the changes matter; there are far fewer of them than samples.
    edges = np.flatnonzero(np.diff(enough, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2] - 1
    return int((until[ends] - since[begins]).max(initial=0))


def _prefix(trace: Trace, recorder: Recorder) -> dict[str, Any]:
    prompt = exact.total(trace.prompt_tokens)
    hit = sum(recorder.hit_tokens)
    return {
        "hit_tokens": hit,
        "prompt_tokens": prompt,
        "hit_rate": exact.ratio(hit, prompt),
        "rehit_tokens": sum(recorder.rehit_tokens),
    }


def _vmm(recorder: Recorder, output_tokens: int) -> dict[str, Any]:
    calls = {
        kind.name.lower(): sum(recorder.counts[phase][kind] for phase in Phase) for kind in OpKind
    }
    serving = sum(sum(recorder.counts[phase]) for phase in SERVING)
    return {
        "calls": calls,
        "calls_by_phase": {phase.name.lower(): sum(recorder.counts[phase]) for phase in Phase},
        "calls_per_1000_output_tokens": exact.ratio(serving * 1000, output_tokens)
        if output_tokens
        else None,
        "busy_s": exact.seconds(sum(recorder.busy[phase] for phase in SERVING)),
        "busy_by_phase_s": _by_phase(recorder.busy),
        "exposed_s": exact.seconds(sum(recorder.exposed[phase] for phase in SERVING)),
        "exposed_by_phase_s": _by_phase(recorder.exposed),
    }


def _by_phase(ticks: list[Tick]) -> dict[str, float]:
    return {phase.name.lower(): exact.seconds(ticks[phase]) for phase in Phase}
