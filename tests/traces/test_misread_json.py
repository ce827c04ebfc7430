"""JSON of kinds that tools misread, beside those of ../shared/cases: each is read as what it
means, or refused in one line that says what is wrong and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vtsim.errors import TraceFormatError
from vtsim.traces import load


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(**changes: Any) -> dict[str, Any]:
    row = {"timestamp": 0, "input_length": 40, "output_length": 2, **changes}
    return {key: value for key, value in row.items() if value is not ...}


def native(*rows: dict[str, Any], **head: Any) -> str:
    document = {"format": "vtsim-trace", "version": 1, "block_size": 0, "tail_rule": "exact"}
    return json.dumps({**document, "hash_scope": "global", **head, "requests": list(rows)})


def asks(**changes: Any) -> dict[str, Any]:
    return {"arrival_s": 0, "prompt_tokens": 4, "output_tokens": 2, **changes}


def weka(*requests: dict[str, Any], **head: Any) -> dict[str, Any]:
    return {"id": "c", "block_size": 64, "models": [], "requests": list(requests), **head}


def call(**changes: Any) -> dict[str, Any]:
    return {"t": 0.0, "in": 64, "out": 5, "hash_ids": [1], **changes}


ROW = lines(mooncake())
HIGH = 2**53


class Read(NamedTuple):
    """A file that is read, and as what."""

    data: str
    arrival_s: list[float]
    prompt: list[int]
    output: list[int]
    dropped: dict[str, int] = {}  # noqa: RUF012
    moved: int = 0


READ = {
    "blank lines, some of blanks": Read(f"\n\n{ROW}   \n{ROW}\n", [0, 0], [40, 40], [2, 2]),
    "numbers as strings": Read(
        lines(mooncake(timestamp="1000"), mooncake(timestamp="2500", input_length="41")),
        [0, 1.5],
        [40, 41],
        [2, 2],
    ),
    "counts of 40.0": Read(lines(mooncake(input_length=40.0)), [0], [40], [2]),
    "stamps of a fraction of a millisecond": Read(
        lines(mooncake(), mooncake(timestamp=0.25)), [0, 0.00025], [40, 40], [2, 2]
    ),
    "an array instead of lines": Read(f"[{ROW},{ROW}]", [0, 0], [40, 40], [2, 2]),
    "one object over several lines": Read(json.dumps(mooncake(), indent=1), [0], [40], [2]),
    "null and empty hash ids": Read(
        lines(mooncake(hash_ids=None), mooncake(hash_ids=[])), [0, 0], [40, 40], [2, 2]
    ),
    "a row without answer": Read(
        lines(mooncake(output_length=0), mooncake()), [0], [40], [2], {"zero_output": 1}
    ),
    "a length beside a text in another shape": Read(
        json.dumps({"data": [{"timestamp": 0, "input_length": 40, "output_length": 2}]}),
        [0],
        [40],
        [2],
    ),
    "a recorded length beside its text": Read(
        lines(
            {"messages": [{"role": "user", "content": "hi"}], "prompt_tokens": 40, "max_tokens": 2}
        ),
        [0],
        [40],
        [2],
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_is_read_as_what_it_means(kind: str, read: Any) -> None:
    read.means(READ[kind])


def write(folder: Path, data: str) -> Path:
    path = folder / "x"
    path.write_text(data)
    return path


REFUSED: dict[str, tuple[str, str]] = {
    "true for a number": (lines(mooncake(input_length=True)), "x:1: input_length: is not a number"),
    "null for a number": (lines(mooncake(input_length=None)), "x:1: input_length: is missing"),
    "the word NaN": (lines(mooncake(input_length="NaN")), "x:1: input_length: is not finite"),
    "NaN as Python writes it": (lines(mooncake(input_length=float("nan"))), "x:1:34: malformed"),
    "a key twice, blanks before its colon": (
        '{"timestamp" : 0, "input_length" : 4, "output_length" : 2, "output_length" : 3}\n',
        "x:1: malformed JSON: key 'output_length' stands twice",
    ),
    "a key twice, once spelled with an escape": (
        ROW.replace("}", ', "output_lengt\\u0068": 3}'),
        "x:1: malformed JSON: key 'output_length' stands twice",
    ),
    "a number of 5,000 digits": (
        ROW.replace("40", "9" * 5000),
        "x:1: malformed JSON: Integer value out of range",
    ),
    "half a character": (
        ROW.replace("}", ', "session_id": "\\ud800"}'),
        "x:1: malformed JSON: an escape names half a character",
    ),
    "half a character in a document": (
        native(asks(session="\ud800")),
        "malformed JSON: an escape names half a character",
    ),
    "values nested 900 deep": (
        ROW.replace("}", ', "x": ' + "[" * 900 + "]" * 900 + "}"),
        "x:1: extra: is nested too deeply",
    ),
    "values nested 900 deep in a document": (
        native(asks(extra={"x": 0})).replace('"x": 0', '"x": ' + "[" * 900 + "]" * 900),
        "x:1: requests[0].extra: is nested too deeply",
    ),
    "a session without a name": (lines(mooncake(session_id="")), "x:1: session_id: is empty"),
    "a field that would move the cursor": (
        native(asks(session="a", recorded=["\x1b[2J\n"])),
        "recorded: is not an object (got ['\\x1b[2J\\n'])",
    ),
    "a comma behind the last member": (
        ROW.replace("}", ",}"),
        "x:1:57: malformed JSON: trailing comma in object",
    ),
    "a comma behind the last element": (f"[{ROW},\n]", "x:3:1: malformed JSON: expecting value"),
    "documents one behind the other": (
        2 * (json.dumps(mooncake(), indent=1) + "\n"),
        "x:6:1: malformed JSON: another object follows the document",
    ),
    "two objects on a line": (
        ROW.strip() + ROW,
        "x:1:57: malformed JSON: something follows the object",
    ),
    "a row cut off": (ROW + ROW[:20], "x:2: malformed JSON: the line ends inside an object"),
    "two lengths that differ": (
        lines(mooncake(input_tokens=41)),
        "x:1: input_tokens: differs from input_length 40 (got 41)",
    ),
    "hash ids of floats": (
        lines(mooncake(hash_ids=[1.0])),
        "x:1: hash_ids[0]: is neither an integer nor a string (got 1.0)",
    ),
    "a negative hash id": (
        lines(mooncake(hash_ids=[-1])),
        "x:1: hash_ids[0]: is negative (got -1)",
    ),
    "hash ids in a string": (lines(mooncake(hash_ids="[1]")), "x:1: hash_ids: is not a list"),
    "a delay before the session begins": (
        lines(mooncake(timestamp=..., delay=5, session_id="a")),
        "x:1: timestamp: is missing: the first row of session 'a'",
    ),
    "a parent that is missing": (
        native(asks(), asks(arrival_s=None, after=[7])),
        "x:1: requests[1].after: names no request of this file (got 7)",
    ),
    "a request that waits for itself": (
        native(asks(), asks(id=1, arrival_s=None, after=[1])),
        "x:1: after: request 1 waits for itself",
    ),
    "an id twice": (native(asks(id=1), asks(id=1)), "x:1: requests[1].id: is the id of an earlier"),
    "a version of 1.0": (native(asks(), version=1.0), "x:1: version: version 1.0 is unknown"),
    "chats in a circle": (
        lines(
            *(
                mooncake(chat_id=chat, parent_chat_id=3 - chat, hash_ids=[1, 2, 3])
                for chat in (1, 2)
            )
        ),
        "x:1: parent_chat_id: chat 1 is its own parent",
    ),
    "an end before the start": (
        lines(
            {
                "metadata": {"request_start_ns": 5, "request_end_ns": 1},
                "metrics": {
                    "input_sequence_length": {"value": 9},
                    "output_sequence_length": {"value": 4},
                },
            }
        ),
        "x:1: metadata.request_end_ns: stands before request_start_ns",
    ),
    "a last token before the first": (
        lines(
            {
                "input_toks": 3,
                "output_toks": 2,
                "arrival_time": 1.0,
                "queued_ts": 10,
                "first_token_ts": 12,
                "last_token_ts": 11,
            }
        ),
        "x:1: last_token_ts: stands before first_token_ts",
    ),
    "a first token before the request was queued": (
        lines(
            {
                "input_toks": 3,
                "output_toks": 2,
                "arrival_time": 1.0,
                "queued_ts": 10,
                "first_token_ts": 9,
            }
        ),
        "x:1: first_token_ts: stands before queued_ts",
    ),
    "a scope of hash ids that is unknown": (
        json.dumps(weka(call(), hash_id_scope="site")),
        "hash_id_scope: is neither local nor global",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    data, words = REFUSED[kind]
    with pytest.raises(TraceFormatError) as caught:
        load(write(tmp_path, data))
    assert words in str(caught.value).replace(f"{tmp_path}/", "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("said", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_number_is_told_with_its_field(said: str, tmp_path: Path) -> None:
    line = lines(mooncake()) + lines(mooncake()).replace(
        '"input_length": 40', f'"input_length": {said}'
    )
    whole = native(asks(), asks()).replace('"prompt_tokens": 4', f'"prompt_tokens": {said}')
    for text, name, field, row in (
        (line, "t.jsonl", "input_length", 2),
        (whole, "t.json", "prompt_tokens", 1),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(TraceFormatError, match=f"{field}: {said} is no JSON number") as raised:
            load(path)
        column = raised.value.column
        assert raised.value.line == row and column is not None
        assert text.splitlines()[row - 1][column - 1 :].lstrip("-").startswith(said.lstrip("-"))
