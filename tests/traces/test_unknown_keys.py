"""Keys that a format does not define are kept in `extra`, named in one warning: of every reader."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vtsim.cli.main import run

ODD: dict[str, Any] = {"colour": {"deep": [1, 2.5]}}
SAID = "keys that this format does not define are kept in extra: "
LENGTHS = {"input_length": 16, "output_length": 3}
TALK = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
CALL = {
    "timestamp": "2031-06-01T00:00:01Z",
    "tokens": {"prompt": 5, "completion": 2, **ODD},
    "model": "m",
}
SPAN = {
    "span_id": "a",
    "start_time": "2031-01-01T00:00:00Z",
    "attributes": {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 5},
}
METRICS = {f"{key}_sequence_length": {"value": 9} for key in ("input", "output")}
REQUEST = {
    "request_id": "r",
    "request_received_ms": 5,
    "output_tokens": 2,
    "replay": {"trace_block_size": 16, "input_length": 5, "input_sequence_hashes": [1]},
}
RECORD = {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}
NATIVE = {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 5}
WEKA = {"id": "x", "models": [], "block_size": 64}
ONE = {"t": 0, "in": 5, "out": 5}
BENCH = {"input_toks": 5, "output_toks": 5}
BAILIAN = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, **LENGTHS, "hash_ids": [1]}
OTLP = {
    "traceId": "t",
    "startTimeUnixNano": 5,
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": 5}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 5}},
        {"key": "colour", "value": {"stringValue": "red"}},
    ],
}


def csv(header: str, row: str) -> str:
    return f"{header},colour\n{row},red\n"


CASES: dict[str, Any] = {
    "native": {"format": "vtsim-trace", "version": 1, "requests": [NATIVE | ODD]},
    "mooncake": {"timestamp": 0, **LENGTHS, **ODD},
    "bailian": BAILIAN | ODD,
    "weka": WEKA | {"requests": [ONE | ODD]},
    "weka head": WEKA | ODD | {"requests": [ONE]},
    "weka sub-agent": WEKA
    | {"requests": [{"type": "subagent", "agent_id": "a", "t": 0, "requests": [ONE], **ODD}]},
    "servegen": {"request_id": 0, "type": "text", **LENGTHS, **ODD},
    "llmservingsim": BENCH | {"arrival_time_ns": 5} | ODD,
    "llmservingsim-bench": BENCH | {"arrival_time": 5} | ODD,
    "aiperf-results": {"metadata": {"request_start_ns": 1, **ODD}, "metrics": METRICS},
    "aiperf-results row": {"metadata": {"request_start_ns": 1}, "metrics": METRICS, **ODD},
    "vllm-bench": {"input_lens": [5], "output_lens": [2], "start_times": [0], "colour": ["red"]},
    "dynamo": RECORD | {"request": REQUEST | ODD},
    "dynamo row": RECORD | {"request": REQUEST} | ODD,
    "dynamo context": RECORD | {"request": REQUEST, "agent_context": {"session_id": "s", **ODD}},
    "sharegpt": {"id": "x", "conversations": TALK, **ODD},
    "sglang-agentic": {"conversations": [[{"messages": [{"content": "a"}], **ODD}]]},
    "copilot": {"session_id": "s", "date": "d", "turns": [{"llm_calls": [CALL]}]},
    "copilot turn": {"session_id": "s", "turns": [{"llm_calls": [CALL], **ODD}]},
    "copilot row": {"session_id": "s", "date": "d", "turns": [{"llm_calls": [CALL]}], **ODD},
    "otel": {"trace_id": "t", "spans": [SPAN | ODD]},
    "otel otlp": {"resourceSpans": [{"scopeSpans": [{"spans": [OTLP]}]}]},
    "prompts": {"text": "a", "output_length": 2, **ODD},
    "prompts body": {"custom_id": "a", "body": {"prompt": "a", "max_tokens": 2, **ODD}},
    "prompts turn": {"turns": [{"text": "a", "output_length": 2, **ODD}]},
    "prompts talk": {"payloads": [{"prompt": "a", "max_tokens": 2}], **ODD},
    "azure": csv("TIMESTAMP,ContextTokens,GeneratedTokens", "2031-06-01 00:00:00.0000000,5,5"),
    "burstgpt": csv("Timestamp,Request tokens,Response tokens,Total tokens,Log Type", "5,5,5,10,A"),
    "tracelab": csv(
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms",
        "0,117,0,0,23,20,300",
    ),
    "vidur": csv("arrived_at,num_prefill_tokens,num_decode_tokens", "0,5,5"),
    "splitwise": csv("arrival_timestamp,prompt_size,token_size", "0,5,5"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "servegen": {"rate": 1.0},
    "sglang-agentic": {"output_tokens": 3},
}


@pytest.mark.parametrize("name", CASES)
def test_an_unknown_key_is_kept_with_one_warning(read: Any, name: str) -> None:
    content = CASES[name]
    text = content if isinstance(content, str) else json.dumps(content)
    trace = read(text, **OPTIONS.get(name, {}))
    assert trace.report.format == name.split()[0]
    assert trace.extra[0]["colour"] in ("red", ODD["colour"])
    assert [line for line in trace.report.warnings if "colour" in line] == [SAID + "colour"]


def test_what_a_run_as_a_whole_says(read: Any) -> None:
    document: dict[str, Any] = {
        "input_lens": [5],
        "output_lens": [2],
        "start_times": [0],
        "colour": "red",
    }
    document |= {"origin": 5, "mean_ttft_ms": 1.5, "p99_itl_ms": 2, "total_input_tokens": 5}
    trace = read(json.dumps(document))
    assert trace.source["others"] == {"colour": "red", "origin": 5}
    (said,) = (line for line in trace.report.warnings if "colour" in line)
    assert said == (
        "keys of the run that this format does not define are kept in source.others: colour, origin"
    )


def test_requests_of_a_workload_keep_their_names(read: Any) -> None:
    row = BENCH | {"arrival_time_ns": 5}
    assert read([row | {"request_id": "a"}, row | {"request_id": 7}]).ids == ("a", 7)
    read.fails([row | {"request_id": "a"}] * 2, ":2: request_id: stands twice")


def test_an_odd_source_is_shown(tmp_path: Any) -> None:
    """It is free: whatever stands where vtsim's own notes stand."""
    path = tmp_path / "t.json"
    source = {"origin": {"rows": {"dropped": 5}}, "reshaped": 7, "time_unit": 5}
    head = {"format": "vtsim-trace", "version": 1, "source": source}
    path.write_text(json.dumps(head | {"requests": [NATIVE]}))
    assert run(["trace", "info", str(path), "--speed", "2"]) == 0
