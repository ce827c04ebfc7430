"""Arrivals: a total order in open loop; in closed loop, what an answer sets free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vtsim.engine.arrivals import NEVER, Arrivals
from vtsim.testing import Ask, make_trace


def arrivals(*asks: Ask) -> Arrivals:
    return Arrivals(make_trace(asks))


def at(time: int) -> Ask:
    return Ask(time, 1, 1)


def behind(*rows: int, wait: int = 0) -> Ask:
    return Ask(0, 1, 1, after=rows, wait=wait)


def test_rows_arrive_in_order_of_time_then_row() -> None:
    coming = arrivals(at(5), at(0), at(5), at(3))
    assert coming.next_at == 0
    assert coming.take(-1) == []
    assert coming.take(4) == [(0, 1), (3, 3)]
    assert coming.next_at == 5
    assert coming.take(100) == [(5, 0), (5, 2)]
    assert coming.next_at == NEVER and coming.take(1000) == []
    assert coming.stranded() == []


@given(times=st.lists(st.integers(0, 20)), steps=st.lists(st.integers(0, 6)))
def test_nothing_is_lost_or_told_twice(times: list[int], steps: list[int]) -> None:
    coming = arrivals(*(at(time) for time in times))
    expected = sorted((time, row) for row, time in enumerate(times))
    now, taken = 0, []
    for step in (*steps, 100):
        now += step
        taken += coming.take(now)
        assert taken == [entry for entry in expected if entry[0] <= now]
        later = [time for time, _ in expected if time > now]
        assert coming.next_at == (later[0] if later else NEVER)


def test_a_follower_arrives_a_wait_after_the_last_of_those_before() -> None:
    coming = arrivals(at(0), at(0), behind(0, 1, wait=7), behind(2), at(30))
    assert coming.take(0) == [(0, 0), (0, 1)]
    assert coming.next_at == 30
    coming.answered(0, 20)
    assert coming.next_at == 30 and coming.stranded() == [2, 3]
    coming.answered(1, 12)
    assert coming.next_at == 27
    assert coming.take(29) == [(27, 2)]
    coming.answered(2, 30)
    assert coming.next_at == 30
    assert coming.take(30) == [(30, 3), (30, 4)]
    assert coming.stranded() == []


def test_several_followers_of_one_row() -> None:
    coming = arrivals(at(0), behind(0, wait=9), behind(0, wait=2), behind(0, 0, wait=5))
    coming.take(0)
    coming.answered(0, 100)
    assert coming.take(200) == [(102, 2), (105, 3), (109, 1)]


def test_rows_that_wait_for_each_other_are_stranded() -> None:
    coming = arrivals(behind(1), behind(0), behind(2), at(4))
    assert coming.take(10) == [(4, 3)]
    coming.answered(3, 11)
    assert coming.stranded() == [0, 1, 2] and coming.next_at == NEVER


def test_a_row_that_waits_for_nobody_arrives_after_its_wait() -> None:
    trace = make_trace([at(0), behind(0, wait=6)])
    trace.after[1] = ()  # type: ignore[index]
    coming = Arrivals(trace)
    assert coming.take(6) == [(0, 0), (6, 1)]
    assert coming.stranded() == []


def test_a_stated_arrival_rules_over_after() -> None:
    trace = make_trace([at(0), behind(0, wait=6)])
    trace.arrival[1] = 3
    coming = Arrivals(trace)
    assert coming.take(3) == [(0, 0), (3, 1)]
    coming.answered(0, 5)
    assert coming.next_at == NEVER and coming.stranded() == []
