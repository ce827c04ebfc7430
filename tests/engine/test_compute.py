"""Compute that is shared: one step at a time, first come first served, ties by order."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import simpy

from vtsim.engine.compute import Compute
from vtsim.errors import InvariantError


def served(asks: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(launch, order) of askers (order, when, for how long), in the order in which they ran."""
    env = simpy.Environment(initial_time=0)
    compute = Compute(env)
    ran: list[tuple[int, int]] = []

    def ask(order: int, when: int, ticks: int) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(when)
        yield compute.turn(order)
        ran.append((int(env.now), order))
        compute.hold(int(env.now) + ticks)

    for each in asks:
        env.process(ask(*each))
    env.run()
    return ran


def test_who_asks_first_is_served_first() -> None:
    assert served([(0, 0, 10), (1, 4, 5), (2, 2, 7)]) == [(0, 0), (10, 2), (17, 1)]


def test_in_one_instant_the_lowest_order_is_served_first_whoever_speaks_first() -> None:
    assert served([(2, 5, 1), (1, 5, 1), (0, 5, 1)]) == [(5, 0), (6, 1), (7, 2)]


def test_a_step_that_takes_no_time_frees_compute_in_its_instant() -> None:
    assert served([(0, 3, 0), (1, 3, 0), (2, 3, 4)]) == [(3, 0), (3, 1), (3, 2)]


def test_idle_compute_is_had_when_it_is_asked_for() -> None:
    assert served([(0, 0, 2), (0, 50, 2)]) == [(0, 0), (50, 0)]


def test_two_steps_at_once_are_a_fault() -> None:
    compute = Compute(simpy.Environment(initial_time=0))
    compute.hold(5)
    with pytest.raises(InvariantError, match="compute-is-one"):
        compute.hold(9)


def test_who_asks_while_another_one_takes_its_turn_comes_behind() -> None:
    env = simpy.Environment(initial_time=0)
    compute = Compute(env)
    begun = env.event()
    ran: list[tuple[int, int]] = []

    def first() -> Generator[simpy.Event, Any, None]:
        yield compute.turn(1)
        begun.succeed()
        yield env.timeout(0)  # the other one asks before this one holds
        compute.hold(int(env.now) + 7)
        ran.append((int(env.now), 1))

    def second() -> Generator[simpy.Event, Any, None]:
        yield begun
        yield compute.turn(0)
        ran.append((int(env.now), 0))

    env.process(first())
    env.process(second())
    env.run()
    assert ran == [(0, 1), (7, 0)]
