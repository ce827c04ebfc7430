"""The native format: any trace survives write and read; errors name request, field and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.errors import ConfigError, TraceFormatError
from vtsim.request import NO_ARRIVAL, Trace
from vtsim.traces import load, write_native
from vtsim.traces.writer import native_text

HEAD: dict[str, Any] = {"format": "vtsim-trace", "version": 1}
ONE = {"arrival_s": 0.5, "prompt_tokens": 9, "output_tokens": 2}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    block = draw(st.sampled_from([0, 1, 16, 64]))
    rule = draw(st.sampled_from(["exact", "partial_tail", "prefix_only"]))
    requests: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 8))):
        prompt = draw(st.integers(1, 300))
        request: dict[str, Any] = {
            "id": draw(st.sampled_from([index, f"r{index}"])),
            "prompt_tokens": prompt,
            "output_tokens": draw(st.integers(1, 2**31 - 1)),
        }
        if block and draw(st.booleans()):
            count = -(-prompt // block) if rule == "partial_tail" else prompt // block
            if rule == "exact":
                count = max(count, 1)
                request["prompt_tokens"] = count * block
            ids = st.integers(0, 5) | st.integers(0, 2**64 - 1)
            request["hash_ids"] = draw(st.lists(ids, min_size=count, max_size=count))
        if index and draw(st.booleans()):
            request["after"] = [draw(st.sampled_from(requests))["id"]]
            request["wait_s"] = draw(st.integers(0, 10**12)) / 10**6
        else:
            request["arrival_s"] = draw(st.integers(0, 10**9)) / 10**3
        if draw(st.booleans()):
            request["session"] = draw(st.text(max_size=3))
            request["turn"] = draw(st.integers(0, 4))
        request["priority"] = draw(st.integers(-3, 3))
        request["recorded"] = draw(st.dictionaries(st.text(max_size=3), values, max_size=2))
        request["extra"] = draw(st.dictionaries(st.text(max_size=3), values, max_size=2))
        requests.append(request)
    head = {
        **HEAD,
        "block_size": block,
        "tail_rule": rule,
        "source": draw(st.dictionaries(st.text(max_size=3), values, max_size=2)),
    }
    return {**head, "requests": requests}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


def same(one: Trace, two: Trace) -> None:
    for column in (
        *("arrival", "prompt_tokens", "output_tokens", "priority", "turn", "run_offsets"),
        *("run_first", "run_count"),
    ):
        assert getattr(one, column).tolist() == getattr(two, column).tolist(), column
    for name in ("tail_rule", "block_size", "after", "wait", "recorded", "extra", "source"):
        assert getattr(one, name) == getattr(two, name), name
    rows = range(len(one))
    assert [one.id_of(r) for r in rows] == [two.id_of(r) for r in rows]
    assert [one.session_names[s] if s >= 0 else None for s in one.session] == [
        two.session_names[s] if s >= 0 else None for s in two.session
    ]


@given(documents())
@settings(max_examples=60, deadline=None)
def test_any_trace_survives_write_and_read(scratch: Path, document: dict[str, Any]) -> None:
    folder = scratch
    (folder / "a.json").write_text(json.dumps(document))
    trace = load(folder / "a.json")
    assert len(trace) == len(document["requests"])
    write_native(trace, folder / "b.json")
    again = load(folder / "b.json")
    same(trace, again)
    write_native(again, folder / "c.json")
    third = load(folder / "c.json")
    same(again, third)
    assert (folder / "b.json").read_bytes() == (folder / "c.json").read_bytes()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("prompt_tokens", 0, "at least 1"),
        ("prompt_tokens", -4, "negative"),
        ("prompt_tokens", 1.5, "whole number"),
        ("prompt_tokens", "many", "not a number"),
        ("prompt_tokens", True, "not a number"),
        ("prompt_tokens", None, "missing"),
        ("prompt_tokens", 2**31, "larger than"),
        ("output_tokens", 0, "at least 1"),
        ("arrival_s", -0.1, "negative"),
        ("arrival_s", None, "missing"),
        ("arrival_s", 1e300, "out of range"),
        ("arrival_s", "soon", "not a number"),
        ("session", 7, "not a string"),
        ("turn", -1, "negative"),
        ("priority", 0.5, "whole number"),
        ("wait_s", 2, "needs after"),
        ("after", ["x"], "stands beside after"),
        ("after", "x", "not a list"),
        ("hash_ids", [1, 2], "needs block_size"),
        ("id", None, "neither"),
        ("extra", 3, "not an object"),
        ("recorded", [], "not an object"),
    ],
)
def test_errors_name_request_field_and_line(
    tmp_path: Path, field: str, value: object, words: str
) -> None:
    first, second = json.dumps(ONE), json.dumps({**ONE, field: value})
    path = write(
        tmp_path,
        '{"format": "vtsim-trace", "version": 1,\n\n"requests": [\n' + f"{first},\n\n{second}]}}",
    )
    with pytest.raises(TraceFormatError) as caught:
        load(path)
    error = caught.value
    assert words in str(error)
    assert error.line == 6
    blamed = "arrival_s" if field == "after" and value == ["x"] else field
    assert error.field == f"requests[1].{blamed}"


@pytest.mark.parametrize(
    "text, field, words",
    [
        ("[]", None, "one JSON object"),
        ('{"format": "vtsim-trace", "requests": []}', "version", "missing"),
        ('{"version": 1, "requests": []}', "format", "missing"),
        ('{"format": "vtsim-trace", "version": 1}', "requests", "missing"),
        ('{"format": "vtsim-trace", "version": 1, "requests": {}}', "requests", "not a list"),
        (
            '{"format": "vtsim-trace", "version": 1, "requests": [4]}',
            "requests[0]",
            "not an object",
        ),
        ('{"format": "vtsim-trace", "version": 1, "requests": []}', None, "no requests"),
        ('{"format": "x", "version": 1, "requests": []}', "format", "is not 'vtsim-trace'"),
        ('{"format": "vtsim-trace", "version": true, "requests": []}', "version", "unknown"),
        (
            '{"format": "vtsim-trace", "version": 1, "tail_rule": "all", "requests": []}',
            "tail_rule",
            "not one of",
        ),
        (
            '{"format": "vtsim-trace", "version": 1, "version": 1, "requests": []}',
            "version",
            "twice",
        ),
        ('{"format": "vtsim-trace", "version": 1, "requests": [', None, "malformed JSON"),
        ('{"format": "vtsim-trace", "version": 1, "requests": [{"a": NaN}]}', None, "NaN"),
        ('{"format": "vtsim-trace", "version": 1, "requests": []} x', None, "follows the document"),
    ],
)
def test_errors_of_the_document(tmp_path: Path, text: str, field: str | None, words: str) -> None:
    with pytest.raises(TraceFormatError) as caught:
        load(write(tmp_path, text), from_format="native")
    assert words in str(caught.value)
    assert caught.value.field == field


def test_keys_may_stand_in_any_order(tmp_path: Path) -> None:
    request = {**ONE, "prompt_tokens": 33, "hash_ids": [7, 8, 9]}
    document = {"block_size": 16, **HEAD, "requests": [request], "tail_rule": "partial_tail"}
    trace = load(write(tmp_path, json.dumps(document, sort_keys=True)))
    assert trace.content(0) == ((0, 33),)


def test_closed_loop_rows_stand_behind_their_parents(tmp_path: Path) -> None:
    waits = {"prompt_tokens": 1, "output_tokens": 1, "wait_s": 0.25}
    rows = [
        {**waits, "id": "c", "after": ["b"]},
        {**waits, "id": "b", "after": ["a"]},
        {**ONE, "id": "late", "arrival_s": 9},
        {**ONE, "id": "a", "arrival_s": 3},
    ]
    trace = load(write(tmp_path, json.dumps({**HEAD, "requests": rows})))
    names = [trace.id_of(row) for row in range(4)]
    assert names == ["a", "b", "c", "late"]
    assert trace.arrival.tolist() == [0, NO_ARRIVAL, NO_ARRIVAL, 6 * 10**12]
    assert trace.after == {1: (0,), 2: (1,)} and trace.wait == {1: 25 * 10**10, 2: 25 * 10**10}
    assert trace.report.rows_moved == 2


def test_a_circle_of_waits_is_refused(tmp_path: Path) -> None:
    waits = {"prompt_tokens": 1, "output_tokens": 1}
    rows = [ONE, {**waits, "id": "x", "after": ["y"]}, {**waits, "id": "y", "after": ["x"]}]
    with pytest.raises(TraceFormatError, match="waits for itself"):
        load(write(tmp_path, json.dumps({**HEAD, "requests": rows})))


def test_local_hash_ids_belong_to_a_session(tmp_path: Path) -> None:
    row = {**ONE, "prompt_tokens": 16, "hash_ids": [1], "turn": 0}
    rows = [{**row, "session": "a"}, {**row, "session": "b"}]
    document = {**HEAD, "block_size": 16, "hash_scope": "local", "requests": rows}
    trace = load(write(tmp_path, json.dumps(document)))
    assert trace.hash_ids(0) != trace.hash_ids(1)
    with pytest.raises(TraceFormatError, match="has no session"):
        load(write(tmp_path, json.dumps({**document, "requests": [row]})))


def test_unknown_keys_go_to_extra_with_one_warning(tmp_path: Path) -> None:
    rows = [{**ONE, "colour": "red"}, {**ONE, "colour": "blue", "extra": {"k": 1}}]
    trace = load(write(tmp_path, json.dumps({**HEAD, "requests": rows})))
    assert trace.extra == {0: {"colour": "red"}, 1: {"colour": "blue", "k": 1}}
    assert [w for w in trace.report.warnings if "colour" in w] == trace.report.warnings


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    trace = load(write(tmp_path, json.dumps({**HEAD, "requests": [ONE]})))
    with pytest.raises(ConfigError):
        write_native(trace, tmp_path / "no" / "such.json")
    target = tmp_path / "old.json"
    target.write_text("old")
    broken = Trace.__new__(Trace)
    with pytest.raises(AttributeError):
        write_native(broken, target)
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.json", "trace.json"]
    assert "".join(native_text(trace)).count("\n") == 9
