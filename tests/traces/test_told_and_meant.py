"""What a file states is taken as it is meant, or refused: partial times, empty conversations,
nested spawns, time zones, turns out of order, spans sent twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vtsim.request import TICKS_PER_S, Trace

S = TICKS_PER_S
PROMPT = {"text": "a b", "output_length": 3}


def seconds(trace: Trace) -> list[float]:
    return [at / S for at in trace.arrival.tolist()]


# some requests state a time


MIXED = [{**PROMPT, "timestamp": 5000}, PROMPT, {**PROMPT, "timestamp": 9000}]


def test_some_prompts_state_a_time(read: Any) -> None:
    trace = read(MIXED)
    assert seconds(trace) == [0, 5, 9] and trace.report.arrivals_made == ""
    said = "1 requests state no time and others do: sent at 0 of the file's clock"
    assert said in trace.report.warnings
    assert not any("no arrivals" in line for line in trace.report.warnings)


def test_a_rate_acts_on_all_of_them(read: Any) -> None:
    assert seconds(read(MIXED, rate=2.0)) == [0, pytest.approx(5 / 9), 1]
    drawn = read(MIXED, rate=2.0, arrival="uniform")
    assert seconds(drawn) == [0, 0.5, 1] and drawn.report.arrivals_made == "uniform at 2/s"


def test_measured_starts_that_are_missing(read: Any) -> None:
    document = {"input_lens": [8, 9], "output_lens": [2, 3], "start_times": [1.5, None]}
    text = json.dumps(document)
    read.fails(text, ":1: start_times: is missing, while other requests state theirs")
    read.fails(text, "start_times: is missing", rate=2.0)


# conversations without requests


WEKA = {"models": [], "block_size": 64}
ONE = {"t": 0, "in": 5, "out": 5}
SPAN = {
    "span_id": "a",
    "start_time": "2031-01-01T00:00:00Z",
    "attributes": {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 5},
}


@pytest.mark.parametrize(
    "rows, reason",
    [
        ([{"session_id": "t", "turns": []}, PROMPT], "conversation_without_requests"),
        ([{"session_id": "t", "payloads": []}, PROMPT], "conversation_without_requests"),
        ([{"data": []}, {"data": [PROMPT]}], "conversation_without_requests"),
        (
            [{**WEKA, "id": "x", "requests": [ONE]}, {**WEKA, "id": "y", "requests": []}],
            "conversation_without_requests",
        ),
        (
            [
                {
                    **WEKA,
                    "id": "x",
                    "requests": [
                        ONE,
                        {"type": "subagent", "agent_id": "a", "t": 0, "requests": []},
                    ],
                }
            ],
            "sub_agent_without_requests",
        ),
        (
            [{"trace_id": "t", "spans": [SPAN]}, {"trace_id": "u", "spans": []}],
            "trace_without_spans",
        ),
    ],
)
def test_a_conversation_without_requests_is_counted(
    read: Any, rows: list[dict[str, Any]], reason: str
) -> None:
    report = read(rows).report
    assert (report.rows_read, report.rows_kept, report.dropped) == (2, 1, {reason: 1})
    assert not any("each begin at 0" in line for line in report.warnings)


def test_a_recording_without_turns_is_counted(read: Any) -> None:
    turn = {"messages": [{"role": "user", "content": "a"}]}
    text = json.dumps({"conversations": [[turn], []]})
    assert read(text, output_tokens=2).report.dropped == {"conversation_without_turns": 1}


# sub-agents of sub-agents


def query(t: float) -> dict[str, Any]:
    return {"t": t, "in": 5, "out": 5}


def spawned(name: str, t: float, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"type": "subagent", "agent_id": name, "t": t, "requests": list(requests)}


NESTED = {
    **WEKA,
    "id": "x",
    "requests": [
        query(0),
        spawned("a", 5, query(0), spawned("deep", 1, query(0)), query(9)),
        query(30),
    ],
}


def test_nested_sub_agents_count_from_their_spawn(read: Any) -> None:
    trace = read([NESTED])
    assert seconds(trace) == [0, 5, 6, 14, 30]
    assert [trace.extra[row]["agent_id"] for row in range(5)] == ["main", "a", "deep", "a", "main"]
    assert trace.source["subagent_time"] == "relative to their spawn"
    absolute = read([NESTED], subagent_time="absolute")
    assert seconds(absolute) == [0, 0, 0, 9, 30]


def test_nested_sub_agents_in_a_closed_loop(read: Any) -> None:
    trace = read([NESTED], closed_loop=True)
    agents = [str(trace.extra[row]["agent_id"]) for row in range(5)]
    assert agents == ["main", "a", "deep", "a", "main"]
    assert trace.after == {1: (0,), 2: (1,), 3: (1, 2), 4: (0, 3)}
    assert [trace.wait[row] / S for row in range(1, 5)] == [5, 1, 8, 16]


def test_a_nested_sub_agent_that_goes_on_is_not_waited_for(read: Any) -> None:
    """As of the conversation itself: only those that had ended."""
    long = {**query(0), "api_time": 12}
    inner = spawned("a", 5, query(0), spawned("deep", 1, long), query(9))
    talk = {**WEKA, "id": "x", "requests": [query(0), inner, query(30)]}
    trace = read([talk], closed_loop=True)
    assert trace.after == {1: (0,), 2: (1,), 3: (1,), 4: (0, 2, 3)}


def test_turns_of_an_agent_follow_the_clock(read: Any) -> None:
    talk = {**WEKA, "id": "x", "requests": [query(0), query(9), query(4)]}
    trace = read([talk])
    assert seconds(trace) == [0, 4, 9] and trace.turn.tolist() == [0, 1, 2]


# times that cannot be


@pytest.mark.parametrize("zone", ["+90:00", "+99:99", "-14:30", "+05:60", "+1:000", "05:30", "+5"])
def test_a_zone_that_is_none(read: Any, zone: str) -> None:
    stamp = f"2031-06-01 00:00:01{zone}"
    table = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{stamp},8,1\n"
    read.fails(table, ":2: TIMESTAMP: has a", "zone", repr(stamp))
    read.fails([{"trace_id": "t", "spans": [{**SPAN, "start_time": stamp}]}], "start_time: has a")


@pytest.mark.parametrize("zone", ["+14:00", "-12:00", "+0530", "+05", "Z", "", " UTC"])
def test_a_zone_that_is_one(read: Any, zone: str) -> None:
    read(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2031-06-01 00:00:01{zone},8,1\n")


def test_turns_that_cannot_be(read: Any) -> None:
    turn = {"text": "a", "output_length": 2}
    late, early = {**turn, "timestamp": 4}, {**turn, "timestamp": 2}
    read.fails([{"turns": [{**turn, "delay": 5}, turn]}], ":1: turns[0].delay: needs a turn before")
    read.fails([{"turns": [late, early]}], ":1: turns[1].timestamp: lies before", "(got 2)")
    assert seconds(read([{"turns": [early, late]}])) == [0, 0.002]


@pytest.mark.parametrize(
    "text, field",
    [
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n-1,5,5\n", "arrived_at"),
        ("arrival_timestamp,prompt_size,token_size\n-1,5,5\n", "arrival_timestamp"),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "-3,G,300,41,341,Chat\n",
            "Timestamp",
        ),
    ],
)
def test_a_time_before_the_start(read: Any, text: str, field: str) -> None:
    read.fails(text, f":2: {field}: is negative")


# spans


def test_a_span_sent_twice(read: Any) -> None:
    again = {**SPAN, "status": {"code": 1}}
    trace = read([{"trace_id": "t", "spans": [SPAN, {**SPAN, "span_id": "b"}, again]}])
    assert len(trace) == 2 and trace.report.dropped == {"span_twice": 1}
    other = {**SPAN, "start_time": "2031-01-01T00:00:01Z"}
    said = "spans[1].span_id: stands twice in its trace, with other times or lengths (got 'a')"
    read.fails([{"trace_id": "t", "spans": [SPAN, other]}], said)
    assert len(read([{"trace_id": t, "spans": [SPAN]} for t in "tu"])) == 2


@pytest.mark.parametrize(
    "status, failed",
    [
        ("ERROR", True),
        ("Status_Code_Error", True),
        ({"code": 2}, True),
        ({"status_code": "ERROR"}, True),
        ({"code": "StatusCode.ERROR"}, True),
        ("OK", False),
        ({}, False),
        ({"code": "UNSET"}, False),
        (None, False),
    ],
)
def test_the_status_of_a_span(read: Any, status: object, failed: bool) -> None:
    spans = [SPAN, {**SPAN, "span_id": "b", "status": status}]
    report = read([{"trace_id": "t", "spans": spans}]).report
    assert report.dropped == ({"failed": 1} if failed else {})


def test_a_status_that_is_none(read: Any) -> None:
    statuses: list[object] = ["maybe", {"code": {}}, 7]
    for status in statuses:
        spans = [{**SPAN, "status": status}]
        read.fails([{"trace_id": "t", "spans": spans}], "spans[0].status: is no status")


# names that collide


def test_conversations_of_one_name_stay_two(read: Any) -> None:
    talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    trace = read([{"id": name, "conversations": talk} for name in ("x", "x#2", "x", "x")])
    assert sorted(trace.session.tolist()) == [0, 1, 2, 3]


def test_an_agent_and_a_conversation_of_one_name_stay_two(read: Any) -> None:
    first = {**WEKA, "id": "x", "requests": [query(0), spawned("a", 1, query(0))]}
    trace = read([first, {**WEKA, "id": "x/a", "requests": [query(0)]}, first])
    assert len(trace) == 5 and len(set(trace.session.tolist())) == 5
    late = read([{**WEKA, "id": "x/a", "requests": [query(0)]}, first])
    assert len(set(late.session.tolist())) == 3
