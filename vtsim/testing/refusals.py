"""The device refuses operations that a policy counted on, each in turn: undone exactly, and
everything is answered all the same."""

from __future__ import annotations

from typing import Any

from vtsim.errors import BackendError, CapacityError
from vtsim.memory.journal import Journal
from vtsim.plan import Plan, Shortage
from vtsim.testing.cases import Case, Ran, run_case
from vtsim.testing.contracts import demand
from vtsim.testing.driver import MakePolicy
from vtsim.testing.runs import assert_equal_runs, check_answers
from vtsim.testing.state import fingerprint


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
        same_run = self._decisions == self.watch
        demand(same_run, "deterministic", "the same run was refused in another decision")
        same_state = fingerprint(self.policy) == self._before
        demand(same_state, "undo-exact", "undoing a decision is not exact")


def _watching(decision: int) -> type[WatchedJournal]:
    class Watching(WatchedJournal):
        watch = decision

    return Watching


class Undone(Exception):
    """Which decision has been undone; the run ends there."""

    def __init__(self, decision: int) -> None:
        self.decision = decision
        super().__init__(f"decision {decision} was undone")


def refuse_each_call(make: MakePolicy, case: Case, most: int | None = None) -> int:
    """Refuse each operation of a run (at most `most`, evenly spread); returns how many runs it
    took."""
    calls = len(run_case(case, make(True), placement=True).calls)
    step = 1 if most is None else max(1, calls // most)
    runs = 0
    for call in range(0, calls, step):
        placed = refuse_call(make, case, call, placement=True)
        counted = refuse_call(make, case, call, placement=False)
        runs += 2
        what = f"call {call} refused, placement on and off"
        if isinstance(placed, Ran) and isinstance(counted, Ran):
            assert_equal_runs(placed, counted, what, "refused-alike")
        else:
            alike = type(placed) is type(counted)
            demand(alike, "refused-alike", f"{what}: {placed!r}, {counted!r}")
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
            check_answers(run)
            return run
