"""Pages of several blocks: which are mapped, which blocks in them are free, which serve first.

A page can be unmapped only when all its blocks are free, so the choice of a block decides what can
be given back. It must not know sequences, content or plans.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import compress, islice
from operator import not_
from typing import Literal, Protocol

import numpy as np

from vtsim.errors import InvariantError

PlaceRule = Literal["newest", "fullest", "lowest", "oldest"]
"""Which free block of the partly free pages serves next. newest: one of the page that came to have
any last (kvcached); fullest: of the page with the fewest, so that others may empty; lowest: of the
lowest page; oldest: the block that has been free longest, wherever it lies (vLLM's free queue)."""


class PageOrder(Protocol):
    """Partly free pages, in the order in which they serve."""

    def add(self, page: int, free: int) -> None: ...

    def change(self, page: int, before: int, after: int) -> None:
        """It has `after` free blocks now, `before` until now; with 0 or all free it leaves."""
        ...

    def first(self) -> int: ...


class FullestFirst:
    """The page with the fewest free blocks; of equal ones, the one that came to be so last."""

    __slots__ = ("_by_free", "_per_page")

    def __init__(self, per_page: int) -> None:
        self._per_page = per_page
        self._by_free: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(per_page + 1)]

    def add(self, page: int, free: int) -> None:
        self._by_free[free][page] = None

    def change(self, page: int, before: int, after: int) -> None:
        del self._by_free[before][page]
        if after not in (0, self._per_page):
            self._by_free[after][page] = None

    def first(self) -> int:
        return next(reversed(next(pages for pages in self._by_free if pages)))


class LowestFirst:
    """The page with the lowest number."""

    __slots__ = ("_heap", "_pages", "_per_page")

    def __init__(self, per_page: int) -> None:
        self._per_page = per_page
        self._pages: dict[int, None] = {}
        self._heap: list[int] = []  # with pages that have left since

    def add(self, page: int, free: int) -> None:
        self._pages[page] = None
        heapq.heappush(self._heap, page)

    def change(self, page: int, before: int, after: int) -> None:
        if after in (0, self._per_page):
            del self._pages[page]

    def first(self) -> int:
        while self._heap[0] not in self._pages:
            heapq.heappop(self._heap)
        return self._heap[0]


_ORDERS: dict[str, Callable[[int], PageOrder]] = {
    "fullest": FullestFirst,
    "lowest": LowestFirst,
}


