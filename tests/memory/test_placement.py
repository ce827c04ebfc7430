"""Exact chunk ids, slots, indices and orders of placement, and the counts of the chunk pool."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.errors import InvariantError
from vtsim.memory.physical import ChunkPool
from vtsim.memory.placement import Placement
from vtsim.plan import Operation, OpKind


def said(operations: tuple[Operation, ...]) -> list[str]:
    """`map 4 -> 2[0].1`: chunk 4 in slot 2 at arena 0, index 1."""
    words = []
    for op in operations:
        place = f" -> {op.slot}[{op.arena}].{op.index}" if op.slot >= 0 else ""
        words.append(f"{op.kind.name.lower()} {op.chunk}{place}")
    return words


class TestPlacement:
    def test_new_units_are_created_in_order_one_chunk_an_arena(self) -> None:
        placed = Placement(arenas=2, chunk_bytes=64)
        placed.map_new(slot=3, units=2)
        operations = placed.drain()
        assert said(operations) == [
            "create 0", "create 1", "map 0 -> 3[0].0", "map 1 -> 3[1].0",
            "create 2", "create 3", "map 2 -> 3[0].1", "map 3 -> 3[1].1",
        ]  # fmt: skip
        assert {op.nbytes for op in operations} == {64}
        assert placed.drain() == ()

    def test_the_newest_pooled_unit_is_mapped_first(self) -> None:
        placed = Placement(1, 64)
        placed.map_new(0, 3)
        placed.unmap(0, keep=0)
        placed.drain()
        assert placed.pooled == deque([2, 1, 0])  # the tail is unmapped, and so pooled, first
        placed.map_new(5, 4, due=7)
        operations = placed.drain()
        assert said(operations) == [
            "map 0 -> 5[0].0", "map 1 -> 5[0].1", "map 2 -> 5[0].2", "create 3", "map 3 -> 5[0].3"
        ]  # fmt: skip
        assert {op.due for op in operations} == {7}

    def test_the_longest_pooled_unit_is_destroyed_first(self) -> None:
        placed = Placement(1, 64)
        placed.map_new(0, 3)
        placed.unmap(0, keep=1)
        placed.drain()
        placed.destroy(1)
        assert said(placed.drain()) == ["destroy 2"]
        placed.check(pooled=1, created=2)
        placed.map_new(1, 2)
        assert said(placed.drain()) == ["map 1 -> 1[0].0", "create 3", "map 3 -> 1[0].1"]

    def test_shared_units_are_pooled_when_the_last_owner_goes(self) -> None:
        placed = Placement(2, 64)
        placed.map_new(0, 3)
        placed.drain()
        placed.share(slot=1, source=0, units=2)
        assert said(placed.drain()) == [
            "map 0 -> 1[0].0", "map 1 -> 1[1].0", "map 2 -> 1[0].1", "map 3 -> 1[1].1"
        ]  # fmt: skip
        assert placed.references == {0: 2, 1: 2, 2: 1}
        placed.unmap(0, 0)
        assert said(placed.drain())[:2] == ["unmap 4 -> 0[0].2", "unmap 5 -> 0[1].2"]
        assert placed.pooled == deque([2]) and placed.tables == {1: [0, 1]}
        placed.unmap(1, 1, due=2)
        assert [op.due for op in placed.drain()] == [2, 2]
        assert placed.pooled == deque([2, 1]) and placed.tables == {1: [0]}
        placed.check(pooled=2, created=3)

    def test_copies_and_reservations_are_one_an_arena(self) -> None:
        placed = Placement(2, 64)
        placed.reserve(OpKind.RESERVE, 640)
        placed.copy(slot=1, source=0, offset=128, nbytes=10)
        assert placed.drain() == (
            Operation(OpKind.RESERVE, arena=0, nbytes=640),
            Operation(OpKind.RESERVE, arena=1, nbytes=640),
            Operation(OpKind.COPY, slot=1, arena=0, source=0, offset=128, nbytes=10),
            Operation(OpKind.COPY, slot=1, arena=1, source=0, offset=128, nbytes=10),
        )

    @pytest.mark.parametrize(
        ("invariant", "harm"),
        [
            ("mapped-reference-count-times", lambda p: p.references.update({0: 2})),
            ("pooled-count", lambda p: p.pooled.append(9)),
            ("free-or-mapped", lambda p: p.pooled.__setitem__(0, 0)),
            ("each-chunk-is-free-or-mapped", lambda p: p.unmap(0, 0)),
        ],
    )
    def test_check_names_what_is_broken(self, invariant: str, harm: object) -> None:
        placed = Placement(1, 64)
        placed.map_new(0, 2)
        placed.unmap(0, 1)
        placed.check(pooled=1, created=2)
        harm(placed)  # type: ignore[operator]
        pooled = len(placed.pooled) if invariant != "pooled-count" else 1
        with pytest.raises(InvariantError, match=invariant):
            placed.check(pooled, created=2 if pooled == 1 else 3)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(("take", "give", "destroy", "limit")), st.integers(0, 12))
    )
)
def test_the_pool_counts(calls: list[tuple[str, int]]) -> None:
    pool = ChunkPool(10)
    used = created = 0
    limit = 10
    for what, amount in calls:
        if what == "take" and amount <= pool.available:
            new = pool.take(amount)
            assert new == max(0, amount - (created - used))
            used, created = used + amount, created + new
        elif what == "give" and amount <= used:
            pool.give(amount)
            used -= amount
        elif what == "destroy" and amount <= pool.pooled:
            pool.destroy(amount)
            created -= amount
        elif what == "limit" and amount >= created:
            pool.set_limit(amount)
            limit = amount
        assert (pool.created, pool.in_use, pool.pooled) == (created, used, created - used)
        assert (pool.limit, pool.available) == (limit, limit - used)


def test_only_what_is_pooled_can_be_destroyed() -> None:
    pool = ChunkPool(3)
    pool.take(2)
    with pytest.raises(AssertionError):
        pool.destroy(1)
    with pytest.raises(AssertionError):
        pool.set_limit(1)
