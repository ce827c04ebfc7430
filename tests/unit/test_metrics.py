"""Metrics by hand: a run small enough to compute every number on paper."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.errors import ConfigError, InvariantError
from vtsim.metrics import exact
from vtsim.metrics.definitions import CATEGORIES, DEFINITIONS
from vtsim.metrics.recorder import Outcome, Recorder
from vtsim.metrics.result import PolicyRun, RunResult
from vtsim.metrics.summary import SERVING, arrivals, completed, longest_free, samples_of, summarize
from vtsim.plan import KINDS, MemoryUsage, OpKind, Phase
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, ReadReport, Trace

S = TICKS_PER_S
GIB = 2**30
CAPACITY, WEIGHTS, WORKSPACE, CONTEXT = 80 * GIB, 12 * GIB, 2 * GIB, 1 * GIB
AVAILABLE = 65 * GIB


def make_trace(rows: list[tuple[int, int, int]], ids: tuple[object, ...] = ()) -> Trace:
    """Rows of (arrival in ticks, prompt tokens, output tokens)."""
    arrival, prompt, output = (
        np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
    )
    none = np.full(len(rows), -1, dtype=np.int64)
    empty = np.zeros(0, dtype=np.int64)
    return Trace(
        name="made.json",
        sha256="0" * 64,
        arrival=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        priority=np.zeros(len(rows), dtype=np.int64),
        session=none,
        turn=none,
        run_offsets=np.zeros(len(rows) + 1, dtype=np.int64),
        run_first=empty,
        run_count=empty,
        ids=ids,
        report=ReadReport(rows_read=5, rows_kept=3, dropped={"zero": 2}, format="native"),
    )


def make_recorder(requests: int, decisions: bool = False) -> Recorder:
    return Recorder(requests, CAPACITY, WEIGHTS, WORKSPACE, CONTEXT, decisions)


def usage(live: int = 0, slack: int = 0, pooled: int = 0) -> tuple[MemoryUsage, int]:
    """Usage in GiB, and what that leaves free."""
    held = MemoryUsage(kv_live=live * GIB, kv_slack=slack * GIB, kv_pooled=pooled * GIB)
    return held, AVAILABLE - sum(held)


def made_run() -> tuple[Trace, Recorder]:
    """Three requests: two complete (one of a single token, one preempted), one is rejected."""
    trace = make_trace([(0, 100, 5), (S, 50, 1), (2 * S, 900, 10)])
    recorder = make_recorder(3, decisions=True)
    recorder.sample(0, *usage())
    recorder.admit(0, 0, 0, 40, again=False)
    recorder.sample(S, *usage(live=10, slack=1))
    recorder.first_token(0, S)
    recorder.preempt(0, 2 * S, 3)
    recorder.reject(2, 2 * S, "max_model_len")
    recorder.admit(1, 2 * S, 3, 0, again=False)
    recorder.first_token(1, 3 * S)
    recorder.finish(1, 3 * S)
    recorder.sample(3 * S, *usage(live=20, pooled=5))
    recorder.admit(0, 3 * S, 4, 64, again=True)
    recorder.first_token(0, 4 * S)  # recomputed: the first token was out long before
    recorder.finish(0, 5 * S)
    recorder.sample(5 * S, *usage(live=1))
    counts = [0] * KINDS
    counts[OpKind.CREATE] = counts[OpKind.MAP] = 3
    recorder.work(Phase.SETUP, counts, 7 * S)
    recorder.work(Phase.EXTEND, counts, S // 1000)
    recorder.work(Phase.EXTEND, counts, S // 1000)
    recorder.expose(Phase.EXTEND, S // 2000)
    recorder.steps, recorder.leaps, recorder.compute_ticks = 5, 1, 3 * S
    recorder.finish_run(5 * S)
    return trace, recorder


def test_every_number_of_a_small_run() -> None:
    summary = summarize(*made_run())
    assert summary["duration_s"] == 5.0
    assert summary["requests"] == {
        "completed": 2,
        "rejected": 1,
        "preemptions": 1,
        "rejected_by_reason": {"max_model_len": 1},
    }
    assert summary["throughput"] == {
        "output_tokens_per_s": 6 / 5,
        "total_tokens_per_s": 156 / 5,
        "requests_per_s": 0.4,
    }
    latency = summary["latency"]
    assert latency["ttft_s"] == {"mean": 1.5, "p50": 1.5, "p90": 1.9, "p99": 1.99}
    assert latency["tpot_s"] == {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0}
    assert latency["e2e_s"]["mean"] == 3.5
    assert latency["queue_s"] == {"mean": 0.5, "p50": 0.5, "p90": 0.9, "p99": 0.99}
    memory = summary["memory"]
    assert memory["capacity_bytes"] == CAPACITY
    # 1 s of (10, 1), 2 s of (20, pooled 5), 2 s of (1): means over 5 s.
    assert memory["mean_bytes"]["kv_live"] == pytest.approx((10 + 40 + 2) / 5 * GIB, abs=1e-3)
    assert memory["mean_bytes"]["kv_pooled"] == 2 * GIB
    assert memory["peak_bytes"]["kv_live"] == 20 * GIB
    assert memory["peak_bytes"]["weights"] == WEIGHTS
    assert memory["peak_used_bytes"] == CAPACITY - 40 * GIB
    assert memory["free_bytes"] == {"min": 40 * GIB, "p1": 40 * GIB, "p5": 40 * GIB}
    assert memory["longest_free_s"][str(32 * GIB)] == 5.0
    assert memory["longest_free_s"][str(64 * GIB)] == 2.0
    assert sum(memory["mean_bytes"].values()) == pytest.approx(CAPACITY, abs=0.01)
    assert summary["prefix"] == {
        "hit_tokens": 40,
        "prompt_tokens": 1050,
        "hit_rate": round(40 / 1050, 9),
        "rehit_tokens": 64,
    }
    vmm = summary["vmm"]
    assert vmm["calls"]["map"] == 9 and vmm["calls"]["create"] == 9 and vmm["calls"]["unmap"] == 0
    assert vmm["calls_by_phase"]["setup"] == 6
    assert vmm["calls_per_1000_output_tokens"] == 2000.0  # 12 while serving, 6 tokens
    assert vmm["busy_s"] == 0.002 and vmm["exposed_s"] == 0.0005
    assert vmm["busy_by_phase_s"]["setup"] == 7.0
    assert summary["steps"] == {"count": 5, "compute_s": 3.0}


def test_a_request_that_waits_arrives_after_the_last_of_the_others() -> None:
    trace = replace(
        make_trace([(0, 10, 1), (S, 10, 1), (NO_ARRIVAL, 10, 1), (NO_ARRIVAL, 10, 1)]),
        after={2: (0, 1), 3: ()},
        wait={2: 3 * S, 3: S},
    )
    recorder = make_recorder(4)
    for row, at in ((0, 2 * S), (3, 3 * S), (1, 4 * S), (2, 9 * S)):
        recorder.admit(row, at, 1, 0, again=False)
        recorder.first_token(row, at)
        recorder.finish(row, at)
    assert arrivals(trace, recorder).tolist() == [0, S, 7 * S, S]
    assert completed(trace, recorder).e2e.tolist() == [2 * S, 3 * S, 2 * S, 2 * S]


def test_every_kind_of_operation_is_counted() -> None:
    recorder = make_recorder(0)
    for kind in OpKind:
        counts = [0] * KINDS
        counts[kind] = kind + 1
        recorder.work(Phase.LIMIT, counts, 3)
        recorder.work(Phase.LIMIT, counts, 4)
    assert recorder.counts[Phase.LIMIT] == [2 * (kind + 1) for kind in OpKind]
    assert recorder.busy[Phase.LIMIT] == 7 * KINDS


def test_a_sample_must_add_up_to_the_capacity() -> None:
    recorder = make_recorder(1)
    held, free = usage(live=3)
    recorder.sample(5, held, free)
    with pytest.raises(InvariantError, match="categories-sum.*kv_live.*\\+1 bytes") as caught:
        recorder.sample(6, held, free + 1)
    assert caught.value.invariant == "categories-sum"
    with pytest.raises(InvariantError, match="time-monotonic"):
        recorder.sample(4, held, free)
    assert len(samples_of(recorder)) == 1


def test_a_run_ends_with_every_request_answered() -> None:
    recorder = make_recorder(2)
    recorder.finish(1, 5)
    with pytest.raises(InvariantError, match="row 0"):
        recorder.finish_run(5)
    recorder.reject(0, 6, "capacity")
    recorder.finish_run(6)
    assert recorder.end == 6
    assert list(recorder.outcome) == [Outcome.REJECTED, Outcome.COMPLETED]


def test_a_run_in_which_nothing_happened_has_no_latencies() -> None:
    trace = make_trace([(0, 10, 10)])
    recorder = make_recorder(1)
    recorder.reject(0, 0, "max_model_len")
    recorder.finish_run(0)
    summary = summarize(trace, recorder)
    assert summary["latency"]["ttft_s"] == {"mean": None, "p50": None, "p90": None, "p99": None}
    assert summary["throughput"]["output_tokens_per_s"] == 0.0
    assert summary["vmm"]["calls_per_1000_output_tokens"] is None
    assert summary["memory"]["mean_bytes"]["free"] == AVAILABLE
    assert summary["memory"]["free_bytes"]["min"] == AVAILABLE
    recorder.sample(0, *usage(live=1))
    recorder.end = 0
    memory = summarize(trace, recorder)["memory"]
    assert memory["mean_bytes"]["kv_live"] == GIB
    assert sum(memory["mean_bytes"].values()) == CAPACITY


def test_repeated_waits_are_one_decision() -> None:
    recorder = make_recorder(2, decisions=True)
    for step in range(3):
        recorder.decide(step, step, 0, "wait", "shortage", 7)
    recorder.decide(3, 3, 1, "wait", "shortage", 7)
    recorder.decide(4, 4, 0, "wait", "max_num_seqs")
    recorder.preempt(1, 5, 5, bytes_short=9)
    recorder.preempt(1, 6, 6, bytes_short=9)
    assert [row[:2] for row in recorder.decision_rows] == [(0, 0), (1, 3), (0, 4), (1, 5), (1, 6)]
    silent = make_recorder(1)
    silent.decide(0, 0, 0, "wait", "shortage")
    silent.preempt(0, 1, 1)
    assert silent.decision_rows == []
    assert silent.preemptions[0] == 1


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**45)), min_size=1, max_size=40),
    st.integers(0, 2**40),
)
def test_longest_free_equals_a_walk(steps: list[tuple[int, int]], amount: int) -> None:
    rows, now, best, run = [], 0, 0, 0
    for free, held in steps:
        now += held
        rows.append([now, 0, 0, 0, 0, 0, 0, free])
        run = run + held if free >= amount else 0
        best = max(best, run)
    assert longest_free(np.array(rows, dtype=np.int64), amount) == best


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=30))
def test_dot_is_exact(pairs: list[tuple[int, int]]) -> None:
    left = np.array([a for a, _ in pairs], dtype=np.int64)
    right = np.array([b for _, b in pairs], dtype=np.int64)
    assert exact.dot(left, right) == sum(a * b for a, b in pairs)
    assert exact.total(left) == sum(a for a, _ in pairs)


@given(st.integers(-(2**70), 2**70), st.integers(1, 2**70))
def test_ratio_rounds_half_to_even(numerator: int, denominator: int) -> None:
    expected = float(round(Fraction(numerator, denominator), 9))
    assert exact.ratio(numerator, denominator) == expected


def test_ratio_of_nothing() -> None:
    assert exact.ratio(0, 0) == 0.0
    with pytest.raises(ZeroDivisionError):
        exact.ratio(1, 0)


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=50), st.integers(0, 100))
def test_percentile_is_numpys(values: list[int], percent: int) -> None:
    ordered = np.sort(np.array(values, dtype=np.int64))
    numerator, denominator = exact.percentile(ordered, percent)
    assert numerator / denominator == pytest.approx(float(np.percentile(ordered, percent)))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30).filter(
        lambda pairs: any(weight for _, weight in pairs)
    ),
    st.integers(1, 100),
)
def test_weighted_percentile_by_definition(pairs: list[tuple[int, int]], percent: int) -> None:
    values = np.array([v for v, _ in pairs], dtype=np.int64)
    weights = np.array([w for _, w in pairs], dtype=np.int64)
    [found] = exact.weighted_percentiles(values, weights, (percent,))
    whole = sum(w for _, w in pairs)
    held = {v for v, w in pairs if w}
    enough = [v for v in held if sum(w for u, w in pairs if u <= v) * 100 >= percent * whole]
    assert found == min(enough)


def make_result(**changes: object) -> RunResult:
    trace, recorder = made_run()
    run = PolicyRun(
        label="vtensor",
        policy="vtensor",
        parameters={"chunk_bytes": 2 << 20, "retain": "all"},
        trace=trace,
        recorder=recorder,
        limit_bytes=AVAILABLE,
        kernel="flash",
        layout="token_major",
        chunk_bytes=2 << 20,
    )
    whole: dict[str, object] = {
        "trace": trace,
        "model": "yi-6b",
        "gpu": "a100-80g",
        "profile_sha256": "1" * 64,
        "tp": 1,
        "seed": 0,
        "max_model_len": 16384,
        "options": {"speed": "1"},
        "runs": (run,),
        "version": "0.1.0",
    }
    return RunResult(**{**whole, **changes})  # type: ignore[arg-type]


def test_json_has_the_schema_of_the_design() -> None:
    document = json.loads(make_result().to_json())
    assert list(document)[:11] == [
        *("schema", "vtsim", "trace", "model", "gpu", "profile_sha256", "tp", "seed"),
        *("max_model_len", "options", "runs"),
    ]
    assert document["schema"] == 1
    assert document["trace"]["path"] == "made.json"
    assert document["trace"]["prompt_tokens"] == 1050
    assert document["trace"]["rows_read"] == document["trace"]["rows_kept"] + 2
    [run] = document["runs"]
    designed = {
        *("policy", "parameters", "compute", "memory_backend", "clock", "kernel", "layout"),
        *("chunk_bytes", "limit_bytes", "duration_s", "requests", "throughput", "latency"),
        *("memory", "prefix", "vmm"),
    }
    assert designed <= run.keys()
    assert set(run["memory"]["peak_bytes"]) == set(run["memory"]["mean_bytes"]) == set(CATEGORIES)
    assert make_result().to_json() == make_result().to_json()


def test_every_number_in_the_json_is_defined() -> None:
    [run] = json.loads(make_result().to_json())["runs"]
    measured = ("requests", "throughput", "latency", "memory", "prefix", "vmm", "steps")
    undefined = [
        f"{section}.{name}"
        for section in measured
        for name in run[section]
        if f"{section}.{name}" not in DEFINITIONS
        and name not in ("rejected_by_reason", "busy_by_phase_s", "exposed_by_phase_s")
    ]
    assert undefined == []
    assert set(DEFINITIONS) <= set(json.loads(make_result().to_json())["definitions"])
    assert Phase.SETUP not in SERVING and Phase.TEARDOWN not in SERVING


def test_frames_agree_with_the_summary() -> None:
    result = make_result()
    requests = result.requests
    assert list(requests["policy"].unique()) == ["vtensor"]
    assert requests["outcome"].tolist() == ["completed", "completed", "rejected"]
    assert requests["reason"].tolist()[2] == "max_model_len"
    summary = result["vtensor"].summary
    done = requests[requests["outcome"] == "completed"]
    assert done["ttft_s"].mean() == summary["latency"]["ttft_s"]["mean"]
    assert done["tpot_s"].tolist()[0] == 1.0 and np.isnan(done["tpot_s"].tolist()[1])
    timeline = result.timeline
    assert (timeline[list(CATEGORIES)].sum(axis=1) == CAPACITY).all()
    decisions = result.decisions
    assert decisions["decision"].tolist() == ["admit", "preempt", "reject", "admit", "readmit"]
    with pytest.raises(ConfigError, match="log=True"):
        _ = result.calls
    assert result["vtensor"].longest_free_s(64 * GIB) == 2.0
    with pytest.raises(KeyError, match="there are vtensor"):
        result["paged"]


def test_saved_tables_read_back(tmp_path: Path) -> None:
    import pandas as pd

    result = make_result()
    folder = tmp_path / "new" / "run"
    result.save(folder)
    (folder / "calls.csv").write_text("of an earlier run")
    (folder / "notes.txt").write_text("the user's own")
    result.save(folder)
    tables = ("requests", "timeline", "decisions")
    expected = {f"{table}.{kind}" for table in tables for kind in ("csv", "parquet")}
    assert {path.name for path in folder.iterdir()} == {*expected, "result.json", "notes.txt"}
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
    for table in tables:
        frame = getattr(result, table)
        assert pd.read_parquet(folder / f"{table}.parquet").equals(frame)
        assert len(pd.read_csv(folder / f"{table}.csv")) == len(frame)
    assert (folder / "result.json").read_text() == result.to_json()


def test_ids_of_mixed_type_are_saved_as_text(tmp_path: Path) -> None:
    import pandas as pd

    trace, recorder = made_run()
    mixed = make_trace([(0, 100, 5), (S, 50, 1), (2 * S, 900, 10)], ids=("a", 7, "b"))
    [run] = make_result().runs
    renamed = replace(run, trace=mixed)
    make_result(trace=mixed, runs=(renamed,)).save(tmp_path / "out")
    requests = pd.read_parquet(tmp_path / "out" / "requests.parquet")
    assert requests["request"].tolist() == ["a", "7", "b"]


def test_the_page_names_what_the_json_holds() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    for category in CATEGORIES:
        assert f"| `{category}` |" in page
    result = make_result()
    for table in ("requests", "timeline", "decisions"):
        line = next(line for line in page.splitlines() if line.startswith(f"| `{table}` |"))
        columns = [name for name in getattr(result, table) if name != "policy"]
        if table == "timeline":
            columns = ["time_s"]
        assert ", ".join(columns) in line
