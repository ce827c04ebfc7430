"""Free lists by size against plain sets of chunks, and the fewest calls by trying all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from vtsim.memory.sized import SizedPool

SIZES = 4
counts = st.lists(st.integers(0, 4), min_size=SIZES, max_size=SIZES)


def units(chunks: Sequence[int]) -> int:
    return sum(number << size for size, number in enumerate(chunks))


def pool_with(free: list[int], spare: int = 0) -> SizedPool:
    """`free` chunks pooled, and room for `spare` more units."""
    pool = SizedPool(units(free) + spare, SIZES)
    pool.take(free, units(free))
    pool.give(free, units(free))
    return pool


@given(counts, st.integers(0, 60))
def test_trim_takes_the_fewest_calls_and_of_these_the_fewest_units(
    free: list[int], wanted: int
) -> None:
    wanted = min(wanted, units(free))
    pool = pool_with(free)
    gone = pool.trim(wanted)
    ways = product(*(range(number + 1) for number in free))
    enough = [(sum(way), units(way)) for way in ways if units(way) >= wanted]
    assert (sum(gone), units(gone)) == min(enough)
    assert pool.free == [a - b for a, b in zip(free, gone, strict=True)]
    assert pool.pooled == pool.created == units(pool.free)
    assert pool.available == units(free)


@given(counts, counts, st.integers(0, 40))
def test_take_uses_what_is_free_and_makes_room_for_the_rest(
    free: list[int], wanted: list[int], spare: int
) -> None:
    pool = pool_with(free, spare)
    need = units(wanted)
    if need > pool.available:
        return
    fits = pool.fits(wanted)
    made, gone = pool.take(wanted, need)
    used = [min(a, b) for a, b in zip(free, wanted, strict=True)]
    new = [a - b for a, b in zip(wanted, used, strict=True)]
    assert (made or [0] * SIZES) == new
    back = gone or [0] * SIZES
    assert pool.free == [f - u - g for f, u, g in zip(free, used, back, strict=True)]
    assert min(pool.free) >= 0
    assert pool.created == units(free) + units(new) - units(back) <= pool.limit
    assert pool.pooled == units(pool.free)
    assert pool.available == pool.limit - pool.created + pool.pooled
    assert fits == (gone is None)
    # Nothing is given back that need not be: without any one of them there is no room.
    for size, number in enumerate(back):
        assert not number or pool.created + (1 << size) > pool.limit


def test_a_free_chunk_serves_its_own_size_only() -> None:
    pool = pool_with([0, 0, 1, 0])  # one of 4 units, at the limit
    made, gone = pool.take([1, 0, 0, 0], 1)
    assert (made, gone) == ([1, 0, 0, 0], [0, 0, 1, 0])
    assert (pool.created, pool.pooled, pool.available, pool.free) == (1, 0, 3, [0] * 4)
    assert pool.made == [1, 0, 1, 0]
    pool.give([1, 0, 0, 0], 1)
    assert pool.take([1, 0, 0, 0], 1) == (None, None)


def test_a_lower_limit_counts_what_is_left() -> None:
    pool = pool_with([2, 1, 0, 0], spare=10)
    assert pool.trim(3) == [1, 1, 0, 0]
    pool.set_limit(5)
    assert (pool.created, pool.available) == (1, 5)
