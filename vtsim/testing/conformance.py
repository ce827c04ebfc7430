"""The suite that every policy is held to. `check_policy(MyPolicy)` runs all of it.

| check | what it holds a policy to |
|---|---|
| declaration | the attributes that engine, lists and results read |
| calls | each call's contract, in any order: `vtsim.testing.driver` |
| runs | whole runs: leap = step, placement on = off, every request answered, nothing left |
| refusals | the device refuses any one operation: undone exactly, everything answered |

Functions, not fixtures: no test framework is needed. What fails is an AssertionError or an
InvariantError, with the seed and the case as a note. Same seeds, same cases, everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from vtsim.errors import BackendError, CapacityError
from vtsim.memory.journal import Journal
from vtsim.metrics.recorder import Outcome
from vtsim.plan import Keep, Plan, Shortage
from vtsim.testing.cases import Case, Ran, random_case, run_case
from vtsim.testing.driver import MakePolicy, PolicyDriver
from vtsim.testing.state import fingerprint


def maker(policy_class: Callable[..., Any], parameters: Any = None) -> MakePolicy:
    """Makes fresh policies of one class with the same parameters."""
    return lambda placement: policy_class(parameters, placement=placement)


def check_policy(
    policy_class: Callable[..., Any], parameters: Any = None, *, seeds: Iterable[int] = range(12)
) -> None:
    """All checks, each on the cases of `seeds`. `parameters`: an instance of the class's
    `parameters_type`; None for its defaults."""
    make = maker(policy_class, parameters)
    chosen = list(seeds)
    check_declaration(make)
    for seed in chosen:
        check_calls(make, seed)
    for seed in chosen:
        check_runs(make, seed)
    for seed in chosen[:3]:
        check_refusals(make, seed, most=25)


# -- declaration -----------------------------------------------------------------------------------


def check_declaration(make: MakePolicy) -> None:
    """A name, kernels, a lookahead, and parameters that JSON can say."""
    policy = make(False)
    assert isinstance(policy.name, str) and policy.name, "a policy needs a name"
    assert policy.kernels and all(isinstance(k, str) for k in policy.kernels), (
        f"{policy.name}: kernels must name at least one kernel family, got {policy.kernels!r}"
    )
    assert type(policy.lookahead) is int and policy.lookahead >= 0, (
        f"{policy.name}: lookahead {policy.lookahead!r} is not a number of steps"
    )
    assert type(policy.fenced) is bool, f"{policy.name}: fenced {policy.fenced!r} is not a bool"
    parameters = dict(policy.parameters())
    try:
        said = json.loads(json.dumps(parameters))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{policy.name}: parameters are not JSON: {error}") from error
    assert said == parameters, f"{policy.name}: parameters change in JSON: {parameters} -> {said}"


# -- calls -----------------------------------------------------------------------------------------


def check_calls(make: MakePolicy, seed: int, calls: int = 60) -> None:
    """A random walk over all calls, checked after each."""
    random = Random(seed)
    case = random_case(random)
    try:
        driver = PolicyDriver(make, case)
        driver.check()
        for _ in range(calls):
            _call_something(driver, random)
            driver.check()
        driver.finish()
    except Exception as error:
        _say_where(error, make, seed, case)
        raise


def _call_something(driver: PolicyDriver, random: Random) -> None:
    undo = random.randint(0, 9) == 0
    unfinished = [i for i in driver.running if i not in driver.batch.decoding]
    draw = random.randint(0, 99)
    if draw < 30:
        if driver.gone and random.randint(0, 1):
            seq = driver.gone.pop(random.randrange(len(driver.gone)))
        else:
            seq = driver.new_sequence(
                random.randint(1, max(1, driver.max_model_len - 2)),
                random.randint(-1, 30),
                random.randint(1, driver.max_model_len),
                random.randint(0, 4) > 0,
                random.randint(0, 1) > 0,
            )
        tokens = random.choice((seq.prompt_tokens, random.randint(1, 64)))
        driver.create(
            seq,
            tokens,
            random.choice((0, seq.prompt_tokens + 2)),
            matching=random.randint(0, 9) > 0,
            undo=undo,
        )
    elif draw < 55:
        driver.extend(random.choice((1, 1, 2, random.randint(1, 80))), undo=undo)
    elif draw < 65 and unfinished:
        driver.extend_prompt(random.choice(unfinished), random.randint(1, 100), undo=undo)
    elif draw < 80 and driver.running:
        keep = random.choice((Keep.NONE, Keep.RECORD, Keep.RECORD, Keep.RECORD))
        driver.release(
            random.choice(list(driver.running)), keep, comes_back=random.randint(0, 3) == 0
        )
    elif draw < 95:
        driver.retire(running=random.randint(0, 3) > 0)
    else:
        share = random.choice((0, 1, 5, 8, 10, 10))
        driver.set_limit(driver.placed.limit_bytes * share // 10)


# -- runs ------------------------------------------------------------------------------------------


def check_runs(make: MakePolicy, seed: int) -> Ran:
    """A random case, leapt and stepped, with placement and without; returns one of the runs."""
    random = Random(seed)
    case = random_case(random, "high" if seed % 2 else "any")
    try:
        return compare_runs(make, case)
    except Exception as error:
        _say_where(error, make, seed, case)
        raise


def compare_runs(make: MakePolicy, case: Case) -> Ran:
    """Leaping and stepping, with and without placement, must not differ; returns the first run."""
    runs = {
        (leap, placement): run_case(case, make(placement), leap=leap, placement=placement)
        for leap in (True, False)
        for placement in (False, True)
    }
    plain = runs[True, False]
    _check_answers(plain)
    assert_equal_runs(plain, runs[False, False], "leap on and off")
    assert_equal_runs(plain, runs[True, True], "placement off and on")
    assert_equal_runs(runs[True, True], runs[False, True], "leap on and off, with placement")
    return plain


def assert_equal_runs(left: Ran, right: Ran, what: str) -> None:
    """Raises AssertionError that names the first thing that differs."""
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
            raise AssertionError(f"{what}: {name} differs: {shown}")


def _check_answers(run: Ran) -> None:
    recorder = run.recorder
    unanswered = [row for row, outcome in enumerate(recorder.outcome) if outcome == Outcome.WAITING]
    assert not unanswered, f"requests {unanswered} were never answered"
    rejected = {row for row, outcome in enumerate(recorder.outcome) if outcome == Outcome.REJECTED}
    assert rejected == recorder.reasons.keys(), "a rejection without a reason"
    assert run.backend.bytes_in_use() == 0, f"{run.backend.bytes_in_use()} bytes are left"


# -- refusals --------------------------------------------------------------------------------------


class WatchedJournal(Journal):
    """A journal that notes which decision was undone, and compares the state then with that before
    decision number `watch` (from 1)."""

    watch = 0

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self._decisions = 0
        self._before: object = None

    def _call(self, name: str, *arguments: Any) -> Plan | Shortage:
        self._decisions += 1
        if self._decisions == self.watch:
            self._before = fingerprint(self.policy)
        return super()._call(name, *arguments)

    def rollback(self, plan: Plan) -> None:
        super().rollback(plan)
        if not self.watch:
            raise Undone(self._decisions)
        assert self._decisions == self.watch, "the same run was refused in another decision"
        assert fingerprint(self.policy) == self._before, "undoing a decision is not exact"


def _watching(decision: int) -> type[WatchedJournal]:
    class Watching(WatchedJournal):
        watch = decision

    return Watching


class Undone(Exception):
    """Which decision has been undone; the run ends there."""

    def __init__(self, decision: int) -> None:
        self.decision = decision
        super().__init__(f"decision {decision} was undone")


def check_refusals(make: MakePolicy, seed: int, most: int | None = None) -> int:
    """The device refuses one operation, each in turn (at most `most`, evenly spread); returns how
    many runs it took."""
    random = Random(seed)
    case = random_case(random, "high", requests=6)
    try:
        return refuse_each_call(make, case, most)
    except Exception as error:
        _say_where(error, make, seed, case)
        raise


def refuse_each_call(make: MakePolicy, case: Case, most: int | None = None) -> int:
    """As `check_refusals`, of a case that is given."""
    calls = len(run_case(case, make(True), placement=True).calls)
    step = 1 if most is None else max(1, calls // most)
    runs = 0
    for call in range(0, calls, step):
        placed = refuse_call(make, case, call, placement=True)
        counted = refuse_call(make, case, call, placement=False)
        runs += 2
        if isinstance(placed, Ran) and isinstance(counted, Ran):
            assert_equal_runs(placed, counted, f"call {call} refused, placement on and off")
        else:
            assert type(placed) is type(counted), (
                f"call {call} refused, placement on and off: {placed!r}, {counted!r}"
            )
    return runs


def refuse_call(
    make: MakePolicy, case: Case, call: int, *, placement: bool
) -> Ran | BackendError | CapacityError:
    """One run in which operation `call` is refused: it ends with everything answered, or says that
    what must not fail (retire, teardown; the set-up) has failed."""
    journal = WatchedJournal
    while True:
        try:
            run = run_case(
                case, make(placement), placement=placement, fail_at=call, journal=journal
            )
        except Undone as undone:  # now known: comparing states at every decision takes long
            journal = _watching(undone.decision)
        except (BackendError, CapacityError) as error:
            return error
        else:
            _check_answers(run)
            return run


def _say_where(error: Exception, make: MakePolicy, seed: int, case: Case) -> None:
    policy = make(False)
    error.add_note(f"{policy.name} {dict(policy.parameters())}, seed {seed}")
    error.add_note(repr(case))
