"""Growth's arithmetic against a loop over members and steps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.memory.growth import Growth
from vtsim.spec import KVLayout

ROWS_AND_CHUNKS = ((1, 4), (2, 5), (15, 128), (3, 2), (7, 3), (4, 1), (5, 5), (1, 1), (3, 64))
FOREVER = 1 << 60


@dataclass
class Loop:
    """Members that grow by one token a step, one by one."""

    kv: KVLayout
    lead: int
    tokens: dict[int, int]
    mapped: dict[int, int]
    brought: dict[int, int]
    """Units of members that brought more than they needed."""

    def need(self, member: int, tokens: int, mapped: int) -> int:
        return max(0, self.kv.units(tokens + self.lead) - mapped)

    def steps(self, steps: int) -> list[dict[int, int]]:
        """New units by member, for each of the next `steps` steps."""
        tokens, mapped = dict(self.tokens), dict(self.mapped)
        needs: list[dict[int, int]] = []
        for _ in range(steps):
            needs.append({})
            for member in tokens:
                tokens[member] += 1
                new = self.need(member, tokens[member], mapped[member])
                mapped[member] += new
                if new:
                    needs[-1][member] = new
        return needs

    def advance(self, steps: int) -> None:
        for needs in self.steps(steps):
            for member in self.tokens:
                self.tokens[member] += 1
                self.mapped[member] += needs.get(member, 0)

    def until_wake(self) -> int:
        """Steps until a member that brought more than it needed has filled all of it."""
        left = [
            self.kv.unit_tokens(mapped) - self.lead - self.tokens[member]
            for member, mapped in self.brought.items()
            if member in self.tokens
        ]
        return min((steps for steps in left if steps > 0), default=FOREVER)


@st.composite
def histories(draw: st.DrawFn) -> tuple[KVLayout, int, list[tuple[str, int, int]]]:
    row, chunk = draw(st.sampled_from(ROWS_AND_CHUNKS))
    events = draw(
        st.lists(
            st.tuples(
                st.sampled_from(("join", "join", "leave", "advance", "advance")),
                st.integers(0, 140),
                st.sampled_from((0, 0, 1, 7, 40)),
            ),
            max_size=25,
        )
    )
    return KVLayout("toy", 1, row, chunk, 10_000), draw(st.sampled_from((0, 0, 1, 13))), events


@given(history=histories(), steps=st.integers(1, 150), units=st.integers(0, 40))
def test_arithmetic_is_the_loop(
    history: tuple[KVLayout, int, list[tuple[str, int, int]]], steps: int, units: int
) -> None:
    kv, lead, events = history
    growth = Growth(kv.period_tokens, kv.crossings, kv.units, lead, ordered=True)
    loop = Loop(kv, lead, {}, {}, {})
    for number, (what, amount, spare) in enumerate(events):
        if what == "join":
            # What a member brings is always what some number of tokens needs: whole rows.
            mapped = kv.units(amount + lead + spare)
            # Orders fall as members rise: batch order is the order's affair, not the name's.
            growth.join(number, amount, mapped, kv.unit_tokens(mapped), -number)
            loop.tokens[number], loop.mapped[number] = amount, mapped
            if mapped > kv.units(amount + lead):
                loop.brought[number] = mapped
        elif what == "leave" and loop.tokens:
            member = list(loop.tokens)[amount % len(loop.tokens)]
            gone = growth.leave(member)
            assert gone == (loop.tokens.pop(member), loop.mapped.pop(member))
            assert member not in growth
        elif what == "advance":
            growth.advance(amount)
            loop.advance(amount)
        compare(growth, loop, steps, units)


def compare(growth: Growth, loop: Loop, steps: int, units: int) -> None:
    needs = loop.steps(steps)
    sums = [sum(need.values()) for need in needs]
    assert len(growth) == len(loop.tokens)
    assert growth.total_tokens == sum(loop.tokens.values())
    for member in loop.tokens:
        assert growth.tokens(member) == loop.tokens[member]
        assert growth.mapped(member) == loop.mapped[member]
    for n in {1, steps // 2, steps} - {0}:
        assert growth.demand(n) == sum(sums[:n])
    assert growth.demand(0) == 0
    assert growth.peak(steps) >= max(sums)
    assert growth.until_wake() == loop.until_wake()
    if steps <= growth.until_wake():
        assert growth.last(steps) == sums[-1]
    fits = max(n for n in range(steps + 1) if sum(sums[:n]) <= units)
    assert growth.within(units, steps) == (fits, sum(sums[:fits]))
    assert growth.within(units, 0) == (0, 0)
    expected = sorted((-member, member, new) for member, new in needs[0].items())
    if growth.until_wake() >= 1:
        assert growth.crossing() == expected


def test_one_boundary_and_nobody_asleep_has_an_exact_peak() -> None:
    growth = Growth(4, ((0, 1),), lambda tokens: -(-tokens // 4))
    for member, tokens in enumerate((1, 2, 2, 3, 7)):
        growth.join(member, tokens, -(-tokens // 4), 4 * -(-tokens // 4), 0)
    # The next token of 3 -> 4 and 7 -> 8 is the last of a unit: they cross in step 1, as do two
    # in step 2; one in step 3.
    assert [growth.demand(n) for n in range(5)] == [0, 0, 2, 4, 5]
    assert [growth.peak(n) for n in range(1, 5)] == [0, 2, 2, 2]
    assert [growth.last(n) for n in range(1, 5)] == [0, 2, 2, 1]
    assert growth.within(3, 10) == (2, 2)


def test_yi_34b_grows_by_gaps_of_8_and_9_tokens() -> None:
    kv = KVLayout("token_major", 1, 245_760, 2 << 20, 32_768)
    growth = Growth(kv.period_tokens, kv.crossings, kv.units)
    growth.join(0, 0, 0, 0, 0)
    grown = []
    for step in range(256):
        if growth.demand(1):
            grown.append(step)
        growth.advance(1)
    gaps = {after - before for before, after in zip(grown, grown[1:], strict=False)}
    assert gaps == {8, 9} and len(grown) == 30 and kv.period_tokens == 128


def test_a_sleeper_wakes_when_what_it_brought_is_full() -> None:
    growth = Growth(4, ((0, 1),), lambda tokens: -(-tokens // 4), ordered=True)
    growth.join(7, 2, 3, 12, 0)
    assert (growth.until_wake(), growth.demand(10), growth.demand(11)) == (10, 0, 1)
    assert growth.crossing() == [] and growth.peak(10) == 0 and growth.peak(11) == 1
    growth.advance(10)
    assert growth.until_wake() == FOREVER and growth.mapped(7) == 3
    assert growth.crossing() == [(0, 7, 1)]
    growth.advance(1)
    assert growth.leave(7) == (13, 4)


def test_a_sleeper_that_left_wakes_nobody() -> None:
    growth = Growth(4, ((0, 1),), lambda tokens: -(-tokens // 4))
    growth.join(1, 1, 5, 20, 0)
    growth.leave(1)
    growth.join(1, 1, 4, 16, 1)
    assert growth.until_wake() == 15
    growth.advance(20)
    assert growth.leave(1) == (21, 6)
    assert len(growth) == 0 and growth.total_tokens == 0


def test_who_crosses_is_known_only_if_asked_for() -> None:
    with pytest.raises(AssertionError, match="ordered=True"):
        Growth(1, ((0, 1),), lambda tokens: tokens).crossing()
