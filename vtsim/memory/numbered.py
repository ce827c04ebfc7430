"""Cached content whose blocks have numbers: for policies that decide by where a block lies.

The counting of `vtsim.memory.blocks`, and which numbers stand behind it. Blocks that nobody holds
are not kept here: they go to `freed`, and whoever owns the numbers takes them from there.
"""

from __future__ import annotations

from typing import Any

from vtsim.memory.blocks import BlockStore, CachedRun
from vtsim.memory.eviction import EvictionOrder
from vtsim.memory.radix import Node
from vtsim.request import Run


class NumberedRun(CachedRun):
    """A run of cached content and the numbers of its blocks, in order."""

    __slots__ = ("numbers",)

    def __init__(self, first: int, length: int, start: int, parent: Node | None) -> None:
        super().__init__(first, length, start, parent)
        self.numbers: list[int] = []


class NumberedStore(BlockStore):
    """The content cached in numbered blocks. `fresh` stays 0: free blocks are the owner's."""

    __slots__ = ("freed",)

    def __init__(self, block: int, order: EvictionOrder[Any]) -> None:
        super().__init__(0, block, order, kind=NumberedRun)
        self.freed: list[int] = []
        """Numbers that nothing is cached in any more, until the owner takes them."""

    def keep_numbers(
        self, leaf: CachedRun, cached: int, content: tuple[Run, ...], tokens: int, own: list[int]
    ) -> tuple[CachedRun, int]:
        """`keep`, for a sequence whose blocks behind the `cached` ones are `own`: those that are
        cached now are taken from its front."""
        leaf, moved = self.keep(leaf, cached, content, tokens)
        node, left = leaf, moved
        while left:
            assert isinstance(node, NumberedRun) and node.parent is not None
            node.numbers = own[left - node.blocks : left]
            left -= node.blocks
            node = node.parent  # type: ignore[assignment]
        del own[:moved]
        return leaf, moved

    def numbers(self, leaf: CachedRun) -> list[int]:
        """The cached blocks of a table that ends in `leaf`, in order."""
        parts: list[list[int]] = []
        node = leaf
        while node is not self.root:
            parts.append(node.numbers)  # type: ignore[attr-defined]
            node = node.parent  # type: ignore[assignment]
        return [number for part in reversed(parts) for number in part]

    def idle_numbers(self) -> set[int]:
        """Cached blocks that nobody holds."""
        nodes = (node for node in self._tree if not node.live)
        return {number for node in nodes for number in node.numbers}  # type: ignore[attr-defined]

    def _cut(self, node: CachedRun, blocks: int) -> None:
        assert isinstance(node, NumberedRun)
        self.freed += reversed(node.numbers[-blocks:])
        del node.numbers[-blocks:]
        super()._cut(node, blocks)

    def _forget(self, node: CachedRun) -> None:
        assert isinstance(node, NumberedRun)
        self.freed += node.numbers
        node.numbers = []
        node.blocks = 0

    def _split(self, node: CachedRun, at: int) -> CachedRun:
        assert isinstance(node, NumberedRun)
        numbers = node.numbers
        head = super()._split(node, at)
        assert isinstance(head, NumberedRun)
        head.numbers, node.numbers = numbers[: head.blocks], numbers[head.blocks :]
        return head
