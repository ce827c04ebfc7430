"""Closed forms of linear step costs against adding them up."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from vtsim.engine.pace import steps_until


def span(first: int, slope: int, start: int, steps: int) -> int:
    """Ticks that steps `start` .. `start + steps - 1` take together, added up."""
    return sum(first + slope * j for j in range(start, start + steps))


@given(
    gap=st.integers(-5, 5000),
    first=st.integers(1, 300),
    slope=st.integers(0, 50),
    at_most=st.integers(-1, 60),
)
@example(gap=300, first=100, slope=0, at_most=9)  # the third step ends when the gap does
def test_steps_until_is_the_loop(gap: int, first: int, slope: int, at_most: int) -> None:
    ended = done = 0
    while done < at_most and ended + first + slope * done < gap:
        ended += first + slope * done
        done += 1
    assert steps_until(gap, first, slope, at_most) == done


@given(
    gap=st.integers(1, 10**18),
    first=st.integers(1, 10**11),
    slope=st.integers(0, 10**9),
    at_most=st.integers(1, 10**4),
)
def test_steps_until_is_exact_for_picoseconds(
    gap: int, first: int, slope: int, at_most: int
) -> None:
    steps = steps_until(gap, first, slope, at_most)
    assert 0 <= steps <= at_most
    assert steps == 0 or span(first, slope, 0, steps) < gap
    assert steps == at_most or span(first, slope, 0, steps + 1) >= gap
