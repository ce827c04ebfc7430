"""`--on-overflow error` says where the request stands, in any format: file, line, field, value."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import TraceFormatError
from vtsim.traces import load
from vtsim.traces.pace import repeat
from vtsim.traces.transform import apply_max_context

MOONCAKE = {"timestamp": 0, "input_length": 10, "output_length": 5}
CHAT = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 5}
LONG = {"messages": [{"role": "user", "content": "w " * 200}], "max_tokens": 5}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
SPAN = {"start_time": "2032-01-01T00:00:00Z"}
COUNTS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"


def span(prompt: int) -> dict[str, Any]:
    return {**SPAN, "attributes": dict(zip(COUNTS, (prompt, 5), strict=True))}


def lines(*rows: object) -> str:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"


CASES: dict[str, tuple[str, int, str, int]] = {
    "mooncake": (lines(MOONCAKE, "", {**MOONCAKE, "input_length": 90}), 3, "input_length", 90),
    "mooncake, both": (
        lines(MOONCAKE, {**MOONCAKE, "output_length": 75}),
        2,
        "input_length + output_length",
        85,
    ),
    "mooncake, sorted": (
        lines({**MOONCAKE, "timestamp": 9, "input_length": 90}, MOONCAKE),
        1,
        "input_length",
        90,
    ),
    "azure, block": (
        AZURE
        + "2032-01-01 00:00:00.0000000,0,5\n2032-01-01 00:00:01.0000000,7,5\n"
        + "2032-01-01 00:00:02.0000000,99,5\n",
        4,
        "ContextTokens",
        99,
    ),
    "azure, lines": (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\r\n\r\n"
        "2032-01-01T00:00:00Z,0,7,5\r\n\r\n2032-01-01T00:00:02Z,0,99,5\r\n",
        5,
        "ContextTokens",
        99,
    ),
    "vidur": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,5,96\n",
        3,
        "num_prefill_tokens + num_decode_tokens",
        101,
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,m,5,5,10,c\n6,m,85,5,90,c\n",
        3,
        "Request tokens",
        85,
    ),
    "tracelab": (
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
        "s,0,0,0,9,9,0\ns,0,1,18,80,9,0\n",
        3,
        "prefix_len + input_len",
        98,
    ),
    "bailian": (
        lines(
            {"chat_id": 1, "parent_chat_id": -1, **MOONCAKE},
            {"chat_id": 2, "parent_chat_id": -1, **MOONCAKE, "input_length": 90},
        ),
        2,
        "input_length",
        90,
    ),
    "prompts": (lines(CHAT, LONG), 2, "prompt", 200),
    "array": ("[\n" + json.dumps(CHAT) + ",\n\n" + json.dumps(LONG) + "]", 4, "prompt", 200),
    "native": (
        '{"format": "vtsim-trace", "version": 1, "requests": [\n'
        '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 5},\n'
        '{"arrival_s": 0, "prompt_tokens": 90, "output_tokens": 5}]}',
        3,
        "prompt_tokens",
        90,
    ),
    "otel": (lines({"spans": [span(9)]}, {"spans": [span(90)]}), 2, COUNTS[0], 90),
    "sharegpt": (
        lines(
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            {
                "conversations": [
                    {"from": "human", "value": "a " * 90},
                    {"from": "gpt", "value": "b"},
                ]
            },
        ),
        2,
        "prompt",
        90,
    ),
    "vllm-bench": (
        '{"input_lens": [9, 90],\n "output_lens": [5, 5], "start_times": [0, 1]}',
        1,
        "input_lens",
        90,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("packed", [False, True])
def test_the_place_is_said(tmp_path: Path, name: str, packed: bool) -> None:
    text, line, field, value = CASES[name]
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with pytest.raises(TraceFormatError) as caught:
        load(path, max_context=80, on_overflow="error")
    error = caught.value
    assert (error.path, error.line, error.field, error.value) == (str(path), line, field, value)
    assert f"> 80 (got {value})" in str(error)


def test_the_first_by_arrival_that_is_kept(tmp_path: Path) -> None:
    """What a window or a limit leaves out is no error; what is left is told by its own line."""
    path = tmp_path / "trace"
    long = {**MOONCAKE, "input_length": 90}
    rows = lines({**long, "timestamp": 0}, {**MOONCAKE, "timestamp": 2000})
    path.write_text(rows + lines({**long, "timestamp": 1500}, {**MOONCAKE, "timestamp": 1000}))
    with pytest.raises(TraceFormatError) as caught:
        load(path, window_s=(1, 9), max_context=80, on_overflow="error")
    assert caught.value.line == 3
    assert len(load(path, window_s=(1, 1.2), max_context=80, on_overflow="error")) == 1


def test_a_copy_stands_where_its_original_does(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(lines(MOONCAKE, {**MOONCAKE, "input_length": 90, "timestamp": 5}))
    trace = repeat(load(path), 3)
    assert trace.lines is not None and trace.lines.tolist() == [1, 2] * 3
    with pytest.raises(TraceFormatError, match=":2: input_length: "):
        apply_max_context(trace, 80, "error")


def test_in_a_folder_the_file_is_named(tmp_path: Path) -> None:
    for name, prompt in (("a", 10), ("b", 90)):
        rows = [{"t": 0, "in": 1, "out": 1}, {"t": 1, "in": prompt, "out": 5}]
        head = {"id": name, "models": [], "block_size": 64, "requests": rows}
        (tmp_path / f"{name}.json").write_text(json.dumps(head, indent=1))
    with pytest.raises(TraceFormatError) as caught:
        load(tmp_path, max_context=80, on_overflow="error")
    error = caught.value
    assert (error.path, error.field, error.value) == (str(tmp_path / "b.json"), "in", 90)
    text = (tmp_path / "b.json").read_text().splitlines()
    assert error.line is not None and text[error.line - 1].strip() == "{"
    assert text[error.line + 1].strip() == '"in": 90,'
