"""A third party's reader, and a tokenizer, without edits to the core."""

from __future__ import annotations

import json
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from vtsim.errors import ConfigError
from vtsim.request import Trace
from vtsim.traces import load, reader_names, registry
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.registry import Head, ReadOptions
from vtsim.traces.source import Source


class PairsReader:
    """Lines of `prompt:output`, a second apart."""

    name = "pairs"
    summary = "made up"
    options = {"step": "seconds between requests"}

    def detects(self, head: Head) -> bool:
        return head.text.startswith("#pairs")

    def read(self, source: Source, options: ReadOptions) -> Trace:
        builder = TraceBuilder(source, self.name)
        step = int(str(options.named.get("step", 1)))
        for line, text in source.lines():
            builder.where.line = line
            if not text.startswith(b"#"):
                prompt, _, output = text.decode().partition(":")
                lengths = (builder.where.count(v, "pair", 1) for v in (prompt, output))
                builder.add(len(builder) * step * 10**12, *lengths)
        return builder.finish()


READER = PairsReader()


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("vtsim_test_pairs")
    module.READER = READER  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vtsim_test_pairs", module)
    points = {
        "pairs": EntryPoint("pairs", "vtsim_test_pairs:READER", registry.GROUP),
        "broken": EntryPoint("broken", "vtsim_test_none:READER", registry.GROUP),
    }
    monkeypatch.setattr(registry, "_plugged", lambda: points)


@pytest.mark.usefixtures("plugged")
def test_a_third_party_reader_is_detected_and_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("#pairs\n\n5:2\n7:3\n")
    trace = load(path, from_format="pairs", step=2)
    assert trace.prompt_tokens.tolist() == [5, 7] and trace.arrival.tolist() == [0, 2 * 10**12]
    assert reader_names()[0] == "pairs" and "mooncake" in reader_names()
    with pytest.raises(ConfigError, match="'broken' cannot be loaded"):
        load(path, from_format="broken")


def test_a_tokenizer_counts_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tokenizer:
        @classmethod
        def from_file(cls, path: str) -> Tokenizer:
            if Path(path).read_text() != "good":
                raise ValueError("bad tokenizer")
            return cls()

        def encode(self, text: str, add_special_tokens: bool) -> types.SimpleNamespace:
            assert not add_special_tokens
            return types.SimpleNamespace(ids=list(text))

    module = types.ModuleType("tokenizers")
    module.Tokenizer = Tokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", module)
    path, good = tmp_path / "x", tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"prompt": "abc de", "output_tokens": 3}))
    good.write_text("good")
    trace = load(path, tokenizer=str(tmp_path))
    assert trace.prompt_tokens.tolist() == [6]
    assert str(trace.source["token_rule"]).startswith("tokenizer")
    for options, words in (
        ({"tokenizer": str(path)}, "cannot be loaded"),
        ({"tokenizer": str(tmp_path / "no")}, "no such file"),
        ({"tokenizer": str(good), "tokens_per_word": 2}, "one of them"),
        ({"tokens_per_word": "many"}, "not a number"),
        ({"output_tokens": "x"}, "whole number"),
    ):
        with pytest.raises(ConfigError, match=words):
            load(path, **options)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="pip install tokenizers"):
        load(path, tokenizer=str(good))
