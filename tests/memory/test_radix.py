"""Radix tree, recorded prefixes and shared page tables against naive lists."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.memory.extents import Extent, ExtentTree
from vtsim.memory.prefixes import PrefixTree, Record
from vtsim.memory.radix import Node, RadixTree, clip, join, tokens_of
from vtsim.request import Run

Tokens = tuple[int, ...]


def runs_of(tokens: Tokens) -> tuple[Run, ...]:
    """The longest runs of consecutive addresses."""
    runs: list[Run] = []
    for token in tokens:
        if runs and sum(runs[-1]) == token:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((token, 1))
    return tuple(runs)


def tokens_named(runs: tuple[Run, ...]) -> Tokens:
    return tuple(first + k for first, length in runs for k in range(length))


def common(left: Tokens, right: Tokens) -> int:
    """Length of the longest common prefix."""
    return next(
        (n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


@st.composite
def contents(draw: st.DrawFn, least: int = 1) -> Tokens:
    """Token addresses in a few runs, alike enough to share prefixes."""
    runs = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4))
    tokens = tokens_named(tuple((4 * first, length) for first, length in runs))
    return tokens[: draw(st.integers(least, len(tokens)))]


@given(tokens=contents(), other=contents(), start=st.integers(0, 20), end=st.integers(0, 20))
def test_runs_are_lists_of_tokens(tokens: Tokens, other: Tokens, start: int, end: int) -> None:
    runs = runs_of(tokens)
    assert tokens_of(runs) == len(tokens)
    assert tokens_named(clip(runs, start, end)) == tokens[start : max(start, end)]
    assert join(runs, runs_of(other)) == runs_of(tokens + other)
    assert join((), runs) == runs == join(runs, ())


@given(inserted=st.lists(contents(), max_size=12), asked=contents(), drops=st.lists(st.integers(0)))
def test_a_walk_finds_the_longest_common_prefix(
    inserted: list[Tokens], asked: Tokens, drops: list[int]
) -> None:
    tree: RadixTree[Node] = RadixTree(Node)
    held: list[Tokens] = []
    for tokens in inserted:
        runs = runs_of(tokens)
        path, depth = tree.walk(runs)
        assert depth == max((common(tokens, other) for other in held), default=0)
        parent = path[-1] if path else tree.root
        if depth < parent.end:
            parent = tree.split(parent, depth - parent.start)
        leaf = tree.add(parent, clip(runs, depth, len(tokens)))
        assert leaf.end == len(tokens)
        held.append(tokens)
    assert tree.walk(runs_of(asked))[1] == max((common(asked, other) for other in held), default=0)
    for drop in drops:
        leaves = [node for node in tree if not node.children]
        if not leaves:
            break
        tree.remove(leaves[drop % len(leaves)])
    spelled = [spelling(node) for node in tree]
    for tokens in held:
        deepest = max((len(s) for s in spelled if s == tokens[: len(s)]), default=0)
        assert tree.walk(runs_of(tokens))[1] >= deepest
    for node in tree:
        assert node.start == (node.parent.end if node.parent else 0)
        assert tree.walk(runs_of(spelling(node)))[1] == node.end


def spelling(node: Node) -> Tokens:
    """The tokens from the root to the end of `node`."""
    tokens: Tokens = ()
    step: Node | None = node
    while step is not None and step.parent is not None:
        tokens = tuple(range(step.first, step.first + step.length)) + tokens
        step = step.parent
    return tokens


@given(
    calls=st.lists(st.tuples(st.sampled_from(("insert", "touch", "remove")), contents())),
    asked=st.lists(contents(), min_size=1, max_size=4),
)
def test_records_are_a_list_in_order_of_use(
    calls: list[tuple[str, Tokens]], asked: list[Tokens]
) -> None:
    tree = PrefixTree()
    held: list[tuple[Tokens, Record]] = []  # least recently used first
    for what, tokens in calls:
        runs = runs_of(tokens)
        covering = tree.covers(runs, len(tokens))
        covers = [record for other, record in held if other[: len(tokens)] == tokens]
        assert covering is (covers[-1] if covers else None)
        if what == "insert" and covering is None:
            # More content than is recorded of it must not matter.
            record = tree.insert(join(runs, ((99, 5),)), len(tokens), payload=tokens)
            held.append((tokens, record))
        elif what != "insert" and held:
            entry = held.pop(len(tokens) % len(held))
            if what == "touch":
                tree.touch(entry[1])
                held.append(entry)
            else:
                tree.remove(entry[1])
        assert len(tree) == len(held)
        assert list(tree.records.values()) == [record for _, record in held]
        for question in asked:
            longest = max((common(question, other) for other, _ in held), default=0)
            holders = [r for other, r in held if common(question, other) == longest]
            expected = (longest, holders[-1]) if longest else (0, None)
            assert tree.match(runs_of(question)) == expected
    oldest = [record for _, record in held]
    assert tree.oldest() is (oldest[0] if oldest else None)
    if oldest:
        assert tree.oldest(but=oldest[0]) is (oldest[1] if len(oldest) > 1 else None)


def test_a_match_keeps_what_goes_on_behind_it() -> None:
    tree = PrefixTree()
    long = tree.insert(((0, 100),), 100, "long")
    tree.insert(((0, 40), (500, 10)), 50, "fork")
    assert tree.match(((0, 70), (900, 5))) == (70, long)
    assert tree.match(((0, 40), (500, 3)))[0] == 43
    tree.remove(long)
    assert tree.match(((0, 70),))[0] == 40


# -- shared page tables ----------------------------------------------------------------------------


class Tables:
    """Page tables as lists of unit names; what `ExtentTree` counts."""

    def __init__(self) -> None:
        self.live: list[list[int]] = []
        self.records: list[list[int]] = []

    def counts(self) -> tuple[int, int]:
        live = {unit for table in self.live for unit in table}
        kept = {unit for table in self.records for unit in table}
        return len(live), len(kept - live)

    def held(self) -> set[int]:
        return {unit for table in (*self.live, *self.records) for unit in table}


@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(("grow", "grow", "record", "share", "drop", "forget")),
            st.integers(0, 20),
            st.integers(0, 9),
        ),
        max_size=30,
    )
)
def test_extents_count_units_once(calls: list[tuple[str, int, int]]) -> None:
    tree = ExtentTree()
    tables = Tables()
    live: list[Extent | None] = []
    records: list[Extent | None] = []
    unit = 0
    for what, which, amount in calls:
        if what == "grow":  # a sequence that shares nothing, as units of its own
            names = list(range(unit, unit + amount))
            unit += amount
            leaf = Extent(0, amount, None) if amount else None
            tree.hold(leaf)
            live.append(leaf)
            tables.live.append(names)
        elif what == "record" and live:  # it ends, and is kept with what it had beyond
            at = which % len(live)
            leaf, names = live.pop(at), tables.live.pop(at)
            more = list(range(unit, unit + amount))
            unit += amount
            kept = Extent(len(names), len(names) + amount, leaf) if amount else leaf
            tree.record(kept)
            assert tree.drop(leaf) == 0
            records.append(kept)
            tables.records.append(names + more)
        elif what == "share" and records:
            at = which % len(records)
            leaf, names = records[at], tables.records[at]
            share = amount % (len(names) + 1)
            idle = tree.idle_units(leaf)
            needed = {u for table in tables.live for u in table}
            assert idle == len(set(names) - needed)
            part = None
            if share:
                assert leaf is not None
                part = tree.branch(leaf, share)
                assert part.end == share
                tree.hold(part)
            live.append(part)
            tables.live.append(names[:share])
        elif what in ("drop", "forget"):
            leaves, lists = (live, tables.live) if what == "drop" else (records, tables.records)
            if not leaves:
                continue
            at = which % len(leaves)
            before = tables.held()
            leaf = leaves.pop(at)
            del lists[at]
            freed = tree.drop(leaf) if what == "drop" else tree.forget(leaf)
            assert freed == len(before - tables.held())
        assert (tree.live_units, tree.record_units) == tables.counts()


def test_branches_of_a_path_keep_whole_paths() -> None:
    tree = ExtentTree()
    leaf = Extent(0, 10, None)
    tree.record(leaf)
    six = tree.branch(leaf, 6)
    three = tree.branch(leaf, 3)
    assert (three.start, three.end, six.start, six.end, leaf.start, leaf.end) == (0, 3, 3, 6, 6, 10)
    assert leaf.parent is six and six.parent is three and three.parent is None
    assert tree.branch(leaf, 6) is six
    tree.hold(six)
    assert (tree.live_units, tree.record_units) == (6, 4)
    assert tree.idle_units(leaf) == 4 and tree.idle_units(six) == 0 == tree.idle_units(None)
    assert tree.forget(leaf) == 4
    assert tree.drop(six) == 6
    assert Counter([tree.live_units, tree.record_units]) == {0: 2}


def test_nothing_is_added_twice() -> None:
    tree: RadixTree[Node] = RadixTree(Node)
    tree.add(tree.root, ((0, 4),))
    with pytest.raises(AssertionError):
        tree.add(tree.root, ((0, 2),))
