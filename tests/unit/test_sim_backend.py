"""The simulated backend: each rule of its driver, transactionality, and counting = placement."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.backends.gpus import load_gpu
from vtsim.backends.sim import SimBackend, device_info
from vtsim.errors import ConfigError, InvariantError
from vtsim.plan import Operation, OpKind, Phase, Plan
from vtsim.ports import DeviceInfo, MemoryBackend
from vtsim.spec import KVLayout

KV = KVLayout("kv_split", arenas=2, row_bytes=3, chunk_bytes=4, max_tokens=8)
"""Slots of 24 B, 6 chunks."""
INFO = DeviceInfo("toy", capacity_bytes=40, granularity_bytes=2, va_bytes=1000)
SLOTS = 3
ARENA_BYTES = SLOTS * KV.slot_stride_bytes


def reserve(arena: int = 0, nbytes: int = ARENA_BYTES) -> Operation:
    return Operation(OpKind.RESERVE, arena=arena, nbytes=nbytes)


def free(arena: int = 0, nbytes: int = ARENA_BYTES) -> Operation:
    return Operation(OpKind.FREE, arena=arena, nbytes=nbytes)


def create(chunk: int, nbytes: int = 4) -> Operation:
    return Operation(OpKind.CREATE, chunk=chunk, nbytes=nbytes)


def destroy(chunk: int, nbytes: int = 4) -> Operation:
    return Operation(OpKind.DESTROY, chunk=chunk, nbytes=nbytes)


def mapped(chunk: int, slot: int, index: int, arena: int = 0, nbytes: int = 4) -> Operation:
    return Operation(OpKind.MAP, chunk=chunk, slot=slot, arena=arena, index=index, nbytes=nbytes)


def unmapped(chunk: int, slot: int, index: int, arena: int = 0, nbytes: int = 4) -> Operation:
    return Operation(OpKind.UNMAP, chunk=chunk, slot=slot, arena=arena, index=index, nbytes=nbytes)


def copy(slot: int, source: int, offset: int, nbytes: int, arena: int = 0) -> Operation:
    return Operation(
        OpKind.COPY, slot=slot, source=source, arena=arena, offset=offset, nbytes=nbytes
    )


def swap(kind: OpKind, slot: int, offset: int, nbytes: int) -> Operation:
    return Operation(kind, slot=slot, arena=0, offset=offset, nbytes=nbytes)


def allocate(number: int, nbytes: int) -> Operation:
    return Operation(OpKind.ALLOCATE, chunk=number, nbytes=nbytes)


def deallocate(number: int, nbytes: int) -> Operation:
    return Operation(OpKind.DEALLOCATE, chunk=number, nbytes=nbytes)


def plan_of(*operations: Operation, phase: Phase = Phase.EXTEND) -> Plan:
    """A plan whose counts are those of its operations."""
    plan = Plan(phase, operations=tuple(operations))
    for op in operations:
        plan.counts[op.kind] += 1
        if op.kind in (OpKind.CREATE, OpKind.DESTROY):
            plan.chunk_bytes = op.nbytes
        elif op.kind in (OpKind.ALLOCATE, OpKind.DEALLOCATE):
            plan.allocation_bytes = op.nbytes
        elif op.kind is OpKind.COPY:
            plan.copied_bytes += op.nbytes
        elif op.kind in (OpKind.SWAP_OUT, OpKind.SWAP_IN):
            plan.swapped_bytes += op.nbytes
    return plan


def backend(placement: bool = True, **options: int) -> SimBackend:
    return SimBackend(INFO, KV, placement=placement, **options)  # type: ignore[arg-type]


def state(memory: SimBackend) -> object:
    assert memory._driver is not None
    return memory._driver.snapshot()


@pytest.fixture
def run() -> Callable[..., SimBackend]:
    """A backend on which plans, one an argument, were executed and were done."""

    def execute(*plans: Plan) -> SimBackend:
        memory = backend()
        for step, plan in enumerate(plans):
            assert memory.settle(memory.submit(plan, step)).done
        return memory

    return execute


class TestRules:
    """Each broken rule is named, and leaves the state as it was."""

    BEFORE = plan_of(
        reserve(0), create(1), create(2), mapped(1, 0, 0), mapped(2, 0, 1), mapped(2, 1, 0),
        create(3),
    )  # fmt: skip
    OWN = plan_of(allocate(1, 8))

    @pytest.mark.parametrize(
        ("rule", "operation"),
        [
            ("driver-reserve", reserve(0)),
            ("driver-reserve", reserve(2)),
            ("driver-reserve", reserve(-1)),
            ("driver-size", reserve(1, 0)),
            ("driver-size", reserve(1, 7)),
            ("driver-addresses", reserve(1, 1000)),
            ("driver-reserve", free(0)),
            ("driver-reserve", free(0, 24)),
            ("driver-reserve", free(1)),
            ("driver-create", create(1)),
            ("driver-create", create(-1)),
            ("driver-size", create(9, 3)),
            ("driver-size", create(9, 0)),
            ("driver-size", create(9, 8)),
            ("driver-destroy", destroy(9)),
            ("driver-destroy", destroy(1)),
            ("driver-size", destroy(3, 8)),
            ("driver-map", mapped(9, 0, 2)),
            ("driver-map", mapped(3, 0, 0)),
            ("driver-map", mapped(1, 0, 0)),
            ("driver-map", mapped(3, 0, 6)),
            ("driver-map", mapped(3, 0, -1)),
            ("driver-map", mapped(3, SLOTS, 0)),
            ("driver-map", mapped(3, -1, 0)),
            ("driver-map", mapped(3, 0, 2, arena=1)),
            ("driver-size", mapped(3, 0, 2, nbytes=2)),
            ("driver-unmap", unmapped(1, 0, 2)),
            ("driver-unmap", unmapped(2, 0, 0)),
            ("driver-unmap", unmapped(1, 1, 0)),
            ("driver-unmap", unmapped(1, 0, 0, arena=1)),
            ("driver-size", unmapped(1, 0, 0, nbytes=2)),
            ("driver-access", copy(0, 2, 0, 4)),
            ("driver-access", copy(2, 0, 0, 4)),
            ("driver-access", copy(0, 1, 0, 5)),
            ("driver-access", copy(0, 0, 0, 4)),
            ("driver-access", copy(0, 1, 0, 4, arena=1)),
            ("driver-access", copy(0, SLOTS, 0, 4)),
            ("driver-size", copy(0, 1, 0, 0)),
            ("driver-size", copy(0, 1, -1, 4)),
            ("driver-size", copy(0, 1, 22, 4)),
            ("driver-shared-write", copy(1, 0, 0, 4)),
            ("driver-access", swap(OpKind.SWAP_OUT, 0, 4, 5)),
            ("driver-access", swap(OpKind.SWAP_IN, 2, 0, 4)),
            ("driver-shared-write", swap(OpKind.SWAP_IN, 0, 4, 1)),
            ("driver-allocation", allocate(1, 4)),
            ("driver-allocation", allocate(-1, 4)),
            ("driver-size", allocate(2, 0)),
            ("driver-allocation", deallocate(1, 4)),
            ("driver-allocation", deallocate(2, 8)),
        ],
        ids=lambda value: value if isinstance(value, str) else value.kind.name.lower(),
    )
    def test_a_broken_rule_is_named_and_changes_nothing(
        self, run: Callable[..., SimBackend], rule: str, operation: Operation
    ) -> None:
        memory = run(self.BEFORE, self.OWN)
        before = state(memory)
        with pytest.raises(InvariantError) as error:
            memory.submit(plan_of(operation), 5)
        assert error.value.invariant == rule
        assert operation.kind.name.lower() in str(error.value)
        assert state(memory) == before

    def test_what_came_before_a_broken_rule_is_undone(self, run: Callable[..., SimBackend]) -> None:
        memory = run(self.BEFORE)
        before = state(memory)
        with pytest.raises(InvariantError, match="driver-unmap"):
            memory.submit(plan_of(mapped(3, 2, 0), unmapped(1, 0, 0), unmapped(1, 0, 0)), 5)
        assert state(memory) == before

    @pytest.mark.parametrize(
        ("plan", "left"),
        [
            (plan_of(reserve(0)), "1 reservations"),
            (plan_of(create(1)), "1 chunks"),
            (plan_of(allocate(1, 4)), "1 allocations"),
            (plan_of(reserve(0), create(1), mapped(1, 0, 0)), "1 mappings, 1 chunks, 1 reserv"),
        ],
    )
    def test_a_leak_is_named_at_close(
        self, run: Callable[..., SimBackend], plan: Plan, left: str
    ) -> None:
        with pytest.raises(InvariantError, match=f"driver-leak.*{left}"):
            run(plan).close()

    @pytest.mark.parametrize(
        "plan",
        [
            Plan(Phase.EXTEND, operations=(reserve(0),)),
            Plan(Phase.EXTEND, counts=plan_of(create(1)).counts),
        ],
    )
    def test_counts_and_operations_must_agree(self, plan: Plan) -> None:
        memory = backend()
        before = state(memory)
        with pytest.raises(InvariantError, match="plan-counts"):
            memory.submit(plan, 0)
        assert state(memory) == before

    def test_sizes_of_a_plan_must_agree(self) -> None:
        for field in ("chunk_bytes", "copied_bytes", "swapped_bytes"):
            plan = plan_of(create(1))
            setattr(plan, field, 6)
            with pytest.raises(InvariantError, match="plan-counts"):
                backend().submit(plan, 0)
        plan = plan_of(allocate(1, 4))
        plan.allocation_bytes = 6
        with pytest.raises(InvariantError, match="plan-counts"):
            backend().submit(plan, 0)


class TestExecution:
    def test_a_chunk_may_be_mapped_at_several_places(self, run: Callable[..., SimBackend]) -> None:
        memory = run(TestRules.BEFORE)
        assert memory.page_table() == {(0, 0, 0): 1, (0, 0, 1): 2, (0, 1, 0): 2}
        assert memory.bytes_in_use() == 12
        assert memory.free_bytes() == 28
        memory.settle(memory.submit(plan_of(unmapped(2, 0, 1)), 1))
        with pytest.raises(InvariantError, match="mapped at 1 places"):
            memory.submit(plan_of(destroy(2)), 2)

    def test_copies_between_mapped_bytes(self, run: Callable[..., SimBackend]) -> None:
        memory = run(
            plan_of(reserve(0), create(1), create(2), mapped(1, 0, 1), mapped(2, 2, 1)),
            plan_of(
                copy(2, 0, 4, 3), swap(OpKind.SWAP_OUT, 2, 5, 3), swap(OpKind.SWAP_IN, 2, 4, 4)
            ),
        )
        assert [call.operation.kind for call in memory.calls()][-3:] == [
            OpKind.COPY,
            OpKind.SWAP_OUT,
            OpKind.SWAP_IN,
        ]

    def test_ordinary_memory(self, run: Callable[..., SimBackend]) -> None:
        memory = run(plan_of(allocate(7, 33)))
        assert memory.bytes_in_use() == 33
        refused = memory.settle(memory.submit(plan_of(allocate(8, 10)), 1))
        assert (refused.done, refused.short_bytes, refused.failed_call) == (False, 3, 0)
        memory.settle(memory.submit(plan_of(deallocate(7, 33)), 2))
        memory.close()
        memory.close()

    def test_calls_carry_step_phase_and_due(self, run: Callable[..., SimBackend]) -> None:
        memory = backend()
        op = Operation(OpKind.CREATE, chunk=4, nbytes=4, due=3)
        memory.settle(memory.submit(plan_of(op, phase=Phase.PREFILL), 10))
        assert list(memory.calls()) == [(13, Phase.PREFILL, op)]

    def test_reserved_bytes_are_not_the_plans(self) -> None:
        memory = backend(reserved_bytes=36)
        assert memory.free_bytes() == 4
        refused = memory.settle(memory.submit(plan_of(create(1), create(2)), 0))
        assert (refused.done, refused.short_bytes, refused.failed_call) == (False, 4, 1)
        assert memory.settle(memory.submit(plan_of(create(1)), 0)).done

    def test_memory_taken_by_someone_else(self) -> None:
        for placement in (True, False):
            memory = backend(placement)
            assert memory.settle(memory.submit(plan_of(create(1), create(2)), 0)).done
            memory.set_reserved(36)
            assert memory.free_bytes() == -4
            assert memory.settle(memory.submit(plan_of(create(3)), 1)).short_bytes == 8
            assert memory.settle(memory.submit(plan_of(destroy(1)), 1)).done
            memory.set_reserved(0)
            assert memory.settle(memory.submit(plan_of(create(3)), 1)).done

    def test_undoing_works_while_someone_else_holds_the_room(self) -> None:
        memory = backend()
        memory.settle(memory.submit(plan_of(*(create(n) for n in range(10))), 0))
        memory.set_reserved(20)
        before = state(memory)
        plan = plan_of(destroy(1), destroy(2), create(1), create(11))
        refused = memory.settle(memory.submit(plan, 1))
        assert not refused.done and refused.short_bytes == 20
        assert state(memory) == before

    def test_tickets_are_settled_once_in_any_order(self) -> None:
        memory = backend()
        first, second = memory.submit(plan_of(create(1)), 0), memory.submit(plan_of(), 0)
        assert memory.settle(second).calls == 0
        assert memory.settle(first).calls == 1
        with pytest.raises(InvariantError, match="backend-ticket"):
            memory.settle(first)

    def test_nothing_is_submitted_after_close(self) -> None:
        memory = backend()
        memory.close()
        with pytest.raises(InvariantError, match="backend-closed"):
            memory.submit(plan_of(), 0)

    def test_without_a_log(self) -> None:
        memory = SimBackend(INFO, KV, placement=True, keep_log=False)
        memory.submit(plan_of(create(1)), 0)
        assert list(memory.calls()) == []

    def test_bad_options(self) -> None:
        with pytest.raises(ConfigError, match="there is no call -1"):
            backend(fail_at=-1)
        with pytest.raises(ConfigError, match="41 B reserved of 40 B on toy"):
            backend(reserved_bytes=41)

    def test_is_a_memory_backend(self) -> None:
        memory: MemoryBackend = backend()
        assert memory.info is INFO

    def test_device_info_is_sizes_of_the_profile(self) -> None:
        gpu = load_gpu("a100-80g")
        info = device_info(gpu)
        assert (info.granularity_bytes, info.va_bytes) == (2 << 20, 64 << 40)
        assert info.capacity_bytes == gpu.capacity_bytes
        assert device_info(gpu, patched_pages=True).granularity_bytes == 64 << 10


class TestInjection:
    PLANS = (
        plan_of(reserve(0), create(1), mapped(1, 0, 0)),
        plan_of(create(2), mapped(2, 1, 0), copy(1, 0, 0, 4), unmapped(1, 0, 0), destroy(1)),
        plan_of(allocate(5, 6)),
    )
    CALLS = 9

    @pytest.mark.parametrize("call", range(CALLS))
    def test_every_call_can_fail_and_leaves_the_state_before(self, call: int) -> None:
        memory, counted = backend(fail_at=call), backend(False, fail_at=call)
        failed = []
        for step, plan in enumerate(self.PLANS):
            before = state(memory)
            receipt = memory.settle(memory.submit(plan, step))
            again = counted.settle(counted.submit(plan, step))
            assert (receipt.done, receipt.short_bytes, receipt.failed_call) == (
                again.done, again.short_bytes, again.failed_call,
            )  # fmt: skip
            assert counted.bytes_in_use() == memory.bytes_in_use()
            if not receipt.done:
                failed.append(
                    sum(len(p.operations) for p in self.PLANS[:step]) + receipt.failed_call
                )
                assert receipt.short_bytes > 0
                assert state(memory) == before
                assert memory.settle(memory.submit(plan, step)).done
                assert counted.settle(counted.submit(plan, step)).done
        assert failed == [call]

    def test_the_undoing_calls_are_logged_by_their_own_kind(self) -> None:
        memory = backend(fail_at=3 + 4)
        for step, plan in enumerate(self.PLANS[:2]):
            memory.submit(plan, step)
        second = list(memory.calls())[3:]
        kinds = [call.operation.kind for call in second]
        assert kinds == [
            OpKind.CREATE, OpKind.MAP, OpKind.COPY, OpKind.UNMAP,
            OpKind.MAP, OpKind.UNMAP, OpKind.DESTROY,
        ]  # fmt: skip
        assert second[4].operation == mapped(1, 0, 0)
        assert {call.step for call in second} == {1}

    def test_no_injection_past_the_last_call(self) -> None:
        memory = backend(fail_at=self.CALLS)
        for step, plan in enumerate(self.PLANS):
            assert memory.settle(memory.submit(plan, step)).done


class TestCounting:
    def test_refusal_names_what_is_missing_and_changes_nothing(self) -> None:
        memory = backend(False)
        for n in range(10):
            assert memory.settle(memory.submit(plan_of(create(n)), n)).done
        refused = memory.settle(memory.submit(plan_of(create(10), create(11)), 10))
        assert (refused.done, refused.short_bytes) == (False, 8)
        assert memory.bytes_in_use() == 40
        assert list(memory.calls()) == [] and memory.page_table() == {}

    def test_a_leak_is_found_by_bytes_and_reservations(self) -> None:
        for plan in (plan_of(create(1)), plan_of(reserve(0))):
            memory = backend(False)
            memory.submit(plan, 0)
            with pytest.raises(InvariantError, match="driver-leak"):
                memory.close()

    def test_giving_back_more_than_is_there(self) -> None:
        with pytest.raises(InvariantError, match="gives back more"):
            backend(False).submit(plan_of(destroy(1)), 0)


@st.composite
def legal_plans(draw: st.DrawFn) -> list[Plan]:
    """Plans of legal operations, drawn against a model of the driver; memory may run out."""
    live: dict[int, int] = {}
    table: dict[tuple[int, int, int], int] = {}
    own: set[int] = set()
    plans = [plan_of(reserve(0), reserve(1))]
    names = 0
    for _ in range(draw(st.integers(1, 6))):
        operations: list[Operation] = []
        for _ in range(draw(st.integers(1, 8))):
            vacant = [
                (arena, slot, index)
                for arena in range(2)
                for slot in range(SLOTS)
                for index in range(3)
                if (arena, slot, index) not in table
            ]
            choices = ["create", "allocate"]
            choices += ["map"] * 3 * bool(live and vacant)
            choices += ["unmap"] * 2 * bool(table)
            choices += ["destroy"] * (0 in live.values())
            choices += ["deallocate"] * bool(own)
            what = draw(st.sampled_from(choices))
            if what == "create":
                names += 1
                live[names] = 0
                operations.append(create(names))
            elif what == "allocate":
                names += 1
                own.add(names)
                operations.append(allocate(names, 6))
            elif what == "map":
                chunk = draw(st.sampled_from(sorted(live)))
                arena, slot, index = place = draw(st.sampled_from(vacant))
                table[place] = chunk
                live[chunk] += 1
                operations.append(mapped(chunk, slot, index, arena))
            elif what == "unmap":
                arena, slot, index = place = draw(st.sampled_from(sorted(table)))
                chunk = table.pop(place)
                live[chunk] -= 1
                operations.append(unmapped(chunk, slot, index, arena))
            elif what == "destroy":
                chunk = draw(st.sampled_from(sorted(c for c in live if not live[c])))
                del live[chunk]
                operations.append(destroy(chunk))
            else:
                number = draw(st.sampled_from(sorted(own)))
                own.remove(number)
                operations.append(deallocate(number, 6))
        plans.append(plan_of(*operations))
    return plans


@settings(deadline=None)
@given(plans=legal_plans(), data=st.data())
def test_plans_are_all_or_nothing(plans: list[Plan], data: st.DataObject) -> None:
    """Whatever call fails, the state is that before the plan, and the plan can be given again."""
    calls = sum(len(plan.operations) for plan in plans)
    roomy = DeviceInfo("roomy", 10_000, 2, 1000)
    reference = SimBackend(roomy, KV, placement=True)
    broken = SimBackend(
        roomy, KV, placement=True, fail_at=data.draw(st.integers(0, calls - 1), label="fail at")
    )
    failures = 0
    for step, plan in enumerate(plans):
        before, logged = state(broken), len(list(broken.calls()))
        receipt = broken.settle(broken.submit(plan, step))
        if not receipt.done:
            failures += 1
            assert state(broken) == before
            done = receipt.failed_call
            undone = [op for op in plan.operations[:done] if op.kind is not OpKind.COPY]
            assert len(list(broken.calls())) == logged + done + len(undone)
            assert broken.settle(broken.submit(plan, step)).done
        assert reference.settle(reference.submit(plan, step)).done
        assert state(broken) == state(reference)
    assert failures == 1


@settings(deadline=None)
@given(plans=legal_plans(), capacity=st.integers(0, 60))
def test_running_out_is_all_or_nothing_and_counting_agrees(
    plans: list[Plan], capacity: int
) -> None:
    """Where memory ends the plan is refused whole; counting refuses the same plans for the same
    bytes, unless a plan takes before it gives back."""
    info = DeviceInfo("small", capacity, 2, 1000)
    placed, counted = (SimBackend(info, KV, placement=on) for on in (True, False))
    for step, plan in enumerate(plans):
        before = state(placed)
        receipt = placed.settle(placed.submit(plan, step))
        if not receipt.done:
            assert state(placed) == before and receipt.short_bytes > 0
        gives = [op.kind in (OpKind.DESTROY, OpKind.DEALLOCATE) for op in plan.operations]
        if not any(gives):
            again = counted.settle(counted.submit(plan, step))
            assert (again.done, again.short_bytes) == (receipt.done, receipt.short_bytes)
            assert counted.bytes_in_use() == placed.bytes_in_use()
        if not receipt.done or any(gives):
            break  # later plans build on this one
