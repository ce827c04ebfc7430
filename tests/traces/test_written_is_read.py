"""What `trace convert` writes, its own reader reads: or it is refused, or listed as a loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.errors import ConfigError, TraceFormatError
from vtsim.request import Trace
from vtsim.traces import load
from vtsim.traces.export import export

HEAD: dict[str, Any] = {"format": "vtsim-trace", "version": 1}
SIZE = {"prompt_tokens": 50, "output_tokens": 2}
BLOCK = 16
NAMES = ["", "s", "s#1", " ", "é\n", "(no name)", "0", "\x00"]
KEYS = [
    *("colour", "request_id", "text_input", "messages", "timestamp", "branches", "wait_for"),
    *("requests", "chat_id", "parent_chat_id", "delay_ms", "spans", "hash_ids", "", "a\nb"),
]
VALUES = st.none() | st.booleans() | st.integers(-3, 10**25) | st.text(max_size=3) | st.just([1.5])


def written(folder: Path, rows: list[dict[str, Any]], **head: object) -> Path:
    path = folder / "in.json"
    path.write_text(json.dumps({**HEAD, **head, "requests": rows}))
    return path


def told(trace: Trace) -> list[Any]:
    """When requests come, how long they are, whom they wait for."""
    columns = (trace.arrival, trace.prompt_tokens, trace.output_tokens)
    waits = {row: sorted(parents) for row, parents in trace.after.items()}
    sessions = trace.session.tolist()
    same = [sessions.index(session) if session >= 0 else -1 for session in sessions]
    return [*(column.tolist() for column in columns), waits, dict(trace.wait), same]


def named(trace: Trace) -> list[str | None]:
    """The session of each request."""
    return [trace.session_names[at] if at >= 0 else None for at in trace.session]


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A native document: its head, and requests in any order."""
    rule = draw(st.sampled_from(["exact", "partial_tail", "prefix_only"]))
    count = draw(st.integers(1, 7))
    ids: list[Any] = draw(
        st.lists(
            st.integers(0, 9) | st.sampled_from(["0", "1", "a#1", "", "x"]),
            min_size=count,
            max_size=count,
            unique=True,
        )
    )
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(ids):
        prompt = draw(st.integers(1, 70)) if rule != "exact" else BLOCK * draw(st.integers(1, 4))
        row: dict[str, Any] = {"id": name, "prompt_tokens": prompt, "output_tokens": 3}
        if number and draw(st.integers(0, 1)):
            chosen = st.lists(st.sampled_from(ids[:number]), min_size=1, max_size=2, unique=True)
            row |= {"after": draw(chosen), "wait_s": draw(st.integers(0, 10**6)) / 10**6}
        else:
            row["arrival_s"] = draw(st.integers(0, 3)) / 4
        if draw(st.integers(0, 1)):
            blocks = -(-prompt // BLOCK) if rule == "partial_tail" else prompt // BLOCK
            first = draw(st.integers(0, 2)) * 10
            row["hash_ids"] = list(range(first, first + blocks))
        if draw(st.integers(0, 2)):
            row["session"] = draw(st.sampled_from(NAMES))
            row["turn"] = draw(st.integers(0, 3))
        row["priority"] = draw(st.integers(-1, 2))
        row["extra"] = draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2))
        rows.append(row)
    return {"block_size": BLOCK, "tail_rule": rule}, draw(st.permutations(rows))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


@given(requests(), st.sampled_from(["native", "mooncake", "aiperf"]), st.integers(1, 3))
@settings(max_examples=250, deadline=None)
def test_what_is_written_is_read(
    scratch: Path, document: tuple[dict[str, Any], list[dict[str, Any]]], target: str, repeats: int
) -> None:
    head, rows = document
    trace = load(written(scratch, rows, **head), repeats=repeats)
    out = scratch / ("out.json" if target == "native" else "out.jsonl")
    try:
        lost = export(trace, out, target)
    except ConfigError as refused:
        same_text = "the same id as text" in str(refused)
        assert target == "aiperf" and trace.after or target == "mooncake" and same_text
        return
    misled = any(line.startswith("its format") for line in lost)
    options: dict[str, Any] = {"from_format": "mooncake"} if misled else {}
    if target != "native" and trace.has_hashes:
        options["block_size"] = trace.block_size
    again = load(out, **options)
    assert again.report.dropped == {} and told(again) == told(trace)
    if target == "native":
        assert lost == [] and again.priority.tolist() == trace.priority.tolist()
        assert again.extra == trace.extra and again.ids == trace.ids
        assert again.turn.tolist() == trace.turn.tolist()
        assert named(again) == named(trace)
    assert named(again) == named(trace) or any(line.startswith("session ''") for line in lost)
    for row in range(len(trace)):
        mine, theirs = trace.hash_ids(row), again.hash_ids(row)
        assert len(theirs) >= len(mine)
        others = {i for other in range(len(trace)) if other != row for i in again.hash_ids(other)}
        assert others.isdisjoint(theirs[len(mine) :])
    if target == "mooncake":
        assert again.extra == trace.extra or any(" in extra: " in line for line in lost)
        assert (again.priority == trace.priority).all() or any(
            line.startswith("priority of ") for line in lost
        )


def test_a_session_that_mixes_waits_and_times(tmp_path: Path) -> None:
    rows = [
        {"id": 0, "arrival_s": 0, "session": "s", **SIZE},
        {"id": 1, "after": [0], "wait_s": 0.5, "session": "s", **SIZE},
        {"id": 2, "arrival_s": 9, "session": "s", **SIZE},
    ]
    trace, out = load(written(tmp_path, rows)), tmp_path / "out.jsonl"
    export(trace, out, "mooncake")
    assert told(load(out)) == told(trace)
    with pytest.raises(ConfigError, match="session 's' wait for the one before, others do not"):
        export(trace, out, "aiperf")


