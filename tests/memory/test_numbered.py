"""Numbered blocks of cached content against a dictionary: all content up to a block's end, and the
number that holds it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.memory.blocks import CachedRun
from vtsim.memory.eviction import EvictionRule, Knowledge, make_order
from vtsim.memory.foresight import Foresight
from vtsim.memory.numbered import NumberedStore
from vtsim.memory.radix import clip
from vtsim.request import Run

CONTENTS: tuple[tuple[Run, ...], ...] = (
    ((0, 40),),
    ((0, 17), (100, 20)),
    ((0, 17), (100, 9), (200, 8)),
    ((0, 4), (300, 30)),
    ((400, 11),),
    ((0, 30), (500, 6)),
)
RULES: tuple[EvictionRule, ...] = ("lru", "lfu", "cost", "belady")


@dataclass(eq=False)
class Held:
    """A sequence: what it holds of the cache, and blocks of its own behind that."""

    content: tuple[Run, ...]
    tokens: int
    leaf: CachedRun
    cached: int
    own: list[int]


class World:
    """A store, its sequences, and `named`: (content up to a block's end) -> its number."""

    def __init__(self, block: int, rule: EvictionRule) -> None:
        self.block = block
        self.store = NumberedStore(
            block, make_order(rule, Knowledge(foresight=Foresight(CONTENTS)))
        )
        self.held: list[Held] = []
        self.named: dict[tuple[Run, ...], int] = {}
        self.made = 0

    def name(self, content: tuple[Run, ...], blocks: int) -> tuple[Run, ...]:
        return clip(content, 0, blocks * self.block)

    def arrive(self, which: int, share: int) -> None:
        content = CONTENTS[which]
        tokens = max(1, sum(length for _, length in content) * share // 10)
        content = clip(content, 0, tokens)
        served, path = self.store.find(content, tokens - 1)
        longest = 0
        while self.name(content, longest + 1) in self.named and (longest + 1) * self.block < tokens:
            longest += 1
        assert served == longest * self.block, "all that is cached is found, but for the last token"
        cached = served // self.block
        leaf = self.store.pin(path, served) if cached else self.store.root
        self.store.order.seen(which)
        need = -(-tokens // self.block) - cached
        own = list(range(self.made, self.made + need))
        self.made += need
        self.held.append(Held(content, tokens, leaf, cached, own))

    def keep(self, which: int) -> None:
        """A sequence's blocks get their names, where no other copy has them."""
        seq = self.held[which % len(self.held)]
        before = list(seq.own)
        whole = seq.tokens // self.block
        news = [
            n for n in range(seq.cached, whole) if self.name(seq.content, n + 1) not in self.named
        ]
        seq.leaf, moved = self.store.keep_numbers(
            seq.leaf, seq.cached, seq.content, seq.tokens, seq.own
        )
        assert moved == (whole - seq.cached if len(news) == whole - seq.cached else 0)
        assert seq.own == before[moved:]
        for n in range(moved):
            self.named[self.name(seq.content, seq.cached + n + 1)] = before[n]
        seq.cached += moved

    def leave(self, which: int) -> None:
        self.store.unpin(self.held.pop(which % len(self.held)).leaf)

    def evict(self, blocks: int) -> None:
        """As many as are asked for go, none that is in use, and none before what follows it."""
        blocks = min(blocks, self.store.idle)
        idle = self.store.idle_numbers()
        more = self.store.evict(blocks)
        freed = set(self.store.freed)
        assert len(self.store.freed) == len(freed) == blocks + more and more == 0
        assert freed <= idle
        self.store.freed.clear()
        self.named = {name: number for name, number in self.named.items() if number not in freed}
        for name in self.named:
            shorter = clip(name, 0, sum(length for _, length in name) - self.block)
            assert not shorter or shorter in self.named, "a block is cached behind one that is not"

    def check(self) -> None:
        store = self.store
        for seq in self.held:
            names = [self.name(seq.content, n + 1) for n in range(seq.cached)]
            assert store.numbers(seq.leaf) == [self.named[name] for name in names]
        in_use = {number for seq in self.held for number in store.numbers(seq.leaf)}
        assert store.idle_numbers() == set(self.named.values()) - in_use
        assert store.cached_idle == store.idle == len(set(self.named.values()) - in_use)
        assert store.freed == []
        store.check([(seq.leaf, seq.cached) for seq in self.held], None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, len(CONTENTS) - 1), st.integers(1, 10)),
        st.tuples(st.sampled_from(["keep", "leave", "evict"]), st.integers(0, 9), st.just(0)),
    ),
    min_size=10,
)


@settings(max_examples=150)
@given(st.integers(1, 5), st.sampled_from(RULES), STEPS)
def test_each_cached_block_keeps_its_number_until_it_is_evicted(
    block: int, rule: EvictionRule, steps: list[tuple[str, int, int]]
) -> None:
    world = World(block, rule)
    for what, number, share in steps:
        if what == "arrive":
            world.arrive(number, share)
        elif what == "evict":
            world.evict(number)
        elif world.held:
            getattr(world, what)(number)
        world.check()
    while world.held:
        world.leave(0)
    world.evict(world.store.idle)
    world.check()
    assert not world.named, "what nobody holds can all be evicted"


@pytest.mark.parametrize("rule", RULES)
def test_what_is_sure_to_have_been_computed_stays_and_the_rest_is_forgotten(
    rule: EvictionRule,
) -> None:
    """A sequence that leaves in the middle of its prompt caches nothing that it may not have."""
    world = World(4, rule)
    world.arrive(0, 10)
    world.keep(0)
    (seq,) = world.held
    numbers = world.store.numbers(seq.leaf)
    assert len(numbers) == 10
    world.store.unpin(seq.leaf, sure=0)
    assert world.store.freed == numbers and not world.store.idle_numbers()
