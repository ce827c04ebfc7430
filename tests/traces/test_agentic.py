"""Dynamo's agentic_mooncake: rows that wait for others by name, as a closed loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.api import replay
from vtsim.errors import TraceFormatError
from vtsim.request import NO_ARRIVAL, Trace
from vtsim.traces import load
from vtsim.traces.export import export
from vtsim.traces.stats import ideal_prefix_hits

MS = 10**9


def row(name: str, blocks: list[int], session: str = "a", **rest: Any) -> dict[str, Any]:
    lengths = {"input_length": 16 * len(blocks), "output_length": 4, "hash_ids": blocks}
    return {"request_id": name, "session_id": session, **lengths, **rest}


def fan() -> list[dict[str, Any]]:
    """A main agent that spawns two others, and goes on when the second has finished."""
    return [
        row("m0", [1, 2], timestamp=500, prefix_reset=True, branches=["x0", "y0"], wait_for=[]),
        row("x0", [1, 5], "x", timestamp=600, wait_for=["m0"], delay=2.5, prefix_reset=True),
        row("y0", [1, 6], "y", wait_for=["m0"], delay=0, tool_wait_ms=1.5),
        row("m1", [1, 2, 3], timestamp=900, wait_for=["m0", "y0"], delay=10, tool_wait_ms=20),
        row("m2", [1, 2, 3, 4], wait_for=["m1"]),
    ]


def read(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> Trace:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load(path, block_size=16, **options)


def test_fan_out_and_fan_in(tmp_path: Path) -> None:
    trace = read(tmp_path, fan())
    row_of = {name: at for at, name in enumerate(trace.ids)}
    named = {
        trace.ids[at]: tuple(trace.ids[parent] for parent in parents)
        for at, parents in trace.after.items()
    }
    assert named == {"x0": ("m0",), "y0": ("m0",), "m1": ("m0", "y0"), "m2": ("m1",)}
    waits = {trace.ids[at]: wait for at, wait in trace.wait.items()}
    assert waits == {"x0": 2_500_000_000, "y0": 1_500_000_000, "m1": 30 * MS, "m2": 0}
    assert trace.arrival[row_of["m0"]] == 0
    assert (trace.arrival == NO_ARRIVAL).sum() == 4
    assert [int(trace.turn[row_of[name]]) for name in ("m0", "x0", "y0", "m1", "m2")] == [
        *(0, 0, 0, 1, 2)
    ]
    assert trace.extra[row_of["m1"]] == {"timestamp": 900}  # what was measured once
    assert trace.extra[row_of["m0"]] == {"prefix_reset": True, "branches": ["x0", "y0"]}
    assert trace.report.warnings == []
    hits = ideal_prefix_hits(trace, with_outputs=False)
    assert [int(hits[row_of[name]]) for name in ("x0", "y0", "m1", "m2")] == [16, 16, 32, 48]


def test_the_engine_honours_it(tmp_path: Path) -> None:
    trace = read(tmp_path, fan())
    done = replay(trace, ["paged"], max_model_len=4096).requests.set_index("request")
    ends, starts = done.finished_s, done.arrival_s
    for name, parents, wait_s in (
        ("x0", ["m0"], 0.0025),
        ("y0", ["m0"], 0.0015),
        ("m1", ["m0", "y0"], 0.03),
        ("m2", ["m1"], 0.0),
    ):
        last = max(ends[parent] for parent in parents)
        assert starts[name] - last == pytest.approx(wait_s, abs=1e-9)


def test_rows_may_stand_in_any_order_and_roots_state_nothing(tmp_path: Path) -> None:
    """A first row without any of the workflow's keys is a plain row of the family."""
    rows = fan()
    for key in ("prefix_reset", "branches", "wait_for"):
        del rows[0][key]
    trace = read(tmp_path, list(reversed(rows)))
    row_of = {trace.session_names[trace.session[at]]: at for at in range(5)}
    assert len(trace.after) == 4 and set(row_of) == {"a", "x", "y"}
    parents = {len(after) for after in trace.after.values()}
    assert parents == {1, 2}
    forward = read(tmp_path, rows)
    assert forward.turn[forward.session == 0].tolist() == [0, 1, 2]
    assert forward.report.warnings == [
        "keys that this format does not define are kept in extra: request_id"
    ]


