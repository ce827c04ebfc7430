"""What texts share is worked out from the texts, and unknown where nothing tells: never 0."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.cli.main import run
from vtsim.request import Trace
from vtsim.traces import load
from vtsim.traces.number import Where
from vtsim.traces.registry import ReadOptions
from vtsim.traces.stats import describe, ideal_prefix_hits, sharing
from vtsim.traces.texts import TextNames
from vtsim.traces.words import TokenRule

Message = dict[str, Any]
Write = Callable[..., Trace]


def say(role: str, words: int, what: str = "w") -> Message:
    """A message of so many words, none of which occurs in another one's."""
    return {"role": role, "content": " ".join(f"{what}{n}" for n in range(words))}


SYSTEM = say("system", 40, "s")
ASKS = [say("user", 20, f"q{turn}-") for turn in range(3)]
ANSWERS = [say("assistant", 30, f"a{turn}-") for turn in range(2)]


def bodies(limit: int = 500) -> list[dict[str, Any]]:
    """Three requests of one conversation, each with all that was said before."""
    said = [SYSTEM]
    found = []
    for turn in range(3):
        said = [*said, *ANSWERS[turn - 1 : turn], ASKS[turn]] if turn else [*said, ASKS[0]]
        found.append({"messages": said, "max_tokens": limit})
    return found


@pytest.fixture
def read(tmp_path: Path) -> Write:
    def written(*rows: object, **options: Any) -> Trace:
        path = tmp_path / "t.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return load(path, **options)

    return written


def hits(trace: Trace) -> list[int]:
    return [int(tokens) for tokens in ideal_prefix_hits(trace)]


def test_payloads_of_a_conversation(read: Write) -> None:
    """max_tokens is more than what was answered; the next payload says how long the answer was."""
    trace = read({"data": [{"session_id": "s", "payloads": bodies()}]}, block_size=10)
    assert trace.prompt_tokens.tolist() == [60, 110, 160]
    assert trace.output_tokens.tolist() == [30, 30, 500]
    assert hits(trace) == [0, 90, 140]  # the prompt before with its answer
    assert "1 requests state a limit (max_tokens): taken as their output" in trace.report.warnings
    (said,) = [line for line in trace.report.warnings if "repeats" in line]
    assert said.startswith("2 outputs are as long as the answer")
    shared = describe(trace)["sharing"]
    assert isinstance(shared, dict) and shared["hit_tokens"] == 230


def test_payloads_without_the_answers(read: Write) -> None:
    """Inputs that were made before anything was answered share what was asked, no output."""
    said = [[SYSTEM, *ASKS[: turn + 1]] for turn in range(3)]
    payloads = [{"messages": messages, "max_tokens": 500} for messages in said]
    trace = read({"session_id": "s", "payloads": payloads}, block_size=10)
    assert trace.output_tokens.tolist() == [500, 500, 500] and hits(trace) == [0, 60, 80]


@pytest.mark.parametrize(
    "form",
    [
        lambda body: body,
        lambda body: {"body": body, "custom_id": str(len(body["messages"]))},
        lambda body: {"input": body["messages"], "max_output_tokens": 9},
    ],
)
def test_rows_of_a_conversation(read: Write, form: Callable[[Any], Any]) -> None:
    """One request a line and no session: what the texts share is seen all the same. What was
    generated has no name there, as nothing says who continues whom."""
    trace = read(*map(form, bodies()), block_size=10)
    assert hits(trace) == [0, 60, 110] and not len(trace.session_names)


def test_conversations_share_a_system_prompt(read: Write) -> None:
    rows = [{"messages": [SYSTEM, say("user", 50, f"u{n}-")], "max_tokens": 5} for n in range(3)]
    assert hits(read(*rows, block_size=16)) == [0, 32, 32]
    assert hits(read(*rows, block_size=10)) == [0, 40, 40]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{**SYSTEM, "role": "developer"}, ASKS[0]]},
        {"messages": [{**SYSTEM, "name": "x"}, ASKS[0]]},
        {"tools": [{"type": "function"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "n": 1}]},
                SYSTEM,
                ASKS[0],
            ]
        },
    ],
)
def test_what_counts_no_token_makes_another_prompt(read: Write, change: dict[str, Any]) -> None:
    row = {"messages": [SYSTEM, ASKS[0]], "max_tokens": 5}
    assert hits(read(row, row, block_size=10)) == [0, 60]
    other = {**row, **change}
    assert hits(read(row, other, block_size=10)) == [0, 0]
    assert hits(read(other, other, block_size=10)) == [0, 60]


