"""`vtsim trace info|convert|sample|synth` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vtsim.cli.main import run
from vtsim.traces import load
from vtsim.traces.bundled import COMMANDS, sample_path

ROW = '{"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [1, 2, 3]}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(ROW + "\n" + ROW.replace(": 0,", ": 5,"))
    return path


def test_info(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "facts.json"
    assert run(["trace", "info", str(file), "--block-size", "16", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "2 rows read = 2 kept + 0 dropped" in text and "50.00 %" in text
    facts = json.loads(out.read_text())
    assert facts["sharing"]["hit_tokens"] == 40 and facts["trace"]["format"] == "mooncake"
    assert run(["trace", "info", str(file), "--block-size", "16", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == facts


def test_errors_are_one_line_and_status_2(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        (["trace", "info", str(file)], ":1: hash_ids: 3 hash ids"),
        (["trace", "info", str(file.parent / "none")], "no such file"),
        (["trace", "info", str(file), "--from", "x"], "known: "),
        (["trace", "info", str(file), "--window", "5"], "START:END"),
        (["trace", "info", str(file), "-o", "speed=3"], "no option of a reader"),
        (["trace", "info", str(file), "-o", "colour=3"], "no option 'colour'"),
        (["trace", "convert", str(file), "/no/such/folder/x.json"], "no folder"),
        (["trace", "convert", str(file), "x.json", "--to", "csv"], "unknown target"),
        (["trace", "info", str(file), "--json", str(file)], "that is the trace itself"),
        (["trace", "synth", "x.json", "--prompt", "zipf"], "lengths"),
    ):
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert word in error and error.count("\n") == 1


def test_convert_there_and_back(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native, back = tmp_path / "n.json", tmp_path / "b.jsonl"
    assert run(["trace", "convert", str(file), str(native), "--block-size", "16"]) == 0
    assert run(["trace", "convert", str(native), str(back)]) == 0
    said = capsys.readouterr().err
    assert "2 rows read = 2 kept + 0 dropped" in said
    assert "not kept by mooncake: block_size 16" in said
    assert load(back, block_size=16).hash_ids(1) == [0, 1, 2]


def test_convert_with_options(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "n.json"
    options = ["--block-size", "16", "--time-unit", "s", "--speed", "2", "--max-context", "41"]
    assert run(["trace", "convert", str(file), str(out), *options, "-q"]) == 0
    document = json.loads(out.read_text())
    assert [r["arrival_s"] for r in document["requests"]] == [0.0, 2.5]
    assert document["requests"][0]["extra"] == {"overflow": "prompt+output 42 > 41"}


def test_sample(tmp_path: Path) -> None:
    out = tmp_path / "s.json"
    source = str(sample_path("multi-turn"))
    assert run(["trace", "sample", source, str(out), "-n", "50", "-q"]) == 0
    assert 0 < len(load(out)) <= 50


@pytest.mark.parametrize("name", COMMANDS)
def test_the_stated_command_makes_the_sample(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(COMMANDS[name].split()[1:] + ["-q"]) == 0
    assert (tmp_path / f"{name}.json").read_bytes() == sample_path(name).read_bytes()


def test_synth_lengths_from_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    source = str(sample_path("chat"))
    assert run(["trace", "synth", str(out), "-n", "5", "--lengths-from", source, "-q"]) == 0
    assert len(load(out)) == 5
    both = ["--lengths-from", source, "--prompt", "fixed:value=3"]
    assert run(["trace", "synth", str(out), *both]) == 2


def test_plot_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vtsim.traces.plot.find_spec", lambda name: None)
    status = run(["trace", "info", str(tmp_path / "none"), "--plot", str(tmp_path / "p.svg")])
    assert status == 2 and "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["p.bmp", "p", "-"])
def test_plot_of_another_kind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before the trace is read."""
    monkeypatch.chdir(tmp_path)
    assert run(["trace", "info", "none", "--plot", name]) == 2
    assert f"plot {name}: the name must end in .png" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ending", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
@pytest.mark.parametrize("sample", ["chat", "multi-turn"])
def test_plot_is_the_same_file_each_time(
    sample: str, ending: str, magic: bytes, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    made = []
    for name in ("a", "b"):
        picture = tmp_path / f"{name}.{ending}"
        assert run(["trace", "info", str(sample_path(sample)), "--plot", str(picture), "-q"]) == 0
        made.append(picture.read_bytes())
    assert made[0].startswith(magic) and made[0] == made[1]


def test_plot_shows_what_the_trace_holds(tmp_path: Path) -> None:
    """Closed loops, answers of no token and requests that all come at once have their say."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "p.svg"
    rows = (
        {
            "id": 0,
            "arrival_s": 0,
            "prompt_tokens": 5,
            "output_tokens": 0,
            "recorded": {"failed": True},
        },
        {"id": 1, "after": [0], "prompt_tokens": 9, "output_tokens": 3},
    )
    head = {"format": "vtsim-trace", "version": 1, "requests": rows}
    (tmp_path / "$x$.json").write_text(json.dumps(head))
    assert run(["trace", "info", str(tmp_path / "$x$.json"), "--plot", str(picture), "-q"]) == 0
    said = picture.read_text()
    assert "$x$.json: 2 requests, of which 1 wait for others" in said
    assert "all arrive at 0 s" in said and "prompt tokens" in said


@pytest.mark.parametrize("sample", ["chat", "multi-turn"])
def test_no_number_is_cut_at_80_columns(
    sample: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["trace", "info", str(sample_path(sample))]) == 0
    text = capsys.readouterr().out
    trace = load(sample_path(sample))
    assert "\u2026" not in text and max(map(len, text.splitlines())) <= 80
    for total in (trace.prompt_tokens.sum(), trace.output_tokens.sum()):
        assert f"{int(total):,}" in text
    hit = next(x for x in text.splitlines() if x.startswith("ideal prefix hit, of prompt tokens"))
    assert hit.split()[-1] == ("-" if sample == "chat" else "%")


def test_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(ROW)
    assert run(["trace", "info", str(path), "--block-size", "16"]) == 0
    assert "1 row read = 1 kept" in capsys.readouterr().out
