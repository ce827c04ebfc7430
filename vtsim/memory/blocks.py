"""A pool of equal blocks and the content cached in them: what paged policies are made of.

Blocks are counted, not numbered. One is fresh (never used, or given up without content), held by a
sequence alone, or cached: at a node of the content tree, where sequences share it and where it
stays, idle, until an eviction order lets it go. It must not know sequences, devices or plans.
"""

from __future__ import annotations

from typing import Any

from vtsim.errors import InvariantError
from vtsim.memory.eviction import EvictionOrder
from vtsim.memory.radix import Node, RadixTree, clip, tokens_of
from vtsim.request import Run


class CachedRun(Node):
    """A run of cached content and the full blocks that end in it: blocks [start//b, end//b).

    It is evicted from its end, so the use of its last token is what counts.
    """

    __slots__ = ("blocks", "live", "uses")

    def __init__(self, first: int, length: int, start: int, parent: Node | None) -> None:
        super().__init__(first, length, start, parent)
        self.blocks = 0
        self.live = 0  # running sequences whose table leads through here
        self.uses = 1

    @property
    def begins(self) -> int:
        return self.start

    @property
    def ends(self) -> int:
        return self.start + self.length

    @property
    def address(self) -> int:
        return self.first + self.length - 1


class WholeRun(CachedRun):
    """One that is evicted whole: the use of its first token counts."""

    __slots__ = ()

    @property
    def address(self) -> int:
        return self.first


