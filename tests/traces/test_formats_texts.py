"""What readers make of the oddities of texts, spans and measured results; made-up rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vtsim.errors import ConfigError
from vtsim.traces.stats import ideal_prefix_hits

MS = 10**9


def test_vllm_bench_results(read: Any) -> None:
    whole = {
        "model_id": "m",
        "input_lens": [8, 9, 7],
        "output_lens": [2, 3, 0],
        "ttfts": [0.5, 0.25, 0.0],
        "itls": [[0.125], [0.25, 0.25], []],
        "start_times": [100.5, 100.0, 101.0],
        "errors": ["", "", "gone"],
    }
    trace = read(json.dumps(whole))
    assert trace.prompt_tokens.tolist() == [9, 8]
    assert trace.recorded[0] == {"ttft_s": 0.25, "duration_s": 0.75, "tpot_s": 0.25}
    assert trace.report.dropped == {"failed": 1}
    brief = {"num_prompts": 3, "completed": 3, "model_id": "m"}
    assert read.fails(json.dumps(brief), "--save-detailed").field == "input_lens"
    short = {**whole, "ttfts": [0.5]}
    assert read.fails(json.dumps(short), "has 1 values").field == "ttfts"
    timeless = {key: value for key, value in whole.items() if key != "start_times"}
    read.fails(json.dumps(timeless), "no arrivals")
    assert read(json.dumps(timeless), rate=2.0).report.arrivals_made == "poisson at 2/s, seed 0"


def test_aiperf_results_count_what_they_drop(read: Any) -> None:
    about = {"conversation_id": "s", "request_start_ns": 10**9, "request_end_ns": 3 * 10**9}
    metrics = {
        "time_to_first_token": {"value": 80.5, "unit": "ms"},
        "input_sequence_length": {"value": 9, "unit": "tokens"},
        "output_sequence_length": {"value": 4, "unit": "tokens"},
    }
    rows = [
        {"metadata": about, "metrics": metrics, "error": None},
        {"metadata": about, "metrics": {}, "error": {"code": 500}},
        {"metadata": {**about, "was_cancelled": True}, "metrics": metrics},
        {"metadata": {**about, "benchmark_phase": "warmup"}, "metrics": metrics},
        {"metadata": about, "metrics": {"input_sequence_length": {"value": 9}}},
    ]
    trace = read(rows)
    assert trace.report.rows_read == 5
    assert trace.report.dropped == {
        **{"failed": 1, "cancelled": 1, "warm_up": 1},
        "unknown_output_length": 1,
    }
    assert trace.recorded[0] == {"ttft_s": 0.0805, "duration_s": 2.0}
    odd = {**metrics, "time_to_first_token": {"value": 1, "unit": "fortnight"}}
    read.fails([{"metadata": about, "metrics": odd}], "unit of time", "fortnight")


def test_sharegpt_turns_and_empty_conversations(read: Any) -> None:
    talk = [
        {"from": "gpt", "value": "hello there"},
        {"from": "human", "value": "a b c"},
        {"from": "gpt", "value": "d e"},
        {"from": "human", "value": "f"},
        {"from": "gpt", "value": "g h i"},
    ]
    text = json.dumps([{"id": "x", "conversations": talk}, {"id": "y", "conversations": []}])
    trace = read(text)
    assert trace.prompt_tokens.tolist() == [5, 8] and trace.output_tokens.tolist() == [2, 3]
    assert trace.after == {1: (0,)} and ideal_prefix_hits(trace).tolist() == [0, 7]
    assert trace.report.dropped == {"conversation_without_exchange": 1}
    assert read(text, tokens_per_word="1.5").prompt_tokens.tolist() == [8, 13]
    bad = [{"id": "x", "conversations": [{"from": "martian", "value": "?"}]}]
    assert read.fails(json.dumps(bad), "martian").field == "[0].conversations[0].from"
    with pytest.raises(ConfigError, match="tokens_per_word"):
        read(text, tokens_per_word=0)


def test_prompts_of_many_kinds(read: Any) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "one two", "output_tokens": 3},
        {"task_id": 0, "input_ids": list(range(40)), "output_tokens": 2},
        {"task_id": 1, "input_ids": list(range(36)), "output_tokens": 2},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "x y z"}, {"type": "image_url"}],
                }
            ],
            "max_tokens": 4,
        },
        {"custom_id": "b", "body": {"prompt": "p", "max_tokens": 5}},
        {"texts": ["a b", "c"], "output_length": 6},
    ]
    trace = read(rows)
    assert trace.prompt_tokens.tolist() == [2, 40, 36, 3, 1, 3]
    assert trace.output_tokens.tolist() == [3, 2, 2, 4, 5, 6]
    assert ideal_prefix_hits(trace).tolist() == [0, 0, 32, 0, 0, 0]
    assert trace.report.arrivals_made == "all at 0"
    assert sum("no text" in w for w in trace.report.warnings) == 1
    error = read.fails([{"prompt": "a"}], "--output-tokens")
    assert error.line == 1
    assert read([{"prompt": "a"}], output_tokens=7).output_tokens.tolist() == [7]
    read.fails([{"prompt": 5, "output_tokens": 1}], "not a text")
    read.fails([{"messages": [], "max_tokens": 1}], "not a list of messages")


def test_prompts_of_multi_turn_sessions(read: Any) -> None:
    turns = [{"text": "a b", "output_length": 3}, {"text": "c", "delay": 200, "output_length": 1}]
    trace = read([{"session_id": "s", "turns": turns}, {"session_id": "t", "turns": turns[:1]}])
    assert trace.prompt_tokens.tolist() == [2, 6, 2]
    assert trace.wait == {1: 200 * MS} and trace.after == {1: (0,)}
    bodies = [{"messages": [{"content": "a b"}], "max_tokens": 3}]
    data = {"data": [{"session_id": "s", "payloads": bodies}]}
    assert read(json.dumps(data)).prompt_tokens.tolist() == [2]


def test_evalscope_counts_seconds(read: Any) -> None:
    body = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 4}
    trace = read([{"timestamp": 0.25, "body": body}, {"timestamp": 1.0, "body": body}])
    assert trace.arrival.tolist() == [0, 750 * MS]


def test_otel_spans(read: Any) -> None:
    def span(start: str, **attributes: Any) -> dict[str, Any]:
        named = {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
        return {"span_id": start, "start_time": start, "attributes": named}

    first, second = "2031-01-01T00:00:00.5Z", "2031-01-01T00:00:02.000000500Z"
    document = {
        "trace_id": "t",
        "spans": [
            span(first, operation__name="chat", usage__input_tokens=5, usage__output_tokens=2),
            span(
                second,
                operation__name="chat",
                request__max_tokens=9,
                input__messages='[{"role": "user", "parts": [{"type": "text", "content": "a b"}]}]',
            ),
            span(first, operation__name="execute_tool"),
            {**span(first, usage__input_tokens=5), "status": {"code": "ERROR"}},
        ],
    }
    trace = read(json.dumps(document, indent=2))
    assert trace.prompt_tokens.tolist() == [5, 2] and trace.output_tokens.tolist() == [2, 9]
    assert trace.arrival.tolist() == [0, 1500 * MS + 500_000]
    assert trace.report.dropped == {"not_a_model_call": 1, "failed": 1}
    assert read([document, {**document, "trace_id": "u"}]).report.rows_kept == 4


def test_servegen_and_copilot(read: Any) -> None:
    rows = [
        {"request_id": 0, "type": "text", "input_length": 40, "hash_ids": [0, 1, 2], "img_ids": []},
        {"request_id": 1, "type": "text", "input_length": 45, "output_length": 9, "duration": 52},
    ]
    read.fails(rows, "no arrivals")
    trace = read(rows, rate=1.0)
    assert trace.report.dropped == {"unknown_output_length": 1}
    assert trace.recorded[0] == {"duration_s": 0.052}
    call = {"timestamp": "2032-06-01T00:00:01Z", "result": "Success", "duration_ms": 900.0}
    calls = [
        {**call, "tokens": {"prompt": 1000, "completion": 100, "cached": 600}},
        {**call, "result": "Error"},
    ]
    sessions = [
        {"session_id": "s1", "date": "2032-06-01", "turns": [{"llm_calls": calls}]},
        {"session_id": "s2", "date": "2032-06-01", "turns": []},
    ]
    copilot = read(sessions)
    assert copilot.recorded[0] == {"duration_s": 0.9, "cached_tokens": 600}
    assert copilot.report.dropped == {"failed": 1}
    assert any("1 sessions without" in w for w in copilot.report.warnings)
