"""What a policy decides, as values: operations, plans, matches, shortages, usage.

A `Plan` always carries counts by kind. The operations themselves (which chunk, which slot) are
present only when placement is on: for `--log`, `--check`, fault injection and real memory.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple


class OpKind(IntEnum):
    """The kinds of memory operation (DESIGN 3). `Map` grants access too."""

    RESERVE = 0
    FREE = 1
    CREATE = 2
    DESTROY = 3
    MAP = 4
    UNMAP = 5
    COPY = 6
    SWAP_OUT = 7
    SWAP_IN = 8
    ALLOCATE = 9
    DEALLOCATE = 10


KINDS = len(OpKind)


class Phase(IntEnum):
    """What a plan is for: the four phases of a step that overlap compute, and the rest."""

    SETUP = 0
    CREATE = 1
    PREFILL = 2
    EXTEND = 3
    RETIRE = 4
    LIMIT = 5
    TEARDOWN = 6
    PREEMPT = 7
    """A victim's KV goes to host memory."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one index of one arena slot, or on one chunk or allocation.

    `chunk` names a physical handle (CREATE, DESTROY, MAP, UNMAP) or an ordinary allocation
    (ALLOCATE, DEALLOCATE); `slot`, `arena`, `index` say where it is mapped. COPY and the swaps
    move `nbytes` at `offset` inside the slot of each arena; COPY reads them from `source` (a slot).
    `due` is the step, counted from the plan's first, before which it must be done.
    """

    kind: OpKind
    chunk: int = -1
    slot: int = -1
    arena: int = -1
    index: int = -1
    nbytes: int = 0
    offset: int = 0
    source: int = -1
    due: int = 0


class Plan:
    """Counts by kind, and what the executor of the plan must know; all or nothing.

    One is made in every decision, so what is rarely set is a class attribute until it is.
    """

    chunk_bytes: int = 0
    """Size of each handle counted under CREATE and DESTROY; where they have several, the smallest
    that there is."""
    created_bytes: int | None = None
    """Of all under CREATE, where handles have several sizes; None: they have one, or none is."""
    destroyed_bytes: int = 0
    """Of all under DESTROY, if `created_bytes` is not None."""
    allocation_bytes: int = 0
    """Size of each allocation counted under ALLOCATE and DEALLOCATE (equal within a plan)."""
    copied_bytes: int = 0
    swapped_bytes: int = 0
    last: Plan | None = None
    """What falls due in the last of several steps, where `headroom` could not tell; None: all."""
    operations: tuple[Operation, ...] = ()
    busy: int = -1
    """Ticks of its operations, where the memory worker has asked before; -1: it has not."""
    shared: bool = False
    """Equal decisions give this one object: never write to it (`copy`). It takes no bytes, and
    gives none back."""

    def __init__(
        self,
        phase: Phase,
        counts: list[int] | None = None,
        chunk_bytes: int = 0,
        allocation_bytes: int = 0,
        operations: tuple[Operation, ...] = (),
    ) -> None:
        self.phase = phase
        self.counts = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] if counts is None else counts
        if chunk_bytes:
            self.chunk_bytes = chunk_bytes
        if allocation_bytes:
            self.allocation_bytes = allocation_bytes
        if operations:
            self.operations = operations

    def __repr__(self) -> str:
        counts = {OpKind(k).name: n for k, n in enumerate(self.counts) if n}
        return f"Plan({self.phase.name}, {counts})"

    def copy(self) -> Plan:
        """One of its own to write to."""
        copied = copy(self)
        copied.counts = list(self.counts)
        copied.busy = -1
        copied.shared = False
        return copied

    @property
    def empty(self) -> bool:
        return not any(self.counts)

    @property
    def bytes_taken(self) -> int:
        """Device bytes that executing the plan takes (negative: gives back)."""
        counts = self.counts
        if self.created_bytes is None:
            taken = (counts[OpKind.CREATE] - counts[OpKind.DESTROY]) * self.chunk_bytes
        else:
            taken = self.created_bytes - self.destroyed_bytes
        return taken + (counts[OpKind.ALLOCATE] - counts[OpKind.DEALLOCATE]) * self.allocation_bytes


class EqualPlans(dict[int, Plan]):
    """Units -> the shared plan of one phase that does one kind of operation to them, in each
    arena."""

    def __init__(self, phase: Phase, kind: OpKind, arenas: int, chunk_bytes: int) -> None:
        super().__init__()
        assert kind in (OpKind.MAP, OpKind.UNMAP)
        self._made_of = phase, kind, arenas, chunk_bytes

    def __missing__(self, units: int) -> Plan:
        phase, kind, arenas, chunk_bytes = self._made_of
        plan = Plan(phase, None, chunk_bytes)
        plan.counts[kind] = units * arenas
        plan.shared = True
        self[units] = plan
        return plan


class Bounds(dict[tuple[int, int, int], Plan]):
    """(created, mapped, unmapped) units -> a plan that does so much in each arena, which is never
    executed: `headroom` says so what steps need that are not decided yet."""

    MOST = 4096
    """Unlike units alone, their combinations have no end worth keeping."""

    def __init__(self, arenas: int, chunk_bytes: int) -> None:
        super().__init__()
        self._made_of = arenas, chunk_bytes

    def __missing__(self, units: tuple[int, int, int]) -> Plan:
        arenas, chunk_bytes = self._made_of
        plan = Plan(Phase.EXTEND, None, chunk_bytes)
        kinds = (OpKind.CREATE, OpKind.MAP, OpKind.UNMAP)
        for kind, count in zip(kinds, units, strict=True):
            plan.counts[kind] = count * arenas
        if len(self) >= self.MOST:
            self.clear()
        self[units] = plan
        return plan


@dataclass(frozen=True, slots=True)
class Shortage:
    """A refusal: nothing was changed. What is missing, and how much of it is on its way.

    `pending_bytes` and `pending_slots` become reusable at the next `retire`: an engine waits for
    them before it preempts.
    """

    nbytes: int
    slots: int = 0
    pending_bytes: int = 0
    pending_slots: int = 0

    @property
    def will_clear(self) -> bool:
        """True if the next `retire` alone would end the shortage."""
        return self.pending_bytes >= self.nbytes and self.pending_slots >= self.slots


@dataclass(frozen=True, slots=True)
class Match:
    """A prefix in memory: `tokens` of the prompt need no computing. `handle` is the policy's."""

    tokens: int = 0
    handle: Any = None


NO_MATCH = Match()


class Keep(IntEnum):
    """What `release` leaves behind."""

    NONE = 0
    RECORD = 1
    SWAP = 2


class MemoryUsage(NamedTuple):
    """A policy's own account of its bytes by category (docs/metrics.md); disjoint, each counted."""

    kv_live: int = 0
    kv_slack: int = 0
    kv_prefix: int = 0
    kv_pooled: int = 0
    kv_parked: int = 0
    pool_unused: int = 0


NOTHING = Plan(Phase.EXTEND)
"""The plan of a decision that needs no memory operation. Shared: never write to it."""
