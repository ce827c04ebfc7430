"""The memory worker: first in, first out beside compute, and who is to blame for a wait."""

from __future__ import annotations

from vtsim.engine.worker import MemoryWorker
from vtsim.metrics.recorder import Recorder
from vtsim.plan import OpKind, Phase, Plan
from vtsim.testing import ToyTimes

TIMES = ToyTimes(create=10, map=5, unmap=3, destroy=2, allocate=100, copied_byte=2)


class World:
    def __init__(self) -> None:
        self.recorder = Recorder(1, 0, 0, 0)
        self.worker = MemoryWorker(TIMES, self.recorder)

    @property
    def exposed(self) -> dict[Phase, int]:
        return {
            phase: ticks for phase, ticks in zip(Phase, self.recorder.exposed, strict=True) if ticks
        }


def plan(phase: Phase, maps: int = 0, **fields: int) -> Plan:
    made = Plan(phase)
    made.counts[OpKind.MAP] = maps
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_what_compute_hides_is_not_exposed() -> None:
    world = World()
    world.worker.submit(plan(Phase.EXTEND, 4), now=100)
    assert (world.worker.free_at, world.worker.needed_at) == (120, 120)
    assert world.worker.wait(150) == 150
    assert world.worker.wait(120) == 120
    assert world.exposed == {}
    assert world.recorder.busy[Phase.EXTEND] == 20
    assert world.recorder.counts[Phase.EXTEND][OpKind.MAP] == 4


def test_a_launch_waits_for_its_plans_and_blames_who_ran_meanwhile() -> None:
    world = World()
    world.worker.submit(plan(Phase.EXTEND, 4), now=100)  # 100 - 120
    world.worker.submit(plan(Phase.CREATE, 6), now=100)  # 120 - 150
    assert world.worker.wait(110) == 150
    assert world.exposed == {Phase.EXTEND: 10, Phase.CREATE: 30}


def test_what_is_not_needed_delays_only_what_comes_behind_it() -> None:
    world = World()
    world.worker.submit(plan(Phase.RETIRE, 8), now=0, needed=False)  # 0 - 40
    assert world.worker.wait(10) == 10
    assert world.exposed == {}
    world.worker.submit(plan(Phase.EXTEND, 2), now=10)  # 40 - 50
    assert world.worker.wait(30) == 50
    assert world.exposed == {Phase.RETIRE: 10, Phase.EXTEND: 10}


def test_unneeded_work_behind_is_not_waited_for() -> None:
    world = World()
    world.worker.submit(plan(Phase.EXTEND, 2), now=0)  # 0 - 10
    world.worker.submit(plan(Phase.RETIRE, 8), now=0, needed=False)  # 10 - 50
    assert world.worker.wait(4) == 10
    assert world.exposed == {Phase.EXTEND: 6}
    # What was exposed once is not exposed again; the rest of the retire is, if someone waits.
    world.worker.submit(plan(Phase.EXTEND, 1), now=10)  # 50 - 55
    assert world.worker.wait(20) == 55
    assert world.exposed == {Phase.EXTEND: 11, Phase.RETIRE: 30}


def test_an_idle_worker_starts_when_it_is_told_to() -> None:
    world = World()
    world.worker.submit(plan(Phase.CREATE, 1), now=0)
    world.worker.wait(1000)
    world.worker.submit(plan(Phase.CREATE, 1), now=1000)
    assert world.worker.free_at == 1005
    assert world.worker.wait(1000) == 1005
    assert world.exposed == {Phase.CREATE: 5}


def test_bytes_and_allocations_cost_too() -> None:
    world = World()
    copying = plan(Phase.CREATE, 1, copied_bytes=7)
    world.worker.submit(copying, now=0)
    assert world.worker.free_at == 5 + 14
    allocating = plan(Phase.CREATE)
    allocating.counts[OpKind.ALLOCATE] = 2
    world.worker.submit(allocating, now=0)
    assert world.worker.free_at == 19 + 200
    assert world.worker.cost(plan(Phase.EXTEND, 3)) == 15


def test_a_leap_leaves_behind_what_its_last_step_needs() -> None:
    world = World()
    world.worker.leap(plan(Phase.EXTEND, 10), plan(Phase.EXTEND, 2), last_submit=500)
    assert world.recorder.busy[Phase.EXTEND] == 50
    assert (world.worker.free_at, world.worker.needed_at) == (510, 510)
    assert world.worker.wait(505) == 510
    assert world.exposed == {Phase.EXTEND: 5}


def test_a_leap_whose_last_step_needs_nothing_leaves_nothing_behind() -> None:
    world = World()
    world.worker.leap(plan(Phase.EXTEND, 10), plan(Phase.EXTEND, 0), last_submit=500)
    assert world.worker.wait(500) == 500
    whole = plan(Phase.EXTEND, 1)
    world.worker.leap(whole, whole, last_submit=600)
    assert world.worker.wait(600) == 605


def test_hidden_work_is_counted_and_keeps_nobody() -> None:
    world = World()
    world.worker.hide(plan(Phase.RETIRE, 4))
    assert world.recorder.busy[Phase.RETIRE] == 20
    assert world.worker.free_at == 0 == world.worker.wait(0)
