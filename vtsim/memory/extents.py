"""Shared page tables: which runs of units are mapped by whom, with reference counts.

A page table that was made from a recorded prefix begins with that prefix's units. So all tables
together form a tree: an `Extent` is a run of unit indices, a table is the path from the root to its
leaf extent, and an extent lives while any table leads through it. Extents split where a new table
branches off; whoever holds the tail still holds the whole path.
"""

from __future__ import annotations


class Extent:
    """Units at indices [start, end) of every table that leads through; `live` of these tables
    belong to sequences, `records` to recorded prefixes."""

    __slots__ = ("end", "live", "parent", "records", "start")

    def __init__(self, start: int, end: int, parent: Extent | None) -> None:
        self.start = start
        self.end = end
        self.parent = parent
        self.live = 0
        self.records = 0


class ExtentTree:
    """The extents' books: units needed by sequences, and those kept only for records."""

    __slots__ = ("live_units", "record_units")

    def __init__(self) -> None:
        self.live_units = 0
        """Units of extents that a sequence's table leads through, each counted once."""
        self.record_units = 0
        """Units of extents that only records lead through."""

    def branch(self, leaf: Extent, at: int) -> Extent:
        """The extent of `leaf`'s path that ends at index `at` (> 0), split if need be."""
        node = leaf
        while node.start >= at:
            assert node.parent is not None
            node = node.parent
        if node.end == at:
            return node
        head = Extent(node.start, at, node.parent)
        head.live, head.records = node.live, node.records
        node.start = at
        node.parent = head
        return head

    def idle_units(self, leaf: Extent | None) -> int:
        """Units of a path that only records lead through. Pure."""
        units = 0
        node = leaf
        while node is not None:
            if node.live == 0:
                units += node.end - node.start
            node = node.parent
        return units

    def hold(self, leaf: Extent | None) -> None:
        """A sequence's table now leads through the path that ends in `leaf`."""
        node = leaf
        while node is not None:
            if node.live == 0:
                units = node.end - node.start
                self.live_units += units
                if node.records:
                    self.record_units -= units
            node.live += 1
            node = node.parent

    def drop(self, leaf: Extent | None) -> int:
        """It no longer does; returns the units that nobody holds any more."""
        freed = 0
        node = leaf
        while node is not None:
            node.live -= 1
            if node.live == 0:
                units = node.end - node.start
                self.live_units -= units
                if node.records:
                    self.record_units += units
                else:
                    freed += units
            node = node.parent
        return freed

    def record(self, leaf: Extent | None) -> None:
        """A record's table now leads through the path that ends in `leaf`."""
        node = leaf
        while node is not None:
            if node.records == 0 and node.live == 0:
                self.record_units += node.end - node.start
            node.records += 1
            node = node.parent

    def forget(self, leaf: Extent | None) -> int:
        """A record is gone; returns the units that nobody holds any more."""
        freed = 0
        node = leaf
        while node is not None:
            node.records -= 1
            if node.records == 0 and node.live == 0:
                units = node.end - node.start
                self.record_units -= units
                freed += units
            node = node.parent
        return freed