def test_prompts_as_plain_texts(read: Write) -> None:
    texts = [say("", 30)["content"] + f" tail{n}" for n in range(2)]
    assert hits(read(*({"prompt": t, "output_tokens": 1} for t in texts), block_size=8)) == [0, 24]
    assert hits(read(*({"text": t, "output_length": 1} for t in texts), block_size=8)) == [0, 24]


def test_by_a_tokenizer(read: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens, not words: texts part in the middle of a word."""

    class Tokenizer:
        @classmethod
        def from_file(cls, path: str) -> Tokenizer:
            return cls()

        def encode(self, text: str, add_special_tokens: bool) -> types.SimpleNamespace:
            return types.SimpleNamespace(ids=list(map(ord, text)))

    module = types.ModuleType("tokenizers")
    module.Tokenizer = Tokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", module)
    (tmp_path / "tokenizer.json").write_text("")
    rows = [{"prompt": f"abcdefg{end}", "output_tokens": 1} for end in ("hij", "xyz")]
    trace = read(*rows, tokenizer=str(tmp_path), block_size=2)
    assert trace.prompt_tokens.tolist() == [10, 10] and hits(trace) == [0, 6]


WORDS = st.lists(st.sampled_from("abc"), max_size=12).map(" ".join)


@given(WORDS, WORDS, st.sampled_from([0.3, 0.5, 1, 1.3, 2, 2.7]))
def test_names_are_equal_as_far_as_the_words_are(one: str, two: str, rate: float) -> None:
    """As many tokens as the rule counts; equal names never reach behind the first word that
    differs, and cover all that the equal words make."""
    rule = TokenRule(ReadOptions(named={"tokens_per_word": rate}))
    names = TextNames(rule, 1)
    where = Where("x")
    (count, mine), (other, theirs) = (names.text(where, text, "x") for text in (one, two))
    assert count == rule.text(one) == len(mine) and other == len(theirs)
    same = 0
    for a, b in zip(one.split(), two.split(), strict=False):
        if a != b:
            break
        same += 1
    equal = 0
    for first, second in zip(mine, theirs, strict=False):
        if first != second:
            break
        equal += 1
    if one == two:
        assert equal == count
    else:
        assert int(same * rate) - 1 <= equal <= same * rate + 1
    assert not set(mine[equal:]) & set(theirs[equal:])  # behind a difference nothing is equal


def test_turns_that_only_say_what_is_new(read: Write) -> None:
    """Their prompts hold answers that the file does not have: turns name what they share."""
    turns = [{"text": say("", 20, f"q{n}-")["content"], "output_length": 9} for n in range(3)]
    trace = read({"session_id": "s", "turns": turns}, block_size=10)
    assert trace.prompt_tokens.tolist() == [20, 49, 78] and hits(trace) == [0, 29, 58]
    assert not trace.has_hashes


@pytest.mark.parametrize("limit, known", [(500, False), (30, True)])
def test_unknown_is_not_none(
    read: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: int, known: bool
) -> None:
    """Recorded lengths name no token; where a limit stands for the output, no turn seems to
    continue the one before: what is shared is unknown then, and is not said to be 0 %."""
    lengths = (60, 110, 160)
    payloads = [
        {**body, "input_length": length}
        for body, length in zip(bodies(limit), lengths, strict=True)
    ]
    trace = read({"data": [{"session_id": "s", "payloads": payloads}]})
    assert trace.prompt_tokens.tolist() == list(lengths)
    assert (sharing(trace) is not None) is known
    path = tmp_path / "t.jsonl"
    assert run(["trace", "info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert ("sharing: unknown" in shown) is not known and " 0.00 %" not in shown
    assert run(["replay", str(path), "--policy", "paged"]) == 0
    shown = capsys.readouterr().out
    assert ("sharing unknown" in shown) is not known and "hit 0.00 %" not in shown
