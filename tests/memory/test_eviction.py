"""Eviction orders by hand, and the clairvoyant one against the trace it knows."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from vtsim.errors import ConfigError
from vtsim.memory.eviction import Knowledge, Work, make_order
from vtsim.memory.foresight import NEVER, NOTHING_KNOWN, Foresight
from vtsim.spec import load_model


@dataclass(eq=False)
class Thing:
    """An entry with what orders ask."""

    name: str
    uses: int = 1
    begins: int = 0
    ends: int = 10
    address: int = 0
    log: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.name


def going(order: object) -> list[str]:
    """Names in the order in which entries go; empties the order."""
    names = []
    while (entry := order.first()) is not None:  # type: ignore[attr-defined]
        names.append(entry.name)
        order.evicted(entry)  # type: ignore[attr-defined]
    return names


def test_lru_goes_by_when_an_entry_fell_idle() -> None:
    order = make_order("lru", Knowledge())
    a, b, c = Thing("a"), Thing("b"), Thing("c")
    for thing in (a, b, c):
        order.add(thing)
    order.discard(a)
    order.add(a)
    assert a in order and len(order) == 3 and [t.name for t in order] == ["b", "c", "a"]
    assert order.first() is b and order.first(but=b) is c
    order.discard(Thing("other"))
    assert going(order) == ["b", "c", "a"]
    assert order.first() is None and order.first(but=a) is None


def test_lfu_goes_by_uses_then_by_age() -> None:
    order = make_order("lfu", Knowledge())
    for thing in (Thing("a", uses=2), Thing("b"), Thing("c", uses=3), Thing("d")):
        order.add(thing)
    assert order.leaves_only and [t.name for t in order] == ["b", "d", "a", "c"]
    second = order.first(but=order.first())
    assert second is not None and second.name == "d"
    assert going(order) == ["b", "d", "a", "c"]


def test_cost_goes_by_the_work_that_a_byte_saves_and_ages() -> None:
    order = make_order("cost", Knowledge(Work(fixed=100, attended=2)))
    head, tail = Thing("head", begins=0, ends=10), Thing("tail", begins=90, ends=110)
    order.add(tail)  # 100 + 2 * 100 a token
    order.add(head)  # 100 + 2 * 5
    assert order.first() is head
    order.evicted(head)
    late = Thing("late", begins=0, ends=20)
    order.add(late)  # its 120 count from the 110 that went last
    assert order.first() is late
    order.evicted(late)
    later = Thing("later", begins=0, ends=10)
    order.add(later)  # 230 + 110: what has lain there for long goes first
    assert going(order) == ["tail", "later"]


def test_the_work_of_a_model() -> None:
    """Yi-6B: two operations a weight of its layers, four a head and dimension and token before."""
    model = load_model("yi-6b")
    work = Work.of(model, 1)
    weights = 32 * (4096 * (4096 + 2 * 512) + 4096 * 4096 + 3 * 4096 * 11008)
    assert work == Work(2 * weights, 4 * 32 * 4096)
    assert work.per_token(1000, 3000) == 2 * weights + 4 * 32 * 4096 * 2000
    assert Work.of(model, 2).attended == work.attended // 2


CONTENTS = (
    ((0, 40),),  # row 0
    ((100, 20),),  # row 1
    ((0, 20), (200, 10)),  # row 2
    ((100, 10),),  # row 3
)


def test_foresight_knows_the_next_row_that_holds_an_address() -> None:
    foresight = Foresight(CONTENTS)
    admitted = foresight.nobody()

    def uses() -> list[int]:
        return [foresight.next_use(a, admitted) for a in (0, 19, 20, 39, 40, 100, 110, 205, 999)]

    assert uses() == [0, 0, 0, 0, NEVER, 1, 1, 2, NEVER]
    admitted.add(0)
    assert uses() == [2, 2, NEVER, NEVER, NEVER, 1, 1, 2, NEVER]
    admitted.add(2)  # out of turn
    assert 2 in admitted and 1 not in admitted and admitted.up_to == 1
    assert uses() == [NEVER, NEVER, NEVER, NEVER, NEVER, 1, 1, NEVER, NEVER]
    admitted.add(1)
    assert admitted.up_to == 3
    assert foresight.next_use(105, admitted) == 3 and foresight.next_use(115, admitted) == NEVER
    assert foresight.next_use(-5, admitted) == NEVER


def test_foresight_says_which_addresses_are_alike() -> None:
    foresight = Foresight(CONTENTS)
    assert foresight.alike(0, 39) == 20, "rows 0 and 2 hold the first 20, row 0 alone the rest"
    assert foresight.alike(5, 15) == 11
    assert NOTHING_KNOWN.alike(3, 7) == 5
    assert deepcopy(foresight) is foresight


def test_belady_lets_go_what_is_used_last_or_never() -> None:
    order = make_order("belady", Knowledge(foresight=Foresight(CONTENTS)))
    never = Thing("never", address=999)
    soon, later = Thing("soon", address=100), Thing("later", address=205)
    for thing in (soon, never, later):
        order.add(thing)
    assert [t.name for t in order] == ["never", "later", "soon"]
    order.seen(1)  # it was not served by `soon`, which waits for row 3 now
    assert [t.name for t in order] == ["never", "soon", "later"]
    order.seen(2)
    order.seen(3)
    assert [t.name for t in order] == ["soon", "never", "later"], "all never: by age"
    cut = Thing("cut", address=25)
    order.add(cut)
    cut.address = 15
    order.changed(cut)
    assert going(order) == ["soon", "never", "later", "cut"]


def test_an_unknown_rule() -> None:
    with pytest.raises(ConfigError, match="unknown eviction rule 'fifo'"):
        make_order("fifo", Knowledge())  # type: ignore[arg-type]
