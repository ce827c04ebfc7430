"""One check tried on a policy: how many examples it passed, or the smallest that fails.

Everything a policy can do wrong ends in a `Failure`: it may break a contract or an invariant, raise
whatever it likes, or not return. The checks are those of `vtsim.testing.conformance`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vtsim.errors import ConfigError, InvariantError
from vtsim.testing import example as examples_of
from vtsim.testing.blame import place
from vtsim.testing.cases import random_case
from vtsim.testing.conformance import Check, check_declaration, maker
from vtsim.testing.contracts import CONTRACTS, ContractError
from vtsim.testing.driver import MakePolicy
from vtsim.testing.example import Example
from vtsim.testing.repeat import Elsewhere, where_is
from vtsim.testing.shrink import shrink
from vtsim.testing.walk import Walk, case_of, random_call, setup_of
from vtsim.testing.watch import patience

SHRINK_SECONDS = 15.0
HANGING = 0.1
"""What hangs is given this share of the usual time when it is tried again."""
CALLS = 40
"""Of one walk."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What does not hold, and for which example."""

    name: str
    """Of the contract or invariant."""
    detail: str
    place: str
    """`file:line in Class.method` of the policy; "" if that cannot be told."""
    error: BaseException = field(repr=False)
    example: Example | None = None

    @property
    def says(self) -> str:
        """The clause in words; "" for an invariant, whose detail says all."""
        return CONTRACTS.get(self.name, "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check has found."""

    check: Check
    examples: int
    failure: Failure | None = None
    note: str = ""
    """What was left out, and why."""


class Trial:
    """A policy class with its parameters (None: the defaults), on trial."""

    def __init__(self, policy_class: Any, parameters: Any = None) -> None:
        self.policy_class = policy_class
        self.parameters = parameters
        self.make: MakePolicy = maker(policy_class, parameters)

    def run(self, check: Check, examples: int, seed: int = 0) -> Outcome:
        """Up to `examples` examples of `check`, drawn by `seed`; the first that fails is shrunk.

        `calls` takes as many from Hypothesis and as many random walks, which go further.
        """
        if check.name == "calls":
            outcome = self._machine(check, examples, seed)
            if outcome.failure is not None:
                return outcome
        seeds = check.seeds([seed * 1_000_000 + number for number in range(examples)])
        if check.walks:
            drawn: Iterator[Callable[[], Example]]
            drawn = (self._walker(number, check.undo) for number in seeds)
        elif check.draw is not None:
            draw = check.draw
            drawn = ((lambda n=n: Example(draw(n))) for n in seeds)  # type: ignore[misc]
        else:
            failure = self._failure(lambda: check_declaration(self.make))
            return Outcome(check, 1, failure)
        with ExitStack() as stack:
            hold, note = self._holding(check, stack)
            done = 0
            for example in drawn:
                done += 1
                found = self._first(hold, example)
                if found is not None:
                    return Outcome(check, done, self._smallest(hold, found), note)
        return Outcome(check, done, None, note)

    def run_again(self, check: Check, example: Example) -> Outcome:
        """`check` on one example, as it is."""
        with ExitStack() as stack:
            hold, note = self._holding(check, stack)
            failure = self._failure(lambda: hold(example), example)
        return Outcome(check, 1, failure, note)

    # -- examples ---------------------------------------------------------------------------------

    def _holding(self, check: Check, stack: ExitStack) -> tuple[Callable[[Example], None], str]:
        """What holds the policy to an example; and a note on what that leaves out."""
        if check.name != "determinism":
            return lambda example: check.run(self.make, example), ""
        if where_is(self.policy_class) is None:
            note = "other processes cannot find the class"
            return lambda example: check.run(self.make, example), note
        try:
            parameters = dict(self.make(False).parameters())
        except Exception:  # `declaration` tells
            return lambda example: check.run(self.make, example), "it has no parameters to tell"
        elsewhere = stack.enter_context(Elsewhere(self.policy_class, parameters))

        def hold(example: Example) -> None:
            check.run(self.make, example)
            elsewhere.check(example.case)

        return hold, ""

    def _first(
        self, hold: Callable[[Example], None], drawn: Callable[[], Example]
    ) -> tuple[Example, Failure] | None:
        """An example that fails, with how it does; None if this one holds."""
        walked: list[Example] = []

        def go() -> None:
            try:
                walked.append(drawn())
            except WalkedInto as error:  # the walk is the example, as far as it went
                walked.append(error.example)
                raise error.cause from error.cause.__cause__
            if walked[0].calls is None:
                hold(walked[0])

        failure = self._failure(go)
        return None if failure is None else (walked[0], failure)

    def _walker(self, seed: int, undo: bool | None) -> Callable[[], Example]:
        """A random walk, whose decisions are all undone first with `undo`; raises WalkedInto where
        it fails."""

        def go() -> Example:
            draws = random.Random(seed)
            setup = setup_of(random_case(draws))
            calls: list[Any] = []
            try:
                walk = Walk(self.make, setup)
                calls = walk.calls
                for _ in range(CALLS):
                    name, numbers = random_call(walk, draws, undo)
                    walk.do(name, **numbers)
                walk.finish()
            except (Exception, SystemExit) as error:
                raise WalkedInto(Example(case_of(setup), tuple(calls)), error) from error
            return Example(case_of(setup), tuple(calls))

        return go

    def _machine(self, check: Check, examples: int, seed: int) -> Outcome:
        """The Hypothesis machine over all calls."""
        try:
            import hypothesis
            from hypothesis.stateful import run_state_machine_as_test

            from vtsim.testing.strategies import machine
        except ImportError as error:
            raise ConfigError(
                "the check 'calls' needs Hypothesis: pip install 'vtsim[testing]'"
            ) from error
        settings = hypothesis.settings(
            max_examples=examples,
            stateful_step_count=CALLS,
            phases=(hypothesis.Phase.generate,),
            deadline=None,
            database=None,
            derandomize=False,
            report_multiple_bugs=False,
            verbosity=hypothesis.Verbosity.quiet,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        tried: Any = hypothesis.seed(seed)(machine(self.make))
        try:
            with _nothing_kept():
                run_state_machine_as_test(tried, settings=settings)
        except hypothesis.errors.Flaky as error:
            flaky = ContractError("deterministic", "the same calls fail once and hold once")
            return Outcome(
                check, examples, self._described(flaky.with_traceback(error.__traceback__))
            )
        except (Exception, SystemExit) as error:
            failure = self._described(error)
            walk = tried.last
            if walk is None:  # its setup failed
                return Outcome(check, examples, failure)
            found = Example(case_of(walk.setup), tuple(walk.calls))
            smallest = self._smallest(lambda one: check.run(self.make, one), (found, failure))
            return Outcome(check, examples, smallest)
        return Outcome(check, examples)

    # -- failures ---------------------------------------------------------------------------------

    def _failure(
        self, hold: Callable[[], object], example: Example | None = None
    ) -> Failure | None:
        try:
            hold()
        except (Exception, SystemExit) as error:
            return self._described(error, example)
        return None

    def _described(self, error: BaseException, example: Example | None = None) -> Failure:
        where = place(error, self.policy_class)
        if isinstance(error, ContractError):
            return Failure(error.contract, error.detail, where, error, example)
        if isinstance(error, InvariantError):
            return Failure(error.invariant, error.detail, where, error, example)
        words = " ".join(str(error).split())
        what = f"{type(error).__name__}: {words}" if words else type(error).__name__
        return Failure("raises-nothing", what, where, error, example)

    def _smallest(self, hold: Callable[[Example], None], found: tuple[Example, Failure]) -> Failure:
        """The failure of the smallest example that fails alike."""
        example, failure = found

        def fails(tried: Example) -> bool:
            again = self._failure(lambda: hold(tried))
            return again is not None and _alike(again, failure)

        hangs = failure.name == "answers-in-time"
        with patience(HANGING if hangs else 1.0):
            written = _written(example)
            if fails(written):  # as it will be read back
                example = shrink(written, fails, SHRINK_SECONDS)
            again = self._failure(lambda: hold(example), example)
        if again is not None and _alike(again, failure):
            return again
        return Failure(failure.name, failure.detail, failure.place, failure.error, example)


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """Hypothesis writes what it learns of a program to the folder it runs in: not here."""
    from hypothesis import configuration

    before = getattr(configuration, "__hypothesis_home_directory", None)
    with TemporaryDirectory() as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)


class WalkedInto(Exception):
    """A walk, and what it ran into."""

    def __init__(self, example: Example, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.example = example
        self.cause = cause


def _alike(one: Failure, other: Failure) -> bool:
    return one.name == other.name and type(one.error) is type(other.error)


def _written(example: Example) -> Example:
    """The example as it is read back from a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "example.json"
        examples_of.save(example, path)
        return examples_of.read(path)