def test_what_waits_for_a_dropped_row(tmp_path: Path) -> None:
    """It waits for those that the dropped row waited for, or comes when that would have come."""
    rows = fan()
    rows[3]["output_length"] = 0
    trace = read(tmp_path, rows)
    after = {trace.ids[at]: [trace.ids[p] for p in ps] for at, ps in trace.after.items()}
    assert after["m2"] == ["m0", "y0"] and trace.report.dropped == {"zero_output": 1}
    first = [row("r", [1], timestamp=100, wait_for=[]), row("s", [1], timestamp=50, wait_for=[])]
    first[0]["output_length"] = 0
    trace = read(tmp_path, [*first, row("t", [1], wait_for=["r"], delay=7)])
    assert trace.ids == ("s", "t") and trace.arrival.tolist() == [0, 57 * MS] and not trace.after
    rows = [
        first[1],
        row("u", [1], wait_for=["s"], delay=3),
        row("v", [1], wait_for=["u"], delay=4),
    ]
    rows[1]["output_length"] = 0
    trace = read(tmp_path, rows)  # which took no time, but would have come 3 ms later
    assert trace.after == {1: (0,)} and trace.wait == {1: 7 * MS}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"wait_for": ["nobody"]}, "t.jsonl:5: wait_for: names no request of this file"),
        ({"wait_for": "m1"}, "t.jsonl:5: wait_for: is not a list of request ids"),
        ({"wait_for": [None]}, "t.jsonl:5: wait_for: is not a list of request ids"),
        ({"wait_for": ["m2"]}, "t.jsonl:5: wait_for: request 'm2' waits for itself"),
        ({"tool_wait_ms": -1}, "t.jsonl:5: tool_wait_ms: is negative"),
        ({"tool_wait_ms": 1e12}, "t.jsonl:5: tool_wait_ms: is longer than"),
        ({"request_id": "m0"}, "t.jsonl:5: request_id: stands twice"),
        ({"request_id": 1.5}, "t.jsonl:5: request_id: is neither a string nor an integer"),
        ({"wait_for": [], "prefix_reset": True}, "t.jsonl:5: timestamp: is missing"),
    ],
)
def test_bad_rows_are_told(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    rows = fan()
    rows[4] |= change
    with pytest.raises(TraceFormatError) as caught:
        read(tmp_path, rows)
    assert said in str(caught.value)


def test_a_name_that_two_plain_rows_have(tmp_path: Path) -> None:
    """Is none of this format's business until a row waits for it."""
    plain = [row("p", [1], timestamp=t, session=f"s{t}") for t in (0, 1)]
    assert len(read(tmp_path, plain)) == 2
    with pytest.raises(TraceFormatError, match=r":3: wait_for: names two requests"):
        read(tmp_path, [*plain, row("q", [1], wait_for=["p"])])


def test_branches_alone_are_not_followed(tmp_path: Path) -> None:
    rows = fan()
    rows[0]["branches"] = ["x0", "m2", "gone"]
    assert read(tmp_path, rows).report.warnings == [
        "branches names 2 requests that do not wait_for the one that names them: only wait_for is "
        "followed"
    ]


def test_a_chain_goes_back_to_mooncake(tmp_path: Path) -> None:
    rows = [rows for rows in fan() if rows["session_id"] == "a"]
    rows[1]["wait_for"] = ["m0"]
    trace = read(tmp_path, rows)
    lost = export(trace, tmp_path / "out.jsonl", "mooncake")
    said = "branches, prefix_reset, timestamp in extra: they mean something else in the format"
    assert said in lost
    again = load(tmp_path / "out.jsonl", block_size=16)
    assert again.after == trace.after and again.wait == trace.wait
