"""Pages of blocks against a model that takes one block at a time and looks at every page."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.errors import InvariantError
from vtsim.memory.pages import PageSet, PlaceRule, make_pages

RULES: tuple[PlaceRule, ...] = ("newest", "fullest", "lowest", "oldest")


class Model:
    """Which block serves next, by the words of `PlaceRule`."""

    def __init__(self, per_page: int, rule: str) -> None:
        self.per_page, self.rule = per_page, rule
        self.free: dict[int, list[int]] = {}  # partly free page -> its free blocks, newest last
        self.entered: dict[int, int] = {}  # when the page came to have any free block
        self.changed: dict[int, int] = {}  # when it came to have as many as it has
        self.freed_at: dict[int, int] = {}  # block -> when
        self.empty: set[int] = set()
        self.clock = 0

    def take(self) -> int | None:
        if not self.free:
            return None
        if self.rule == "oldest":
            block = min(
                (b for free in self.free.values() for b in free), key=lambda b: self.freed_at[b]
            )
        else:
            block = self.free[self.page()][-1]
        page = block // self.per_page
        self.free[page].remove(block)
        self.changed[page] = self.clock = self.clock + 1
        if not self.free[page]:
            del self.free[page]
        return block

    def page(self) -> int:
        if self.rule == "newest":
            return max(self.free, key=lambda page: self.entered[page])
        if self.rule == "lowest":
            return min(self.free)
        fewest = min(len(free) for free in self.free.values())
        ties = [page for page, free in self.free.items() if len(free) == fewest]
        return max(ties, key=lambda page: self.changed[page])

    def put(self, blocks: list[int]) -> None:
        for block in blocks:
            page = block // self.per_page
            self.clock += 1
            self.entered[page] = self.entered[page] if page in self.free else self.clock
            self.changed[page] = self.freed_at[block] = self.clock
            self.free.setdefault(page, []).append(block)
            if len(self.free[page]) == self.per_page:
                del self.free[page]
                self.empty.add(page)

    def open(self, page: int) -> None:
        """Its blocks are as free as if they had been given up from the last to the first, but for
        the oldest first, which starts from the first."""
        self.empty.remove(page)
        self.clock += 1
        self.entered[page] = self.changed[page] = self.clock
        blocks = list(range(page * self.per_page, (page + 1) * self.per_page))
        self.free[page] = blocks[::-1]
        for block in blocks:
            self.freed_at[block] = self.clock = self.clock + 1


@settings(max_examples=150)
@given(
    st.sampled_from(RULES),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.randoms()), min_size=30),
)
def test_blocks_are_placed_as_the_rule_says(
    rule: PlaceRule, per_page: int, steps: list[tuple[int, int, object]]
) -> None:
    """Held blocks never move, each block is free or held, only empty pages are unmapped, and those
    unmapped last are mapped first."""
    pages, model = make_pages(per_page, rule), Model(per_page, rule)
    held: list[int] = []
    unmapped: list[int] = []
    ever = 0
    for kind, number, random in steps:
        if kind == 0:
            chosen = pages.map(number % 8)
            again = min(len(chosen), len(unmapped))
            new = list(range(ever, ever + len(chosen) - again))
            assert chosen == unmapped[::-1][:again] + new
            del unmapped[len(unmapped) - again :]
            ever += len(new)
            assert not chosen or pages.empty[-len(chosen) :] == chosen[::-1], (
                "first mapped, first used"
            )
            model.empty |= set(chosen)
        elif kind == 1:
            before = list(pages.empty)
            chosen = pages.unmap(number % 4)
            assert chosen == before[: number % 4], "those that would be used last"
            unmapped += chosen[::-1]
            model.empty -= set(chosen)
        elif kind == 2:
            expected = [block for _ in range(number) if (block := model.take()) is not None]
            assert pages.take(number) == expected
            held += expected
        elif kind == 3:
            wanted = min(number % 8, len(pages.empty))
            chosen = pages.empty[len(pages.empty) - wanted :]
            blocks = pages.take_pages(wanted) if wanted else []
            assert sorted(blocks) == sorted(
                page * per_page + k for page in chosen for k in range(per_page)
            )
            held += blocks
            model.empty -= set(chosen)
        elif kind == 4 and pages.empty and per_page > 1:
            model.open(pages.empty[-1])
            pages.open()
        elif kind == 5:
            random.shuffle(held)  # type: ignore[attr-defined]
            gone, held = held[:number], held[number:]
            pages.put(gone)
            model.put(gone)
        pages.check(held)
        assert set(pages.empty) == model.empty and len(pages.empty) == len(model.empty)
        assert pages.partly_free() == {page: len(free) for page, free in model.free.items()}
        assert pages.free_blocks == sum(map(len, model.free.values()))
        assert (pages.mapped, pages.used) == (ever - len(unmapped), ever)


def worked() -> tuple[PageSet, list[int]]:
    """Four pages of four blocks: one full, one partly free, one empty, one unmapped."""
    pages = PageSet(4, "newest")
    pages.map(4)
    held = pages.take_pages(2)
    pages.put([held.pop()])
    pages.unmap(1)
    pages.check(held)
    return pages, held


DAMAGES: list[tuple[str, Callable[[PageSet, list[int]], object], str]] = [
    ("a block is held twice", lambda pages, held: held.append(held[0]), "each-block-is"),
    ("a free block is held", lambda pages, held: held.extend(pages.take(1) * 2), "each-block-is"),
    ("a block is forgotten", lambda pages, held: held.pop(), "each-block-is"),
    ("an empty page is used", lambda pages, held: held.append(pages.empty[0] * 4), "blocks-are"),
    (
        "an unmapped page is used",
        lambda pages, held: held.append(_returned(pages) * 4),
        "blocks-are",
    ),
    ("a page that never was is used", lambda pages, held: held.append(99), "blocks-are"),
    ("the count of free blocks is off", lambda pages, held: _miscount(pages), "each-block-is"),
]


def _returned(pages: PageSet) -> int:
    return copy.deepcopy(pages).map(1)[0]


def _miscount(pages: PageSet) -> None:
    pages.free_blocks += 1


@pytest.mark.parametrize(("what", "damage", "invariant"), DAMAGES, ids=[d[0] for d in DAMAGES])
def test_the_check_finds(
    what: str, damage: Callable[[PageSet, list[int]], object], invariant: str
) -> None:
    pages, held = worked()
    damage(pages, held)
    with pytest.raises(InvariantError, match=invariant):
        pages.check(held)
