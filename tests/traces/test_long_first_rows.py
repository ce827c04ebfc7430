"""A format is found by the keys of the first object, wherever they stand in it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.traces import firstkeys
from vtsim.traces.firstkeys import first_keys

MANY = list(range(100_000, 120_000))
SIZE = {"input_length": 512 * 20_000, "output_length": 2}
REQUEST = {
    "replay": {"input_sequence_hashes": MANY, "trace_block_size": 512, "input_length": 10_240_000},
    "request_id": "r",
    "request_received_ms": 5,
    "output_tokens": 2,
}
LONG: dict[str, Any] = {
    "mooncake": {"hash_ids": MANY, "timestamp": 0, **SIZE},
    "mooncake of texts": {"messages": [{"content": "a" * 99_999, "prompt": 1}], "timestamp": 0}
    | {"input_length": 5, "output_length": 5},
    "bailian": {"hash_ids": MANY, "chat_id": 1, "parent_chat_id": -1, "timestamp": 0}
    | {"input_length": 16 * 20_000, "output_length": 2},
    "llmservingsim": {"input_tok_ids": MANY, "input_toks": 20_000, "output_toks": 5}
    | {"arrival_time_ns": 5},
    "servegen": {"hash_ids": MANY, "request_id": 0, "type": "t", "input_length": 16 * 20_000}
    | {"output_length": 5},
    "dynamo": {
        "request": REQUEST,
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
    },
    "weka": {"requests": [{"t": 0, "in": 64 * 20_000, "out": 5, "hash_ids": MANY}], "id": "x"}
    | {"models": [], "block_size": 64},
    "prompts": {"messages": [{"content": "a " * 99_999}], "max_tokens": 5},
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("form", ["a line", "lines", "an array"])
def test_a_long_value_before_the_telling_key(read: Any, name: str, form: str) -> None:
    text = json.dumps(LONG[name])
    if form == "lines":
        text = "\n" + text + "\n"
    elif form == "an array" and name != "weka":
        text = f"[\n{text}]"
    trace = read(text, **({"rate": 1.0} if name == "servegen" else {}))
    assert trace.report.format == name.split()[0] and len(trace) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


class Slow(io.BytesIO):
    """Gives a byte at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(1)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=5), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_first_keys_are_those_that_json_says(
    value: dict[str, Any], spaced: bool, inside: bool
) -> None:
    text = json.dumps(value, indent=1 if spaced else None, ensure_ascii=spaced)
    data = (f"[{text}, {{}}]" if inside else f"\ufeff {text}\n{{").encode("utf-8")
    for stream in (io.BytesIO(data), Slow(data)):
        assert first_keys(stream) == (frozenset(value), True)
    assert first_keys(io.BytesIO(text[:-1].encode()))[1] is False


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firstkeys, "MOST_BYTES", 1 << 17)
    for endless in ('{"a": "' + "b" * 2**20, '{"a": [' + "1," * 2**20, '{"a": 1, "b": [' * 2**16):
        stream = io.BytesIO(endless.encode())
        keys, whole = first_keys(stream)
        assert keys <= {"a", "b"} and not whole and stream.tell() <= 1 << 19
