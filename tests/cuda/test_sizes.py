"""Handles of several sizes, simulated, on the fake driver and on a card: each where the layout has
its size, whole plans or nothing, and no byte lost between neighbours of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vtsim.backends.cuda.backend import CudaBackend
from vtsim.backends.cuda.driver import CudaDriver, open_driver
from vtsim.backends.cuda.fake import FakeCuda
from vtsim.backends.sim import SimBackend
from vtsim.errors import InvariantError, VtsimError
from vtsim.plan import Operation, OpKind, Plan
from vtsim.ports import DeviceInfo
from vtsim.spec import GrowingLayout, KVLayout
from vtsim.testing.backends import M, copy, create, destroy, mapped, plan_of, reserve, unmapped

KV = GrowingLayout.of(KVLayout("token_major", 1, M, 2 * M, 30), 8 * M, 1)
"""Chunks at 0, 1, 2, 3 of 2 MiB; at 4, 6, ..., 14 of 4 MiB: a slot has 16 units of 2 MiB."""
INFO = DeviceInfo("toy", capacity_bytes=64 * M, granularity_bytes=2 * M, va_bytes=1000 * M)
ARENA = reserve(0, 3 * KV.slot_stride_bytes)

Make = Callable[..., Any]


@pytest.fixture(params=["sim", "fake", pytest.param("card", marks=pytest.mark.gpu)])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    if request.param == "sim":
        yield lambda **how: SimBackend(INFO, KV, placement=True, **how)
        return
    api = FakeCuda() if request.param == "fake" else None
    try:
        driver = CudaDriver(api=api) if api else open_driver()
    except VtsimError as error:
        pytest.skip(f"no card: {error}")
    made: list[CudaBackend] = []

    def real(**how: Any) -> CudaBackend:
        made.append(CudaBackend(INFO, KV, driver=driver, **how))
        return made[-1]

    yield real
    for backend in made:
        backend.abandon()
    driver.close()
    assert api is None or api.leaks() == {}


def mixed(*operations: Operation) -> Plan:
    """A plan whose bytes are those of its operations."""
    plan = plan_of(*operations)
    plan.chunk_bytes = KV.chunk_bytes
    sizes = {kind: sum(o.nbytes for o in operations if o.kind is kind) for kind in OpKind}
    plan.created_bytes, plan.destroyed_bytes = sizes[OpKind.CREATE], sizes[OpKind.DESTROY]
    return plan


FULL = mixed(
    ARENA,
    *(op for n in range(4) for op in (create(n, 2 * M), mapped(n, 0, n, nbytes=2 * M))),
    *(
        op
        for n in range(4, 8)
        for op in (create(n, 4 * M), mapped(n, 0, 4 + 2 * (n - 4), nbytes=4 * M))
    ),
)
"""Slot 0 up to unit 12."""


def executed(memory: Any, *plans: Plan) -> Any:
    for plan in plans:
        assert memory.execute(plan, 0).done
    return memory


def test_the_layout_is_what_the_cases_say() -> None:
    assert list(KV.chunk_starts(0, 16)) == [0, 1, 2, 3, 4, 6, 8, 10, 12, 14]
    assert KV.chunk_sizes == (2 * M, 4 * M) and KV.slot_units == 16


def test_handles_of_each_size_back_their_places(make: Make) -> None:
    memory = executed(make(), FULL)
    assert memory.bytes_in_use() == 24 * M
    assert memory.page_table() == {
        (0, 0, index): chunk for chunk, index in enumerate((0, 1, 2, 3, 4, 6, 8, 10))
    }
    assert memory.chunk_at((0, 0, 6)) == 5 and memory.chunk_at((0, 0, 7)) == -1
    if isinstance(memory, CudaBackend):
        assert memory.ask_driver(memory.page_table()) == []


def test_bytes_are_copied_across_chunks_of_different_sizes(make: Make) -> None:
    alike = [mapped(n, 1, n, nbytes=2 * M) for n in range(3)]
    own = (create(10, 2 * M), mapped(10, 1, 3, nbytes=2 * M), create(11, 4 * M))
    memory = executed(make(), FULL, mixed(*alike, *own, mapped(11, 1, 4, nbytes=4 * M)))
    executed(memory, mixed(copy(1, 0, 6 * M, 5 * M)))
    for rule, operation in (
        ("driver-shared-write", copy(1, 0, 5 * M, 2 * M)),  # chunk 2 has two owners
        ("driver-access", copy(1, 0, 11 * M, 2 * M)),  # ends beyond slot 1's last chunk
        ("driver-access", copy(0, 1, 11 * M, 2 * M)),
    ):
        with pytest.raises(InvariantError) as error:
            memory.execute(mixed(operation), 0)
        assert error.value.invariant == rule


@pytest.mark.parametrize(
    ("rule", "operations"),
    [
        ("driver-size", (create(9, 8 * M),)),  # a slot has no place for it
        ("driver-size", (create(9, 6 * M),)),
        ("driver-size", (create(9, 4 * M), mapped(9, 1, 0, nbytes=4 * M))),
        ("driver-size", (create(9, 2 * M), mapped(9, 1, 4, nbytes=2 * M))),
        ("driver-size", (create(9, 2 * M), mapped(9, 1, 5, nbytes=2 * M))),
        ("driver-size", (create(9, 4 * M), mapped(9, 1, 4, nbytes=2 * M))),
        ("driver-map", (create(9, 4 * M), mapped(9, 1, 16, nbytes=4 * M))),
        ("driver-map", (create(9, 4 * M), mapped(9, 0, 4, nbytes=4 * M))),
        ("driver-unmap", (unmapped(4, 0, 5, nbytes=4 * M),)),
        ("driver-size", (unmapped(4, 0, 4, nbytes=2 * M),)),
        ("driver-size", (unmapped(7, 0, 10, nbytes=4 * M), destroy(7, 2 * M))),
    ],
)
def test_a_handle_where_its_size_does_not_belong(
    make: Make, rule: str, operations: tuple[Operation, ...]
) -> None:
    memory = executed(make(), FULL)
    before = memory.page_table(), memory.bytes_in_use()
    with pytest.raises(InvariantError) as error:
        memory.execute(mixed(*operations), 0)
    assert error.value.invariant == rule
    assert (memory.page_table(), memory.bytes_in_use()) == before


def swapped_sizes(first: int) -> Plan:
    """The last chunk of 4 MiB goes; two of 2 MiB come, in slot 1."""
    gone = (unmapped(7, 0, 10, nbytes=4 * M), destroy(7, 4 * M))
    new = [
        op for n in range(2) for op in (create(first + n, 2 * M), mapped(first + n, 1, n, 0, 2 * M))
    ]
    return mixed(*gone, *new)


def test_a_failure_at_each_call_is_undone_by_size(make: Make) -> None:
    before = len(FULL.operations)
    for call in range(len(swapped_sizes(20).operations)):
        memory = executed(make(fail_at=before + call), FULL)
        table, used = dict(memory.page_table()), memory.bytes_in_use()
        receipt = memory.execute(swapped_sizes(20), 0)
        assert not receipt.done and receipt.failed_call == call
        assert (dict(memory.page_table()), memory.bytes_in_use()) == (table, used)
        executed(memory, swapped_sizes(30))
        assert memory.bytes_in_use() == used
        if isinstance(memory, CudaBackend):
            assert memory.ask_driver(memory.page_table()) == []
            memory.abandon()


def test_what_is_short_is_counted_in_bytes(make: Make) -> None:
    memory = executed(make(), FULL)
    memory.set_reserved(40 * M)  # of 64: nothing is left
    receipt = memory.execute(swapped_sizes(20), 0)
    assert receipt.done
    more = mixed(create(40, 4 * M), create(41, 2 * M))
    receipt = memory.execute(more, 0)
    assert not receipt.done and receipt.short_bytes == 6 * M == more.bytes_taken
    counted = SimBackend(INFO, KV)
    for plan, done in ((FULL, True), (swapped_sizes(20), True)):
        assert counted.execute(plan, 0).done is done
    counted.set_reserved(40 * M)
    assert counted.execute(more, 0).short_bytes == 6 * M


def test_a_plan_that_says_other_bytes_is_refused(make: Make) -> None:
    memory = executed(make(), FULL)
    for name in ("created_bytes", "destroyed_bytes"):
        plan = swapped_sizes(20)
        setattr(plan, name, 2 * M)
        with pytest.raises(InvariantError, match="plan-counts"):
            memory.execute(plan, 0)
    plan = swapped_sizes(20)
    plan.created_bytes = None  # as if all had 2 MiB
    with pytest.raises(InvariantError, match="plan-counts"):
        memory.execute(plan, 0)
