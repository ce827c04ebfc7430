"""Placement of chunks of several sizes: which backs which index of which slot, one pool a size.

As `vtsim.memory.placement`, with amounts and indices in units of the smallest size. It follows the
counts and decides nothing.
"""

from __future__ import annotations

from collections import deque

from vtsim.errors import InvariantError
from vtsim.memory.placement import Placement
from vtsim.plan import OpKind
from vtsim.spec import KVLayout


class SizedPlacement(Placement):
    """Chunk number u is the handles [u * arenas, (u + 1) * arenas), one an arena, all of one size.
    A slot's table lists its chunks; where each begins, and how large it is, the layout says."""

    def __init__(self, kv: KVLayout) -> None:
        super().__init__(kv.arenas, kv.chunk_bytes)
        self.kv = kv
        self.free: list[deque[int]] = [deque() for _ in kv.chunk_sizes]
        self._sizes: dict[int, int] = {}  # live chunk -> size, 0 for the smallest

    def _nbytes(self, unit: int) -> int:
        return self.chunk_bytes << self._sizes[unit]

    def map_new(self, slot: int, units: int, due: int = 0) -> None:
        """Map chunks of `units` together behind what the slot has: of each size the most recently
        pooled first, then new ones."""
        kv = self.kv
        table = self.tables.setdefault(slot, [])
        at = kv.chunk_start(len(table))
        end = at + units
        while at < end:
            index, at = at, kv.chunk_start(len(table) + 1)
            size = (at - index).bit_length() - 1
            if self.free[size]:
                unit = self.free[size].pop()
            else:
                unit = self._next_unit
                self._next_unit += 1
                self._sizes[unit] = size
                self._put(OpKind.CREATE, unit, -1, -1, due)
            self._put(OpKind.MAP, unit, slot, index, due)
            table.append(unit)
            self.references[unit] = 1

    def share(self, slot: int, source: int, units: int) -> None:
        """Map the chunks that the first `units` of another slot are made of at the start of an
        empty one."""
        kv = self.kv
        table = self.tables.setdefault(slot, [])
        assert not table
        for unit in self.tables[source][: kv.chunks(units)]:
            self._put(OpKind.MAP, unit, slot, kv.chunk_start(len(table)), 0)
            table.append(unit)
            self.references[unit] += 1

    def unmap(self, slot: int, keep: int, due: int = 0) -> None:
        """Unmap a slot down to its first `keep` units; chunks nobody maps any more are pooled."""
        kv = self.kv
        table = self.tables[slot]
        left = kv.chunks(keep)
        while len(table) > left:
            unit = table.pop()
            self._put(OpKind.UNMAP, unit, slot, kv.chunk_start(len(table)), due)
            self.references[unit] -= 1
            if not self.references[unit]:
                del self.references[unit]
                self.free[self._sizes[unit]].append(unit)
        if not table:
            del self.tables[slot]

    def destroy(self, units: int, size: int = 0, due: int = 0) -> None:
        """Destroy the `units` longest pooled chunks of a size."""
        for _ in range(units):
            unit = self.free[size].popleft()
            self._put(OpKind.DESTROY, unit, -1, -1, due)
            del self._sizes[unit]

    def check(self, pooled: int, created: int) -> None:
        """Raises InvariantError where tables, counts (in units) and references disagree."""
        seen: dict[int, int] = {}
        for slot, table in self.tables.items():
            for number, unit in enumerate(table):
                seen[unit] = seen.get(unit, 0) + 1
                belongs = self.kv.chunk_bytes_at(self.kv.chunk_start(number))
                if self.chunk_bytes << self._sizes[unit] != belongs:
                    raise InvariantError("size-by-position", f"slot {slot}, chunk {number}")
        if seen != self.references:
            raise InvariantError("mapped-reference-count-times", "tables and counts differ")
        idle = {unit for free in self.free for unit in free}
        units = {unit: 1 << size for unit, size in self._sizes.items()}
        if sum(units[unit] for unit in idle) != pooled:
            raise InvariantError("pooled-count", f"{len(idle)} chunks placed, {pooled} counted")
        if idle & seen.keys():
            raise InvariantError("free-or-mapped", "a pooled chunk is mapped")
        if idle | seen.keys() != units.keys() or sum(units.values()) != created:
            raise InvariantError(
                "each-chunk-is-free-or-mapped",
                f"{sum(units.values())} units placed, {created} counted",
            )

    def free_by_size(self) -> list[int]:
        """Pooled chunks of each size."""
        return [len(free) for free in self.free]
