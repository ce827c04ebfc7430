"""What each reader makes of the oddities of its format; made-up rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.errors import ConfigError, TraceFormatError
from vtsim.request import NO_ARRIVAL, Trace
from vtsim.traces import load, reader_names
from vtsim.traces.stats import ideal_prefix_hits

MS = 10**9


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def reader(content: str | bytes | list[dict[str, Any]], **options: Any) -> Trace:
        path = tmp_path / "trace"
        if isinstance(content, list):
            content = "\n".join(json.dumps(row) for row in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(path, **options)

    return reader


def fails(read: Any, content: Any, *words: str, **options: Any) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as caught:
        read(content, **options)
    for word in words:
        assert word in str(caught.value)
    return caught.value


# Azure


def test_azure_stamps_with_and_without_fraction_and_zone(read: Any) -> None:
    trace = read(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2032-05-10 00:00:00.009000+00:00,2100,5\n"
        "2032-05-10 00:00:01+00:00,90,15\n"
        "2032-05-10T02:00:01.5+02:00,91,16\n"
        "2032-05-10 00:00:01.6000001Z,92,17\n"
    )
    assert trace.arrival.tolist() == [0, 991 * MS, 1491 * MS, 1591 * MS + 100_000]


def test_azure_lmm_images_are_kept(read: Any) -> None:
    trace = read(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2032-10-15T12:00:00.100Z,0,700,400\n2032-10-15T12:00:05.900Z,2,1700,28\n"
    )
    assert trace.arrival.tolist() == [0, 5800 * MS]
    assert trace.extra == {1: {"num_images": 2}}


def test_azure_order_zero_rows_blank_lines_and_bom(read: Any) -> None:
    trace = read(
        b"\xef\xbb\xbf\r\n"
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        b"2031-05-31 00:00:02.0000000,5,1\r\n\r\n"
        b"2031-05-31 00:00:01.0000000,0,1\r\n"
        b'"2031-05-31 00:00:01.5000000",7,2\r\n'
        b"2031-05-31 00:00:03.0000000,8,0\r\n"
    )
    assert trace.prompt_tokens.tolist() == [7, 5]
    assert trace.arrival.tolist() == [0, 500 * MS]
    report = trace.report
    assert (report.rows_read, report.rows_kept, report.rows_moved) == (4, 2, 1)
    assert report.dropped == {"zero_prompt": 1, "zero_output": 1}


@pytest.mark.parametrize(
    "row, field, words",
    [
        ("2031-02-29 00:00:00.0000000,1,1", "TIMESTAMP", "not a date"),
        ("2031-02-28 24:00:00.0000000,1,1", "TIMESTAMP", "time of day"),
        ("31/02/2031,1,1", "TIMESTAMP", "date and time"),
        ("2031-02-28 00:00:00.0000000,-1,1", "ContextTokens", "negative"),
        ("2031-02-28 00:00:00.0000000,1,1.5", "GeneratedTokens", "whole"),
        ("2031-02-28 00:00:00.0000000,nan,1", "ContextTokens", "not finite"),
        ("2031-02-28 00:00:00.0000000,1e40,1", "ContextTokens", "too large"),
        ("2031-02-28 00:00:00.0000000,,1", "ContextTokens", "empty"),
        ("2031-02-28 00:00:00.0000000,1", None, "2 cells"),
        ("2031-02-28 00:00:00 +25:99x,1,1", "TIMESTAMP", "time zone"),
    ],
)
def test_azure_errors(read: Any, row: str, field: str | None, words: str) -> None:
    good = "2031-02-28 00:00:00.0000000,1,1"
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{good}\n\n{row}\n{good}\n"
    error = fails(read, text, words)
    assert (error.line, error.field) == (4, field)


def test_azure_columns_in_another_order(read: Any) -> None:
    trace = read("GeneratedTokens,TIMESTAMP,ContextTokens\n3,2031-02-28 00:00:00.5,9\n")
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (9, 3)


def test_a_fixed_width_block_equals_its_rows(read: Any) -> None:
    from vtsim.traces.generate import synth

    made = synth(3000, 5, rate=3.0)
    lines = []
    for row in range(3000):
        seconds, part = divmod(int(made.arrival[row]) // 100_000, 10**7)
        minute, second = divmod(seconds, 60)
        hour, minute = divmod(minute, 60)
        stamp = f"2032-02-{29 if hour < 24 else 30} {hour:02d}:{minute:02d}:{second:02d}.{part:07d}"
        lines.append(f"{stamp},{made.prompt_tokens[row]},{made.output_tokens[row]}")
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    fast = read("\n".join([head, *lines]))
    slow = read("\n".join([head + ",NumImages", *(f"{line},0" for line in lines)]))
    for column in ("arrival", "prompt_tokens", "output_tokens"):
        assert getattr(fast, column).tolist() == getattr(slow, column).tolist()


# Mooncake family


def test_mooncake_prefix_only_and_exact_tail_rules(read: Any) -> None:
    row = {"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [5, 6]}
    error = fails(read, [row], "block sizes that fit: 20 to 39", block_size=16)
    assert error.field == "hash_ids"
    trace = read([row], block_size=16, tail_rule="prefix_only")
    assert trace.content(0) == ((0, 32),)
    fails(read, [row], "has 2 and a rest of 8;", "fit: 20 (", block_size=16, tail_rule="exact")
    assert read([row], block_size=20, tail_rule="exact").content(0) == ((0, 40),)


@pytest.mark.parametrize("unit, factor", [("s", 1000), ("ms", 1), ("us", 0.001)])
def test_mooncake_time_unit(read: Any, unit: str, factor: float) -> None:
    rows = [{"timestamp": t, "input_length": 4, "output_length": 1} for t in (7, 8.5)]
    trace = read(rows, time_unit=unit)
    assert trace.arrival.tolist() == [0, round(1.5 * factor * MS)]
    assert trace.source["time_unit"] == unit


def test_mooncake_times_are_exact(read: Any) -> None:
    trace = read(
        '{"timestamp": 1700000000000.1234567, "input_length": 4, "output_length": 1}\n'
        '{"timestamp": 1700000000000.1234569, "input_length": 4, "output_length": 1}\n'
    )
    assert trace.arrival.tolist() == [0, 200]


def test_mooncake_delta_turns_add_up(read: Any) -> None:
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 10, "output_length": 5},
        {"session_id": "a", "delay": 100, "input_length": 7, "output_length": 3},
        {"session_id": "a", "delay": 200, "input_length": 2, "output_length": 1},
    ]
    trace = read(rows, turns="delta")
    assert trace.prompt_tokens.tolist() == [10, 22, 27]
    assert trace.turn.tolist() == [0, 1, 2]
    assert trace.after == {1: (0,), 2: (1,)} and trace.wait == {1: 100 * MS, 2: 200 * MS}
    assert ideal_prefix_hits(trace).tolist() == [0, 15, 25]
    whole = read(rows)
    assert whole.prompt_tokens.tolist() == [10, 7, 2] and whole.content(1) == ()
    assert any("--turns" in w for w in whole.report.warnings)


@pytest.mark.parametrize(
    "rows, field, words",
    [
        ([{"timestamp": 0, "delay": 1, "session_id": "q"}], "timestamp", "stands beside delay"),
        ([{"delay": 1}], "timestamp", "needs a session_id"),
        ([{"delay": 1, "session_id": "q"}], "timestamp", "first row of session 'q'"),
        ([{}], "timestamp", "missing"),
        ([{"timestamp": -1}], "timestamp", "negative"),
        ([{"timestamp": True}], "timestamp", "not a number"),
        ([{"timestamp": 0, "hash_ids": [1, 2, None]}], "hash_ids[2]", "neither"),
        ([{"timestamp": 0, "hash_ids": [1, -2]}], "hash_ids[1]", "negative"),
        ([{"timestamp": 0, "hash_ids": [1.0]}], "hash_ids[0]", "neither"),
        ([{"timestamp": 0, "hash_ids": "ab"}], "hash_ids", "not a list"),
        ([{"timestamp": 0, "input_length": "x"}], "input_length", "not a number"),
        ([{"timestamp": 0, "input_tokens": 6}], "input_tokens", "differs from input_length 5"),
        ([{"timestamp": 0, "session_id": []}], "session_id", "not a string"),
        ([{"timestamp": 0, "priority": -1}], "priority", "negative"),
    ],
)
def test_mooncake_errors(read: Any, rows: list[dict[str, Any]], field: str, words: str) -> None:
    whole = [{"input_length": 5, "output_length": 1, **row} for row in rows]
    assert fails(read, whole, words, from_format="mooncake").field == field


def test_mooncake_text_is_counted_by_a_rule(read: Any) -> None:
    rows = [
        {"timestamp": 0, "input_length": 9, "output_length": 5},
        {"timestamp": 1, "text_input": "one two three", "output_length": 5},
        {"timestamp": 2, "messages": [{"role": "user", "content": "a b"}], "output_length": 5},
    ]
    trace = read(rows, tokens_per_word=1.5)
    assert trace.prompt_tokens.tolist() == [9, 5, 3]
    assert trace.source["token_rule"] == "1.5 token(s) a word"


def test_mooncake_failed_rows_of_a_session(read: Any) -> None:
    rows = [
        {"session_id": "a", "timestamp": 1000, "input_length": 10, "output_length": 0},
        {"session_id": "a", "delay": 500, "input_length": 7, "output_length": 3},
    ]
    trace = read(rows)
    assert trace.report.dropped == {"zero_output": 1}
    assert trace.arrival.tolist() == [0] and not trace.after
    assert trace.report.removed_offset_s == 1.5


def test_unknown_keys_are_kept_with_one_warning(read: Any) -> None:
    rows = [{"timestamp": 0, "input_length": 1, "output_length": 1, "tag": [1, 2.5]}] * 2
    trace = read(rows)
    assert trace.extra == {0: {"tag": [1, 2.5]}, 1: {"tag": [1, 2.5]}}
    assert len(trace.report.warnings) == 1 and "tag" in trace.report.warnings[0]


# the others


def test_bailian_branches_share_a_session(read: Any) -> None:
    row = {"timestamp": 1.0, "input_length": 16, "output_length": 4, "type": "text", "turn": 1}
    rows = [
        {**row, "chat_id": 1, "parent_chat_id": -1, "hash_ids": [1]},
        {**row, "chat_id": 2, "parent_chat_id": 1, "hash_ids": [1]},
        {**row, "chat_id": 3, "parent_chat_id": 1, "hash_ids": [1]},
    ]
    trace = read(rows)
    assert trace.session_names == ("1",) and trace.turn.tolist() == [0, 1, 1]
    assert trace.ids == (1, 2, 3)
    assert fails(read, rows[:1] * 2, "stands twice").line == 2


def test_weka_absolute_sub_agents_and_overrides(read: Any) -> None:
    def document(first: float) -> str:
        inner = [{"t": first, "in": 64, "out": 1, "hash_ids": [9]}]
        return json.dumps(
            {
                "id": "c",
                "block_size": 64,
                "hash_id_scope": "local",
                "requests": [
                    {"t": 0, "in": 64, "out": 1, "hash_ids": [1]},
                    {"t": 5, "type": "subagent", "agent_id": "a", "requests": inner},
                ],
            },
            indent=1,
        )

    assert read(document(7)).arrival.tolist() == [0, 7 * 10**12]
    assert read(document(3)).arrival.tolist() == [0, 8 * 10**12]
    assert read(document(7), subagent_time="relative").arrival.tolist() == [0, 12 * 10**12]
    with pytest.raises(ConfigError, match="subagent_time"):
        read(document(7), subagent_time="guess")


def test_weka_lines_and_duplicate_names(read: Any) -> None:
    one = {
        "id": "c",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}],
    }
    trace = read([one, one])
    assert len(set(trace.session.tolist())) == 2
    assert trace.hash_ids(0) != trace.hash_ids(1)
    error = fails(read, [one, {**one, "block_size": 32}], "differs from 64")
    assert error.line == 2
    bad = {**one, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": []}]}
    assert fails(read, [one, bad], "0 hash ids").field == "requests[0].hash_ids"


def test_tracelab_errors(read: Any) -> None:
    head = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    error = fails(read, head + "a,5,0,0,9,1,2\na,6,1,10,9,1,2\n", "differs from the start")
    assert (error.line, error.field) == (3, "arrival_time")
    assert fails(read, head + "a,5,1,0,9,1,2\na,5,1,10,9,1,2\n", "does not follow").line == 3


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
    assert fails(read, json.dumps(brief), "--save-detailed").field == "input_lens"
    short = {**whole, "ttfts": [0.5]}
    assert fails(read, json.dumps(short), "has 1 values").field == "ttfts"
    timeless = {key: value for key, value in whole.items() if key != "start_times"}
    fails(read, json.dumps(timeless), "no arrivals")
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
    fails(read, [{"metadata": about, "metrics": odd}], "unit of time", "fortnight")


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
    assert fails(read, json.dumps(bad), "martian").field == "[0].conversations[0].from"
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
    error = fails(read, [{"prompt": "a"}], "--output-tokens")
    assert error.line == 1
    assert read([{"prompt": "a"}], output_tokens=7).output_tokens.tolist() == [7]
    fails(read, [{"prompt": 5, "output_tokens": 1}], "not a text")
    fails(read, [{"messages": [], "max_tokens": 1}], "not a list of messages")


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
    assert read([document, document]).report.rows_kept == 4


def test_servegen_and_copilot(read: Any) -> None:
    rows = [
        {"request_id": 0, "type": "text", "input_length": 40, "hash_ids": [0, 1, 2], "img_ids": []},
        {"request_id": 1, "type": "text", "input_length": 45, "output_length": 9, "duration": 52},
    ]
    fails(read, rows, "no arrivals")
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


def test_servingsim_token_ids_say_what_is_shared(read: Any) -> None:
    def row(at: int, ids: list[int]) -> dict[str, Any]:
        return {
            "input_toks": len(ids),
            "output_toks": 1,
            "arrival_time_ns": at,
            "input_tok_ids": ids,
        }

    rows = [row(5, [1, 2, 3, 4, 9]), row(7, [1, 2, 3, 4, 5, 6]), row(8, [7, 2, 3, 4, 5, 6])]
    trace = read(rows, block_size=2)
    assert trace.arrival.tolist() == [0, 2000, 3000]
    assert ideal_prefix_hits(trace).tolist() == [0, 4, 0]
    rows[0]["input_toks"] = 4
    assert fails(read, rows, "5 token ids").field == "input_tok_ids"


def test_vidur_and_duplicate_columns(read: Any) -> None:
    trace = read("arrived_at,num_prefill_tokens,num_decode_tokens,note\n2,5,0,a\n1,7,2,b\n")
    assert trace.report.dropped == {"zero_output": 1}
    assert trace.extra == {0: {"note": "b"}}
    fails(read, "arrived_at,num_prefill_tokens,num_decode_tokens,Arrived_At\n", "twice")
    missing = fails(read, "arrived_at,num_prefill_tokens\n1,2\n", "num_decode_tokens")
    assert (missing.line, missing.field) == (1, "num_decode_tokens")


# files that are no trace


@pytest.mark.parametrize(
    "content, words",
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
        (b"\n <!DOCTYPE html><html>", "web page"),
        (b"PK\x03\x04zip", "zip archive"),
        (b"PAR1abc", "Parquet"),
        (b"\xff\xfeT\x00", "UTF-16"),
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"hello world\n", "not a known trace format"),
        (b'{"a": 1}\n', "keys a"),
        (b"\x1f\x8b\x08broken", "damaged"),
        (b"\x28\xb5\x2f\xfdbroken", "damaged"),
    ],
)
def test_things_are_named_for_what_they_are(read: Any, content: bytes, words: str) -> None:
    fails(read, content, words)


def test_missing_file_unknown_format_and_options(tmp_path: Path, read: Any) -> None:
    with pytest.raises(TraceFormatError, match="no such file"):
        load(tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match="known: .*mooncake"):
        read("x", from_format="moonbake")
    with pytest.raises(ConfigError, match="no option 'colour'"):
        read([{"timestamp": 0, "input_length": 1, "output_length": 1}], colour="red")
    with pytest.raises(ConfigError, match="block size"):
        read([{"timestamp": 0, "input_length": 1, "output_length": 1}], block_size=0)
    assert "mooncake" in reader_names()


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    import os
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    row = b'{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
    writer = threading.Thread(target=lambda: pipe.write_bytes(row))
    writer.start()
    assert len(load(pipe)) == 1
    writer.join()


def test_a_span_that_64_bits_cannot_hold(read: Any) -> None:
    rows = [{"timestamp": t, "input_length": 1, "output_length": 1} for t in (0, 10**10)]
    fails(read, rows, "64-bit picoseconds")
    assert int(read(rows, time_unit="us").arrival[1]) == 10**16


def test_all_wait_and_no_arrival(read: Any) -> None:
    row = {"prompt_tokens": 1, "output_tokens": 1}
    rows = [{**row, "id": 0, "after": [1]}, {**row, "id": 1, "after": [0]}]
    document = {"format": "vtsim-trace", "version": 1, "requests": rows}
    fails(read, json.dumps(document), "no request has an arrival")
    assert NO_ARRIVAL == -1


def test_bailian_parents_may_stand_behind_their_children(read: Any) -> None:
    row = {"input_length": 16, "output_length": 4, "hash_ids": [1]}
    rows = [
        {**row, "timestamp": 9, "chat_id": 3, "parent_chat_id": 2},
        {**row, "timestamp": 5, "chat_id": 2, "parent_chat_id": 1},
        {**row, "timestamp": 1, "chat_id": 1, "parent_chat_id": -1},
        {**row, "timestamp": 7, "chat_id": 5, "parent_chat_id": 1},
    ]
    trace = read(rows)
    assert trace.ids == (1, 2, 5, 3) and trace.turn.tolist() == [0, 1, 1, 2]
    assert trace.session_names == ("1",) and trace.report.rows_moved == 3
    rows[2]["parent_chat_id"] = 3
    fails(read, rows, "their own parents")


@pytest.mark.parametrize("layout", ["array", "indented"])
def test_rows_may_stand_in_one_array(read: Any, layout: str) -> None:
    rows = [
        {"timestamp": 0, "input_length": 4, "output_length": 1},
        {"timestamp": 5, "input_length": 4, "output_length": -1},
    ]
    text = json.dumps(rows, indent=1 if layout == "indented" else None)
    error = fails(read, text, "negative")
    assert error.field == "[1].output_length"
    assert error.line == (7 if layout == "indented" else 1)
    rows[1]["output_length"] = 2
    assert len(read(json.dumps(rows, indent=1))) == 2


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters(read: Any, delimiter: str) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n1,7,2\n".replace(",", delimiter)
    assert read(text).prompt_tokens.tolist() == [7]
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2031-02-28 00:00:00.5,9,3\n"
    assert read(azure.replace(",", delimiter)).output_tokens.tolist() == [3]
