"""Rows that wait for others may stand before them in the file: they have no time of their own, so
that nothing may depend on where they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.cli.main import run
from vtsim.request import NO_ARRIVAL, TICKS_PER_S, Trace
from vtsim.traces import load
from vtsim.traces.order import rows_in_order
from vtsim.traces.transform import take

S = TICKS_PER_S
SIZE = {"prompt_tokens": 10, "output_tokens": 2}
ROWS: list[dict[str, Any]] = [
    {"id": "b", "after": ["a"], "wait_s": 1, **SIZE},
    {"id": "a", "arrival_s": 5, **SIZE},
    {"id": "c", "arrival_s": 0, **SIZE},
    {"id": "d", "arrival_s": 6, **SIZE},
]


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "w.json"
    path.write_text(json.dumps({"format": "vtsim-trace", "version": 1, "requests": rows}))
    return path


def names(trace: Trace) -> list[object]:
    return [trace.id_of(row) for row in range(len(trace))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path, ROWS)


def test_a_child_comes_right_behind_its_parent(path: Path) -> None:
    trace = load(path)
    assert names(trace) == ["c", "a", "b", "d"]
    assert trace.arrival.tolist() == [0, 5 * S, NO_ARRIVAL, 6 * S]
    assert trace.after == {2: (1,)} and trace.report.rows_moved == 2


def test_a_window_keeps_the_conversation_by_when_it_starts(path: Path) -> None:
    cut = load(path, window_s=(4, 10))
    assert names(cut) == ["a", "b", "d"] and cut.arrival.tolist() == [0, NO_ARRIVAL, S]


def test_drawn_starts_begin_with_the_conversation(path: Path) -> None:
    drawn = load(path, rate=1, arrival="uniform")
    assert names(drawn) == ["c", "a", "b", "d"]
    assert drawn.arrival.tolist() == [0, S, NO_ARRIVAL, 2 * S]


def test_a_limit_of_rows_keeps_parents(path: Path) -> None:
    assert names(load(path, limit=2, limit_by="row")) == ["c", "a"]
    assert names(load(path, limit=3, limit_by="row")) == ["c", "a", "b"]


def test_mooncake_rows_in_any_order(tmp_path: Path) -> None:
    size = {"input_length": 10, "output_length": 2}
    rows = [
        {"request_id": "b", "wait_for": ["a"], "session_id": "s", **size},
        {"request_id": "a", "timestamp": 3000, "wait_for": [], "session_id": "s", **size},
        {"request_id": "late", "timestamp": 9000, "wait_for": [], **size},
    ]
    path = tmp_path / "w.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    cut = load(path, window_s=(0, 5), turns="whole")
    assert names(cut) == ["a", "b"] and cut.turn.tolist() == [0, 1]


def test_numbers_of_a_single_conversation_are_json(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One timed request has no interval, hence no variation: null, never NaN."""
    path = written(tmp_path, ROWS[:2])
    options = ["--rate", "2", "--arrival", "gamma", "--json", "-"]
    assert run(["trace", "info", str(path), *options]) == 0
    said = capsys.readouterr()
    assert said.err == ""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    arrivals = json.loads(said.out, parse_constant=refuse)["arrivals"]
    assert arrivals["interval_cv"] is None and arrivals["span_s"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"window_s": (4, 10)},
        {"rate": 2, "arrival": "uniform"},
        {"rate": 2},
        {"idle_cap_s": 1},
        {"limit": 3},
        {"repeats": 2},
    ],
)
def test_it_is_the_same_as_of_a_file_in_order(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whatever is done: rows may stand in any order."""
    told = []
    for rows in (ROWS, [ROWS[2], ROWS[1], ROWS[0], ROWS[3]], ROWS[::-1]):
        trace = load(written(tmp_path, rows), **options)
        told.append((names(trace), trace.arrival.tolist(), trace.after, trace.wait))
    assert told[0] == told[1] == told[2]


def test_a_trace_made_in_python_may_stand_in_any_order(path: Path) -> None:
    """`take` keeps the order that it is given: windows do not ask it for times."""
    from vtsim.traces.pace import reschedule
    from vtsim.traces.schedule import Schedule
    from vtsim.traces.transform import window

    turned = take(load(path), np.array([2, 0, 1, 3]))  # b, c, a, d
    assert set(names(window(turned, 4, 10))) == {"a", "b", "d"}
    drawn = reschedule(turned, Schedule(1.0, "uniform"))
    assert drawn.arrival[names(drawn).index("b")] == NO_ARRIVAL
    assert sorted(drawn.arrival.tolist()) == [NO_ARRIVAL, 0, S, 2 * S]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], dict[int, tuple[int, ...]]]:
    """Keys of rows (-1 of one that waits), and whom rows wait for: no circles, any order."""
    count = draw(st.integers(1, 12))
    ranks = draw(st.permutations(range(count)))
    keys = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    after: dict[int, tuple[int, ...]] = {}
    for row in range(count):
        before = [other for other in range(count) if ranks[other] < ranks[row]]
        waits: bool = draw(st.booleans())
        if before and waits:
            chosen = draw(st.lists(st.sampled_from(before), min_size=1, max_size=3, unique=True))
            after[row], keys[row] = tuple(chosen), -1
    return keys, after


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_order_is_by_time_then_parents_then_the_file(
    graph: tuple[list[int], dict[int, tuple[int, ...]]],
) -> None:
    keys, after = graph
    order = rows_in_order(keys, after)
    rows = list(range(len(keys))) if order is None else order.tolist()
    assert sorted(rows) == list(range(len(keys)))
    place = {row: at for at, row in enumerate(rows)}
    assert [keys[row] for row in rows] == sorted(keys)
    for row, parents in after.items():
        assert keys[row] == max(keys[parent] for parent in parents)
        assert all(place[parent] < place[row] for parent in parents)
    free = [row for row in rows if row not in after]
    assert free == sorted(free, key=lambda row: (keys[row], row))
