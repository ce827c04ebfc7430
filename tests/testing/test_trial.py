"""Trials of sound policies, and what examples go through: drawn, written, read, made smaller."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from vtsim.errors import ConfigError
from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.registry import POLICIES
from vtsim.testing import random_case, run_case
from vtsim.testing.conformance import CHECKS, maker
from vtsim.testing.contracts import ContractError
from vtsim.testing.driver import MakePolicy
from vtsim.testing.example import Example, read, save
from vtsim.testing.shrink import shrink, without
from vtsim.testing.trial import Trial
from vtsim.testing.walk import Walk, case_of, random_call, setup_of, walk_again
from vtsim.testing.watch import at_most, patience

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = [
    f"{ROOT / 'docs' / 'examples'}/{name}" for name in ("exact.py:Exact", "pieces.py:Pieces")
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", [*POLICIES.built_in, *TUTORIAL], ids=lambda n: n.split("/")[-1])
def test_sound_policies_pass_every_check(name: str, check: str, budget: int) -> None:
    outcome = Trial(POLICIES.find(name)).run(CHECKS[check], 4 * budget)
    assert outcome.failure is None, outcome.failure
    assert outcome.examples >= 1 and not outcome.note


@pytest.mark.parametrize("check", ["rollback", "progress"])
def test_every_parameterisation_passes(make_policy: MakePolicy, check: str, budget: int) -> None:
    policy = make_policy(False)
    trial = Trial(lambda parameters, placement: make_policy(placement))
    trial.policy_class = type(policy)
    outcome = trial.run(CHECKS[check], 4 * budget)
    assert outcome.failure is None, outcome.failure


# -- written and read ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_a_case_survives_its_file(seed: int, tmp_path: Path) -> None:
    case = random_case(Random(seed), requests=12)
    save(Example(case), tmp_path / "example.json")
    again = read(tmp_path / "example.json").case
    assert replace(again, trace=case.trace) == case
    left, right = (run_case(c, VTensorPolicy()).account() for c in (case, again))
    shifted = {"admitted_at", "first_token_at", "finished_at", "end", "decision_rows", "samples"}
    arrival = case.trace.arrival.tolist()
    if arrival[0]:  # a file's times begin with its first request
        for name in shifted:
            left.pop(name), right.pop(name)
    assert left == right


def walked(make: MakePolicy, seed: int) -> Walk:
    random = Random(seed)
    walk = Walk(make, setup_of(random_case(random)))
    for _ in range(30):
        name, numbers = random_call(walk, random)
        walk.do(name, **numbers)
    return walk


def test_a_walk_survives_its_file(tmp_path: Path) -> None:
    walk = walked(maker(PagedPolicy), 3)
    example = Example(case_of(walk.setup), tuple(walk.calls))
    save(example, tmp_path / "example.json")
    again = read(tmp_path / "example.json")
    assert again.calls == example.calls and setup_of(again.case) == walk.setup
    walk_again(maker(PagedPolicy), setup_of(again.case), again.calls or ())


def test_a_slot_that_is_taken_over_whole_is_known_though_nothing_is_mapped() -> None:
    """Else what its sequence writes is not noted, and whoever matches it finds older content."""
    walked(maker(VTensorPolicy, VTensorParameters(release="park")), 40).finish()


def test_any_part_of_a_walk_is_a_walk() -> None:
    walk = walked(maker(VTensorPolicy), 5)
    for start in (1, 7, 20):
        walk_again(maker(VTensorPolicy), walk.setup, walk.calls[start::2])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["source"].clear(), "no example of a check"),
        (lambda d: d["source"]["vtsim-check"].pop("slots"), "'slots'"),
        (lambda d: d["source"]["vtsim-check"].update(slots="many"), "slots: 'many' is no whole"),
        (lambda d: d["source"]["vtsim-check"].update(limit_tokens=-1), "limit_tokens: -1"),
        (lambda d: d["source"]["vtsim-check"].update(tokens_in_chunks=[1]), "ValueError"),
        (lambda d: d["source"]["vtsim-check"]["limits"].update(admit="?"), "admit '?'"),
        (lambda d: d["source"]["vtsim-check"].update(calls=[["jump", {}]]), "no call 'jump'"),
        (lambda d: d["source"]["vtsim-check"].update(calls=[["retire", {"x": 1}]]), "argument"),
        (
            lambda d: d["source"]["vtsim-check"].update(calls=[["retire", {"running": 1.5}]]),
            "running: 1.5",
        ),
    ],
)
def test_an_example_that_is_none_is_told(change: Any, told: str, tmp_path: Path) -> None:
    path = tmp_path / "example.json"
    save(Example(random_case(Random(1), requests=3)), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert told in str(raised.value) and str(path) in str(raised.value)


# -- made smaller ----------------------------------------------------------------------------------


def test_a_list_is_cut_down_to_what_failing_needs() -> None:
    assert without(list(range(40)), lambda items: {3, 17, 38} <= set(items)) == [3, 17, 38]
    assert without([1, 2], lambda items: True) == []


def test_a_case_is_made_as_small_as_its_failure_allows() -> None:
    case = random_case(Random(4))
    assert len(case.trace) > 3

    def fails(example: Example) -> bool:
        trace = example.case.trace
        return any(trace.output_tokens > 20) and example.case.limit_units >= 1

    smallest = shrink(Example(case), fails, seconds=20).case
    assert smallest.trace.prompt_tokens.tolist() == [1]
    assert smallest.trace.output_tokens.tolist() == [21]
    assert smallest.limit_units == 1 and smallest.tokens_in_chunks == (1, 1)


class Forgetful(NativePolicy):
    """Fails once three sequences run."""

    def create(self, *arguments: Any) -> Any:
        if len(self._held) == 2:
            raise KeyError("the third")
        return super().create(*arguments)


def test_a_walk_is_made_as_small_as_its_failure_allows() -> None:
    failure = Trial(Forgetful).run(CHECKS["calls"], 20).failure
    assert failure is not None and failure.name == "raises-nothing"
    assert failure.detail == "KeyError: 'the third'"
    assert failure.example is not None and failure.example.calls is not None
    assert [name for name, _ in failure.example.calls] == ["create"] * 3
    assert failure.place.endswith("in Forgetful.create")


def test_a_case_that_fails_is_found_and_made_small() -> None:
    failure = Trial(Forgetful).run(CHECKS["plans"], 20).failure
    assert failure is not None and failure.example is not None
    assert failure.example.case.trace.output_tokens.tolist() == [1, 1, 1] or (
        len(failure.example.case.trace) == 3
    )


# -- watched ---------------------------------------------------------------------------------------


def test_what_does_not_end_is_ended() -> None:
    def swallow() -> None:
        while True:
            try:
                while True:
                    pass
            except Exception:  # a policy may do so
                pass

    with pytest.raises(ContractError, match="answers-in-time broken: it had not ended after 0.05"):
        with patience(0.5), at_most(0.1, "it"):
            swallow()


def test_what_ends_is_left_alone() -> None:
    with at_most(5.0, "it"):
        assert sum(range(1000)) == 499_500
