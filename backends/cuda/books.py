"""A vTensor pool's books: which unit is mapped where, and the operations that make it so.

A unit is one chunk in every arena. What is written down is meant to be executed; if the device
refuses, the caller takes it back (`unmap` behind a failed `map`, and forgets the operations).
"""

from __future__ import annotations

from vtsim.plan import Operation, OpKind


class Books:
    """Page tables by slot, owners by unit, pooled units, newest last."""

    def __init__(self, arenas: int, chunk_bytes: int) -> None:
        self.arenas = arenas
        self.chunk_bytes = chunk_bytes
        self.tables: dict[int, list[int]] = {}
        self.owners: dict[int, int] = {}
        self.pooled: list[int] = []
        self._next = 0

    @property
    def created(self) -> int:
        """Units that exist."""
        return len(self.owners) + len(self.pooled)

    def owned_alone(self, slot: int, first: int = 0) -> bool:
        """True if no unit of the slot, from the `first`, is mapped elsewhere: only then may they
        be written."""
        return all(self.owners[unit] == 1 for unit in self.tables.get(slot, [])[first:])

    def _each(self, kind: OpKind, unit: int, slot: int = -1, index: int = -1) -> list[Operation]:
        return [
            Operation(
                kind,
                chunk=unit * self.arenas + arena,
                slot=slot,
                arena=arena if slot >= 0 else -1,
                index=index,
                nbytes=self.chunk_bytes,
            )
            for arena in range(self.arenas)
        ]

    def reserve(self, kind: OpKind, nbytes: int) -> list[Operation]:
        """RESERVE or FREE every arena."""
        return [Operation(kind, arena=arena, nbytes=nbytes) for arena in range(self.arenas)]

    def create(self, units: int) -> list[Operation]:
        """Operations that create `units`; nothing is written down before `add`."""
        new = range(self._next, self._next + units)
        return [op for unit in new for op in self._each(OpKind.CREATE, unit)]

    def add(self, units: int) -> None:
        """The units last asked of `create` exist now, pooled."""
        self.pooled.extend(range(self._next, self._next + units))
        self._next += units

    def destroy(self, units: int) -> list[Operation]:
        """The longest pooled units go."""
        gone, self.pooled = self.pooled[:units], self.pooled[units:]
        return [op for unit in gone for op in self._each(OpKind.DESTROY, unit)]

    def map(self, slot: int, units: int) -> list[Operation]:
        """Pooled units, the newest first, behind what the slot has."""
        table = self.tables.setdefault(slot, [])
        operations: list[Operation] = []
        for _ in range(units):
            unit = self.pooled.pop()
            operations += self._each(OpKind.MAP, unit, slot, len(table))
            table.append(unit)
            self.owners[unit] = 1
        return operations

    def share(self, slot: int, source: int, units: int) -> list[Operation]:
        """The first units of `source` at the start of an empty slot."""
        table = self.tables.setdefault(slot, [])
        assert not table
        operations: list[Operation] = []
        for index, unit in enumerate(self.tables[source][:units]):
            operations += self._each(OpKind.MAP, unit, slot, index)
            table.append(unit)
            self.owners[unit] += 1
        return operations

    def unmap(self, slot: int, keep: int = 0) -> list[Operation]:
        """A slot down to its first `keep` units; units nobody maps any more are pooled."""
        table = self.tables.get(slot, [])
        operations: list[Operation] = []
        while len(table) > keep:
            unit = table.pop()
            operations += self._each(OpKind.UNMAP, unit, slot, len(table))
            self.owners[unit] -= 1
            if not self.owners[unit]:
                del self.owners[unit]
                self.pooled.append(unit)
        if not table:
            self.tables.pop(slot, None)
        return operations

    def copy(self, slot: int, source: int, offset: int, nbytes: int) -> list[Operation]:
        """Bytes of another slot, the same ones in each arena."""
        return [
            Operation(
                OpKind.COPY, slot=slot, arena=arena, source=source, offset=offset, nbytes=nbytes
            )
            for arena in range(self.arenas)
        ]

    def swap(self, kind: OpKind, slot: int, name: int, nbytes: int) -> list[Operation]:
        """The first `nbytes` of each arena of a slot, to or from host memory under `name`."""
        return [
            Operation(kind, chunk=name, slot=slot, arena=arena, nbytes=nbytes)
            for arena in range(self.arenas if nbytes else 0)
        ]
