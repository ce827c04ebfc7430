"""`source` says where a trace is from and what was done to it, in the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtsim.cli.main import run
from vtsim.traces import load, write_native

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2032-01-01 00:00:{second:02d}.0000000,{prompt},5\n"
    for second, prompt in enumerate((10, 0, 30, 40, 50))
)


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "somewhere" / "azure.csv"
    path.parent.mkdir()
    path.write_text(AZURE)
    return path


def source_of(path: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(path.read_text())["source"]
    return said


def test_a_converted_file_says_where_it_is_from(azure: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run(["trace", "convert", str(azure), str(out), "-q", "--window", "0:4"]) == 0
    assert source_of(out) == {
        "origin": {
            "format": "azure",
            "file": "azure.csv",
            "sha256": load(azure).sha256,
            "options": {"window_s": [0, 4]},
            "rows": {"read": 5, "kept": 3, "dropped": {"outside_window": 1, "zero_prompt": 1}},
        }
    }
    assert str(tmp_path) not in out.read_text()


def test_the_bytes_depend_on_file_and_options_only(azure: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "azure.csv"
    other.parent.mkdir()
    other.write_text(AZURE)
    outs = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, out in zip((azure, other), outs, strict=True):
        assert run(["trace", "convert", str(path), str(out), "-q", "--speed", "2"]) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_native_file_keeps_its_source(azure: Path, tmp_path: Path) -> None:
    """Written again it is the same; what an option changes is added, step by step."""
    first, again, cut, cut_again = (tmp_path / f"{name}.json" for name in "abcd")
    for words in (
        [azure, first],
        [first, again, "--from", "native"],
        [first, cut, "--limit", "3"],
        [cut, cut_again, "--speed", "2"],
    ):
        assert run(["trace", "convert", "-q", *map(str, words)]) == 0
    assert first.read_bytes() == again.read_bytes()
    origin = source_of(first)
    assert source_of(cut) == origin | {
        "reshaped": [
            {"options": {"limit": 3}, "rows": {"read": 4, "kept": 3, "dropped": {"limit": 1}}}
        ]
    }
    steps = source_of(cut_again)["reshaped"]
    assert [step["options"] for step in steps] == [{"limit": 3}, {"speed": "2"}]


def test_a_source_of_another_kind_is_kept(tmp_path: Path) -> None:
    path, out = tmp_path / "a.json", tmp_path / "b.json"
    row = {"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    head = {"format": "vtsim-trace", "version": 1, "source": {"reshaped": "by hand", "x": [1]}}
    path.write_text(json.dumps({**head, "requests": [row]}))
    write_native(load(path), out)
    assert source_of(out) == {"reshaped": "by hand", "x": [1]}
    assert run(["trace", "info", str(path)]) == 0


def test_what_the_reader_was_told(tmp_path: Path) -> None:
    """Its options as they were given; of a tokenizer's path the name only."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": "a b", "output_tokens": 3}\n')
    trace = load(path, tokens_per_word=1.5, rate=2, arrival="gamma", cv=3, seed=4)
    origin: Any = trace.source["origin"]
    options = {"tokens_per_word": 1.5, "rate": 2, "arrival": "gamma", "cv": 3, "seed": 4}
    assert origin["options"] == options and trace.source["token_rule"] == "1.5 token(s) a word"


def test_a_sample_says_so(azure: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run(["trace", "sample", str(azure), str(out), "-q", "-n", "2", "--speed", "3"]) == 0
    origin = source_of(out)["origin"]
    assert origin["options"] == {"speed": "3", "requests": 2, "sample_seed": 0}
    assert origin["rows"]["dropped"] == {"not_sampled": 2, "zero_prompt": 1}


def test_info_shows_it(azure: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, cut = tmp_path / "out.json", tmp_path / "cut.json"
    assert run(["trace", "convert", str(azure), str(out), "-q"]) == 0
    assert run(["trace", "convert", str(out), str(cut), "-q", "--limit", "2"]) == 0
    assert run(["trace", "info", str(cut)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    sha = load(azure).sha256[:16]
    assert f"origin: azure azure.csv, sha256 {sha}; 5 rows read, 4 kept (1 zero_prompt)" in shown
    assert "reshaped: 4 rows read, 2 kept (2 limit); options limit 2" in shown
    assert run(["trace", "synth", str(out), "-n", "5", "-q"]) == 0
    assert run(["trace", "info", str(out)]) == 0
    assert "source: synthetic True, generator vtsim trace synth" in capsys.readouterr().out
