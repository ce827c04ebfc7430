"""Plans, all or nothing: what every memory backend does around its driver.

A driver executes one operation at a time and either does it or changes nothing; here a plan's
operations become one transaction, with injected failures and the log of calls that returned. It
must not know what a driver is made of, nor any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from vtsim.errors import BackendError, InvariantError
from vtsim.plan import KINDS, Operation, OpKind, Plan
from vtsim.ports import Receipt

Place = tuple[int, int, int]
"""(arena, slot, index)."""

INVERSE = {
    OpKind.RESERVE: OpKind.FREE,
    OpKind.FREE: OpKind.RESERVE,
    OpKind.CREATE: OpKind.DESTROY,
    OpKind.DESTROY: OpKind.CREATE,
    OpKind.MAP: OpKind.UNMAP,
    OpKind.UNMAP: OpKind.MAP,
    OpKind.ALLOCATE: OpKind.DEALLOCATE,
    OpKind.DEALLOCATE: OpKind.ALLOCATE,
}
"""Copies and swaps need no undoing: what they wrote goes with its mapping or is written again."""


class OutOfMemory(Exception):
    """The device cannot give `short_bytes` of what was asked; nothing was changed."""

    def __init__(self, short_bytes: int) -> None:
        self.short_bytes = short_bytes
        super().__init__(f"short of {short_bytes} B")


class UndoFailed(BackendError):
    """A plan failed, and so did undoing it: what the device holds is no longer known."""


class Driver(Protocol):
    """What executes operations: each either done or, with an exception, as if never asked."""

    bytes_in_use: int
    available_bytes: int
    """What may be in use; lowering it below what is in use makes further calls fail."""

    def execute(self, operation: Operation) -> None: ...

    def flush(self) -> None:
        """Do what `execute` has put off; called behind the last operation of a plan."""
        ...


Write = Callable[[Sequence[Operation]], None]
"""Is told operations that were done, in order."""


def run_plan(driver: Driver, plan: Plan, fails: int, capacity_bytes: int, write: Write) -> Receipt:
    """Execute a plan's operations in order; what fails midway is undone, newest first.

    `fails` is the operation that an injected failure stops at, -1 for none. `capacity_bytes` is the
    room that undoing may use, whoever holds it now. `write` is told what was done and undone.
    Raises what the driver raises, but for OutOfMemory, with the state as before the plan; and
    UndoFailed.
    """
    check_counts(plan)
    operations = plan.operations
    before = driver.bytes_in_use
    done = 0
    try:
        for done, operation in enumerate(operations):  # noqa: B007
            if done == fails:
                _undo(driver, plan, done, capacity_bytes, write)
                return injected(plan, done)
            driver.execute(operation)
        done = len(operations)
        driver.flush()
    except OutOfMemory as error:
        _undo(driver, plan, done, capacity_bytes, write)
        # What the whole plan lacks, as counting says; a plan that gives back later may lack
        # nothing as a whole, only at this call.
        short = before + plan.bytes_taken - driver.available_bytes
        return Receipt(
            False,
            short_bytes=short if short > 0 else error.short_bytes,
            failed_call=min(done, len(operations) - 1),
        )
    except Exception:
        _undo(driver, plan, done, capacity_bytes, write)
        raise
    write(operations)
    return Receipt(True, calls=len(operations))


def _undo(driver: Driver, plan: Plan, done: int, capacity_bytes: int, write: Write) -> None:
    """Undo the plan's first `done` operations, newest first, whatever room is left now."""
    operations = plan.operations[:done]
    write(operations)
    room, driver.available_bytes = driver.available_bytes, capacity_bytes
    undone: list[Operation] = []
    try:
        for operation in reversed(operations):
            kind = INVERSE.get(operation.kind)
            if kind is not None:
                inverse = replace(operation, kind=kind)
                driver.execute(inverse)
                undone.append(inverse)
        driver.flush()
    except Exception as error:
        raise UndoFailed(f"undoing a {plan.phase.name} plan failed: {error}") from error
    finally:
        driver.available_bytes = room
        write(undone)


def injected(plan: Plan, call: int) -> Receipt:
    """The receipt of a plan whose `call`-th operation was made to fail."""
    short = plan.chunk_bytes or plan.allocation_bytes or 1
    return Receipt(False, short_bytes=short, failed_call=call)


def broken(invariant: str, op: Operation, why: str) -> InvariantError:
    """A rule of the driver that an operation breaks."""
    named = {
        "chunk": op.chunk, "arena": op.arena, "slot": op.slot, "index": op.index,
    }  # fmt: skip
    where = " ".join(f"{name} {value}" for name, value in named.items() if value != -1)
    return InvariantError(invariant, f"{op.kind.name.lower()} {where} {op.nbytes} B: {why}")


def check_counts(plan: Plan) -> None:
    """Raises InvariantError unless the operations are those the counts announce."""
    counts = [0] * KINDS
    created = destroyed = odd = allocated = copied = swapped = 0
    mixed = plan.created_bytes is not None
    for operation in plan.operations:
        kind = operation.kind
        counts[kind] += 1
        if kind is OpKind.COPY:
            copied += operation.nbytes
        elif kind is OpKind.SWAP_OUT or kind is OpKind.SWAP_IN:
            swapped += operation.nbytes
        elif kind is OpKind.CREATE or kind is OpKind.DESTROY:
            if not mixed:
                odd |= operation.nbytes ^ plan.chunk_bytes
            elif kind is OpKind.CREATE:
                created += operation.nbytes
            else:
                destroyed += operation.nbytes
        elif kind is OpKind.ALLOCATE or kind is OpKind.DEALLOCATE:
            allocated |= operation.nbytes ^ plan.allocation_bytes
    if counts != plan.counts:
        raise InvariantError("plan-counts", f"counted {plan.counts}, planned {counts} by kind")
    if mixed and (created, destroyed) != (plan.created_bytes, plan.destroyed_bytes):
        raise InvariantError(
            "plan-counts",
            f"counted {plan.created_bytes} B created and {plan.destroyed_bytes} B destroyed, "
            f"planned {created} and {destroyed}",
        )
    if odd or allocated:
        raise InvariantError("plan-counts", "an operation's size is not the plan's")
    if (copied, swapped) != (plan.copied_bytes, plan.swapped_bytes):
        raise InvariantError(
            "plan-counts",
            f"counted {plan.copied_bytes} B copied and {plan.swapped_bytes} B swapped, "
            f"planned {copied} and {swapped}",
        )
