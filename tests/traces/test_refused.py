"""What is refused or said instead of being ignored: options without effect, folders that are no
trace, outputs over inputs, formats that are known and not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.cli.main import run
from vtsim.errors import ConfigError, TraceFormatError
from vtsim.traces import load
from vtsim.traces.registry import get_reader, reader_names

CSV = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,6,6\n"
ROW = {"timestamp": 0, "input_length": 10, "output_length": 5}
HASHED = {"native", "mooncake", "bailian", "weka", "servegen", "llmservingsim", "prompts"}


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line that a command line is answered with, status 2."""
    assert run([str(word) for word in words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(CSV)
    return path


def test_readers_of_hash_ids_declare_it() -> None:
    declared = {name for name in reader_names() if "block_size" in get_reader(name).options}
    assert declared == HASHED


@pytest.mark.parametrize("command", [("trace", "info"), ("replay",)])
@pytest.mark.parametrize(
    "option, name", [("--block-size", "block_size"), ("--time-unit", "time_unit")]
)
def test_an_option_that_the_format_cannot_use(
    capsys: pytest.CaptureFixture[str],
    table: Path,
    command: tuple[str, ...],
    option: str,
    name: str,
) -> None:
    said = refused(capsys, *command, table, option, 16)
    assert said == f"vtsim: format vidur has no option '{name}'; it has: none\n"


@pytest.mark.parametrize(
    "options, said",
    [
        ({"limit_by": "row"}, "limit_by row needs limit"),
        ({"on_overflow": "drop"}, "on_overflow drop needs max_context"),
        ({"cv": 3.0}, "cv 3 needs arrival gamma"),
        ({"cv": 3.0, "rate": 1, "arrival": "poisson"}, "cv 3 needs arrival gamma"),
        ({"arrival": "poisson"}, "arrival needs a rate"),
    ],
)
def test_an_option_that_needs_another(table: Path, options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(table, **options)


def test_a_seed_of_nothing(capsys: pytest.CaptureFixture[str], table: Path) -> None:
    said = "seed 5 needs rate: without it nothing is drawn"
    assert said in refused(capsys, "trace", "info", table, "--seed", 5)
    assert run(["trace", "info", str(table), "-q", "--seed", "5", "--rate", "2"]) == 0


def test_an_option_that_this_file_leaves_without_effect(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps(ROW))
    assert load(path, block_size=16, tokens_per_word=2).report.warnings == [
        "no text had to be counted: tokens_per_word does nothing",
        "no request has hash ids: block_size 16 does nothing",
    ]
    path.write_text(json.dumps({"prompt": "a", "output_tokens": 3}))
    said = load(path, output_tokens=7).report.warnings
    assert "every request states its output length: output_tokens does nothing" in said


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "info", "{t}", "--from", "azure", "--from", "vidur"),
        ("trace", "convert", "{t}", "{o}", "--to", "native", "--to", "aiperf"),
        ("trace", "sample", "{t}", "{o}", "-n", "5", "--requests", "6"),
        ("trace", "synth", "{o}", "--seed", "1", "--seed", "2"),
        ("replay", "{t}", "--gpu", "a100-80g", "--gpu", "other"),
        ("policy", "check", "paged", "--seed", "1", "--seed", "2"),
        ("calibrate", "memory", "{o}", "--device", "0", "--device", "1"),
        ("doctor", "--device", "0", "--device", "1"),
    ],
)
def test_an_option_given_twice(
    capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    out = tmp_path / "o.json"
    said = refused(capsys, *(word.format(t=table, o=out) for word in words))
    assert said.endswith(" is given 2 times\n") and words[-2].split("=")[0][:3] in said
    assert not out.exists()


def test_what_may_be_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps(ROW))
    options = ["-o", "time_unit=s", "-o", "turns=whole"]
    assert run(["trace", "info", str(path), "-q", "-q", *options]) == 0


