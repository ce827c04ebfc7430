"""SimBackend: executes plans on a simulated device, all or nothing, strictly in order.

Two modes with one outcome. Counting needs only a plan's counts: bytes in use, refusal, injected
failure. With placement every operation goes through the checking driver, is logged after it
returned, and is undone in reverse if a later one of its plan fails. It knows no time: what a plan
costs is `VmmTimes`' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vtsim.backends.sim.driver import OutOfMemory, Place, SimDriver
from vtsim.errors import ConfigError, InvariantError
from vtsim.plan import KINDS, Operation, OpKind, Plan
from vtsim.ports import DeviceInfo, DriverCall, Receipt
from vtsim.spec import GpuSpec, KVLayout

_INVERSE = {
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

# Plain ints: counting runs once a plan, and looking up an enum's members is half its time.
_RESERVE, _FREE = int(OpKind.RESERVE), int(OpKind.FREE)
_CREATE, _DESTROY = int(OpKind.CREATE), int(OpKind.DESTROY)
_ALLOCATE, _DEALLOCATE = int(OpKind.ALLOCATE), int(OpKind.DEALLOCATE)


def device_info(gpu: GpuSpec, *, patched_pages: bool = False) -> DeviceInfo:
    """What a policy may know of a profile's card. `patched_pages`: under vAttention's driver."""
    granularity = gpu.patched_granularity_bytes if patched_pages else gpu.granularity_bytes
    return DeviceInfo(gpu.name, gpu.capacity_bytes, granularity, gpu.va_bytes)


class SimBackend:
    """A `MemoryBackend` without a device.

    `reserved_bytes` of the capacity are not the plans' (weights, workspace, context). `fail_at`
    makes that call fail, counted from 0 over all plans as submitted, whether they were executed
    or refused: so it falls into the same plan with placement on and off.
    """

    def __init__(
        self,
        info: DeviceInfo,
        kv: KVLayout,
        *,
        placement: bool = False,
        fail_at: int | None = None,
        reserved_bytes: int = 0,
        keep_log: bool = True,
    ) -> None:
        if fail_at is not None and fail_at < 0:
            raise ConfigError(f"calls are counted from 0: there is no call {fail_at} to fail")
        if not 0 <= reserved_bytes <= info.capacity_bytes:
            raise ConfigError(
                f"{reserved_bytes} B reserved of {info.capacity_bytes} B on {info.name}"
            )
        self.info = info
        self._available = info.capacity_bytes - reserved_bytes
        self._fail_at = fail_at
        self._keep_log = keep_log
        self._driver = SimDriver(info, kv, self._available) if placement else None
        self._in_use = 0
        self._arenas_reserved = 0
        self._calls_before = 0
        self._log: list[DriverCall] = []
        self._receipts: dict[int, Receipt] = {}
        self._next_ticket = 0
        self._done: dict[int, Receipt] = {}
        self._closed = False

    @property
    def placement(self) -> bool:
        """True if operations are executed, False if only counted."""
        return self._driver is not None

    def submit(self, plan: Plan, step: int) -> int:
        """Executes the plan, here and now; what became of it is told by `settle`.

        Raises InvariantError if the plan breaks a rule of the driver (state as before).
        """
        if self._closed:
            raise InvariantError("backend-closed", "a plan was submitted after close")
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        calls = sum(plan.counts)
        before = self._calls_before
        self._calls_before = before + calls
        fails = -1
        if self._fail_at is not None and before <= self._fail_at < before + calls:
            fails = self._fail_at - before
        if self._driver is None:
            receipt = self._count(plan, calls, fails)
        else:
            receipt = self._execute(self._driver, plan, step, fails)
        self._receipts[ticket] = receipt
        return ticket

    def settle(self, ticket: int) -> Receipt:
        """The receipt of a plan, once."""
        receipt = self._receipts.pop(ticket, None)
        if receipt is None:
            raise InvariantError("backend-ticket", f"no receipt for ticket {ticket}")
        return receipt

    def set_reserved(self, reserved_bytes: int) -> None:
        """Someone else now holds `reserved_bytes`: further plans find less (or more) memory."""
        self._available = self.info.capacity_bytes - reserved_bytes
        if self._driver is not None:
            self._driver.available_bytes = self._available

    def calls(self) -> Iterable[DriverCall]:
        """Every call that returned, undoing ones included, in order; empty without placement."""
        return tuple(self._log)

    def page_table(self) -> Mapping[Place, int]:
        """(arena, slot, index) -> chunk, read back from the driver; empty without placement."""
        return {} if self._driver is None else self._driver.page_table()

    def bytes_in_use(self) -> int:
        """Bytes of live chunks and allocations."""
        return self._in_use if self._driver is None else self._driver.bytes_in_use

    def free_bytes(self) -> int:
        """Bytes that nobody holds."""
        return self._available - self.bytes_in_use()

    def close(self) -> None:
        """Raises InvariantError (driver-leak) unless everything was given back. Once."""
        if self._closed:
            return
        self._closed = True
        if self._driver is not None:
            self._driver.check_empty()
        elif self._in_use or self._arenas_reserved:
            raise InvariantError(
                "driver-leak",
                f"left at close: {self._in_use} B, {self._arenas_reserved} reservations",
            )

    def _count(self, plan: Plan, calls: int, fails: int) -> Receipt:
        if fails >= 0:
            return _injected(plan, fails)
        counts = plan.counts
        in_use = self._in_use + (counts[_CREATE] - counts[_DESTROY]) * plan.chunk_bytes
        if plan.allocation_bytes:
            in_use += (counts[_ALLOCATE] - counts[_DEALLOCATE]) * plan.allocation_bytes
        if in_use > self._available and in_use > self._in_use:
            return Receipt(False, short_bytes=in_use - self._available)
        if in_use < 0:
            raise InvariantError("driver-destroy", "a plan gives back more than is in use")
        self._in_use = in_use
        self._arenas_reserved += counts[_RESERVE] - counts[_FREE]
        receipt = self._done.get(calls)
        if receipt is None:
            receipt = self._done[calls] = Receipt(True, calls=calls)
        return receipt

    def _execute(self, driver: SimDriver, plan: Plan, step: int, fails: int) -> Receipt:
        _check_counts(plan)
        operations = plan.operations
        before = driver.bytes_in_use
        done = 0
        try:
            for done, operation in enumerate(operations):  # noqa: B007
                if done == fails:
                    self._undo(driver, plan, step, done)
                    return _injected(plan, done)
                driver.execute(operation)
                self._write(step, plan, operation)
        except OutOfMemory as error:
            self._undo(driver, plan, step, done)
            # What the whole plan lacks, as counting says; a plan that gives back later may lack
            # nothing as a whole, only at this call.
            short = before + plan.bytes_taken - driver.available_bytes
            return Receipt(
                False, short_bytes=short if short > 0 else error.short_bytes, failed_call=done
            )
        except InvariantError:
            self._undo(driver, plan, step, done)
            raise
        return Receipt(True, calls=len(operations))

    def _undo(self, driver: SimDriver, plan: Plan, step: int, done: int) -> None:
        """Undo the plan's first `done` operations, newest first, whatever room is left now."""
        room, driver.available_bytes = driver.available_bytes, self.info.capacity_bytes
        try:
            for operation in reversed(plan.operations[:done]):
                kind = _INVERSE.get(operation.kind)
                if kind is not None:
                    inverse = replace(operation, kind=kind)
                    driver.execute(inverse)
                    self._write(step, plan, inverse)
        finally:
            driver.available_bytes = room

    def _write(self, step: int, plan: Plan, operation: Operation) -> None:
        if self._keep_log:
            self._log.append(DriverCall(step + operation.due, plan.phase, operation))


