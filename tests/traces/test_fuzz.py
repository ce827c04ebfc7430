"""A changed byte anywhere gives a value or a TraceFormatError, never another exception."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.errors import TraceFormatError
from vtsim.traces import load
from vtsim.traces.stats import describe

NATIVE = (
    b'{"format": "vtsim-trace", "version": 1, "source": {"a": 1.5}, "block_size": 16,\n'
    b'"tail_rule": "partial_tail", "hash_scope": "global", "requests": [\n'
    b'{"id": "r", "arrival_s": 0.5, "prompt_tokens": 17, "output_tokens": 2, "hash_ids": [1, 9],\n'
    b'"session": "s", "turn": 0, "priority": 1, "recorded": {"ttft_s": 0.1}, "extra": {}},\n'
    b'{"id": 2, "after": ["r"], "wait_s": 1e-3, "prompt_tokens": 20, "output_tokens": 1}]}\n'
)
SEEDS: dict[str, tuple[bytes, dict[str, object]]] = {
    "native": (NATIVE, {}),
    "mooncake": (
        b'{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}\r\n\r\n'
        b'{"timestamp": 5.25, "input_length": 9, "output_length": 2, "hash_ids": ["a"]}\r\n'
        b'{"session_id": "s", "created_time": 1, "input_tokens": 3, "output_tokens": 4}\r\n'
        b'{"session_id": "s", "delay_ms": 1e2, "input_tokens": 30, "output_tokens": 4, "x": {}}',
        {},
    ),
    "azure": (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2031-05-31 23:59:59.9910000,371,41\r\n"
        b"2031-06-01T00:00:00.001Z,88,12\r\n2031-06-01 00:00:01+02:00,8,1",
        {},
    ),
    "burstgpt": (
        b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        b"Log Type\n5.0,a,7.25,G,410,90,500,Chat\n9,,1.5,G,77,0,77,API\n31,a,,G,640,60,700,Chat\n",
        {},
    ),
    "bailian": (
        b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, '
        b'"output_length": 5, "type": "text", "turn": 1, "hash_ids": [1, 2]}\n'
        b'{"chat_id": 2, "parent_chat_id": 1, "timestamp": 9, "input_length": 33, '
        b'"output_length": 8, "type": "text", "turn": 2, "hash_ids": [1, 3, 4]}\n',
        {},
    ),
    "weka": (
        b'{"id": "c", "block_size": 64, "hash_id_scope": "local", "requests": [\n'
        b'{"t": 0.0, "type": "n", "in": 130, "out": 10, "hash_ids": [1, 2], "api_time": 2.0},\n'
        b'{"t": 5, "type": "subagent", "agent_id": "a", "requests": [{"t": 0, "in": 70, "out": 5,'
        b' "hash_ids": [5]}]},\n{"t": 30, "in": 200, "out": 1, "hash_ids": [1, 2, 3],'
        b' "think_time": null}]}',
        {"closed_loop": True},
    ),
    "tracelab": (
        b"session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
        b"0,117,0,0,23,20,300\n0,117,1,43,4,13,154\n1,393,0,0,8,1,2\n",
        {},
    ),
    "vidur": (b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,7564.0,192.0\n1.5,10,3\n", {}),
    "sharegpt": (
        b'[{"id": "x", "conversations": [{"from": "human", "value": "made up"},\n'
        b'{"from": "gpt", "value": "re ply"}]},\n {"conversation": [{"role": "user", "content":'
        b' [{"type": "text", "text": "a b"}]}, {"role": "assistant", "content": "ok"}]}]',
        {},
    ),
    "prompts": (
        b'{"messages": [{"role": "user", "content": "made up"}], "max_tokens": 8}\n'
        b'{"custom_id": "a", "body": {"prompt": "x", "max_tokens": 2}}\n'
        b'{"session_id": "s", "turns": [{"text": "a"}, {"text": "b", "delay": 200}]}\n'
        b'{"input_ids": [1, 2, 3], "output_tokens": 4}\n',
        {"output_tokens": 3},
    ),
    "llmservingsim": (
        b'{"input_toks": 2, "output_toks": 1, "arrival_time_ns": 5, "input_tok_ids": [4, 5]}\n',
        {"block_size": 1},
    ),
    "llmservingsim-bench": (
        b'{"request_id": "b", "input_toks": 2, "output_toks": 3, "arrival_time": 1.5, "queued_ts":'
        b' 4.5, "first_token_ts": 5.5, "last_token_ts": 6.5}\n',
        {},
    ),
    "aiperf-results": (
        b'{"metadata": {"conversation_id": "s", "turn_index": 0, "request_start_ns": 1000,'
        b' "request_end_ns": 1900, "was_cancelled": false}, "metrics": {"request_latency": '
        b'{"value": 80.5, "unit": "ms"}, "input_sequence_length": {"value": 9}, '
        b'"output_sequence_length": {"value": 2}}, "error": null}\n',
        {},
    ),
    "vllm-bench": (
        b'{"model_id": "m", "input_lens": [8, 9], "output_lens": [2, 3], "ttfts": [0.1, 0.2],\n'
        b'"itls": [[0.01], [0.01, 0.02]], "start_times": [100.0, 100.5], "errors": ["", ""]}',
        {},
    ),
    "otel": (
        b'{"trace_id": "t", "spans": [{"span_id": "a", "start_time": "2031-01-01T00:00:00Z",'
        b' "end_time": "2031-01-01T00:00:01Z", "attributes": {"gen_ai.operation.name": "chat",'
        b' "gen_ai.usage.input_tokens": 5, "gen_ai.output.text": "a b"}, "status": {"code": 1}}]}',
        {},
    ),
    "mooncake wait_for": (
        b'{"request_id": "a", "timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": '
        b'["x"], "branches": ["b"]}\n{"request_id": "b", "session_id": "s", "input_length": 4, '
        b'"output_length": 1, "wait_for": ["a"], "delay": 1.5, "tool_wait_ms": 2}\n',
        {},
    ),
    "prompts payloads": (
        b'{"data": [{"session_id": "s", "payloads": [{"messages": [{"role": "user", "content": '
        b'"a b"}], "max_tokens": 9}, {"messages": [{"role": "user", "content": "a b"}, {"role": '
        b'"assistant", "content": [{"type": "text", "text": "c"}]}], "max_tokens": 9}]}]}',
        {"block_size": 1},
    ),
    "sglang-agentic": (
        b'{"metadata": {}, "conversations": [[{"messages": [{"role": "user", "content": "a b"}], '
        b'"prompt_tokens": 5},\n{"messages": [{"role": "user", "content": "c"}]}]]}',
        {"output_tokens": 3},
    ),
    "dynamo": (
        b'{"schema": "dynamo.request.trace.v1", "event_type": "tool_end"}\n'
        b'{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": '
        b'{"session_id": "s"}, "request": {"request_id": "r", "request_received_ms": 1777312800000,'
        b' "output_tokens": 16, "ttft_ms": 2.5, "replay": {"trace_block_size": 64, "input_length": '
        b'100, "input_sequence_hashes": [14879255164371896291, 2]}}}\n',
        {},
    ),
    "otel otlp": (
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "spanId": "a", '
        b'"startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": 1544712661000000000,\n'
        b'"attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}, '
        b'{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}}, {"key": '
        b'"gen_ai.output.messages", "value": {"arrayValue": {"values": [{"kvlistValue": {"values": '
        b'[{"key": "content", "value": {"stringValue": "a b"}}]}}]}}}], "status": {"code": 1}}]}]}'
        b"]}",
        {},
    ),
    "servegen": (
        b'{"request_id": 0, "type": "text", "input_length": 40, "hash_ids": [0, 1, 2]}\n'
        b'{"request_id": 1, "type": "text", "input_length": 45, "output_length": 9, "duration": 5}',
        {"rate": 1.0, "output_tokens": 4},
    ),
    "copilot": (
        b'{"session_id": "s", "date": "d", "turns": [{"llm_calls": [{"timestamp": '
        b'"2031-06-01T00:00:01Z", "duration_ms": 9.0, "result": "Success", "tokens": {"prompt": 10,'
        b' "completion": 1, "cached": 6}}]}]}\n',
        {},
    ),
}


@pytest.mark.parametrize("name", SEEDS)
def test_seed_is_read(name: str, tmp_path: Path) -> None:
    data, options = SEEDS[name]
    path = tmp_path / "trace"
    path.write_bytes(data)
    trace = load(path, **options)  # type: ignore[arg-type]
    assert trace.report.format == name.split()[0]
    assert len(trace) >= 1
    assert describe(trace)["requests"] == len(trace)


@pytest.mark.parametrize("name", SEEDS)
def test_every_byte_that_is_changed_or_cut(name: str, tmp_path: Path) -> None:
    """Each byte once with one of eight changes, in turn."""
    data, options = SEEDS[name]
    path = tmp_path / "trace"
    read = refused = 0
    for at in range(len(data)):
        changes = [
            *(data[:at] + bytes([new]) + data[at + 1 :] for new in b'\x00\xff"9-{]'),
            data[:at],
        ]
        for changed in (changes[at % 8],):
            if changed == data:
                continue
            path.write_bytes(changed)
            try:
                load(path, from_format=name.split()[0], **options)  # type: ignore[arg-type]
                read += 1
            except TraceFormatError as error:
                assert "\n" not in str(error)
                refused += 1
    assert read > 0 and refused > 0


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@given(st.sampled_from(sorted(SEEDS)), st.data())
@settings(max_examples=300, deadline=None)
def test_spliced_bytes(scratch: Path, name: str, data: st.DataObject) -> None:
    seed, options = SEEDS[name]
    start = data.draw(st.integers(0, len(seed)))
    end = data.draw(st.integers(start, len(seed)))
    fill = data.draw(
        st.binary(max_size=12)
        | st.sampled_from(
            [b"1e999", b"-1", b"1e-9", b"9" * 400, b"null", b"[" * 2000, b'"\\ud800"']
        )
    )
    path = scratch / "trace"
    path.write_bytes(seed[:start] + fill + seed[end:])
    try:
        trace = load(path, from_format=name.split()[0], **options)  # type: ignore[arg-type]
    except TraceFormatError as error:
        assert "\n" not in str(error)
    else:
        assert trace.report.rows_read == len(trace) + sum(trace.report.dropped.values())
        assert int(trace.arrival.min()) >= -1
