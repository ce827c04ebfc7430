"""Steps that end in the very tick in which a gap does: floats may not decide whether they count."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from vtsim.engine.pace import steps_until


@given(
    first=st.one_of(st.integers(1, 10**12), st.integers(10**16, 10**18)),
    slope=st.integers(0, 10**9),
    steps=st.integers(1, 10**6),
    more=st.integers(0, 10),
)
@example(first=1, slope=1, steps=1, more=0)
@example(first=10**12, slope=1, steps=10**6, more=1)
@example(first=666247381085762037, slope=888599, steps=1644, more=1)  # floats find one too few
def test_a_step_that_ends_with_the_gap_is_not_before_its_end(
    first: int, slope: int, steps: int, more: int
) -> None:
    gap = steps * first + slope * (steps * (steps - 1) // 2)
    assert steps_until(gap, first, slope, steps + more) == steps - 1
    assert steps_until(gap + 1, first, slope, steps + more) == steps