class PageSet:
    """Pages 0, 1, ...; block b lies in page b // `per_page`. A mapped page is full, partly free or
    empty; one that was unmapped is the first to be mapped again."""

    __slots__ = (
        "_free",
        "_line",
        "_order",
        "_returned",
        "empty",
        "free_blocks",
        "mapped",
        "per_page",
        "used",
    )

    def __init__(self, per_page: int, rule: PlaceRule) -> None:
        self.per_page = per_page
        self.mapped = 0
        self.used = 0
        """Pages that have ever been mapped."""
        self.empty: list[int] = []
        """Mapped pages all of whose blocks are free, the last first to be used again."""
        self.free_blocks = 0
        """Free blocks of the partly free pages."""
        self._free: dict[int, list[int]] = {}  # partly free page -> its free blocks; newest last
        self._order: PageOrder | None = _ORDERS[rule](per_page) if rule in _ORDERS else None
        self._line: OrderedDict[int, None] | None = OrderedDict() if rule == "oldest" else None
        self._returned: list[int] = []

    # -- blocks -----------------------------------------------------------------------------------

    def take(self, blocks: int) -> list[int]:
        """Up to `blocks` free blocks of partly free pages."""
        blocks = min(blocks, self.free_blocks)
        self.free_blocks -= blocks
        if self._line is not None:
            return [self._take_oldest(self._line) for _ in range(blocks)]
        free_of, order = self._free, self._order
        taken: list[int] = []
        while blocks:
            if order is None:
                page, free = free_of.popitem()
            else:
                page = order.first()
                free = free_of.pop(page)
            before = len(free)
            if before <= blocks:
                blocks -= before
                if before > 1:
                    free.reverse()
                taken += free
                left = 0
            else:
                left = before - blocks
                taken += free[: left - 1 : -1]
                del free[left:]
                blocks = 0
                free_of[page] = free
            if order is not None:
                order.change(page, before, left)
        return taken

    def _take_oldest(self, line: OrderedDict[int, None]) -> int:
        block, _ = line.popitem(last=False)
        page = block // self.per_page
        free = self._free[page]
        free.remove(block)
        if not free:
            del self._free[page]
        return block

    def take_pages(self, pages: int) -> list[int]:
        """All blocks of the `pages` empty pages that are first to be used."""
        chosen = self.empty[-pages:]
        del self.empty[-pages:]
        if self.per_page == 1:
            return chosen
        first = np.array(chosen, dtype=np.int64)[:, None] * self.per_page
        blocks: list[int] = (first + np.arange(self.per_page)).ravel().tolist()
        return blocks

    def put(self, blocks: list[int]) -> None:
        """Nobody uses `blocks` any more."""
        per_page = self.per_page
        if per_page == 1:
            self.empty += blocks
            return
        if len(blocks) >= 4 * per_page:
            blocks = self._put_whole(blocks)
        free_of, order, line = self._free, self._order, self._line
        self.free_blocks += len(blocks)
        for block in blocks:
            page = block // per_page
            free = free_of.get(page)
            if free is None:
                free_of[page] = [block]
                if order is not None:
                    order.add(page, 1)
            else:
                free.append(block)
                if order is not None:
                    order.change(page, len(free) - 1, len(free))
                if len(free) == per_page:
                    del free_of[page]
                    self.free_blocks -= per_page
                    self.empty.append(page)
                    if line is not None:
                        for each in free[:-1]:
                            del line[each]
                    continue
            if line is not None:
                line[block] = None

    def _put_whole(self, blocks: list[int]) -> list[int]:
        """Put those of the pages that lie in `blocks` whole, and return the others: most pages of a
        long sequence are its own, and empty at once."""
        pages = np.array(blocks, dtype=np.int64) // self.per_page
        counts = np.bincount(pages)
        self.empty += np.flatnonzero(counts == self.per_page).tolist()
        return list(compress(blocks, (counts[pages] < self.per_page).tolist()))

    # -- pages ------------------------------------------------------------------------------------

    def open(self) -> None:
        """The blocks of an empty page may be taken one by one."""
        page = self.empty.pop()
        first = page * self.per_page
        self._free[page] = list(range(first + self.per_page - 1, first - 1, -1))
        self.free_blocks += self.per_page
        if self._order is not None:
            self._order.add(page, self.per_page)
        elif self._line is not None:
            self._line.update(dict.fromkeys(range(first, first + self.per_page)))

    def map(self, pages: int) -> list[int]:
        """So many more pages are mapped, and empty: returns which."""
        again = min(pages, len(self._returned))
        chosen = self._returned[len(self._returned) - again :][::-1]
        del self._returned[len(self._returned) - again :]
        chosen += range(self.used, self.used + pages - again)
        self.used += pages - again
        self.mapped += pages
        self.empty += reversed(chosen)
        return chosen

    def unmap(self, pages: int) -> list[int]:
        """The empty pages that would be used last are unmapped: returns which."""
        chosen = self.empty[:pages]
        del self.empty[:pages]
        self.mapped -= len(chosen)
        self._returned += reversed(chosen)
        return chosen

    # -- looking ----------------------------------------------------------------------------------

    def partly_free(self) -> dict[int, int]:
        """Page -> free blocks, of those mapped pages that have some but are not empty."""
        return {page: len(free) for page, free in self._free.items()}

    def _free_now(self) -> set[int]:
        return {block for blocks in self._free.values() for block in blocks}

    def check(self, held: list[int]) -> None:
        """`held`: the blocks in use. Raises InvariantError if a block is used twice, free and used,
        or in a page that is not mapped."""
        free = self._free_now()
        if len(set(held)) != len(held) or free & set(held):
            raise InvariantError("each-block-is-free-or-held", "a block is held twice, or free too")
        unmapped = set(self._returned)
        pages = {block // self.per_page for block in held}
        if pages & (unmapped | set(self.empty)) or any(page >= self.used for page in pages):
            raise InvariantError("blocks-are-mapped", "a block lies in a page without memory")
        covered = len(held) + len(free) + len(self.empty) * self.per_page
        if covered != self.mapped * self.per_page or len(free) != self.free_blocks:
            raise InvariantError(
                "each-block-is-free-or-held",
                f"{len(held)} held, {len(free)} free, {len(self.empty)} empty pages "
                f"of {self.mapped} with {self.per_page} blocks each",
            )


class PairSet(PageSet):
    """Pages of two blocks, newest first. Partly free, each of them has one free block (but for one
    just opened), so that many are taken and put without a look at each."""

    __slots__ = ("_blocks", "_marks")

    def __init__(self) -> None:
        super().__init__(2, "newest")
        self._marks = np.zeros(2, dtype=bool)
        """To find pairs with: all False between calls, and as many as all blocks and a few."""
        self._blocks: dict[int, None] = {}
        """Free blocks of partly free pages, the first to serve last."""

    def take(self, blocks: int) -> list[int]:
        free = self._blocks
        if blocks == 1 and free:  # most often
            taken = [free.popitem()[0]]
        else:
            taken = list(islice(reversed(free), blocks))
            _drop(free, taken)
        self.free_blocks = len(free)
        return taken

    def put(self, blocks: list[int]) -> None:
        free = self._blocks
        if len(blocks) >= 8:
            numbers = np.array(blocks, dtype=np.int64)
            beside, marks = numbers ^ 1, self._marks
            marks[numbers] = True
            whole = marks[beside]
            marks[numbers] = False
            self.empty += np.sort(numbers[whole & (numbers < beside)] >> 1).tolist()
            blocks, others = numbers[~whole].tolist(), beside[~whole].tolist()
            pairs = list(map(free.__contains__, others))
            emptied = list(compress(others, pairs))
            _drop(free, emptied)
            self.empty += [block >> 1 for block in emptied]
            free.update(dict.fromkeys(compress(blocks, map(not_, pairs))))
        else:
            for block in blocks:
                if block ^ 1 in free:
                    del free[block ^ 1]
                    self.empty.append(block >> 1)
                else:
                    free[block] = None
        self.free_blocks = len(free)

    def map(self, pages: int) -> list[int]:
        chosen = super().map(pages)
        if 2 * self.used > len(self._marks):
            self._marks = np.zeros(1 << (2 * self.used).bit_length(), dtype=bool)
        return chosen

    def open(self) -> None:
        first = 2 * self.empty.pop()
        self._blocks[first + 1] = self._blocks[first] = None
        self.free_blocks += 2

    def partly_free(self) -> dict[int, int]:
        free: dict[int, int] = {}
        for block in self._blocks:
            free[block >> 1] = free.get(block >> 1, 0) + 1
        return free

    def _free_now(self) -> set[int]:
        return set(self._blocks)


def _drop(free: dict[int, None], blocks: list[int]) -> None:
    deque(map(free.pop, blocks), maxlen=0)


def make_pages(per_page: int, rule: PlaceRule) -> PageSet:
    """The pages of a policy: of `per_page` blocks each, none mapped yet."""
    return PairSet() if per_page == 2 and rule == "newest" else PageSet(per_page, rule)
