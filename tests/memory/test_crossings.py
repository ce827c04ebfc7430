"""Crossings against counting every member's units token by token."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from vtsim.memory.crossings import Crossings
from vtsim.spec import GrowingLayout, KVLayout


def layout(row: int, growth: int) -> GrowingLayout:
    return GrowingLayout.of(KVLayout("token_major", 1, row, 4, 2000), 32, growth)


@given(
    st.sampled_from((1, 3, 4, 9)),
    st.sampled_from((1, 4, 50)),
    st.sampled_from((0, 5)),
    st.lists(
        st.tuples(st.integers(1, 120), st.integers(0, 30), st.integers(0, 9)),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_what_steps_need_is_what_their_tokens_need(
    row: int, growth: int, lead: int, members: list[tuple[int, int, int]], runs: list[int]
) -> None:
    kv = layout(row, growth)
    crossings = Crossings(kv, lead)
    tokens: dict[int, int] = {}
    further: dict[int, int] = {}
    mapped: dict[int, int] = {}
    for member, (length, spare, ahead) in enumerate(members):
        tokens[member], further[member] = length, lead + ahead
        mapped[member] = kv.units(length + lead + ahead + spare)
        order = -member  # any order: not that of joining
        crossings.join(member, length, mapped[member], kv.unit_tokens(mapped[member]), order, ahead)
    for steps in runs:
        before = deepcopy(crossings.__getstate__())
        coming = crossings.coming(steps)
        assert crossings.__getstate__() == before, "asking changed something"
        expected = []
        for due in range(steps):
            for member in sorted(tokens, reverse=True):  # by order
                tokens[member] += 1
                while mapped[member] < kv.units(tokens[member] + further[member]):
                    end = kv.chunk_end(mapped[member])
                    expected.append((due, -member, member, mapped[member], end))
                    mapped[member] = end
        assert [tuple(crossing) for crossing in coming] == expected
        crossings.advance(steps, coming)
        assert crossings.total_tokens == sum(tokens.values())
        for member in tokens:
            assert crossings.tokens(member) == tokens[member]
            assert crossings.mapped(member) == mapped[member]
    for member in list(tokens)[::2]:
        assert crossings.leave(member) == (tokens.pop(member), mapped.pop(member))
    assert crossings.total_tokens == sum(tokens.values()) and len(crossings) == len(tokens)
    assert all(member in crossings for member in tokens)
    assert {c.member for c in crossings.coming(100)} == set(tokens)


def test_mapped_ahead_so_that_few_are_due_together() -> None:
    crossings = Crossings(layout(1, 1))
    for member in range(3):
        crossings.join(member, 5, 2, 8, member)  # all due in three steps
    assert crossings.least_ahead(5, 3, 4) == 0
    assert crossings.least_ahead(5, 2, 4) == 1  # due in two steps, with nobody
    assert crossings.least_ahead(5, 0, 4) == 1
    assert crossings.least_ahead(5, 0, 1) == 0  # it may not be mapped any further
    crossings.join(3, 6, 2, 8, 3)  # due in two steps
    assert crossings.least_ahead(5, 0, 4) == 2
    assert crossings.least_ahead(5, 0, 2) == 1  # one other, where three were
