"""Placement: which unit backs which index of which slot, and the operations that make it so.

The counts decide; placement follows them, and exists only where somebody needs the operations: the
call log, the checking driver, real memory. It must not influence a decision.
"""

from __future__ import annotations

from collections import deque

from vtsim.errors import InvariantError
from vtsim.plan import Operation, OpKind


class Placement:
    """Page tables by slot, reference counts by unit, pooled units in order of pooling.

    Unit u is the chunks [u * arenas, (u + 1) * arenas), one an arena.
    """

    def __init__(self, arenas: int, chunk_bytes: int) -> None:
        self.arenas = arenas
        self.chunk_bytes = chunk_bytes
        self.tables: dict[int, list[int]] = {}
        self.references: dict[int, int] = {}
        self.pooled: deque[int] = deque()
        self._next_unit = 0
        self._operations: list[Operation] = []

    def drain(self) -> tuple[Operation, ...]:
        """The operations since the last call, in order."""
        operations = tuple(self._operations)
        self._operations.clear()
        return operations

    def reserve(self, kind: OpKind, nbytes: int) -> None:
        """RESERVE or FREE every arena."""
        for arena in range(self.arenas):
            self._operations.append(Operation(kind, arena=arena, nbytes=nbytes))

    def _nbytes(self, unit: int) -> int:
        """Size of each of its chunks."""
        return self.chunk_bytes

    def _put(self, kind: OpKind, unit: int, slot: int, index: int, due: int) -> None:
        nbytes = self._nbytes(unit)
        for arena in range(self.arenas):
            self._operations.append(
                Operation(
                    kind,
                    chunk=unit * self.arenas + arena,
                    slot=slot,
                    arena=arena,
                    index=index,
                    nbytes=nbytes,
                    due=due,
                )
            )

    def map_new(self, slot: int, units: int, due: int = 0) -> None:
        """Map `units` behind what the slot has: the most recently pooled first, then new ones."""
        table = self.tables.setdefault(slot, [])
        for _ in range(units):
            if self.pooled:
                unit = self.pooled.pop()
            else:
                unit = self._next_unit
                self._next_unit += 1
                self._put(OpKind.CREATE, unit, -1, -1, due)
            self._put(OpKind.MAP, unit, slot, len(table), due)
            table.append(unit)
            self.references[unit] = 1

    def share(self, slot: int, source: int, units: int) -> None:
        """Map the first `units` of another slot at the start of an empty one."""
        table = self.tables.setdefault(slot, [])
        assert not table
        for index, unit in enumerate(self.tables[source][:units]):
            self._put(OpKind.MAP, unit, slot, index, 0)
            table.append(unit)
            self.references[unit] += 1

    def copy(self, slot: int, source: int, offset: int, nbytes: int) -> None:
        """Copy `nbytes` at `offset` of each arena from another slot."""
        for arena in range(self.arenas):
            self._operations.append(
                Operation(
                    OpKind.COPY,
                    slot=slot,
                    arena=arena,
                    source=source,
                    offset=offset,
                    nbytes=nbytes,
                )
            )

    def unmap(self, slot: int, keep: int, due: int = 0) -> None:
        """Unmap a slot down to its first `keep` units; units nobody maps any more are pooled."""
        table = self.tables[slot]
        while len(table) > keep:
            unit = table.pop()
            self._put(OpKind.UNMAP, unit, slot, len(table), due)
            self.references[unit] -= 1
            if not self.references[unit]:
                del self.references[unit]
                self.pooled.append(unit)
        if not table:
            del self.tables[slot]

    def destroy(self, units: int) -> None:
        """Destroy the longest pooled units."""
        for _ in range(units):
            self._put(OpKind.DESTROY, self.pooled.popleft(), -1, -1, 0)

    def check(self, pooled: int, created: int) -> None:
        """Raises InvariantError where tables, counts and references disagree."""
        seen: dict[int, int] = {}
        for table in self.tables.values():
            for unit in table:
                seen[unit] = seen.get(unit, 0) + 1
        if seen != self.references:
            raise InvariantError("mapped-reference-count-times", "tables and counts differ")
        if len(self.pooled) != pooled:
            raise InvariantError("pooled-count", f"{len(self.pooled)} placed, {pooled} counted")
        if len(seen) + pooled != created:
            raise InvariantError(
                "each-chunk-is-free-or-mapped", f"{len(seen)} + {pooled} placed, {created} counted"
            )
        if set(self.pooled) & seen.keys():
            raise InvariantError("free-or-mapped", "a pooled unit is mapped")
