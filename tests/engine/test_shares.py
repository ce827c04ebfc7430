"""How memory is divided before anything runs."""

from __future__ import annotations

import pytest

from vtsim.budget import Budget
from vtsim.engine.shares import Claimant, Share, elastic, shared_bytes, split
from vtsim.errors import CapacityError
from vtsim.options import ReplayOptions

G = 1 << 30


def claimants(*rows: tuple[int, int | None]) -> list[Claimant]:
    return [Claimant(f"t{n}", need, limit) for n, (need, limit) in enumerate(rows)]


def budget(weights: int, context: int = 0) -> Budget:
    return Budget(80 * G, weights, G, context, 1)


def test_the_budget_is_what_all_weights_workspaces_and_contexts_leave() -> None:
    both = [budget(12 * G), budget(16 * G)]
    assert shared_bytes(both, ReplayOptions()) == 72 * G - 30 * G
    # Nine tenths end before the contexts begin; of all, contexts are taken off too.
    contexts = [budget(12 * G, G), budget(16 * G, G)]
    assert shared_bytes(contexts, ReplayOptions()) == 72 * G - 30 * G
    assert shared_bytes(contexts, ReplayOptions(gpu_memory_utilization=1.0)) == 80 * G - 32 * G
    assert shared_bytes(both, ReplayOptions(kv_memory=5 * G)) == 5 * G


def test_what_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(CapacityError, match=r"2 tenants do not fit 80.0 GiB.* 7.00 GiB"):
        shared_bytes([budget(37 * G), budget(40 * G)], ReplayOptions())
    with pytest.raises(CapacityError, match=r"KV memory are 10.0 GiB too much"):
        shared_bytes([budget(12 * G), budget(16 * G)], ReplayOptions(kv_memory=60 * G))


def test_static_parts_are_limits_and_equal_parts_of_the_rest() -> None:
    assert split(30 * G, claimants((1, None), (1, None))) == [Share(15 * G, 15 * G)] * 2
    sizes = [share.ceiling_bytes for share in split(30, claimants((1, 20), (1, None), (1, None)))]
    assert sizes == [20, 5, 5]
    for rows in (((1, 20), (1, 11)), ((1, 30), (1, None))):
        with pytest.raises(CapacityError, match="the tenants' limits are"):
            split(30, claimants(*rows))


def test_floors_are_one_sequence_and_ceilings_leave_them_to_others() -> None:
    assert elastic(100, claimants((10, None), (20, None))) == [Share(10, 80, 50), Share(20, 90, 50)]
    assert elastic(100, claimants((10, 50), (20, 15))) == [Share(10, 50, 50), Share(15, 15, 15)]
    # Limits may be more together than there is: they are what one may hold at some time.
    both = elastic(100, claimants((10, 90), (20, 90)))
    assert both == [Share(10, 80, 50), Share(20, 90, 50)]
    with pytest.raises(CapacityError, match="t1: its limit"):
        elastic(100, claimants((10, None), (20, 101)))


def test_parts_are_equal_but_for_who_may_not_hold_as_much() -> None:
    limits = ((5, 20), (5, None), (5, None))
    assert [share.part_bytes for share in elastic(100, claimants(*limits))] == [20, 40, 40]


def test_floors_that_do_not_fit_shrink_in_proportion() -> None:
    # One third of each: 90 of the first, and 10 of the second, make 100.
    assert elastic(100, claimants((90, None), (30, None))) == [Share(30, 90, 50), Share(10, 70, 50)]
    # One that fits by itself only leaves no floor to others.
    assert elastic(100, claimants((100, None), (30, None))) == [Share(0, 100, 50)] * 2
    assert elastic(100, claimants((500, None), (500, None))) == [Share(0, 100, 50)] * 2
    # What fits together is whole.
    assert elastic(100, claimants((60, None), (40, None))) == [Share(60, 60, 60), Share(40, 40, 40)]