class FreeRun:
    """Free blocks with no cached content, in their place in the eviction order."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


class BlockStore:
    """The blocks of one pool, `block` tokens each.

    `whole`: a node of the tree is evicted whole, else from its end, as many blocks as are asked.
    `in_line`: blocks without content wait in line with the cached ones, in order of falling idle
    (only with an order that takes what has no rank); else they are as good as fresh.
    """

    __slots__ = (
        "_in_line",
        "_order",
        "_tree",
        "_whole",
        "block",
        "blocks",
        "cached_idle",
        "evicted",
        "fresh",
        "idle",
        "live",
    )

    def __init__(
        self,
        blocks: int,
        block: int,
        order: EvictionOrder[Any],
        *,
        whole: bool = False,
        in_line: bool = False,
        kind: type[CachedRun] | None = None,
    ) -> None:
        assert not (in_line and order.leaves_only)
        self.blocks = blocks
        self.block = block
        self.fresh = blocks
        """Blocks that hold nothing anybody may ask for."""
        self.idle = 0
        """Blocks that can be had by eviction, those in line included."""
        self.cached_idle = 0
        """Of these, with content."""
        self.live = 0
        """Blocks with content that sequences hold."""
        self.evicted = 0
        """Blocks with content that were let go so far."""
        self._order = order
        self._whole = whole
        self._in_line = in_line
        self._tree: RadixTree[CachedRun] = RadixTree(kind or (WholeRun if whole else CachedRun))

    @property
    def available(self) -> int:
        """Blocks that `take` can give."""
        return self.fresh + self.idle

    @property
    def root(self) -> CachedRun:
        """The table that holds nothing cached."""
        return self._tree.root

    @property
    def order(self) -> EvictionOrder[Any]:
        return self._order

    # -- finding ----------------------------------------------------------------------------------

    def find(self, content: tuple[Run, ...], at_most: int) -> tuple[int, list[CachedRun]]:
        """Tokens of `content` cached in full blocks, up to `at_most`, and their path. Pure."""
        path, depth = self._tree.walk(content)
        depth = min(depth, at_most)
        return depth - depth % self.block, path

    def revived(self, path: list[CachedRun], tokens: int) -> int:
        """Idle blocks that holding the first `tokens` tokens of `path` would take. Pure."""
        cached = tokens // self.block
        revived = 0
        for node in path:
            if node.live == 0:
                revived += min(node.blocks, cached - node.start // self.block)
            if node.end >= tokens:
                break
        return revived

    # -- holding ----------------------------------------------------------------------------------

    def pin(self, path: list[CachedRun], tokens: int) -> CachedRun:
        """A sequence holds the first `tokens` tokens of what `find` found; returns its leaf."""
        leaf = self._tree.root
        for node in path:
            if node.end > tokens:
                node = self._split(node, tokens - node.start)
            if node.live == 0 and node.blocks:
                self._order.discard(node)  # a head just cut off is not in there
                self.idle -= node.blocks
                self.cached_idle -= node.blocks
                self.live += node.blocks
            node.live += 1
            node.uses += 1
            leaf = node
            if node.end == tokens:
                break
        return leaf

    def unpin(self, leaf: CachedRun, sure: int = 1 << 60) -> None:
        """A sequence no longer holds the path to `leaf`: its tail falls idle first. What it alone
        holds there beyond its first `sure` tokens may never be computed, and is forgotten."""
        node = leaf
        root = self._tree.root
        order = self._order
        while node is not root:
            parent: CachedRun = node.parent  # type: ignore[assignment]
            node.live -= 1
            if node.live == 0:
                self.live -= node.blocks
                if node.end > sure and not node.children:
                    self._forget(node)
                if node.blocks:
                    self.idle += node.blocks
                    self.cached_idle += node.blocks
                    if not (order.leaves_only and node.children):
                        order.add(node)
                else:
                    self._prune(node)
            node = parent

    def keep(
        self, leaf: CachedRun, cached: int, content: tuple[Run, ...], tokens: int
    ) -> tuple[CachedRun, int]:
        """Put full blocks of a sequence under their names: it holds `cached` blocks up to `leaf`,
        and blocks of its own with the rest of the first `tokens` tokens of `content`.

        Returns its new leaf and how many of its own blocks are cached now. Where another copy is
        cached already, that one stays, and the sequence's own copy has no name.
        """
        block = self.block
        end = min(tokens_of(content), tokens)
        end -= end % block
        if end <= cached * block:
            return leaf, 0
        path, depth = self._tree.walk(content)
        if depth >= end or depth // block > cached:
            return leaf, 0
        parent = path[-1] if path else self._tree.root
        if path and depth < parent.end:
            parent = self._split(parent, depth - parent.start)
        node = parent
        while node is not leaf:  # parts of a block, shared by content that parts in it
            node.live += 1
            node = node.parent  # type: ignore[assignment]
        last = self._tree.add(parent, clip(content, depth, end))
        node = last
        while node is not parent:
            node.blocks = node.end // block - node.start // block
            node.live = 1
            node = node.parent  # type: ignore[assignment]
        moved = end // block - cached
        self.live += moved
        return last, moved

    def give(self, blocks: int) -> None:
        """A sequence gives up blocks of its own."""
        if not self._in_line:
            self.fresh += blocks
        elif blocks:
            self._order.add(FreeRun(blocks))
            self.idle += blocks

    def take(self, blocks: int) -> None:
        """A sequence takes available blocks: fresh ones first, then those that eviction frees."""
        if blocks <= self.fresh:
            self.fresh -= blocks
        else:
            missing = blocks - self.fresh
            self.fresh = self.evict(missing)

    def evict(self, blocks: int) -> int:
        """Let `blocks` idle blocks go, or a few more; returns how many more."""
        order, whole = self._order, self._whole
        while blocks > 0:
            entry = order.first()
            assert entry is not None, "nothing left to evict: the caller did not check"
            taken: int = entry.blocks
            if not whole:
                if order.leaves_only:
                    alike = order.alike(entry.first, entry.first + entry.length - 1)
                    taken = min(taken, max(1, alike // self.block))
                if blocks < taken:
                    taken = blocks
            blocks -= taken
            self.idle -= taken
            entry.blocks -= taken
            if not entry.blocks:
                order.evicted(entry)
            if isinstance(entry, CachedRun):
                self._cut(entry, taken)
        return -blocks

    # -- inside -----------------------------------------------------------------------------------

    def _cut(self, node: CachedRun, blocks: int) -> None:
        """The last `blocks` blocks of an idle node hold nothing any more."""
        self.cached_idle -= blocks
        self.evicted += blocks
        if node.blocks:
            end = (node.start // self.block + node.blocks) * self.block
            node.length = end - node.start
            self._order.changed(node)
        else:
            self._prune(node)

    def _forget(self, node: CachedRun) -> None:
        """What a leaf that nobody holds was to hold has no name any more."""
        self.give(node.blocks)
        node.blocks = 0

    def _split(self, node: CachedRun, at: int) -> CachedRun:
        head = self._tree.split(node, at)
        block = self.block
        head.blocks = head.end // block - head.start // block
        head.live = node.live
        head.uses = node.uses
        node.blocks -= head.blocks
        if node.blocks == 0 and node.live == 0:
            self._order.discard(node)
            self._prune(node)
        else:
            self._order.changed(node)
        return head

    def _prune(self, node: CachedRun) -> None:
        """Drop nodes that hold no block and lead nowhere."""
        root = self._tree.root
        while node is not root and not (node.blocks or node.live or node.children):
            parent: CachedRun = node.parent  # type: ignore[assignment]
            self._tree.remove(node)
            node = parent
        if self._order.leaves_only and node.blocks and not (node.live or node.children):
            self._order.add(node)

    # -- checking ---------------------------------------------------------------------------------

    def check(self, tables: list[tuple[CachedRun, int]], own: int | None) -> None:
        """`tables`: (leaf, cached blocks) of all sequences; `own`: blocks they hold alone (None:
        the pool is the owner's). Raises InvariantError where books and tree do not agree."""
        lives: dict[CachedRun, int] = {}
        for leaf, cached in tables:
            node, blocks = leaf, 0
            while node is not self._tree.root:
                lives[node] = lives.get(node, 0) + 1
                blocks += node.blocks
                node = node.parent  # type: ignore[assignment]
            _demand("table-covers-its-path", blocks, cached)
        held = cached_idle = 0
        for node in self._tree:
            _demand("live-count", lives.get(node, 0), node.live)
            full = node.end // self.block - node.start // self.block
            _demand("node-holds-its-blocks", node.blocks, full)
            idle = not node.live and node.blocks > 0
            listed = idle and not (self._order.leaves_only and node.children)
            _demand("idle-content-is-in-the-order", node in self._order, listed)
            held += node.blocks if node.live else 0
            cached_idle += node.blocks if idle else 0
        in_line = sum(e.blocks for e in self._order if not isinstance(e, CachedRun))
        _demand("cached-count", cached_idle, self.cached_idle)
        _demand("idle-count", cached_idle + in_line, self.idle)
        _demand("held-count", held, self.live)
        if own is not None:
            _demand("each-block-is-free-or-held", held + own + self.available, self.blocks)


def _demand(invariant: str, seen: object, counted: object) -> None:
    if seen != counted:
        raise InvariantError(invariant, f"{seen} found, {counted} counted")
