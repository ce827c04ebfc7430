"""SimBackend: executes plans on a simulated device, all or nothing, strictly in order.

Two modes with one outcome. Counting needs only a plan's counts: bytes in use, refusal, injected
failure. With placement every operation goes through the checking driver, is logged after it
returned, and is undone in reverse if a later one of its plan fails. It knows no time: what a plan
costs is `VmmTimes`' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from vtsim.backends.sim.driver import SimDriver
from vtsim.backends.transaction import Place, injected, run_plan
from vtsim.errors import ConfigError, InvariantError
from vtsim.plan import Operation, OpKind, Plan
from vtsim.ports import DeviceInfo, DriverCall, Receipt
from vtsim.spec import GpuSpec, KVLayout

# Plain ints: counting runs once a plan, and looking up an enum's members is half its time.
_RESERVE, _FREE = int(OpKind.RESERVE), int(OpKind.FREE)
_CREATE, _DESTROY = int(OpKind.CREATE), int(OpKind.DESTROY)


def device_info(gpu: GpuSpec, *, patched_pages: bool = False) -> DeviceInfo:
    """What a policy may know of a profile's card. `patched_pages`: under vAttention's driver."""
    granularity = gpu.patched_granularity_bytes if patched_pages else gpu.granularity_bytes
    return DeviceInfo(gpu.name, gpu.capacity_bytes, granularity, gpu.va_bytes)


_DONE = Receipt(True)


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
        self._counted = not placement and fail_at is None
        # Where chunks have several sizes, counts do not tell the bytes: their plans do.
        self._counts_only = self._counted and not kv.grows

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
            write = partial(self._write, step, plan)
            receipt = run_plan(self._driver, plan, fails, self.info.capacity_bytes, write)
        self._receipts[ticket] = receipt
        return ticket

    def settle(self, ticket: int) -> Receipt:
        """The receipt of a plan, once."""
        receipt = self._receipts.pop(ticket, None)
        if receipt is None:
            raise InvariantError("backend-ticket", f"no receipt for ticket {ticket}")
        return receipt

    def execute(self, plan: Plan, step: int) -> Receipt:
        """`submit` and `settle` in one; in a plain run, no more than counting bytes."""
        if not self._counts_only:
            if self._counted:
                return _DONE if plan.shared else self._count(plan, 0, -1)
            return self.settle(self.submit(plan, step))
        if plan.shared:
            return _DONE
        counts = plan.counts
        if plan.allocation_bytes or counts[_RESERVE] or counts[_FREE]:
            return self._count(plan, 0, -1)
        new = counts[_CREATE] - counts[_DESTROY]
        if new:
            in_use = self._in_use + new * plan.chunk_bytes
            if not 0 <= in_use <= self._available:
                return self._count(plan, 0, -1)
            self._in_use = in_use
        return _DONE

    def set_reserved(self, reserved_bytes: int) -> None:
        """Someone else now holds `reserved_bytes`: further plans find less (or more) memory."""
        self._available = self.info.capacity_bytes - reserved_bytes
        if self._driver is not None:
            self._driver.available_bytes = self._available

    def calls(self) -> Iterable[DriverCall]:
        """Every call that returned, undoing ones included, in order; empty without placement."""
        return tuple(self._log)

    def calls_since(self, first: int) -> list[DriverCall]:
        """The log from a position on: `calls()` without copying what was seen."""
        return self._log[first:]

    def page_table(self) -> Mapping[Place, int]:
        """(arena, slot, index) -> chunk, read back from the driver; empty without placement."""
        return {} if self._driver is None else self._driver.page_table()

    def chunk_at(self, place: Place) -> int:
        """The chunk mapped at a place; -1 for none."""
        return -1 if self._driver is None else self._driver.chunk_at(place)

    def bytes_in_use(self) -> int:
        """Bytes of live chunks and allocations."""
        return self._in_use if self._driver is None else self._driver.bytes_in_use

    def free_bytes(self) -> int:
        """Bytes that nobody holds."""
        if self._driver is None:
            return self._available - self._in_use
        return self._available - self._driver.bytes_in_use

    def close(self) -> None:
        """Raises InvariantError (driver-leak) unless everything was given back. Once."""
        if self._closed:
            return
        self._closed = True
        self._counts_only = self._counted = False
        if self._driver is not None:
            self._driver.check_empty()
        elif self._in_use or self._arenas_reserved:
            raise InvariantError(
                "driver-leak",
                f"left at close: {self._in_use} B, {self._arenas_reserved} reservations",
            )

    def _count(self, plan: Plan, calls: int, fails: int) -> Receipt:
        if fails >= 0:
            return injected(plan, fails)
        counts = plan.counts
        in_use = self._in_use + plan.bytes_taken
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

    def _write(self, step: int, plan: Plan, operations: Sequence[Operation]) -> None:
        if self._keep_log:
            phase = plan.phase
            self._log.extend([DriverCall(step + op.due, phase, op) for op in operations])
