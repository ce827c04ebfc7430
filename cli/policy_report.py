"""What `vtsim policy check` prints: a line a check, then what failed and how to see it again.

Runs nothing itself: `vtsim.testing.trial` does.
"""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vtsim.parameters import parameters_of
from vtsim.quantities import format_seconds
from vtsim.registry import PolicyChoice
from vtsim.spec import models
from vtsim.testing.example import Example, as_trace, text_of
from vtsim.testing.trial import Failure, Outcome

WIDTH = 80
MOST_ROWS = 12
"""Requests or calls of an example that are printed; a saved one has all."""


def head(choice: PolicyChoice) -> str:
    """Which policy, and the names of the columns."""
    shown = ", ".join(
        f"{parameter.name} {parameter.show(getattr(choice.parameters, parameter.name))}"
        for parameter in parameters_of(choice.policy.parameters_type)
    )
    policy = textwrap.fill(
        f"policy {choice.label}: {shown}" if shown else f"policy {choice.label}",
        WIDTH,
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    return f"{policy}\n{'check':<12} {'what it holds a policy to':<48} {'examples':>8}  result"


def line(outcome: Outcome) -> str:
    check = outcome.check
    result = "passed" if outcome.failure is None else "FAILED"
    return f"{check.name:<12} {check.summary:<48} {outcome.examples:>8,}  {result}" + (
        f"\n{'':<12} ({outcome.note})" if outcome.note else ""
    )


def block(
    outcome: Outcome, asked: str, choice: PolicyChoice, settings: list[str], saved: Path | None
) -> Iterator[str]:
    """What failed, in `WIDTH` columns; commands are whole lines, to be copied."""
    failure = outcome.failure
    assert failure is not None
    yield f"FAILED {outcome.check.name}: {failure.name}"
    if failure.says:
        yield from _wrapped("says", failure.says)
    yield from _wrapped("found", failure.detail)
    if failure.place:
        yield from _wrapped("where", failure.place)
    if failure.example is None:
        return
    for text in _example(failure.example):
        yield from _wrapped("example" if not text.startswith(" ") else "", text.strip())
    if saved is None:
        yield from _wrapped("again", "--save FILE writes the example, --example FILE runs it again")
        return
    yield f"  saved    {saved}"
    again = ["vtsim", "policy", "check", asked, *_set(settings)]
    again += ["--only", outcome.check.name, "--example", str(saved)]
    yield f"  again    {shlex.join(again)}"
    if failure.example.calls is None:
        yield f"  replay   {replay_command(failure.example, asked, choice, settings, saved)}"


def replay_command(
    example: Example, asked: str, choice: PolicyChoice, settings: list[str], saved: Path
) -> str:
    """A replay of the example's trace under the same pressure, with a model whose tokens fill
    chunks alike, if one is known. Step times are a GPU's there, not the check's."""
    case = example.case
    tokens, chunks = case.tokens_in_chunks
    policy = choice.policy(choice.parameters, placement=False)
    chosen, layout = "", None
    for name, model in models().items():
        kv = policy.kv_layout(model, 1, case.max_model_len)
        alike = kv.token_bytes * tokens == kv.chunk_bytes * chunks
        if layout is None or alike:
            chosen, layout = name, kv
        if alike:
            break
    assert layout is not None
    return shlex.join(
        [
            *("vtsim", "replay", str(saved), "--policy", asked, *_set(settings)),
            *("--model", chosen, "--kv-memory", str(case.limit_bytes(layout))),
            *("--max-model-len", str(case.max_model_len), "--admit", case.limits.admit),
            *("--max-num-seqs", str(case.limits.max_num_seqs)),
            *("--max-batched-tokens", str(case.limits.max_batched_tokens), "--check"),
        ]
    )


def document(
    choice: PolicyChoice, seed: int, outcomes: list[Outcome], saved: dict[str, Path]
) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema": "vtsim-check",
        "version": 1,
        "policy": choice.label,
        "parameters": asdict(choice.parameters),
        "seed": seed,
        "passed": all(outcome.failure is None for outcome in outcomes),
        "checks": [
            {
                "check": outcome.check.name,
                "examples": outcome.examples,
                "passed": outcome.failure is None,
                "note": outcome.note,
                "failure": _failure(outcome.failure),
                "saved": str(saved[outcome.check.name]) if outcome.check.name in saved else None,
            }
            for outcome in outcomes
        ],
    }


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    example = None if failure.example is None else json.loads(text_of(failure.example))
    return {
        "name": failure.name,
        "says": failure.says,
        "found": failure.detail,
        "where": failure.place,
        "example": example,
    }


def _example(example: Example) -> Iterator[str]:
    case = example.case
    tokens, chunks = case.tokens_in_chunks
    common = (
        f"{tokens} tokens fill {chunks} chunk{'s' if chunks > 1 else ''}, limit of "
        f"{case.limit_tokens} tokens and {case.limit_units} units, {case.slots} slots, "
        f"max_model_len {case.max_model_len}"
    )
    if example.calls is not None:
        yield f"{len(example.calls)} calls; {common}"
        for name, numbers in example.calls[:MOST_ROWS]:
            yield "  " + " ".join([name, *(f"{key} {value}" for key, value in numbers.items())])
        if len(example.calls) > MOST_ROWS:
            yield f"  and {len(example.calls) - MOST_ROWS} more"
        return
    limits, trace = case.limits, as_trace(example)
    yield (
        f"{len(trace)} request{'s' if len(trace) > 1 else ''}; {common}, max_num_seqs "
        f"{limits.max_num_seqs}, max_batched_tokens {limits.max_batched_tokens}, "
        f"admit {limits.admit}"
    )
    for row in range(min(len(trace), MOST_ROWS)):
        when = f"at {format_seconds(int(trace.arrival[row]) / 1e12)}"
        if row in trace.after:
            when = f"after {', '.join(map(str, trace.after[row]))}"
        ids = trace.hash_ids(row)
        yield (
            f"  {row}: {when}, {trace.prompt_tokens[row]} prompt + {trace.output_tokens[row]} "
            "output tokens"
            + (f", blocks of {trace.block_size}: {' '.join(map(str, ids))}" if ids else "")
            + (f", priority {trace.priority[row]}" if trace.priority[row] else "")
        )
    if len(trace) > MOST_ROWS:
        yield f"  and {len(trace) - MOST_ROWS} more"


def _set(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _wrapped(name: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"  {name:<8} ",
        subsequent_indent=" " * 11,
        break_on_hyphens=False,
    )
