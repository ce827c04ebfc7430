"""rTree: recorded vTensors, found by the content they hold.

A record is a node of the paper's radix tree: a finished sequence's page table, kept for sequences
that begin alike. Longest-prefix match, least recently used goes first unless another order is
given, and a match keeps the record for others. What memory a record holds is its owner's affair.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from vtsim.memory.eviction import EvictionOrder
from vtsim.memory.radix import Node, RadixTree, clip
from vtsim.request import Run


class Record:
    """A recorded prefix of `tokens` tokens. `payload` is the owner's."""

    __slots__ = ("node", "payload", "serial", "tokens", "uses")

    def __init__(self, tokens: int, payload: Any, serial: int, node: Passage) -> None:
        self.tokens = tokens
        self.payload = payload
        self.serial = serial  # of its last use: larger is more recent
        self.node = node
        self.uses = 1

    # What an eviction order asks (`vtsim.memory.eviction.Entry`):

    @property
    def begins(self) -> int:
        return 0

    @property
    def ends(self) -> int:
        return self.tokens

    @property
    def address(self) -> int:
        """Where it parts from the records that it shares its beginning with."""
        return self.node.first


class Passage(Node):
    """A run of content and the most recently used record whose content leads through it."""

    __slots__ = ("ends", "newest")

    def __init__(self, first: int, length: int, start: int, parent: Node | None) -> None:
        super().__init__(first, length, start, parent)
        self.newest: Record | None = None
        self.ends: Record | None = None  # the record that ends here


class PrefixTree:
    """Records by content, in order of use; `order`: the order of their eviction, if another."""

    __slots__ = ("_order", "_serial", "_tree", "records")

    def __init__(self, order: EvictionOrder[Record] | None = None) -> None:
        self._order = order
        self._tree: RadixTree[Passage] = RadixTree(Passage)
        self._serial = 0
        self.records: OrderedDict[int, Record] = OrderedDict()
        """By serial number, least recently used first."""

    def __len__(self) -> int:
        return len(self.records)

    def match(self, content: tuple[Run, ...]) -> tuple[int, Record | None]:
        """Tokens of the longest recorded prefix of `content`, and who holds it. Pure."""
        path, depth = self._tree.walk(content)
        return (depth, path[-1].newest) if path else (0, None)

    def covers(self, content: tuple[Run, ...], tokens: int) -> Record | None:
        """A record that holds the first `tokens` tokens already. Pure."""
        path, depth = self._tree.walk(content)
        return path[-1].newest if path and depth >= tokens else None

    def insert(self, content: tuple[Run, ...], tokens: int, payload: Any, uses: int = 1) -> Record:
        """Record the first `tokens` of `content`, which nobody `covers`."""
        path, depth = self._tree.walk(content)
        parent = path[-1] if path else self._tree.root
        if path and depth < parent.end:
            head = self._tree.split(parent, depth - parent.start)
            head.newest = parent.newest
            if self._order is not None and parent.ends is not None:
                self._order.changed(parent.ends)
            parent = head
        leaf = self._tree.add(parent, clip(content, depth, tokens))
        self._serial += 1
        record = Record(tokens, payload, self._serial, leaf)
        record.uses = uses
        self.records[record.serial] = record
        leaf.ends = record
        self._pass(record)
        if self._order is not None:
            self._order.add(record)
        return record

    def touch(self, record: Record) -> None:
        """`record` has been used."""
        del self.records[record.serial]
        self._serial += 1
        record.serial = self._serial
        self.records[record.serial] = record
        self._pass(record)
        record.uses += 1
        if self._order is not None:
            self._order.add(record)

    def admitted(self, row: int) -> None:
        """The trace's request `row` has been (for orders that know the trace)."""
        if self._order is not None:
            self._order.seen(row)

    def remove(self, record: Record, evicted: bool = True) -> None:
        """`record` is no more: evicted, or another one has taken its place."""
        if self._order is not None:
            if evicted:
                self._order.evicted(record)
            else:
                self._order.discard(record)
        del self.records[record.serial]
        record.node.ends = None
        node: Passage | None = record.node
        root = self._tree.root
        while node is not None and node is not root:
            parent: Passage | None = node.parent  # type: ignore[assignment]
            if node.ends is None and not node.children:
                self._tree.remove(node)
            elif node.newest is record:
                node.newest = self._newest_below(node)
            node = parent

    def oldest(self, but: Record | None = None) -> Record | None:
        """The first record to go that is not `but`: the least recently used, or as `order` says."""
        if self._order is not None:
            return self._order.first(but)
        for record in self.records.values():
            if record is not but:
                return record
        return None

    def _pass(self, record: Record) -> None:
        node: Node | None = record.node
        root = self._tree.root
        while node is not None and node is not root:
            node.newest = record  # type: ignore[attr-defined]
            node = node.parent

    @staticmethod
    def _newest_below(node: Passage) -> Record | None:
        newest = node.ends
        for child in node.children.values():
            other: Record = child.newest  # type: ignore[attr-defined]
            if newest is None or other.serial > newest.serial:
                newest = other
        return newest