def test_rows_without_hash_ids_in_a_hashed_session(tmp_path: Path) -> None:
    """They get as many as their length asks for, shared with nobody; other sessions get none."""
    rows = [
        {"arrival_s": 0, "session": "s", "hash_ids": [1, 2, 3], **SIZE},
        {"arrival_s": 1, "session": "s", **SIZE},
        {"arrival_s": 2, "session": "t", **SIZE},
    ]
    trace = load(written(tmp_path, rows, block_size=16, tail_rule="prefix_only"))
    out = tmp_path / "out.jsonl"
    export(trace, out, "mooncake")
    again = load(out, block_size=16)
    assert [again.hash_ids(row) for row in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], []]


def test_recorded_lengths_of_payloads(tmp_path: Path) -> None:
    """A length that is recorded names no tokens: a session of prompts may have some that do."""
    say = {"messages": [{"role": "user", "content": "a " * 20}], "max_tokens": 3}
    talk = {"session_id": "s", "payloads": [say, {**say, "input_length": 50}]}
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text(json.dumps(talk))
    export(load(path), out, "mooncake")
    assert load(out, block_size=16).prompt_tokens.tolist() == [20, 50]


def test_copies_have_names_of_their_own(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "session": "s", "arrival_s": 0, **SIZE},
        {"id": "a#1", "session": "s#1", "arrival_s": 1, **SIZE},
    ]
    trace, out = load(written(tmp_path, rows), repeats=3), tmp_path / "out.json"
    assert len(set(trace.ids)) == 6 and len(set(trace.session_names)) == 6
    export(trace, out)
    assert load(out).ids == trace.ids


def test_a_session_without_a_name(tmp_path: Path) -> None:
    rows = [
        {"session": "", "arrival_s": 0, **SIZE},
        {"session": "(no name)", "arrival_s": 1, **SIZE},
    ]
    trace, out = load(written(tmp_path, rows)), tmp_path / "out.jsonl"
    assert any(line.startswith("session ''") for line in export(trace, out, "mooncake"))
    assert load(out).session_names == ("(no name)'", "(no name)")


def test_extra_that_the_format_reads_as_its_own(tmp_path: Path) -> None:
    extra = {"messages": [], "text_input": "a", "request_id": 1.5, "kept": 1}
    rows = [{"arrival_s": 0, "extra": extra, **SIZE}]
    trace, out = load(written(tmp_path, rows)), tmp_path / "out.jsonl"
    said = "messages, request_id, text_input in extra: they mean something else in the format"
    assert said in export(trace, out, "mooncake")
    assert load(out).extra == {0: {"kept": 1}}


def test_what_looks_like_another_format_is_said(tmp_path: Path) -> None:
    rows = [{"arrival_s": 0, "extra": {"chat_id": 1, "parent_chat_id": 2}, **SIZE}]
    trace, out = load(written(tmp_path, rows)), tmp_path / "out.jsonl"
    said = "its format, which is detected as bailian: read it with --from mooncake"
    assert said in export(trace, out, "mooncake")
    assert load(out, from_format="mooncake").extra == trace.extra


LAB = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
TURN = {"session_id": "s", "input_length": 2**31 - 2, "output_length": 9}
TALK = [
    {"messages": [{"content": "a"}], "prompt_tokens": 2**31 - 2},
    {"messages": [{"content": "a"}]},
]


@pytest.mark.parametrize(
    "text, options, words",
    [
        (f"{LAB}s,0,0,{2**31 - 1},1,1,0\n", {}, (":2: prefix_len + input_len: is larger", 2**31)),
        (
            json.dumps({**TURN, "timestamp": 0}) + "\n" + json.dumps({**TURN, "delay": 5}),
            {"turns": "delta"},
            (":2: input_length: is larger", 2**32 + 5),
        ),
        (
            json.dumps({"conversations": [TALK]}),
            {"output_tokens": 5},
            (":1: conversations[0][1].prompt_tokens: is larger", 2**31 + 4),
        ),
    ],
)
def test_a_prompt_that_is_too_long_as_a_sum(
    tmp_path: Path, text: str, options: dict[str, Any], words: tuple[str, int]
) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(TraceFormatError) as caught:
        load(path, **options)
    assert words[0] in str(caught.value) and str(words[1]) in str(caught.value)


def test_a_head_with_numbers_in_strings(tmp_path: Path) -> None:
    rows = [{"arrival_s": 0, "hash_ids": [1, 2, 3], **SIZE, "prompt_tokens": 48}]
    assert load(written(tmp_path, rows, block_size="16.0")).block_size == 16
    with pytest.raises(TraceFormatError, match="block_size: is not a whole number"):
        load(written(tmp_path, rows, block_size="1.5"))


@pytest.mark.parametrize("unit", [{}, [], None, 1])
def test_a_unit_that_is_no_text(tmp_path: Path, unit: object) -> None:
    path = tmp_path / "t"
    metrics = {"request_latency": {"value": 1, "unit": unit}}
    metrics |= {f"{key}_sequence_length": {"value": 9} for key in ("input", "output")}
    about = {"conversation_id": "s", "request_start_ns": 1000}
    path.write_text(json.dumps({"metadata": about, "metrics": metrics, "error": None}))
    with pytest.raises(TraceFormatError, match=r":1: metrics.request_latency.unit: is no known"):
        load(path)
