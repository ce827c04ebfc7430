"""CudaBackend: executes plans on a real GPU, all or nothing, strictly in order, on its own thread.

The same plans as the simulated backend's, by the same rules, with the same refusals at the same
calls: so a policy's run here and there can be compared call by call. Compute may go on meanwhile;
`protect` says what running kernels use. It knows no policy and no time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Self

from vtsim.backends.cuda.driver import CudaDriver, open_driver
from vtsim.backends.cuda.fence import Fence
from vtsim.backends.cuda.memory import CudaMemory, allocation_use, slot_use
from vtsim.backends.cuda.worker import Job, Worker
from vtsim.backends.transaction import Place, run_plan
from vtsim.errors import BackendError, CapacityError, ConfigError, CudaDriverError, InvariantError
from vtsim.plan import Operation, Plan
from vtsim.ports import DeviceInfo, DriverCall, Receipt
from vtsim.spec import GpuSpec, KVLayout

READ_EVERY_BYTES = 1 << 30
"""The device is asked again whenever the footprint has grown by this much."""
VA_BYTES = 64 << 40
"""Addresses that a process can reserve: more than 64 TiB was never tried (FACTS)."""


class Reading(NamedTuple):
    """What the device says it has, beside what the backend accounts for."""

    label: str
    free_bytes: int
    accounted_bytes: int


def device_info(driver: CudaDriver, *, va_bytes: int = VA_BYTES) -> DeviceInfo:
    """What a policy may know of this card."""
    _, total = driver.memory()
    return DeviceInfo(driver.name, total, driver.granularity_bytes, va_bytes)


class CudaBackend:
    """A `MemoryBackend` on a device. Made like `SimBackend`, which see for the arguments.

    Placement cannot be off: real memory needs the operations. `info` None asks the card; one that
    is given (a profile's) must have the card's granularity. `driver` None opens device `ordinal`;
    one that is given is not closed. `poison` fills chunks with NaN when they get a new owner.
    """

    placement = True

    def __init__(
        self,
        info: DeviceInfo | None,
        kv: KVLayout,
        *,
        placement: bool = True,
        fail_at: int | None = None,
        reserved_bytes: int = 0,
        keep_log: bool = True,
        driver: CudaDriver | None = None,
        ordinal: int = 0,
        poison: bool = False,
    ) -> None:
        if not placement:
            raise ConfigError("real memory needs placement: operations, not only their counts")
        if fail_at is not None and fail_at < 0:
            raise ConfigError(f"calls are counted from 0: there is no call {fail_at} to fail")
        self._owns_driver = driver is None
        self.driver = open_driver(ordinal) if driver is None else driver
        try:
            self.info = self._check_info(info)
            if not 0 <= reserved_bytes <= self.info.capacity_bytes:
                raise ConfigError(
                    f"{reserved_bytes} B reserved of {self.info.capacity_bytes} B on "
                    f"{self.info.name}"
                )
            self._version = self.driver.version
            self.readings: list[Reading] = [Reading("start", self.driver.memory()[0], 0)]
            """What the device said at the start and whenever `read_device` was asked."""
        except BaseException:
            if self._owns_driver:
                self.driver.close()
            raise
        self.kv = kv
        self.fence = Fence(self.driver)
        self.memory = CudaMemory(
            self.driver,
            self.info,
            kv,
            self.info.capacity_bytes - reserved_bytes,
            fence=self.fence,
            poison=poison,
        )
        self._fail_at = fail_at
        self._keep_log = keep_log
        self._log: list[DriverCall] = []
        self._calls_before = 0
        self._jobs: dict[int, Job] = {}
        self._last: Job | None = None
        self._next_ticket = 0
        self._broken = ""
        self._peak: Reading | None = None
        self._peak_read = 0
        self.wall_s = 0.0
        """Seconds that plans took."""
        self._closed = False
        self._worker = Worker(self.driver)

    @staticmethod
    def fit_profile(gpu: GpuSpec, ordinal: int = 0) -> GpuSpec:
        """The profile with the capacity of the card that is there.

        Raises ConfigError: no card, or one that makes chunks of another granularity.
        """
        driver = open_driver(ordinal)
        try:
            info = device_info(driver)
        finally:
            driver.close()
        _check_granularity(gpu.name, gpu.granularity_bytes, info)
        if gpu.capacity_bytes == info.capacity_bytes:
            return gpu
        return gpu.with_capacity(info.capacity_bytes)

    def _check_info(self, info: DeviceInfo | None) -> DeviceInfo:
        card = device_info(self.driver)
        if info is None:
            return card
        _check_granularity(info.name, info.granularity_bytes, card)
        return info

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    # -- plans ------------------------------------------------------------------------------------

    def submit(self, plan: Plan, step: int) -> int:
        """Queue the plan for the memory thread; returns its ticket at once."""
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
        job = self._worker.submit(partial(self._execute, plan, step, fails))
        self._jobs[ticket] = self._last = job
        return ticket

    def settle(self, ticket: int) -> Receipt:
        """The receipt of a plan, once; waits for it.

        Raises what the plan met: InvariantError for a broken rule and CudaDriverError for a failed
        call, both undone; BackendError once undoing has failed: the state is then unknown.
        """
        job = self._jobs.pop(ticket, None)
        if job is None:
            raise InvariantError("backend-ticket", f"no receipt for ticket {ticket}")
        receipt: Receipt = job.result()
        return receipt

    def execute(self, plan: Plan, step: int) -> Receipt:
        """`submit` and `settle` in one."""
        return self.settle(self.submit(plan, step))

    def _execute(self, plan: Plan, step: int, fails: int) -> Receipt:
        """On the memory thread."""
        if self._broken:
            raise BackendError(f"the device's memory is in an unknown state: {self._broken}")
        memory = self.memory
        write = partial(self._write, step, plan.phase)
        begin = perf_counter()
        try:
            receipt = run_plan(memory, plan, fails, self.info.capacity_bytes, write)
            (memory.moves.commit if receipt.done else memory.moves.abort)()
        except (InvariantError, CudaDriverError) as error:
            self._abort(error)
            raise
        except Exception as error:
            self._broken = str(error)
            raise
        wall_s = perf_counter() - begin
        self.wall_s += wall_s
        if memory.bytes_in_use > self._peak_read + READ_EVERY_BYTES:
            self._peak_read = memory.bytes_in_use
            self._peak = Reading("peak", self.driver.memory()[0], self._peak_read)
        return replace(receipt, wall_s=wall_s)

    def _abort(self, error: Exception) -> None:
        """A plan was undone. Where the context is broken (every call fails) that means nothing."""
        try:
            self.memory.moves.abort()
            self.driver.memory()
        except CudaDriverError:
            self._broken = str(error)

    def _write(self, step: int, phase: int, operations: Sequence[Operation]) -> None:
        if self._keep_log:
            self._log.extend([DriverCall(step + op.due, phase, op) for op in operations])

    # -- kernels ----------------------------------------------------------------------------------

    def protect(self, stream: Any, slots: Iterable[int], allocations: Iterable[int] = ()) -> None:
        """The kernels launched on `stream` so far may read these slots and allocations: nothing of
        them is unmapped, freed or overwritten before they have ended. Call it once a step, behind
        the step's launches; it costs one event."""
        things: list[Hashable] = [slot_use(slot) for slot in slots]
        things += [allocation_use(number) for number in allocations]
        self.fence.protect(stream, things)

    def fill(self, place: Place, byte: int) -> None:
        """Set every byte of the chunk mapped at a place; done on return."""

        def run() -> None:
            self.memory.fill(place, byte)
            self.memory.moves.finish()

        self._worker.do(run)

    # -- what there is ----------------------------------------------------------------------------

    def _wait(self) -> None:
        """Let the memory thread finish what it was given: its books are then still."""
        if self._last is not None:
            self._last.wait()
            self._last = None

    def calls(self) -> Iterable[DriverCall]:
        """Every operation that returned, undoing ones included, in order."""
        self._wait()
        return tuple(self._log)

    def calls_since(self, first: int) -> list[DriverCall]:
        """The log from a position on: `calls()` without copying what was seen."""
        self._wait()
        return self._log[first:]

    def page_table(self) -> Mapping[Place, int]:
        """(arena, slot, index) -> chunk, from the mappings that live."""
        self._wait()
        return self.memory.page_table()

    def chunk_at(self, place: Place) -> int:
        """The chunk mapped at a place; -1 for none."""
        self._wait()
        return self.memory.chunk_at(place)

    def ask_driver(self, places: Iterable[Place]) -> list[Place]:
        """The places at which the driver's own books (its handle there, its access) differ."""

        def ask() -> list[Place]:
            return [place for place in places if not self.memory.ask_driver(place)]

        wrong: list[Place] = self._worker.do(ask)
        return wrong

    def bytes_in_use(self) -> int:
        """Bytes of live chunks and allocations."""
        self._wait()
        return self.memory.bytes_in_use

    def free_bytes(self) -> int:
        """Capacity less what is reserved beside the KV cache and `bytes_in_use`: the accounted
        number. `read_device` asks the device."""
        self._wait()
        return self.memory.available_bytes - self.memory.bytes_in_use

    def read_device(self, label: str) -> Reading:
        """Ask the device what it has; kept in `readings`."""

        def ask() -> Reading:
            return Reading(label, self.driver.memory()[0], self.memory.bytes_in_use)

        reading: Reading = self._worker.do(ask)
        self.readings.append(reading)
        return reading

    def report(self) -> dict[str, object]:
        """What the device said, for the result: JSON values. Readings change from run to run."""
        first = self.readings[0].free_bytes
        return {
            "name": self.info.name,
            "driver": self._version,
            "driver_wall_s": self.wall_s,
            "fence_waits": self.fence.waits,
            "readings": [
                {
                    "at": reading.label,
                    "free_bytes": reading.free_bytes,
                    "accounted_bytes": reading.accounted_bytes,
                    "unaccounted_bytes": first - reading.free_bytes - reading.accounted_bytes,
                }
                for reading in self.readings
            ],
        }

    def check_limit(self, limit_bytes: int) -> None:
        """Raises CapacityError unless the device has `limit_bytes` free now."""
        free = self.read_device("limit").free_bytes
        if limit_bytes > free:
            raise CapacityError(
                f"{self.info.name} has {free} B free now, {limit_bytes - free} B less than the "
                "limit of the KV cache"
            )

    def set_reserved(self, reserved_bytes: int) -> None:
        """Someone else now holds `reserved_bytes`: further plans find less (or more) memory."""
        self._wait()
        self.memory.available_bytes = self.info.capacity_bytes - reserved_bytes

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Raises InvariantError (driver-leak) unless everything was given back. Once."""
        if self._closed:
            return
        try:
            self._worker.do(self.memory.check_empty)
        except BaseException:
            self.abandon()
            raise
        self._end()

    def abandon(self) -> dict[str, int]:
        """Give everything back, whatever it is, after an error or interrupt; says what it was."""
        if self._closed:
            return {}
        left: dict[str, int] = self._worker.do(self.memory.left)
        self._worker.do(self.memory.give_all_back)
        self._end()
        return {kind: count for kind, count in left.items() if count}

    def _end(self) -> None:
        self._closed = True

        def end() -> None:
            self.memory.moves.close()
            self.fence.close()
            if self._peak is not None:
                self.readings.append(self._peak)
            self.readings.append(Reading("end", self.driver.memory()[0], self.memory.bytes_in_use))

        try:
            self._worker.do(end)
        except CudaDriverError as error:
            self._broken = str(error)
        self._worker.close()
        if self._owns_driver:
            try:
                self.driver.close()
            except CudaDriverError as error:
                self._broken = str(error)


def _check_granularity(name: str, granularity_bytes: int, card: DeviceInfo) -> None:
    if granularity_bytes != card.granularity_bytes:
        raise ConfigError(
            f"{name}: chunks of multiples of {granularity_bytes} B are asked for, {card.name} "
            f"makes multiples of {card.granularity_bytes} B "
            "(smaller pages need vAttention's patched driver: simulate them)"
        )
