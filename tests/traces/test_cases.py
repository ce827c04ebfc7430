"""Small made-up inputs of kinds that tools were publicly reported to misread: all of
../shared/cases/expected.json, values and all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import TraceFormatError
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, Trace
from vtsim.traces import load
from vtsim.traces.stats import distinct_blocks, ideal_prefix_hits, sessions
from vtsim.traces.transform import overflow

CASES = Path(__file__).parents[3] / "shared" / "cases"
EXPECTED = (
    json.loads((CASES / "expected.json").read_text()) if (CASES / "expected.json").exists() else []
)

pytestmark = pytest.mark.skipif(not EXPECTED, reason="../shared/cases is not here")


def ticks(seconds: float | None) -> int:
    return NO_ARRIVAL if seconds is None else round(seconds * 10**7) * (TICKS_PER_S // 10**7)


def check_value(trace: Trace, key: str, want: Any) -> None:
    rows = range(len(trace))
    if key == "arrival_s":
        assert trace.arrival.tolist() == [ticks(s) for s in want]
    elif key in ("prompt", "words_prompt"):
        assert trace.prompt_tokens.tolist() == want
    elif key in ("output", "words_output"):
        assert trace.output_tokens.tolist() == want
    elif key == "block_size":
        assert trace.block_size == want
    elif key == "ideal_prefix_hit_tokens":
        assert ideal_prefix_hits(trace).tolist() == want
    elif key == "distinct_blocks":
        assert distinct_blocks(trace) == want
    elif key in ("rows", "rows_kept"):
        assert len(trace) == trace.report.rows_kept == want
    elif key == "rows_read":
        assert trace.report.rows_read == want
    elif key == "dropped":
        assert trace.report.dropped == want
    elif key == "session":
        names = [trace.session_names[s] if s >= 0 else None for s in trace.session]
        assert names == want
    elif key == "sessions":
        assert sessions(trace)["conversations"] == want
    elif key == "tail_unhashed":
        known = [sum(length for _, length in trace.content(row)) for row in rows]
        assert (trace.prompt_tokens - known).tolist() == want
    elif key == "agents":
        assert len({trace.extra[row]["agent_id"] for row in rows}) == want
    elif key in ("recorded_duration_s", "think_s"):
        name = "duration_s" if key == "recorded_duration_s" else "think_s"
        assert [trace.recorded.get(row, {}).get(name) for row in rows] == want
    elif key == "wait_after_parent_s":
        waits = [trace.wait[row] if row in trace.after else None for row in rows]
        assert waits == [None if s is None else ticks(s) for s in want]
    elif key in ("fits", "reasons", "max_context"):
        pass  # checked together by the test of that case
    elif key == "arrivals":
        assert want == "poisson at 2/s from the seed: same twice"
        assert trace.report.arrivals_made == "poisson at 2/s, seed 7"
        assert trace.arrival[0] == 0 < trace.arrival[1]
    else:
        raise AssertionError(f"nothing checks {key!r}")


def check_error(error: TraceFormatError, want: dict[str, Any]) -> None:
    for key in ("line", "column", "field"):
        if key in want:
            assert getattr(error, key) == want[key], str(error)
    for word in want.get("must_mention", ()):
        assert word in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("named", [True, False], ids=["from", "detected"])
@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case["file"])
def test_case(case: dict[str, Any], named: bool) -> None:
    path = CASES / case["file"]
    form = case["format"] if named else None
    options = {k: v for k, v in case["options"].items() if k != "max_context"}
    want = case["expect"]
    if case["outcome"] == "reject":
        with pytest.raises(TraceFormatError) as caught:
            load(path, from_format=form, **options)
        check_error(caught.value, want)
        return
    if case["outcome"] == "accept-with-option":
        with pytest.raises(TraceFormatError) as caught:
            load(path, from_format=form)
        check_error(caught.value, want["without_option"])
        want = want["with_option"]
    trace = load(path, from_format=form, **options)
    assert trace.report.format == case["format"]
    report = trace.report
    assert report.rows_read == report.rows_kept + sum(report.dropped.values())
    for key, value in want.items():
        check_value(trace, key, value)
    again = load(path, from_format=form, **options)
    assert again.arrival.tolist() == trace.arrival.tolist()


def test_context_overflow() -> None:
    (case,) = (c for c in EXPECTED if c["file"].startswith("37-"))
    want = case["expect"]
    trace = load(CASES / case["file"])
    reasons = overflow(trace, want["max_context"])
    assert [reasons.get(row) for row in range(len(trace))] == want["reasons"]
    assert [row not in reasons for row in range(len(trace))] == want["fits"]
    marked = load(CASES / case["file"], max_context=want["max_context"])
    assert [marked.extra.get(row, {}).get("overflow") for row in range(3)] == want["reasons"]
    kept = load(CASES / case["file"], max_context=want["max_context"], on_overflow="drop")
    assert kept.report.dropped == {"over_max_context": 2} and len(kept) == 1
    with pytest.raises(TraceFormatError, match="prompt\\+output 4097 > 4096"):
        load(CASES / case["file"], max_context=want["max_context"], on_overflow="error")


def test_removed_offset_is_reported() -> None:
    trace = load(CASES / "29-large-first-timestamp.jsonl")
    assert trace.report.removed_offset_s == 86400.0


def test_bailian_orphan_is_counted() -> None:
    trace = load(CASES / "23-bailian-self-contained-turns.jsonl")
    assert any(w.startswith("1 rows whose parent chat") for w in trace.report.warnings)


def test_burstgpt_failures_can_be_kept() -> None:
    trace = load(CASES / "09-burstgpt-failed-rows.csv", keep_failures=True)
    assert trace.prompt_tokens.tolist() == [120, 500, 60]
    assert trace.output_tokens.tolist() == [30, 0, 12]
    assert trace.recorded[1]["failed"] is True
