"""What readers make of the oddities of formats with hash ids and sessions; made-up rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vtsim.errors import ConfigError
from vtsim.traces.stats import ideal_prefix_hits

MS = 10**9


def test_mooncake_prefix_only_and_exact_tail_rules(read: Any) -> None:
    row = {"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [5, 6]}
    error = read.fails([row], "block sizes that fit: 20 to 39", block_size=16)
    assert error.field == "hash_ids"
    trace = read([row], block_size=16, tail_rule="prefix_only")
    assert trace.content(0) == ((0, 32),)
    read.fails([row], "has 2 and a rest of 8;", "fit: 20 (", block_size=16, tail_rule="exact")
    assert read([row], block_size=20, tail_rule="exact").content(0) == ((0, 40),)


@pytest.mark.parametrize("unit, factor", [("s", 1000), ("ms", 1), ("us", 0.001)])
def test_mooncake_time_unit(read: Any, unit: str, factor: float) -> None:
    rows = [{"timestamp": t, "input_length": 4, "output_length": 1} for t in (7, 8.5)]
    trace = read(rows, time_unit=unit)
    assert trace.arrival.tolist() == [0, round(1.5 * factor * MS)]
    assert trace.source["time_unit"] == unit


def test_mooncake_times_are_exact(read: Any) -> None:
    trace = read(
        '{"timestamp": 1700000000000.1234567, "input_length": 4, "output_length": 1}\n'
        '{"timestamp": 1700000000000.1234569, "input_length": 4, "output_length": 1}\n'
    )
    assert trace.arrival.tolist() == [0, 200]


def test_mooncake_delta_turns_add_up(read: Any) -> None:
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 10, "output_length": 5},
        {"session_id": "a", "delay": 100, "input_length": 7, "output_length": 3},
        {"session_id": "a", "delay": 200, "input_length": 2, "output_length": 1},
    ]
    trace = read(rows, turns="delta")
    assert trace.prompt_tokens.tolist() == [10, 22, 27]
    assert trace.turn.tolist() == [0, 1, 2]
    assert trace.after == {1: (0,), 2: (1,)} and trace.wait == {1: 100 * MS, 2: 200 * MS}
    assert ideal_prefix_hits(trace).tolist() == [0, 15, 25]
    whole = read(rows)
    assert whole.prompt_tokens.tolist() == [10, 7, 2] and whole.content(1) == ()
    assert any("--turns" in w for w in whole.report.warnings)


@pytest.mark.parametrize(
    "rows, field, words",
    [
        ([{"timestamp": 0, "delay": 1, "session_id": "q"}], "timestamp", "stands beside delay"),
        ([{"delay": 1}], "timestamp", "needs a session_id"),
        ([{"delay": 1, "session_id": "q"}], "timestamp", "first row of session 'q'"),
        ([{}], "timestamp", "missing"),
        ([{"timestamp": -1}], "timestamp", "negative"),
        ([{"timestamp": True}], "timestamp", "not a number"),
        ([{"timestamp": 0, "hash_ids": [1, 2, None]}], "hash_ids[2]", "neither"),
        ([{"timestamp": 0, "hash_ids": [1, -2]}], "hash_ids[1]", "negative"),
        ([{"timestamp": 0, "hash_ids": [1.0]}], "hash_ids[0]", "neither"),
        ([{"timestamp": 0, "hash_ids": "ab"}], "hash_ids", "not a list"),
        ([{"timestamp": 0, "input_length": "x"}], "input_length", "not a number"),
        ([{"timestamp": 0, "input_tokens": 6}], "input_tokens", "differs from input_length 5"),
        ([{"timestamp": 0, "session_id": []}], "session_id", "not a string"),
        ([{"timestamp": 0, "priority": -1}], "priority", "negative"),
    ],
)
def test_mooncake_errors(read: Any, rows: list[dict[str, Any]], field: str, words: str) -> None:
    whole = [{"input_length": 5, "output_length": 1, **row} for row in rows]
    assert read.fails(whole, words, from_format="mooncake").field == field


def test_mooncake_text_is_counted_by_a_rule(read: Any) -> None:
    rows = [
        {"timestamp": 0, "input_length": 9, "output_length": 5},
        {"timestamp": 1, "text_input": "one two three", "output_length": 5},
        {"timestamp": 2, "messages": [{"role": "user", "content": "a b"}], "output_length": 5},
    ]
    trace = read(rows, tokens_per_word=1.5)
    assert trace.prompt_tokens.tolist() == [9, 5, 3]
    assert trace.source["token_rule"] == "1.5 token(s) a word"


def test_mooncake_failed_rows_of_a_session(read: Any) -> None:
    rows = [
        {"session_id": "a", "timestamp": 1000, "input_length": 10, "output_length": 0},
        {"session_id": "a", "delay": 500, "input_length": 7, "output_length": 3},
    ]
    trace = read(rows)
    assert trace.report.dropped == {"zero_output": 1}
    assert trace.arrival.tolist() == [0] and not trace.after
    assert trace.report.removed_offset_s == 1.5


def test_unknown_keys_are_kept_with_one_warning(read: Any) -> None:
    rows = [{"timestamp": 0, "input_length": 1, "output_length": 1, "tag": [1, 2.5]}] * 2
    trace = read(rows)
    assert trace.extra == {0: {"tag": [1, 2.5]}, 1: {"tag": [1, 2.5]}}
    assert len(trace.report.warnings) == 1 and "tag" in trace.report.warnings[0]


def test_bailian_branches_share_a_session(read: Any) -> None:
    row = {"timestamp": 1.0, "input_length": 16, "output_length": 4, "type": "text", "turn": 1}
    rows = [
        {**row, "chat_id": 1, "parent_chat_id": -1, "hash_ids": [1]},
        {**row, "chat_id": 2, "parent_chat_id": 1, "hash_ids": [1]},
        {**row, "chat_id": 3, "parent_chat_id": 1, "hash_ids": [1]},
    ]
    trace = read(rows)
    assert trace.session_names == ("1",) and trace.turn.tolist() == [0, 1, 1]
    assert trace.ids == (1, 2, 3)
    assert read.fails(rows[:1] * 2, "stands twice").line == 2


def test_weka_absolute_sub_agents_and_overrides(read: Any) -> None:
    def document(first: float) -> str:
        inner = [{"t": first, "in": 64, "out": 1, "hash_ids": [9]}]
        return json.dumps(
            {
                "id": "c",
                "block_size": 64,
                "hash_id_scope": "local",
                "requests": [
                    {"t": 0, "in": 64, "out": 1, "hash_ids": [1]},
                    {"t": 5, "type": "subagent", "agent_id": "a", "requests": inner},
                ],
            },
            indent=1,
        )

    assert read(document(7)).arrival.tolist() == [0, 7 * 10**12]
    assert read(document(3)).arrival.tolist() == [0, 8 * 10**12]
    assert read(document(7), subagent_time="relative").arrival.tolist() == [0, 12 * 10**12]
    with pytest.raises(ConfigError, match="subagent_time"):
        read(document(7), subagent_time="guess")


def test_weka_lines_and_duplicate_names(read: Any) -> None:
    one = {
        "id": "c",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}],
    }
    trace = read([one, one])
    assert len(set(trace.session.tolist())) == 2
    assert trace.hash_ids(0) != trace.hash_ids(1)
    error = read.fails([one, {**one, "block_size": 32}], "differs from 64")
    assert error.line == 2
    bad = {**one, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": []}]}
    assert read.fails([one, bad], "0 hash ids").field == "requests[0].hash_ids"


def test_servingsim_token_ids_say_what_is_shared(read: Any) -> None:
    def row(at: int, ids: list[int]) -> dict[str, Any]:
        return {
            "input_toks": len(ids),
            "output_toks": 1,
            "arrival_time_ns": at,
            "input_tok_ids": ids,
        }

    rows = [row(5, [1, 2, 3, 4, 9]), row(7, [1, 2, 3, 4, 5, 6]), row(8, [7, 2, 3, 4, 5, 6])]
    trace = read(rows, block_size=2)
    assert trace.arrival.tolist() == [0, 2000, 3000]
    assert ideal_prefix_hits(trace).tolist() == [0, 4, 0]
    rows[0]["input_toks"] = 4
    assert read.fails(rows, "5 token ids").field == "input_tok_ids"


def test_bailian_parents_may_stand_behind_their_children(read: Any) -> None:
    row = {"input_length": 16, "output_length": 4, "hash_ids": [1]}
    rows = [
        {**row, "timestamp": 9, "chat_id": 3, "parent_chat_id": 2},
        {**row, "timestamp": 5, "chat_id": 2, "parent_chat_id": 1},
        {**row, "timestamp": 1, "chat_id": 1, "parent_chat_id": -1},
        {**row, "timestamp": 7, "chat_id": 5, "parent_chat_id": 1},
    ]
    trace = read(rows)
    assert trace.ids == (1, 2, 5, 3) and trace.turn.tolist() == [0, 1, 1, 2]
    assert trace.session_names == ("1",) and trace.report.rows_moved == 3
    rows[2]["parent_chat_id"] = 3
    read.fails(rows, "trace:1: parent_chat_id: chat 3 is its own parent", "(got 2)")


@pytest.mark.parametrize("layout", ["array", "indented"])
def test_rows_may_stand_in_one_array(read: Any, layout: str) -> None:
    rows = [
        {"timestamp": 0, "input_length": 4, "output_length": 1},
        {"timestamp": 5, "input_length": 4, "output_length": -1},
    ]
    text = json.dumps(rows, indent=1 if layout == "indented" else None)
    error = read.fails(text, "negative")
    assert error.field == "[1].output_length"
    assert error.line == (7 if layout == "indented" else 1)
    rows[1]["output_length"] = 2
    assert len(read(json.dumps(rows, indent=1))) == 2
