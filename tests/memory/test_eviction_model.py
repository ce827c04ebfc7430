"""Eviction orders against sorted lists, and foresight against looking at every request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.errors import ConfigError
from vtsim.memory.eviction import Knowledge, Work, make_order
from vtsim.memory.foresight import NEVER, NOTHING_KNOWN, Foresight
from vtsim.memory.prefixes import PrefixTree
from vtsim.request import Run
from vtsim.testing import Ask, make_trace

CONTENTS: tuple[tuple[Run, ...], ...] = (
    ((0, 10),),
    ((0, 4), (20, 6)),
    (),
    ((20, 3), (0, 2)),
    ((7, 1),),
    ((0, 10), (7, 5)),
)
"""Token addresses of six requests' prompts."""


@dataclass(eq=False)
class Thing:
    """An entry of an order."""

    name: int
    uses: int
    begins: int
    ends: int
    address: int


class Line:
    """An order as a list: what is first is the smallest of (rank, age)."""

    def __init__(self, rule: str, work: Work) -> None:
        self.rule = rule
        self.work = work
        self.entries: list[tuple[int, Thing]] = []  # with the rank they were given; by age
        self.floor = 0
        self.admitted: set[int] = set()

    def rank(self, thing: Thing) -> int:
        if self.rule == "lru":
            return 0
        if self.rule == "lfu":
            return thing.uses
        return self.floor + self.work.per_token(thing.begins, thing.ends)

    def in_order(self) -> list[Thing]:
        if self.rule == "belady":
            things = [thing for _, thing in self.entries]
            return sorted(things, key=lambda thing: -next_use(thing.address, self.admitted))
        return [thing for _, thing in sorted(self.entries, key=lambda pair: pair[0])]

    def remove(self, thing: Thing, evicted: bool) -> None:
        for rank, other in self.entries:
            if other is thing and evicted:
                self.floor = max(self.floor, rank)
        self.entries = [pair for pair in self.entries if pair[1] is not thing]


def users(address: int) -> list[int]:
    """Rows whose prompt holds the address."""
    return [
        row
        for row, runs in enumerate(CONTENTS)
        if any(first <= address < first + n for first, n in runs)
    ]


def next_use(address: int, admitted: set[int]) -> int:
    return next((row for row in users(address) if row not in admitted), NEVER)


@st.composite
def things(draw: st.DrawFn) -> list[Thing]:
    numbers = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(1, 9), st.integers(0, 26)),
            min_size=1,
            max_size=6,
        )
    )
    return [
        Thing(name, uses, begins, begins + length, address)
        for name, (uses, begins, length, address) in enumerate(numbers)
    ]


@given(
    entries=things(),
    calls=st.lists(
        st.tuples(st.sampled_from(("idle", "idle", "used", "evicted", "seen")), st.integers(0, 5)),
        max_size=30,
    ),
)
@pytest.mark.parametrize("rule", ["lru", "lfu", "cost", "belady"])
def test_orders_are_sorted_lists(
    rule: Any, entries: list[Thing], calls: list[tuple[str, int]]
) -> None:
    work = Work(100, 7)
    order = make_order(rule, Knowledge(work, Foresight(CONTENTS)))
    line = Line(rule, work)
    for what, number in calls:
        thing = entries[number % len(entries)]
        if what == "idle" and thing not in order:
            order.add(thing)
            line.entries.append((line.rank(thing), thing))
        elif what == "used":
            order.discard(thing)
            line.remove(thing, evicted=False)
            thing.uses += 1
        elif what == "evicted":
            order.evicted(thing)
            line.remove(thing, evicted=True)
        elif what == "seen":
            order.seen(number)
            line.admitted.add(number)
        expected = line.in_order()
        assert list(order) == expected and len(order) == len(expected)
        assert [thing in order for thing in entries] == [thing in expected for thing in entries]
        assert order.first() is (expected[0] if expected else None)
        if expected:
            others = [thing for thing in expected if thing is not expected[0]]
            assert order.first(but=expected[0]) is (others[0] if others else None)


@pytest.mark.parametrize("rule", ["lru", "lfu", "cost", "belady"])
def test_an_entry_that_was_cut_keeps_its_age(rule: Any) -> None:
    order = make_order(rule, Knowledge(Work(), Foresight(CONTENTS)))
    first, second = Thing(0, 1, 0, 4, 3), Thing(1, 1, 0, 4, 3)
    order.add(first)
    order.add(second)
    order.changed(Thing(2, 1, 0, 4, 3))  # not there: nothing happens
    first.address = second.address = 26  # nobody will ask for their ends now
    order.changed(second)
    order.changed(first)
    assert list(order) == [first, second]


@given(address=st.integers(-3, 30), admitted=st.sets(st.integers(0, 6)))
def test_foresight_is_looking_at_every_request(address: int, admitted: set[int]) -> None:
    foresight = Foresight(CONTENTS)
    gone = foresight.nobody()
    for row in sorted(admitted, key=lambda row: (row % 3, row)):
        gone.add(row)
    assert all((row in gone) == (row in admitted) for row in range(8))
    assert foresight.next_use(address, gone) == next_use(address, admitted)


@given(first=st.integers(0, 30), length=st.integers(1, 20))
def test_addresses_alike_have_the_same_users(first: int, length: int) -> None:
    last = first + length - 1
    alike = Foresight(CONTENTS).alike(first, last)
    assert 1 <= alike <= length
    assert all(users(last - k) == users(last) for k in range(alike))


def test_foresight_of_a_trace_is_of_its_contents() -> None:
    trace = make_trace([Ask(0, 8, 1, ids=(0, 1)), Ask(5, 9, 1, ids=(0, 3))], block=4)
    foresight = Foresight.of(trace)
    nobody = foresight.nobody()
    assert [foresight.next_use(at, nobody) for at in (0, 5, 12, 99)] == [0, 0, 1, NEVER]
    assert NOTHING_KNOWN.next_use(0, nobody) == NEVER


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown eviction rule 'mru'"):
        make_order("mru", Knowledge())  # type: ignore[arg-type]


def test_records_wait_for_the_request_that_asks_for_them() -> None:
    """A record is known by where it parts from the others: cut, it may be asked for later."""
    foresight = Foresight([((0, 10),), ((0, 4), (50, 5)), ((0, 10),)])
    tree = PrefixTree(make_order("belady", Knowledge(Work(), foresight)))
    tree.insert(((0, 10),), 10, "whole")
    tree.insert(((90, 3),), 3, "unwanted")

    def first_to_go() -> Any:
        record = tree.oldest()
        assert record is not None
        return record

    assert first_to_go().payload == "unwanted"
    tree.insert(((0, 4), (50, 5)), 9, "fork")
    tree.remove(first_to_go())
    # Row 0 asks for the first, row 1 for the fork; once both are in, row 2 for the first again.
    assert first_to_go().payload == "fork"
    tree.admitted(0)
    assert first_to_go().payload == "whole"
    tree.admitted(1)
    assert first_to_go().payload == "fork"
