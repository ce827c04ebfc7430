"""Examples that broke a policy, as native traces that any version of it can be held to again.

The document's `source` has what a trace does not say: the device, the limits and costs of a case,
or the calls of a walk, whose trace then only shows the sequences. Nothing here judges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from vtsim.engine.state import Limits
from vtsim.errors import ConfigError
from vtsim.request import NO_ARRIVAL, Trace
from vtsim.testing.cases import Case
from vtsim.testing.toys import Ask, ToyExecutor, make_trace
from vtsim.testing.walk import Call, Walk, case_of, setup_of
from vtsim.traces import load
from vtsim.traces.writer import native_text, write_native

KEY = "vtsim-check"
_LIMITS = ("max_num_seqs", "max_batched_tokens", "admit")


@dataclass(frozen=True, slots=True)
class Example:
    """A case; or a walk, where there are `calls` (`case` then is its device and limits)."""

    case: Case
    calls: tuple[Call, ...] | None = None


def asks_of(trace: Trace) -> list[Ask]:
    """The rows of a trace, as `make_trace` takes them."""
    columns = (trace.arrival, trace.prompt_tokens, trace.output_tokens, trace.priority)
    rows = zip(*(column.tolist() for column in (*columns, trace.session, trace.turn)), strict=True)
    return [
        Ask(
            0 if arrival == NO_ARRIVAL else arrival, prompt, output, priority,
            tuple(trace.hash_ids(row)), session, turn,
            trace.after.get(row, ()), trace.wait.get(row, 0),
        )
        for row, (arrival, prompt, output, priority, session, turn) in enumerate(rows)
    ]  # fmt: skip


def as_trace(example: Example) -> Trace:
    """A trace whose `source` holds all of the example."""
    case = example.case
    told: dict[str, object] = {**setup_of(case)}
    if example.calls is not None:
        told["calls"] = [[name, numbers] for name, numbers in example.calls]
        return dataclasses.replace(_shown(example.calls), source={KEY: told})
    told["limits"] = {name: getattr(case.limits, name) for name in _LIMITS}
    told["executor"] = dataclasses.asdict(case.executor)  # type: ignore[call-overload]
    return dataclasses.replace(case.trace, source={KEY: told})


def _shown(calls: tuple[Call, ...]) -> Trace:
    """The sequences that a walk creates, as requests; each is given one token by every `extend`."""
    steps = sum(numbers["steps"] for name, numbers in calls if name == "extend")
    created = [numbers for name, numbers in calls if name == "create"]
    asks = [Ask(0, max(1, numbers["prompt"]), 1 + steps) for numbers in created]
    return make_trace(asks or [Ask(0, 1, 1)])


def save(example: Example, path: Path) -> None:
    """Write the example, whole or not at all. Raises what the writer of traces raises."""
    write_native(as_trace(example), path)


def text_of(example: Example) -> str:
    return "".join(native_text(as_trace(example)))


def read(path: str | Path) -> Example:
    """The example in a file that `save` has written, perhaps changed by hand. Raises the reader's
    errors, and `ConfigError` if what a check needs is not there."""
    trace = load(path, from_format="native")
    told = trace.source.get(KEY)
    if not isinstance(told, Mapping):
        raise ConfigError(f"{path}: no example of a check (source.{KEY} is missing)")
    try:
        return _parse(trace, told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: source.{KEY}: {type(error).__name__}: {error}") from None


def _parse(trace: Trace, told: Mapping[str, Any]) -> Example:
    numbers = ("max_model_len", "limit_tokens", "limit_units", "slots")
    setup = {name: _whole(told[name], name) for name in numbers}
    tokens, chunks = (_whole(value, "tokens_in_chunks", 1) for value in told["tokens_in_chunks"])
    setup["tokens_in_chunks"] = (tokens, chunks)  # type: ignore[assignment]
    if "calls" not in told:
        limits, executor = told["limits"], told["executor"]
        if limits["admit"] not in ("prompt", "chunk"):
            raise ValueError(f"admit {limits['admit']!r}")
        costs = {
            field.name: (bool if field.name == "closed_form" else int)(executor[field.name])
            for field in dataclasses.fields(ToyExecutor)
        }
        counts = {name: _whole(limits[name], name, 1) for name in _LIMITS[:2]}
        return Example(
            Case(
                trace,
                **setup,  # type: ignore[arg-type]
                limits=Limits(**counts, admit=limits["admit"]),  # type: ignore[arg-type]
                executor=ToyExecutor(**costs),  # type: ignore[arg-type]
            )
        )
    calls: list[Call] = []
    for name, given in told["calls"]:
        if name not in Walk.NAMES:
            raise ValueError(f"there is no call {name!r}")
        least = -1 if name == "create" else 0
        signature(getattr(Walk, f"_{name}")).bind(None, **given)
        calls.append((name, {key: _whole(value, key, least) for key, value in given.items()}))
    return Example(case_of(setup), tuple(calls))


def _whole(value: object, name: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 40:
        raise ValueError(f"{name}: {value!r} is no whole number from {least}")
    return value