def _injected(plan: Plan, call: int) -> Receipt:
    short = plan.chunk_bytes or plan.allocation_bytes or 1
    return Receipt(False, short_bytes=short, failed_call=call)


def _check_counts(plan: Plan) -> None:
    """Raises InvariantError unless the operations are those the counts announce."""
    counts = [0] * KINDS
    created = allocated = copied = swapped = 0
    for operation in plan.operations:
        kind = operation.kind
        counts[kind] += 1
        if kind is OpKind.COPY:
            copied += operation.nbytes
        elif kind is OpKind.SWAP_OUT or kind is OpKind.SWAP_IN:
            swapped += operation.nbytes
        elif kind is OpKind.CREATE or kind is OpKind.DESTROY:
            created |= operation.nbytes ^ plan.chunk_bytes
        elif kind is OpKind.ALLOCATE or kind is OpKind.DEALLOCATE:
            allocated |= operation.nbytes ^ plan.allocation_bytes
    if counts != plan.counts:
        raise InvariantError("plan-counts", f"counted {plan.counts}, planned {counts} by kind")
    if created or allocated:
        raise InvariantError("plan-counts", "an operation's size is not the plan's")
    if (copied, swapped) != (plan.copied_bytes, plan.swapped_bytes):
        raise InvariantError(
            "plan-counts",
            f"counted {plan.copied_bytes} B copied and {plan.swapped_bytes} B swapped, "
            f"planned {copied} and {swapped}",
        )
