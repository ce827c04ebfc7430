"""A radix tree over token content: longest common prefixes by arithmetic on runs of addresses.

A node is one run of consecutive token addresses (`vtsim.request`); a path from the root spells the
content of a prefix. What hangs at a node is its owner's affair: policies subclass `Node`. The tree
must not know memory, units or eviction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from vtsim.request import Run


class Node:
    """Addresses [first, first + length), at depth `start` tokens below the root."""

    __slots__ = ("children", "first", "length", "parent", "start")

    def __init__(self, first: int, length: int, start: int, parent: Node | None) -> None:
        self.first = first
        self.length = length
        self.start = start
        self.parent = parent
        self.children: dict[int, Node] = {}

    @property
    def end(self) -> int:
        """Depth of the node's end, in tokens."""
        return self.start + self.length


N = TypeVar("N", bound=Node)


class RadixTree(Generic[N]):
    """Nodes of type `kind`, found by content."""

    __slots__ = ("_kind", "root")

    def __init__(self, kind: type[N]) -> None:
        self._kind = kind
        self.root: N = kind(-1, 0, 0, None)

    def walk(self, content: tuple[Run, ...]) -> tuple[list[N], int]:
        """The nodes that `content` leads through, and how many tokens agree. Pure.

        Runs must be as long as they can be: no run may begin where the one before it ends.
        The last node may agree in part only: where the count is less than its `end`.
        """
        path: list[N] = []
        depth = 0
        node: Node = self.root
        for first, length in content:
            while length:
                child = node.children.get(first)
                if child is None:
                    return path, depth
                path.append(child)  # type: ignore[arg-type]
                same = child.length if child.length < length else length
                depth += same
                if same < child.length:
                    return path, depth
                node = child
                first += same
                length -= same
        return path, depth

    def split(self, node: N, at: int) -> N:
        """Cut `node` after its first `at` tokens; returns the new head. `node` stays the tail, so
        that whoever holds it still holds the whole path."""
        assert 0 < at < node.length and node.parent is not None
        head = self._kind(node.first, at, node.start, node.parent)
        node.parent.children[node.first] = head
        node.first += at
        node.start += at
        node.length -= at
        node.parent = head
        head.children[node.first] = node
        return head

    def add(self, parent: N, content: tuple[Run, ...]) -> N:
        """Append `content` below `parent`, a node a run; returns the last. It must be new there."""
        node: N = parent
        for first, length in content:
            assert first not in node.children
            child = self._kind(first, length, node.end, node)
            node.children[first] = child
            node = child
        return node

    def remove(self, node: N) -> None:
        """Take a leaf out."""
        assert not node.children and node.parent is not None
        del node.parent.children[node.first]
        node.parent = None

    def __iter__(self) -> Iterator[N]:
        """All nodes but the root, parents first."""
        stack: list[Node] = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node  # type: ignore[misc]


def clip(content: tuple[Run, ...], start: int, end: int) -> tuple[Run, ...]:
    """The runs of tokens [start, end) of `content`."""
    runs: list[Run] = []
    depth = 0
    for first, length in content:
        low = start - depth if start > depth else 0
        high = end - depth if end - depth < length else length
        if low < high:
            runs.append((first + low, high - low))
        depth += length
        if depth >= end:
            break
    return tuple(runs)


def join(head: tuple[Run, ...], tail: tuple[Run, ...]) -> tuple[Run, ...]:
    """`head` and then `tail`. Where one run goes on in the next they become one: the tree finds
    content by the first address of its longest runs."""
    if head and tail and sum(head[-1]) == tail[0][0]:
        first, length = head[-1]
        return (*head[:-1], (first, length + tail[0][1]), *tail[1:])
    return head + tail


def tokens_of(content: tuple[Run, ...]) -> int:
    """How many tokens the runs name."""
    return sum(length for _, length in content)
