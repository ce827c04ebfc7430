"""What readers make of agents' traces: SGLang's agentic_trace and Dynamo's request trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import TraceFormatError
from vtsim.traces import load
from vtsim.traces.stats import ideal_prefix_hits

MS = 10**9


def user(words: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "w " * words}]


def sglang(*conversations: Any, indent: int | None = None) -> str:
    return json.dumps({"metadata": {"n": 1}, "conversations": list(conversations)}, indent=indent)


TALK = [
    {"messages": [{"role": "system", "content": "s"}, *user(9)], "prompt_tokens": 73_821},
    {"messages": user(5), "prompt_tokens": 74_894},
    {"messages": [], "prompt_tokens": 80_000},
    {"messages": user(5), "prompt_tokens": 75_400},
]


@pytest.mark.parametrize("indent", [None, 1])
def test_sglang_agentic_trace(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "t.json"
    path.write_text(sglang(TALK, [{"messages": user(4)}, {"messages": user(3)}], indent=indent))
    trace = load(path, output_tokens=220)
    assert trace.report.format == "sglang-agentic"
    of = [trace.session_names[n] for n in trace.session]
    rows = sorted(zip(of, trace.turn, trace.prompt_tokens, trace.output_tokens, strict=True))
    assert rows == [
        ("conversation 0", 0, 73_821, 220),
        ("conversation 0", 1, 74_894, 220),
        ("conversation 0", 2, 75_400, 220),
        ("conversation 1", 0, 4, 220),  # not recorded: all before it, and what is new
        ("conversation 1", 1, 4 + 220 + 3, 220),
    ]
    hits = dict(zip(zip(of, trace.turn, strict=True), ideal_prefix_hits(trace), strict=True))
    assert hits["conversation 0", 1] == 73_821 + 220 and hits["conversation 1", 1] == 224
    assert len(trace.after) == 3 and trace.report.dropped == {"turn_without_messages": 1}
    said = " / ".join(trace.report.warnings)
    assert "5 requests state no output length: 220 taken" in said
    assert "a next turn follows at once" in said and "shorter prompt" not in said
    spread = load(path, output_tokens=220, rate=1)
    assert len(set(spread.arrival.tolist())) == 3


def test_sglang_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(sglang(TALK))
    with pytest.raises(TraceFormatError, match="--output-tokens N gives one .220 is what SGLang"):
        load(path)
    said = load(path, output_tokens=900).report.warnings
    assert any(line.startswith("1 turns are recorded with a shorter prompt") for line in said)
    for bad, words in (
        ([[5]], "conversations[0][0]: is not an object (got 5)"),
        ([[{"messages": user(1)}], 5], "conversations[1]: is not a list of turns"),
        ([[{"messages": 5}]], "conversations[0][0].messages: is not a list of messages"),
        ([[{"prompt_tokens": 5}]], "conversations[0][0].messages: is not a list of messages"),
        ([[{"messages": user(1), "prompt_tokens": -1}]], "[0].prompt_tokens: is negative"),
    ):
        path.write_text(sglang(*bad))
        with pytest.raises(TraceFormatError) as caught:
            load(path, output_tokens=5, from_format="sglang-agentic")
        assert words in str(caught.value)
    path.write_text('[{"conversations": [{"from": "human", "value": "a"}]}]')
    with pytest.raises(TraceFormatError, match="one JSON object"):
        load(path, output_tokens=5, from_format="sglang-agentic")


def ended(name: str, received: int, hashes: list[int], **rest: Any) -> dict[str, Any]:
    replay = {"trace_block_size": 64, "input_length": 100, "input_sequence_hashes": hashes}
    request = {"request_id": name, "request_received_ms": received, "output_tokens": 16}
    head = {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}
    return {
        **head,
        "event_time_unix_ms": received + 1,
        "request": {**request, "replay": replay},
        **rest,
    }


TOOL = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {"status": "ok"}}


def test_dynamo_request_trace(tmp_path: Path) -> None:
    first = ended("a", 1_777_312_800_000, [14879255164371896291, 7])
    first["request"] |= {"ttft_ms": 80.5, "total_time_ms": 1000, "model": "m", "cached_tokens": 64}
    context = {"session_id": "s", "parent_session_id": "p"}
    second = {"event": ended("b", 1_777_312_800_250, [14879255164371896291, 9])}
    second["event"]["agent_context"] = context
    path = tmp_path / "shard.jsonl.gz"
    text = "\n".join(map(json.dumps, [TOOL, first, second]))
    path.write_bytes(gzip.compress(text.encode()))
    trace = load(path)
    assert trace.report.format == "dynamo" and trace.block_size == 64
    assert trace.arrival.tolist() == [0, 250 * MS] and trace.ids == ("a", "b")
    assert ideal_prefix_hits(trace).tolist() == [0, 64]
    assert trace.recorded == {0: {"ttft_s": 0.0805, "duration_s": 1.0}}
    assert trace.extra == {
        0: {"model": "m", "cached_tokens": 64},
        1: {"parent_session_id": "p"},
    }
    assert trace.session.tolist() == [-1, 0] and trace.session_names == ("s",)
    assert trace.report.dropped == {"not_a_request": 1}
    assert "1 requests are of agents' sessions" in trace.report.warnings[0]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"request": None}, ":2: request: is missing"),
        ({"request": {"request_id": "b"}}, ":2: request.replay: is missing"),
        ({"schema": "dynamo.request.trace.v2"}, ":2: schema: is not 'dynamo.request.trace.v1'"),
        ({"agent_context": 5}, ":2: agent_context: is not an object"),
        ({"request": ended("a", 5, [1, 2])["request"]}, ":2: request.request_id: stands twice"),
        (
            {"request": ended("b", 5, [1])["request"]},
            ":2: request.replay.input_sequence_hashes: 1 hash ids, but a prompt of 100 tokens",
        ),
    ],
)
def test_bad_rows_of_dynamo(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "t"
    rows = [ended("a", 5, [1, 2]), {**ended("b", 6, [1, 2]), **change}]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TraceFormatError) as caught:
        load(path)
    assert said in str(caught.value)


def test_one_block_size_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = [ended("a", 5, [1, 2]), ended("b", 6, [1])]
    rows[1]["request"]["replay"]["trace_block_size"] = 128
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TraceFormatError, match="trace_block_size: differs from 64 before"):
        load(path)