@pytest.mark.parametrize("command", [("trace", "info"), ("replay",)])
def test_a_reader_option_given_in_two_ways(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps(ROW))
    twice = ["-o", "turns=whole", "-o", "turns=delta"]
    assert "--option turns is given twice" in refused(capsys, *command, path, *twice)
    both = ["--turns", "whole", "-o", "turns=delta"]
    assert "--option turns: it is given as --turns too" in refused(capsys, *command, path, *both)


def test_nothing_is_written_over_its_input(
    capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(table)
    for words in (
        ("convert", table, table),
        ("convert", table, link),
        ("sample", table, table, "-n", 1),
        ("synth", table, "--lengths-from", table),
    ):
        assert "that is the trace itself" in refused(capsys, "trace", *words)
    assert table.read_text() == CSV
    folder = tmp_path / "folder"
    folder.mkdir()
    part = folder / "a.json"
    talk = {"id": "x", "models": [], "block_size": 64, "requests": [{"t": 0, "in": 5, "out": 5}]}
    part.write_text(json.dumps(talk))
    said = refused(capsys, "trace", "convert", folder, part)
    assert "that is a part of the trace itself" in said
    assert json.loads(part.read_text()) == talk
    assert run(["trace", "convert", "-q", str(folder), str(tmp_path / "out.json")]) == 0


def test_a_folder_that_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(CSV)
    with pytest.raises(TraceFormatError, match=r"weka.* no .json or .jsonl file: name one file"):
        load(tmp_path)
    (tmp_path / "a.json").write_text('{"name": 1}')
    (tmp_path / "b.jsonl").write_bytes(b"\0")
    with pytest.raises(
        TraceFormatError, match=r"weka.* none of its 2 JSON files is one \(a.json: JSON with keys "
    ):
        load(tmp_path)
    talk = {"id": "x", "models": [], "block_size": 64, "requests": [{"t": 0, "in": 5, "out": 5}]}
    (tmp_path / "c.json").write_text(json.dumps(talk))
    with pytest.raises(TraceFormatError, match=r"a.json.*requests: is missing: .*weka"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text, name",
    [
        ("trace_version: 2\ntime_unit: us\n", "BLIS"),
        (
            "request_id,server_input_tokens,arrival_time_us,send_time_us,num_chunks\n0,41,0,10,5\n",
            "BLIS",
        ),
        (
            '{"timestamp": 0, "requests": [{"Prompt Length": 5, "Output Length": 6}]}\n',
            "aibrix workload",
        ),
        (
            '{"timestamp": 0, "requests": [{"prompt": "a", "prompt_length": 5, '
            '"output_length": null, "session_id": 0}]}\n',
            "aibrix workload",
        ),
        ('{"round_id": 0, "agent_id": [1], "output_tokens": [5], "input_from": []}', "LMBenchmark"),
        ('{"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64}\n', "version 2"),
    ],
)
def test_formats_that_are_known_and_not_read(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(TraceFormatError, match=f":1: is .*{name}.*which no reader takes"):
        load(path)


def test_a_window_far_below_the_mean_rate(tmp_path: Path) -> None:
    """Said of the window that was cut, before what is left of the trace hides it."""
    path = tmp_path / "t"
    busy = [{**ROW, "timestamp": 10 * n} for n in range(1000)]
    quiet = [{**ROW, "timestamp": 10_000 + 1000 * n} for n in range(11)]
    path.write_text("\n".join(map(json.dumps, [*busy, *quiet])))
    (said,) = load(path, window_s=(10, 20)).report.warnings
    assert said.startswith(
        "the window's rate is far below the mean: 1 conversations start in a second, in the whole "
        "trace 50.55; "
    )
    assert load(path, window_s=(10, float("inf"))).report.warnings[0].startswith("the window's")
    for window in ((0, 10), (2, 3), (10, 10.1), None):  # as busy, busier, too short to tell
        assert load(path, window_s=window).report.warnings == []
