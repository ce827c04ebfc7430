"""The suite that every policy is held to: named checks, each on as many examples as one likes.

`check_policy(MyPolicy)` runs all of it and raises what fails. `vtsim policy check` runs the same
checks, looks for the smallest example that fails, and prints it (`vtsim.testing.trial`). Functions,
not fixtures: no test framework is needed. Same seeds, same cases, everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from vtsim.testing import adversaries, refusals, repeat, runs
from vtsim.testing.cases import Case, Ran, random_case
from vtsim.testing.declaration import check_declaration
from vtsim.testing.driver import MakePolicy
from vtsim.testing.example import Example
from vtsim.testing.refusals import refuse_call, refuse_each_call
from vtsim.testing.runs import assert_equal_runs, compare_runs
from vtsim.testing.walk import Walk, random_call, setup_of, walk_again

__all__ = [
    "CHECKS",
    "Check",
    "assert_equal_runs",
    "check_calls",
    "check_declaration",
    "check_policy",
    "check_refusals",
    "check_runs",
    "compare_runs",
    "maker",
    "refuse_call",
    "refuse_each_call",
]


@dataclass(frozen=True, slots=True)
class Check:
    """One check. With `draw` it holds a policy to a case; with `undo` not None to a walk, whose
    decisions are undone first if it is true; with neither to the policy as it is."""

    name: str
    summary: str
    hold: Callable[[MakePolicy, Case], object] | None = None
    draw: Callable[[int], Case] | None = None
    undo: bool | None = None
    walks: bool = False
    share: int = 1
    """It takes one example where others take so many."""

    def run(self, make: MakePolicy, example: Example) -> None:
        """Raises what fails."""
        if example.calls is not None:
            walk_again(make, setup_of(example.case), example.calls)
        elif self.hold is not None:
            self.hold(make, example.case)

    def seeds(self, chosen: list[int]) -> list[int]:
        """Those of `chosen` that it takes: at least one."""
        return chosen[: -(-len(chosen) // self.share)]


def _any_or_high(seed: int) -> Case:
    return random_case(Random(seed), "high" if seed % 2 else "any")


def _few(seed: int) -> Case:
    return random_case(Random(seed), "high", requests=6)


def _few_or_two(seed: int) -> Case:
    return random_case(Random(seed), "high", requests=2 if seed % 2 else 6)


def _refuse(make: MakePolicy, case: Case) -> None:
    """Every operation of the smallest runs; 25 of larger ones, evenly spread."""
    refuse_each_call(make, case, most=None if len(case.trace) <= 2 else 25)


CHECKS = {
    check.name: check
    for check in (
        Check("declaration", "a name, kernels, parameters declared and shown"),
        Check("calls", "any calls in any order: books, memory, promises", walks=True),
        Check(
            "rollback",
            "a decision undone leaves the state before it",
            walks=True,
            undo=True,
            share=2,
        ),
        Check("plans", "every plan on a strict driver", runs.check_legal, _any_or_high),
        Check("leap", "many steps at once = one by one", runs.compare_leap, _any_or_high),
        Check(
            "placement",
            "with operations by name = without",
            runs.compare_placement,
            _any_or_high,
        ),
        Check("refusals", "the device refuses any operation", _refuse, _few_or_two, share=4),
        Check(
            "determinism",
            "the same run twice, and in other processes",
            repeat.check_repetition,
            _any_or_high,
            share=2,
        ),
        Check(
            "progress",
            "no going round in circles on hostile traces",
            adversaries.check_progress,
            adversaries.adversary,
        ),
    )
}


def maker(policy_class: Callable[..., Any], parameters: Any = None) -> MakePolicy:
    """Makes fresh policies of one class with the same parameters."""
    return lambda placement: policy_class(parameters, placement=placement)


def check_policy(
    policy_class: Callable[..., Any], parameters: Any = None, *, seeds: Iterable[int] = range(12)
) -> None:
    """All checks, each on the cases of `seeds`; raises the first failure, with seed and case as
    notes. `parameters`: an instance of the class's `parameters_type`; None for its defaults."""
    make = maker(policy_class, parameters)
    chosen = list(seeds)
    check_declaration(make)
    for check in CHECKS.values():
        for seed in check.seeds(chosen):
            if check.walks:
                random_walk(make, seed, undo=check.undo)
            elif check.draw is not None:
                _noted(check.run, make, seed, check.draw(seed))


def random_walk(make: MakePolicy, seed: int, calls: int = 60, undo: bool | None = None) -> None:
    """A random walk over all calls, checked after each."""
    random = Random(seed)
    case = random_case(random)

    def go(make: MakePolicy, example: Example) -> None:
        walk = Walk(make, setup_of(example.case))
        for _ in range(calls):
            name, numbers = random_call(walk, random, undo)
            walk.do(name, **numbers)
        walk.finish()

    _noted(go, make, seed, case)


def check_calls(make: MakePolicy, seed: int, calls: int = 60) -> None:
    """One random walk: the check `calls`."""
    random_walk(make, seed, calls)


def check_runs(make: MakePolicy, seed: int) -> Ran:
    """A random case, leapt and stepped, with placement and without; returns one of the runs."""
    case = _any_or_high(seed)
    run: Ran = _noted(lambda make, example: compare_runs(make, example.case), make, seed, case)
    return run


def check_refusals(make: MakePolicy, seed: int, most: int | None = None) -> int:
    """The device refuses one operation, each in turn (at most `most`, evenly spread); returns how
    many runs it took."""

    def refuse(make: MakePolicy, example: Example) -> int:
        return refusals.refuse_each_call(make, example.case, most)

    runs_taken: int = _noted(refuse, make, seed, _few(seed))
    return runs_taken


def _noted(
    hold: Callable[[MakePolicy, Example], Any], make: MakePolicy, seed: int, case: Case
) -> Any:
    """`hold`; what it raises says which policy, seed and case it is about."""
    try:
        return hold(make, Example(case))
    except Exception as error:
        policy = make(False)
        error.add_note(f"{policy.name} {dict(policy.parameters())}, seed {seed}")
        error.add_note(repr(case))
        raise
