"""Whole runs of one case that must not differ, and what every run must end with."""

from __future__ import annotations

from typing import Any

from vtsim.errors import CapacityError
from vtsim.metrics.recorder import Outcome
from vtsim.testing.cases import Case, Ran, run_case
from vtsim.testing.contracts import ContractError, demand
from vtsim.testing.driver import MakePolicy


def play(case: Case, policy: Any, *, leap: bool = True, placement: bool = False) -> Ran:
    """`run_case` with nothing refused by the device: a policy has no excuse to get nowhere."""
    try:
        return run_case(case, policy, leap=leap, placement=placement)
    except CapacityError as error:
        raise ContractError("progress", str(error)) from error


def compare_runs(make: MakePolicy, case: Case) -> Ran:
    """Leaping and stepping, with and without placement, must not differ; returns the first run."""
    plain = compare_leap(make, case)
    compare_placement(make, case, plain)
    placed = play(case, make(True), placement=True)
    stepped = play(case, make(True), leap=False, placement=True)
    assert_equal_runs(placed, stepped, "leap on and off, with placement", "leap-equals-step")
    return plain


def compare_leap(make: MakePolicy, case: Case) -> Ran:
    """Leaping and stepping; returns the leaping run."""
    leapt = play(case, make(False))
    check_answers(leapt)
    stepped = play(case, make(False), leap=False)
    assert_equal_runs(leapt, stepped, "leap on and off", "leap-equals-step")
    return leapt


def compare_placement(make: MakePolicy, case: Case, counted: Ran | None = None) -> None:
    """`counted`: the run without placement, if there is one."""
    if counted is None:
        counted = play(case, make(False))
    placed = play(case, make(True), placement=True)
    assert_equal_runs(counted, placed, "placement off and on", "placement-decides-nothing")


def check_legal(make: MakePolicy, case: Case) -> None:
    """Step by step, every plan on the strict driver and the books checked behind every step."""
    check_answers(play(case, make(True), leap=False, placement=True))


def assert_equal_runs(left: Ran, right: Ran, what: str, contract: str = "deterministic") -> None:
    """Raises ContractError that names the first thing that differs."""
    one, other = left.account(), right.account()
    for name in one.keys() & other.keys():
        a, b = one[name], other[name]
        if a != b:
            if isinstance(a, list) and isinstance(b, list):
                at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
                shown = f"{len(a)} and {len(b)} of them, the first at {at}: "
                shown += (
                    f"{a[at : at + 1]}, {b[at : at + 1]}" if at >= 0 else "one begins the other"
                )
            else:
                shown = f"{a}, {b}"
            raise ContractError(contract, f"{what}: {name} differs: {shown}")


def check_answers(run: Ran) -> None:
    """Everybody is answered, and nothing is left."""
    recorder = run.recorder
    unanswered = [row for row, outcome in enumerate(recorder.outcome) if outcome == Outcome.WAITING]
    demand(not unanswered, "answered", f"requests {unanswered} were never answered")
    rejected = {row for row, outcome in enumerate(recorder.outcome) if outcome == Outcome.REJECTED}
    demand(rejected == recorder.reasons.keys(), "answered", "a rejection without a reason")
    left = run.backend.bytes_in_use()
    demand(not left, "nothing-left", f"{left} bytes are left", "teardown")
