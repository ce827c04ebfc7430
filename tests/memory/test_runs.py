"""Arithmetic on runs of token addresses against the addresses themselves, written out."""

from __future__ import annotations

from copy import copy, deepcopy

from hypothesis import given
from hypothesis import strategies as st

from vtsim.memory.foresight import Foresight
from vtsim.memory.radix import clip, join, tokens_of
from vtsim.request import Run


def written_out(runs: tuple[Run, ...]) -> list[int]:
    return [address for first, length in runs for address in range(first, first + length)]


def longest(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The same addresses in runs that are as long as they can be."""
    found: list[Run] = []
    for first, length in runs:
        if found and sum(found[-1]) == first:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((first, length))
    return tuple(found)


RUNS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=4).map(
    lambda runs: longest(tuple(runs))
)


@given(RUNS, RUNS)
def test_joined_runs_name_the_same_tokens_in_runs_as_long_as_they_can_be(
    head: tuple[Run, ...], tail: tuple[Run, ...]
) -> None:
    """A tree finds content by the first address of its runs: two cuts of one content would be two
    contents."""
    both = join(head, tail)
    assert written_out(both) == written_out(head) + written_out(tail)
    assert both == longest(both)


@given(RUNS, st.integers(0, 30), st.integers(0, 30))
def test_clip_is_a_slice(runs: tuple[Run, ...], start: int, end: int) -> None:
    assert written_out(clip(runs, start, end)) == written_out(runs)[start : max(start, end)]


@given(RUNS)
def test_tokens_are_counted(runs: tuple[Run, ...]) -> None:
    assert tokens_of(runs) == len(written_out(runs))


def test_what_is_foreseen_is_never_copied() -> None:
    """Checkpoints of a policy copy it every so often; the rest of the trace stays where it is."""
    foresight = Foresight([((0, 4),)])
    assert copy(foresight) is foresight and deepcopy([foresight])[0] is foresight
