"""What rows have to do with each other, where tools get that wrong: names, turns, scopes, units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import TraceFormatError
from vtsim.request import NO_ARRIVAL, TICKS_PER_S
from vtsim.traces import load, write_native

HIGH = 2**53


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(**changes: Any) -> dict[str, Any]:
    row = {"timestamp": 0, "input_length": 40, "output_length": 2, **changes}
    return {key: value for key, value in row.items() if value is not ...}


def weka(*requests: dict[str, Any], **head: Any) -> dict[str, Any]:
    return {"id": "c", "block_size": 64, "models": [], "requests": list(requests), **head}


def call(**changes: Any) -> dict[str, Any]:
    return {"t": 0.0, "in": 64, "out": 5, "hash_ids": [1], **changes}


def write(folder: Path, data: str) -> Path:
    path = folder / "x"
    path.write_text(data)
    return path


def test_hash_ids_beyond_what_a_float_holds_stay_apart(tmp_path: Path) -> None:
    rows = [
        mooncake(input_length=600, hash_ids=[HIGH, HIGH + 1]),
        mooncake(input_length=600, hash_ids=[HIGH + 1, 7]),
    ]
    trace = load(write(tmp_path, lines(*rows)))
    assert [trace.hash_ids(row) for row in (0, 1)] == [[0, 1], [1, 2]]


def test_a_hash_id_and_its_string_are_two(tmp_path: Path) -> None:
    rows = [mooncake(hash_ids=[1]), mooncake(hash_ids=["1"]), mooncake(hash_ids=["1"])]
    trace = load(write(tmp_path, lines(*rows)))
    assert [trace.hash_ids(row) for row in range(3)] == [[0], [1], [1]]


def test_turns_follow_the_clock_not_the_file(tmp_path: Path) -> None:
    rows = [
        mooncake(session_id="a", timestamp=100, input_length=600, hash_ids=[1, 2]),
        mooncake(session_id="b", timestamp=60, hash_ids=[9]),
        mooncake(session_id="a", timestamp=50, input_length=300, hash_ids=[1]),
    ]
    trace = load(write(tmp_path, lines(*rows)))
    names = [trace.session_names[session] for session in trace.session]
    turns = list(zip(names, trace.turn.tolist(), trace.prompt_tokens.tolist(), strict=True))
    assert turns == [("a", 0, 300), ("b", 0, 40), ("a", 1, 600)]
    with pytest.raises(TraceFormatError, match="x:3: timestamp: lies before that of session 'a'"):
        load(write(tmp_path, lines(*rows)), turns="delta")


@pytest.mark.parametrize(("scope", "ids"), [("local", [0, 1]), ("global", [0, 0])])
def test_hash_ids_of_conversations_are_shared_if_the_file_says_so(
    scope: str, ids: list[int], tmp_path: Path
) -> None:
    path = write(tmp_path, lines(*(weka(call(), id=n, hash_id_scope=scope) for n in "ab")))
    trace = load(path)
    assert [trace.hash_ids(row)[0] for row in (0, 1)] == ids
    assert trace.hash_scope == scope


def test_answers_without_a_question_are_counted(tmp_path: Path) -> None:
    said = (("gpt", "welcome"), ("human", "a b"), ("gpt", "c"), ("gpt", "d e"), ("human", "f"))
    messages = [{"from": who, "value": text} for who, text in (*said, ("gpt", "g"))]
    trace = load(write(tmp_path, json.dumps([{"id": "x", "conversations": messages}])))
    assert trace.prompt_tokens.tolist() == [3, 7] and trace.output_tokens.tolist() == [1, 1]
    assert any(w.startswith("2 answers follow no question") for w in trace.report.warnings)


def test_rows_without_a_name_get_one_that_nobody_has(tmp_path: Path) -> None:
    rows = [
        {"request_id": name, "type": "text", "input_length": 16, "output_length": 2}
        for name in (1, None, 3, None)
    ]
    trace = load(write(tmp_path, lines(*rows)), rate=1.0)
    assert trace.ids == (1, 4, 3, 5)
    write_native(trace, tmp_path / "y")
    assert load(tmp_path / "y").ids == trace.ids


def test_stamps_with_fractions_may_be_seconds_and_that_is_said(tmp_path: Path) -> None:
    """guidellm writes seconds under Mooncake's keys; a unit is not guessed, only asked for."""
    path = write(tmp_path, lines(mooncake(timestamp=0.0), mooncake(timestamp=0.5)))
    said = [w for w in load(path).report.warnings if "--time-unit s" in w]
    assert len(said) == 1
    assert not load(path, time_unit="ms").report.warnings
    seconds = load(path, time_unit="s")
    assert not seconds.report.warnings and seconds.arrival.tolist() == [0, TICKS_PER_S // 2]
    whole = write(tmp_path, lines(mooncake(timestamp=0.0), mooncake(timestamp=2.0)))
    assert not load(whole).report.warnings


def test_what_waits_for_a_row_that_failed_waits_for_the_one_before_it(tmp_path: Path) -> None:
    """No longer and no shorter than it would have if the failed row had taken no time."""
    behind = {"timestamp": ..., "session_id": "a"}
    rows = [
        mooncake(session_id="a"),
        mooncake(**behind, delay=100, output_length=0),
        mooncake(**behind, delay=30, output_length=0),
        mooncake(**behind, delay=50),
        mooncake(**behind, delay=7),
    ]
    trace = load(write(tmp_path, lines(*rows)))
    assert trace.report.dropped == {"zero_output": 2}
    assert trace.after == {1: (0,), 2: (1,)}
    assert trace.wait == {1: 180 * TICKS_PER_S // 1000, 2: 7 * TICKS_PER_S // 1000}


def test_turns_that_ask_nothing_take_no_time_but_their_delay(tmp_path: Path) -> None:
    turns: list[dict[str, Any]] = [
        {"text": "", "output_length": 3, "timestamp": 1000},
        {"text": "a", "output_length": 3, "delay": 200},
        {"text": "b", "output_length": 0, "delay": 30},
        {"text": "c", "output_length": 3, "delay": 4},
    ]
    rows: list[dict[str, Any]] = [
        {"session_id": "s", "turns": turns},
        {"text": "d", "output_length": 1, "timestamp": 0},
    ]
    trace = load(write(tmp_path, lines(*rows)), from_format="prompts")
    ms = TICKS_PER_S // 1000
    assert trace.report.dropped == {"zero_prompt": 1, "zero_output": 1}
    assert trace.arrival.tolist() == [0, 1200 * ms, NO_ARRIVAL]
    assert trace.after == {2: (1,)} and trace.wait == {2: 34 * ms}


def test_a_turn_that_states_its_time_comes_then(tmp_path: Path) -> None:
    turns = [
        {"text": "a", "output_length": 3, "timestamp": 0},
        {"text": "b", "output_length": 3, "timestamp": 500},
        {"text": "c", "output_length": 3, "delay": 4},
    ]
    trace = load(write(tmp_path, lines({"session_id": "s", "turns": turns})))
    assert trace.arrival.tolist() == [0, TICKS_PER_S // 2, NO_ARRIVAL]
    assert trace.after == {2: (1,)} and trace.prompt_tokens.tolist() == [1, 5, 9]


def test_rows_of_a_conversation_count_as_its_turns_do(tmp_path: Path) -> None:
    said = [
        {"text": "", "output_length": 3, "timestamp": 1000},
        {"text": "a", "output_length": 3, "delay": 200},
        {"text": "b", "output_length": 0, "delay": 30},
        {"text": "c", "output_length": 3, "delay": 4},
    ]
    rows: list[dict[str, Any]] = [{**row, "session_id": "s"} for row in said]
    trace = load(write(tmp_path, lines(*rows)), from_format="prompts")
    assert trace.report.removed_offset_s == 1.2 and trace.arrival.tolist() == [0, NO_ARRIVAL]
    assert trace.after == {1: (0,)} and trace.wait == {1: 34 * TICKS_PER_S // 1000}
    with pytest.raises(TraceFormatError, match="x:1: delay: needs a row of the same session_id"):
        load(write(tmp_path, lines(*rows[1:])), from_format="prompts")
