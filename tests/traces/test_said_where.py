"""An error names the line, the field as the file calls it, and the value as it stands there; what
has no effect is said; so is what a folder holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.cli.main import run
from vtsim.errors import TraceFormatError
from vtsim.traces import load

ROW = {"timestamp": 0, "input_length": 10, "output_length": 5}
HASHED = ROW | {"hash_ids": [1]}
FAR = 10**13
LAB = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
SPAN = {"attributes": {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 5}}
OTLP = {
    "attributes": [
        {"key": f"gen_ai.usage.{key}_tokens", "value": {"intValue": 5}}
        for key in ("input", "output")
    ]
}
METRICS = {f"{key}_sequence_length": {"value": 9} for key in ("input", "output")}


def native(*rows: dict[str, Any]) -> str:
    size = {"prompt_tokens": 5, "output_tokens": 5}
    head = {"format": "vtsim-trace", "version": 1}
    return json.dumps({**head, "requests": [size | row for row in rows]})


@pytest.mark.parametrize(
    "content, words",
    [
        ([ROW, ROW | {"timestamp": FAR}], (":2: timestamp: arrives more", f"'{FAR} ms'")),
        (
            [ROW | {"session_id": "s"}, {"delay": FAR} | SPAN | {"session_id": "s"}],
            (":2: ", "input_length"),
        ),
        (
            [
                ROW | {"session_id": "s"},
                {"session_id": "s", "delay": FAR, "input_length": 1, "output_length": 1},
            ],
            (":2: delay: is longer than", f"'{FAR} ms'"),
        ),
        (
            [{"text": "a", "output_length": 1, "timestamp": at} for at in (0, FAR)],
            (":2: timestamp: arrives more", f"'{FAR} ms'"),
        ),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n10000000.5,5,5\n",
            (":3: arrived_at: arrives more", "'10000000.5 s'"),
        ),
        (f"{LAB}0,0,0,0,5,5,0\n1,{FAR},0,0,5,5,0\n", (":3: arrival_time: arrives", f"'{FAR} ms'")),
        (
            native({"arrival_s": 0}, {"arrival_s": 10**8}),
            (":1: requests[1].arrival_s: arrives", "'100000000 s'"),
        ),
        (
            [
                {"trace_id": "t", "spans": [SPAN | {"start_time": f"{year}-01-01T00:00:00Z"}]}
                for year in (2031, 2033)
            ],
            (":2: spans[0].start_time: arrives more",),
        ),
        (
            [
                {"resourceSpans": [{"scopeSpans": [{"spans": [OTLP | {"startTimeUnixNano": at}]}]}]}
                for at in (0, 10**16)
            ],
            (":2: resourceSpans[0].scopeSpans[0].spans[0].startTimeUnixNano: ", f"'{10**16} ns'"),
        ),
        (
            [{"metadata": {"request_start_ns": at}, "metrics": METRICS} for at in (0, 10**16)],
            (":2: metadata.request_start_ns: arrives more", "'10000000000000000 ns'"),
        ),
        (
            [{"custom_id": "a", "body": {"prompt": "b", "max_tokens": 1}}] * 2,
            (":2: custom_id: stands twice",),
        ),
        (
            [{"timestamp": 0, "request_id": "a", "body": {"prompt": "b", "max_tokens": 1}}] * 2,
            (":2: request_id: stands twice",),
        ),
        (
            [{"task_id": 0, "input_ids": [1], "output_tokens": 1}] * 2,
            (":2: task_id: stands twice",),
        ),
    ],
)
def test_errors_name_what_the_file_says(read: Any, content: Any, words: tuple[str, ...]) -> None:
    read.fails(content, *words)


def test_a_number_that_no_float_holds(read: Any) -> None:
    text = native({"arrival_s": 0, "turn": 5})
    read.fails(text.replace('"turn": 5', '"turn": 1e-400'), "turn", "(got 1E-400)")
    read.fails(text.replace('"turn": 5', '"turn": 1e400'), "turn", "(got 1E+400)")
    read.fails(text.replace('"turn": 5', '"turn": 2.5'), "turn", "(got 2.5)")


@pytest.mark.parametrize("text", ['{"a\\nb": 1}', '[{"\\u0007": 1}]', '{"a\nb": NaN}', "a\vb\n1\n"])
def test_an_error_is_one_line_in_python_too(read: Any, text: str) -> None:
    assert str(read.fails(text)).isprintable()


# options without effect


@pytest.mark.parametrize(
    "rows, options, said",
    [
        ([ROW], {"turns": "whole"}, "no session has rows without hash ids: turns whole does"),
        (
            [HASHED | {"session_id": "s"}],
            {"turns": "whole"},
            "no session has rows without hash ids: turns whole does nothing",
        ),
        ([HASHED | {"session_id": "s"}], {"turns": "delta"}, ""),
        ([ROW | {"session_id": "s"}], {"turns": "whole"}, ""),
        ([ROW], {"tail_rule": "exact"}, "no request has hash ids: tail_rule exact does nothing"),
        ([HASHED], {"tail_rule": "partial_tail"}, ""),
    ],
)
def test_an_option_without_effect(
    read: Any, rows: list[dict[str, Any]], options: dict[str, Any], said: str
) -> None:
    found = [line for line in read(rows, **options).report.warnings if "does nothing" in line]
    assert len(found) == bool(said) and all(line.startswith(said) for line in found)


def test_options_of_other_readers_without_effect(read: Any) -> None:
    talk = {"id": "x", "models": [], "block_size": 64, "requests": [{"t": 0, "in": 5, "out": 5}]}
    said = read([talk], subagent_time="relative", closed_loop=True).report.warnings
    assert said == [
        "no conversation has sub-agents: subagent_time does nothing",
        "no request waits for another: closed_loop does nothing",
    ]
    table = "Timestamp,Request tokens,Response tokens,Total tokens,Log Type\n5,5,5,10,A\n"
    assert read(table, keep_failures=True).report.warnings == [
        "no request failed: keep_failures does nothing"
    ]
    row = {"request_id": 0, "type": "text", "input_length": 40, "output_length": 9}
    said = read([row], rate=1.0, output_tokens=5).report.warnings
    assert said == ["every request states its output length: output_tokens does nothing"]


# files and folders


def test_a_folder_of_pointers_is_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(pointer)
    with pytest.raises(TraceFormatError, match=r"\(a.json is a Git LFS pointer, not the data: run"):
        load(tmp_path)


def test_an_empty_name_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        ["trace", "info", ""],
        ["trace", "convert", "", "out.json"],
        ["trace", "sample", "", "out.json", "-n", "5"],
        ["trace", "synth", "out.json", "--lengths-from", ""],
        ["replay", ""],
    ):
        assert run(words) == 2
        assert "the file's name is empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_names_the_clocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "info", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Requests a second of the trace's clock" in said
    assert "in order of arrival (no clock)" in said
    assert "tokenizer.json or a folder with one" in said
