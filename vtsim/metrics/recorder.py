"""Collects what happened in one run. Written to from the engine's hot loop, read once at the end.

It counts and appends, nothing more: no numpy, no pandas, no statistics (`vtsim.metrics.summary`),
no decision, no clock of its own. Definitions are in docs/metrics.md.
"""

from __future__ import annotations

from array import array
from enum import IntEnum

import numpy as np

from vtsim.errors import InvariantError
from vtsim.plan import KINDS, MemoryUsage, Phase
from vtsim.request import Tick

UNSET = -1
"""A tick that has not come yet."""

SAMPLE_COLUMNS = ("time", *MemoryUsage._fields, "free")
"""The columns of one memory sample, in the order in which `Recorder.samples` holds them."""


class Outcome(IntEnum):
    """What became of a request."""

    WAITING = 0
    """Not answered yet: it waits or runs. None is left after a run."""
    COMPLETED = 1
    REJECTED = 2


_PACK_AT = 4096
"""Values of samples that are kept in a list before they are packed."""

# An enum member costs a dictionary look-up and a descriptor; these two are set once a request.
_COMPLETED = int(Outcome.COMPLETED)
_REJECTED = int(Outcome.REJECTED)


class Recorder:
    """Columns of requests, memory samples and memory work of one run.

    Request events cost a few list writes, a sample one `extend`. Ticks are picoseconds from the
    trace's first arrival. Nothing here may be called after `finish_run`.
    """

    __slots__ = (
        "_available",
        "_last_decision",
        "_last_sample",
        "_packed",
        "_rows",
        "admitted_at",
        "busy",
        "capacity_bytes",
        "compute_ticks",
        "context_bytes",
        "counts",
        "decision_rows",
        "decisions",
        "end",
        "exposed",
        "finished_at",
        "first_token_at",
        "hit_tokens",
        "leaps",
        "outcome",
        "preemptions",
        "reasons",
        "rehit_tokens",
        "steps",
        "weights_bytes",
        "workspace_bytes",
    )

    def __init__(
        self,
        requests: int,
        capacity_bytes: int,
        weights_bytes: int,
        workspace_bytes: int,
        context_bytes: int = 0,
        decisions: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.weights_bytes = weights_bytes
        self.workspace_bytes = workspace_bytes
        self.context_bytes = context_bytes
        self._available = capacity_bytes - weights_bytes - workspace_bytes - context_bytes
        self.decisions = decisions
        """True: `decide` keeps rows. An engine may ask before it makes up a reason."""

        # One slot a request. Ticks are int64 arrays: 8 bytes instead of the 40 of a list of ints.
        unset = array("q", [UNSET])
        zero = array("q", [0])
        self.admitted_at = unset * requests
        self.first_token_at = unset * requests
        self.finished_at = unset * requests
        self.hit_tokens = zero * requests
        self.rehit_tokens = zero * requests
        self.preemptions = zero * requests
        self.outcome = bytearray(requests)
        self.reasons: dict[int, str] = {}
        """Why a request was rejected; only of those."""

        self._packed = array("q")
        self._rows: list[int] = []  # the newest samples, not packed yet: a list is quicker
        self._last_sample: Tick = 0

        self.counts = [[0] * KINDS for _ in Phase]
        """Operations by phase and kind."""
        self.busy: list[Tick] = [0] * len(Phase)
        self.exposed: list[Tick] = [0] * len(Phase)
        # The engine counts these itself, once a decision.
        self.steps = 0
        self.leaps = 0
        """Runs of more than one step that were decided at once."""
        self.compute_ticks: Tick = 0

        self.decision_rows: list[tuple[int, int, Tick, str, str, int]] = []
        """(request row, step, time, decision, reason, bytes short), in the order they were made."""
        self._last_decision: dict[int, tuple[str, str]] = {}
        self.end: Tick = UNSET

    # -- memory ------------------------------------------------------------------------------

    def sample(self, now: Tick, usage: MemoryUsage, free_bytes: int) -> None:
        """`usage` and `free_bytes` held since the previous sample (the first: since tick 0).

        `free_bytes` is the backend's own count. Raises `InvariantError` if the categories do not
        add up to the capacity, or if time runs backwards.
        """
        if sum(usage) + free_bytes != self._available:
            raise InvariantError("categories-sum", self._sum_detail(now, usage, free_bytes))
        if now < self._last_sample:
            raise InvariantError("time-monotonic", f"sample at {now} after {self._last_sample} ps")
        self._last_sample = now
        rows = self._rows
        rows += [now, *usage, free_bytes]
        if len(rows) > _PACK_AT:
            self._pack()

    def _pack(self) -> None:
        rows = self._rows
        self._packed.frombytes(np.fromiter(rows, np.int64, len(rows)).tobytes())
        self._rows.clear()

    @property
    def samples(self) -> array[int]:
        """Flat rows of SAMPLE_COLUMNS."""
        self._pack()
        return self._packed

    def _sum_detail(self, now: Tick, usage: MemoryUsage, free_bytes: int) -> str:
        parts = {
            "weights": self.weights_bytes,
            "workspace": self.workspace_bytes,
            "context": self.context_bytes,
            **usage._asdict(),
            "free": free_bytes,
        }
        total = sum(parts.values())
        listed = " + ".join(f"{name} {value}" for name, value in parts.items() if value)
        return (
            f"at {now} ps: {listed} = {total}, capacity {self.capacity_bytes} "
            f"({total - self.capacity_bytes:+d} bytes)"
        )

    # -- requests ----------------------------------------------------------------------------

    def admit(self, index: int, now: Tick, step: int, hit_tokens: int, again: bool) -> None:
        """`hit_tokens` of the prompt came from memory. `again`: it returns from a preemption."""
        if again:
            self.rehit_tokens[index] += hit_tokens
        else:
            self.admitted_at[index] = now
            self.hit_tokens[index] = hit_tokens
        if self.decisions:
            served = f"{hit_tokens} tokens from memory" if hit_tokens else "no prefix in memory"
            self._note(index, step, now, "readmit" if again else "admit", served, 0)

    def first_token(self, index: int, now: Tick) -> None:
        """The step that completes the prompt has ended. A recomputed prompt changes nothing."""
        if self.first_token_at[index] < 0:
            self.first_token_at[index] = now

    def finish(self, index: int, now: Tick) -> None:
        """The last token is out."""
        self.finished_at[index] = now
        self.outcome[index] = _COMPLETED

    def reject(self, index: int, now: Tick, reason: str, step: int = -1) -> None:
        """The request is answered without being completed, `reason` being a short fixed word."""
        self.finished_at[index] = now
        self.outcome[index] = _REJECTED
        self.reasons[index] = reason
        if self.decisions:
            self._note(index, step, now, "reject", reason, 0)

    def preempt(
        self, index: int, now: Tick, step: int, reason: str = "shortage", bytes_short: int = 0
    ) -> None:
        """Its memory was taken; it waits again."""
        self.preemptions[index] += 1
        if self.decisions:
            self._note(index, step, now, "preempt", reason, bytes_short)

    def decide(
        self, step: int, now: Tick, index: int, decision: str, reason: str, bytes_short: int = 0
    ) -> None:
        """Keep a decision for `vtsim explain`. A repetition of the request's last one is left out,
        so that a request that waits a thousand steps for one reason has one row (and leaping and
        stepping write the same rows)."""
        if self.decisions:
            self._note(index, step, now, decision, reason, bytes_short)

    def _note(
        self, index: int, step: int, now: Tick, decision: str, reason: str, bytes_short: int
    ) -> None:
        key = (decision, reason)
        # Each preemption and admission is an event of its own, however alike; a wait is a state.
        if decision == "wait" and self._last_decision.get(index) == key:
            return
        self._last_decision[index] = key
        self.decision_rows.append((index, step, now, decision, reason, bytes_short))

    # -- steps and memory work ---------------------------------------------------------------

    def work(self, phase: Phase, counts: list[int], busy: Tick) -> None:
        """Operations by kind, carried out in `busy` ticks of the memory worker."""
        row = self.counts[phase]
        # Written out, in the order of OpKind: faster than any loop, and called for every plan.
        reserve, free, create, destroy, mapped, unmapped, copy, out, back, allocate, give = counts
        if create:
            row[2] += create
        if mapped:
            row[4] += mapped
        if unmapped:
            row[5] += unmapped
        if destroy or copy or allocate or give or reserve or free or out or back:
            row[0] += reserve
            row[1] += free
            row[3] += destroy
            row[6] += copy
            row[7] += out
            row[8] += back
            row[9] += allocate
            row[10] += give
        self.busy[phase] += busy

    def expose(self, phase: Phase, ticks: Tick) -> None:
        """A launch waited `ticks` for memory work of `phase`."""
        self.exposed[phase] += ticks

    def finish_run(self, now: Tick) -> None:
        """The last step has ended and memory is torn down. Every request must be answered."""
        waiting = self.outcome.count(Outcome.WAITING)
        if waiting:
            row = self.outcome.index(Outcome.WAITING)
            raise InvariantError(
                "all-answered",
                f"{waiting} requests are unanswered at the end, the first: row {row}",
            )
        self.end = now
