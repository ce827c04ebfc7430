"""What readers make of the oddities of CSV; made-up rows."""

from __future__ import annotations

from typing import Any

import pytest

MS = 10**9


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
    error = read.fails(text, words)
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


def test_tracelab_errors(read: Any) -> None:
    head = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    error = read.fails(head + "a,5,0,0,9,1,2\na,6,1,10,9,1,2\n", "differs from the start")
    assert (error.line, error.field) == (3, "arrival_time")
    assert read.fails(head + "a,5,1,0,9,1,2\na,5,1,10,9,1,2\n", "does not follow").line == 3


def test_vidur_and_duplicate_columns(read: Any) -> None:
    trace = read("arrived_at,num_prefill_tokens,num_decode_tokens,note\n2,5,0,a\n1,7,2,b\n")
    assert trace.report.dropped == {"zero_output": 1}
    assert trace.extra == {0: {"note": "b"}}
    read.fails("arrived_at,num_prefill_tokens,num_decode_tokens,Arrived_At\n", "twice")
    missing = read.fails("arrived_at,num_prefill_tokens\n1,2\n", "num_decode_tokens")
    assert (missing.line, missing.field) == (1, "num_decode_tokens")


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters(read: Any, delimiter: str) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n1,7,2\n".replace(",", delimiter)
    assert read(text).prompt_tokens.tolist() == [7]
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2031-02-28 00:00:00.5,9,3\n"
    assert read(azure.replace(",", delimiter)).output_tokens.tolist() == [3]
