"""One suite, three backends: simulated, on the fake driver, on a card.

Each broken rule is named and changes nothing; plans are all or nothing, whatever call fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtsim.backends.sim import SimBackend
from vtsim.errors import ConfigError, InvariantError
from vtsim.plan import Operation, OpKind, Phase, Plan
from vtsim.ports import DeviceInfo, MemoryBackend
from vtsim.testing.backends import (
    ARENA_BYTES,
    INFO,
    KV,
    SLOTS,
    M,
    World,
    allocate,
    copy,
    create,
    deallocate,
    destroy,
    free,
    mapped,
    plan_of,
    reserve,
    swap,
    unmapped,
)

Run = Callable[..., Any]


@pytest.fixture
def run(world: World) -> Run:
    """A backend on which plans, one an argument, were executed and were done."""

    def execute(*plans: Plan, **options: Any) -> Any:
        memory = world.make(**options)
        for step, plan in enumerate(plans):
            assert memory.settle(memory.submit(plan, step)).done
        return memory

    return execute


BEFORE = plan_of(
    reserve(0), create(1), create(2), mapped(1, 0, 0), mapped(2, 0, 1), mapped(2, 1, 0), create(3)
)
OWN = plan_of(allocate(1, 8 * M))


@pytest.mark.parametrize(
    ("rule", "operation"),
    [
        ("driver-reserve", reserve(0)),
        ("driver-reserve", reserve(2)),
        ("driver-size", reserve(1, 0)),
        ("driver-size", reserve(1, 7 * M)),
        ("driver-addresses", reserve(1, 1000 * M)),
        ("driver-reserve", free(0)),
        ("driver-reserve", free(0, 24 * M)),
        ("driver-reserve", free(1)),
        ("driver-create", create(1)),
        ("driver-create", create(-1)),
        ("driver-size", create(9, 3 * M)),
        ("driver-size", create(9, 0)),
        ("driver-size", create(9, 8 * M)),
        ("driver-destroy", destroy(9)),
        ("driver-destroy", destroy(1)),
        ("driver-size", destroy(3, 8 * M)),
        ("driver-map", mapped(9, 0, 2)),
        ("driver-map", mapped(3, 0, 0)),
        ("driver-map", mapped(1, 0, 0)),
        ("driver-map", mapped(3, 0, 6)),
        ("driver-map", mapped(3, 0, -1)),
        ("driver-map", mapped(3, SLOTS, 0)),
        ("driver-map", mapped(3, -1, 0)),
        ("driver-map", mapped(3, 0, 2, arena=1)),
        ("driver-size", mapped(3, 0, 2, nbytes=2 * M)),
        ("driver-unmap", unmapped(1, 0, 2)),
        ("driver-unmap", unmapped(3, 0, 0)),
        ("driver-size", unmapped(1, 0, 0, nbytes=2 * M)),
        ("driver-access", copy(0, 0, 0, M)),
        ("driver-access", copy(1, 0, 4 * M, M)),
        ("driver-access", copy(2, 0, 0, M)),
        ("driver-shared-write", copy(1, 0, 0, M)),
        ("driver-size", copy(1, 0, 24 * M, M)),
        ("driver-access", swap(OpKind.SWAP_OUT, 2, 0, M)),
        ("driver-shared-write", swap(OpKind.SWAP_IN, 1, 0, M)),
        ("driver-allocation", allocate(1, M)),
        ("driver-size", allocate(2, 0)),
        ("driver-allocation", deallocate(1, 4 * M)),
        ("driver-allocation", deallocate(2, 4 * M)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind.name.lower(),
)
def test_a_broken_rule_is_named_and_changes_nothing(
    world: World, run: Run, rule: str, operation: Operation
) -> None:
    memory = run(BEFORE, OWN)
    before = world.state(memory)
    with pytest.raises(InvariantError) as error:
        memory.settle(memory.submit(plan_of(operation), 5))
    assert error.value.invariant == rule
    assert world.state(memory) == before


def test_what_came_before_a_broken_rule_is_undone(world: World, run: Run) -> None:
    memory = run(BEFORE)
    before = world.state(memory)
    with pytest.raises(InvariantError, match="driver-unmap"):
        memory.settle(
            memory.submit(plan_of(mapped(3, 2, 0), unmapped(1, 0, 0), unmapped(1, 0, 0)), 5)
        )
    assert world.state(memory) == before


@pytest.mark.parametrize(
    ("plan", "left"),
    [
        (plan_of(reserve(0)), "1 reservations"),
        (plan_of(create(1)), "1 chunks"),
        (plan_of(allocate(1, 4 * M)), "1 allocations"),
        (plan_of(reserve(0), create(1), mapped(1, 0, 0)), "1 mappings, 1 chunks, 1 reserv"),
    ],
)
def test_a_leak_is_named_at_close(run: Run, plan: Plan, left: str) -> None:
    with pytest.raises(InvariantError, match=f"driver-leak.*{left}"):
        run(plan).close()


def test_counts_and_operations_must_agree(world: World) -> None:
    memory = world.make()
    for plan in (
        Plan(Phase.EXTEND, operations=(reserve(0),)),
        Plan(Phase.EXTEND, counts=plan_of(create(1)).counts),
    ):
        with pytest.raises(InvariantError, match="plan-counts"):
            memory.settle(memory.submit(plan, 0))


def test_a_chunk_may_be_mapped_at_several_places(run: Run) -> None:
    memory: MemoryBackend = run(BEFORE)
    assert memory.page_table() == {(0, 0, 0): 1, (0, 0, 1): 2, (0, 1, 0): 2}
    assert memory.bytes_in_use() == 12 * M
    assert memory.free_bytes() == 28 * M
    assert memory.settle(memory.submit(plan_of(unmapped(2, 0, 1)), 1)).done
    with pytest.raises(InvariantError, match="mapped at 1 places"):
        memory.settle(memory.submit(plan_of(destroy(2)), 2))


def test_copies_between_mapped_bytes(run: Run) -> None:
    memory = run(
        plan_of(reserve(0), create(1), create(2), mapped(1, 0, 1), mapped(2, 2, 1)),
        plan_of(copy(2, 0, 4 * M, 3 * M), swap(OpKind.SWAP_OUT, 2, 5 * M, 3 * M)),
        plan_of(swap(OpKind.SWAP_IN, 2, 5 * M, 3 * M)),
    )
    kinds = [call.operation.kind for call in memory.calls()][-3:]
    assert kinds == [OpKind.COPY, OpKind.SWAP_OUT, OpKind.SWAP_IN]


def test_ordinary_memory(run: Run) -> None:
    memory = run(plan_of(allocate(7, 33 * M)))
    assert memory.bytes_in_use() == 33 * M
    refused = memory.settle(memory.submit(plan_of(allocate(8, 10 * M)), 1))
    assert (refused.done, refused.short_bytes, refused.failed_call) == (False, 3 * M, 0)
    assert memory.settle(memory.submit(plan_of(deallocate(7, 33 * M)), 2)).done
    memory.close()
    memory.close()


def test_calls_carry_step_phase_and_due(world: World) -> None:
    memory = world.make()
    op = Operation(OpKind.CREATE, chunk=4, nbytes=4 * M, due=3)
    memory.settle(memory.submit(plan_of(op, phase=Phase.PREFILL), 10))
    assert list(memory.calls()) == [(13, Phase.PREFILL, op)]


def test_reserved_bytes_are_not_the_plans(world: World) -> None:
    memory = world.make(reserved_bytes=36 * M)
    assert memory.free_bytes() == 4 * M
    refused = memory.settle(memory.submit(plan_of(create(1), create(2)), 0))
    assert (refused.done, refused.short_bytes, refused.failed_call) == (False, 4 * M, 1)
    assert memory.settle(memory.submit(plan_of(create(1)), 0)).done


def test_memory_taken_by_someone_else(world: World) -> None:
    memory = world.make()
    assert memory.settle(memory.submit(plan_of(create(1), create(2)), 0)).done
    memory.set_reserved(36 * M)
    assert memory.free_bytes() == -4 * M
    assert memory.settle(memory.submit(plan_of(create(3)), 1)).short_bytes == 8 * M
    assert memory.settle(memory.submit(plan_of(destroy(1)), 1)).done
    memory.set_reserved(0)
    assert memory.settle(memory.submit(plan_of(create(3)), 1)).done


def test_undoing_works_while_someone_else_holds_the_room(world: World) -> None:
    memory = world.make()
    assert memory.settle(memory.submit(plan_of(*(create(n) for n in range(10))), 0)).done
    memory.set_reserved(20 * M)
    before = world.state(memory)
    plan = plan_of(destroy(1), destroy(2), create(1), create(11))
    refused = memory.settle(memory.submit(plan, 1))
    assert not refused.done and refused.short_bytes == 20 * M
    assert world.state(memory) == before


def test_tickets_are_settled_once_in_any_order(world: World) -> None:
    memory = world.make()
    first, second = memory.submit(plan_of(create(1)), 0), memory.submit(plan_of(), 0)
    assert memory.settle(second).calls == 0
    assert memory.settle(first).calls == 1
    with pytest.raises(InvariantError, match="backend-ticket"):
        memory.settle(first)


def test_nothing_is_submitted_after_close(world: World) -> None:
    memory = world.make()
    memory.close()
    with pytest.raises(InvariantError, match="backend-closed"):
        memory.submit(plan_of(), 0)


def test_without_a_log(world: World) -> None:
    memory = world.make(keep_log=False)
    assert memory.settle(memory.submit(plan_of(create(1)), 0)).done
    assert list(memory.calls()) == []


def test_bad_options(world: World) -> None:
    with pytest.raises(ConfigError, match="there is no call -1"):
        world.make(fail_at=-1)
    with pytest.raises(ConfigError, match=f"{41 * M} B reserved of {40 * M} B on toy"):
        world.make(reserved_bytes=41 * M)


INJECTION = (
    plan_of(reserve(0), create(1), mapped(1, 0, 0)),
    plan_of(create(2), mapped(2, 1, 0), copy(1, 0, 0, 4 * M), unmapped(1, 0, 0), destroy(1)),
    plan_of(allocate(5, 6 * M)),
)
INJECTED_CALLS = 9


@pytest.mark.parametrize("call", range(INJECTED_CALLS))
def test_every_call_can_fail_and_leaves_the_state_before(world: World, call: int) -> None:
    memory = world.make(fail_at=call)
    failed = []
    for step, plan in enumerate(INJECTION):
        before = world.state(memory)
        receipt = memory.settle(memory.submit(plan, step))
        if not receipt.done:
            failed.append(sum(len(p.operations) for p in INJECTION[:step]) + receipt.failed_call)
            assert receipt.short_bytes > 0
            assert world.state(memory) == before
            assert memory.settle(memory.submit(plan, step)).done
    assert failed == [call]


def test_the_undoing_calls_are_logged_by_their_own_kind(world: World) -> None:
    memory = world.make(fail_at=3 + 4)
    for step, plan in enumerate(INJECTION[:2]):
        memory.settle(memory.submit(plan, step))
    kinds = [call.operation.kind for call in list(memory.calls())[3:]]
    assert kinds == [
        OpKind.CREATE, OpKind.MAP, OpKind.COPY, OpKind.UNMAP,
        OpKind.MAP, OpKind.UNMAP, OpKind.DESTROY,
    ]  # fmt: skip


@st.composite
def legal_plans(draw: st.DrawFn) -> list[Plan]:
    """Plans of legal operations, drawn against a model of the driver; memory may run out."""
    live: dict[int, int] = {}
    table: dict[tuple[int, int, int], int] = {}
    own: set[int] = set()
    plans = [plan_of(reserve(0), reserve(1))]
    names = 0
    places = [(a, s, i) for a in range(2) for s in range(SLOTS) for i in range(3)]
    for _ in range(draw(st.integers(1, 5))):
        operations: list[Operation] = []
        for _ in range(draw(st.integers(1, 8))):
            vacant = [place for place in places if place not in table]
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
                operations.append(allocate(names, 6 * M))
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
                operations.append(deallocate(number, 6 * M))
        plans.append(plan_of(*operations))
    return plans


PROPERTY = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@PROPERTY
@given(plans=legal_plans(), data=st.data())
def test_plans_are_all_or_nothing(world: World, plans: list[Plan], data: st.DataObject) -> None:
    """Whatever call fails: the state before the plan, the same calls as simulated, and the plan
    can be given again."""
    calls = sum(len(plan.operations) for plan in plans)
    fail_at = data.draw(st.integers(0, calls - 1), label="fail at")
    roomy = DeviceInfo("roomy", 1000 * M, 2 * M, 1000 * M)
    broken = world.make(roomy, fail_at=fail_at)
    simulated = SimBackend(roomy, KV, placement=True, fail_at=fail_at)
    failures = 0
    for step, plan in enumerate(plans):
        before = world.state(broken)
        receipt = broken.settle(broken.submit(plan, step))
        again = simulated.settle(simulated.submit(plan, step))
        assert (receipt.done, receipt.short_bytes, receipt.failed_call, receipt.calls) == (
            again.done, again.short_bytes, again.failed_call, again.calls,
        )  # fmt: skip
        if not receipt.done:
            failures += 1
            assert world.state(broken) == before
            assert broken.settle(broken.submit(plan, step)).done
            assert simulated.settle(simulated.submit(plan, step)).done
        assert simulated._driver is not None
        assert world.state(broken) == simulated._driver.snapshot()
    assert failures == 1
    assert list(broken.calls()) == list(simulated.calls())
    if world.name != "sim":
        broken.abandon()


@PROPERTY
@given(plans=legal_plans(), capacity=st.integers(0, 60))
def test_running_out_is_all_or_nothing_and_as_simulated(
    world: World, plans: list[Plan], capacity: int
) -> None:
    info = DeviceInfo("small", capacity * M, 2 * M, 1000 * M)
    memory, simulated = world.make(info), SimBackend(info, KV, placement=True)
    for step, plan in enumerate(plans):
        before = world.state(memory)
        receipt = memory.settle(memory.submit(plan, step))
        again = simulated.settle(simulated.submit(plan, step))
        assert (receipt.done, receipt.short_bytes) == (again.done, again.short_bytes)
        if not receipt.done:
            assert world.state(memory) == before and receipt.short_bytes > 0
            break  # later plans build on this one
    if world.name != "sim":
        memory.abandon()


def test_an_arena_is_what_the_toy_layout_says() -> None:
    assert ARENA_BYTES == 72 * M and INFO.capacity_bytes == 40 * M
