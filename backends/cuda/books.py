"""A vTensor pool's books: which chunk is mapped where, and the operations that make it so.

A chunk stands for one handle in every arena; amounts are in the layout's units. What is written
down is meant to be executed; if the device refuses, the caller takes it back (`unmap` behind a
failed `map`, and forgets the operations).
"""

from __future__ import annotations

from vtsim.memory.sized import SizedPool
from vtsim.plan import Operation, OpKind
from vtsim.spec import KVLayout


class Books:
    """Page tables by slot, owners by chunk, pooled chunks by size, newest last."""

    def __init__(self, kv: KVLayout) -> None:
        self.kv = kv
        self.arenas = kv.arenas
        self.tables: dict[int, list[int]] = {}
        self.owners: dict[int, int] = {}
        self.pooled: list[list[int]] = [[] for _ in kv.chunk_sizes]
        self._sizes: dict[int, int] = {}  # chunk -> size, 0 for the smallest
        self._created = 0
        self._pooled = 0
        self._next = 0
        self._new: list[int] = []  # sizes of the chunks last asked of `create`

    @property
    def created(self) -> int:
        """Units that exist."""
        return self._created

    @property
    def pooled_units(self) -> int:
        """Units that exist and are mapped nowhere, of whatever sizes."""
        return self._pooled

    def owned_alone(self, slot: int, first: int = 0) -> bool:
        """True if no chunk of the slot, from the `first` unit on, is mapped elsewhere: only then
        may they be written."""
        table = self.tables.get(slot, [])
        return all(self.owners[chunk] == 1 for chunk in table[self.kv.chunks(first) :])

    def _each(self, kind: OpKind, chunk: int, slot: int = -1, index: int = -1) -> list[Operation]:
        nbytes = self.kv.chunk_sizes[self._sizes[chunk]]
        return [
            Operation(
                kind,
                chunk=chunk * self.arenas + arena,
                slot=slot,
                arena=arena if slot >= 0 else -1,
                index=index,
                nbytes=nbytes,
            )
            for arena in range(self.arenas)
        ]

    def reserve(self, kind: OpKind, nbytes: int) -> list[Operation]:
        """RESERVE or FREE every arena."""
        return [Operation(kind, arena=arena, nbytes=nbytes) for arena in range(self.arenas)]

    def missing(self, first: int, behind: int) -> list[int]:
        """By size, the chunks at the units [first, behind) of a slot beyond those pooled."""
        wanted = self.kv.chunks_by_size(first, behind)
        return [max(0, n - len(free)) for n, free in zip(wanted, self.pooled, strict=True)]

    def create(self, chunks: list[int]) -> list[Operation]:
        """Operations that create so many chunks of each size; they are pooled once `add` has been
        told."""
        self._new = [size for size, number in enumerate(chunks) for _ in range(number)]
        operations: list[Operation] = []
        for chunk, size in enumerate(self._new, self._next):
            self._sizes[chunk] = size
            operations += self._each(OpKind.CREATE, chunk)
            del self._sizes[chunk]
        return operations

    def add(self) -> None:
        """The chunks last asked of `create` exist now, pooled."""
        for size in self._new:
            self._sizes[self._next] = size
            self.pooled[size].append(self._next)
            self._next += 1
            self._created += 1 << size
            self._pooled += 1 << size
        self._new = []

    def destroy(self, units: int, keep: list[int] | None = None) -> list[Operation]:
        """At least `units` of pooled chunks go, by the fewest calls, the longest pooled of a size
        first; of each size the `keep` newest stay."""
        held = keep or [0] * len(self.pooled)
        free = [max(0, len(f) - k) for f, k in zip(self.pooled, held, strict=True)]
        pool = SizedPool(0, len(free))
        pool.give(free, sum(number << size for size, number in enumerate(free)))
        operations: list[Operation] = []
        for size, number in enumerate(pool.trim(units)):
            gone, self.pooled[size] = self.pooled[size][:number], self.pooled[size][number:]
            for chunk in gone:
                operations += self._each(OpKind.DESTROY, chunk)
                del self._sizes[chunk]
            self._created -= number << size
            self._pooled -= number << size
        return operations

    def map(self, slot: int, units: int) -> list[Operation]:
        """Pooled chunks of `units` together, the newest of their sizes first, behind what the slot
        has."""
        kv = self.kv
        table = self.tables.setdefault(slot, [])
        operations: list[Operation] = []
        index = kv.chunk_start(len(table))
        end = index + units
        while index < end:
            more = kv.chunk_end(index) - index
            chunk = self.pooled[more.bit_length() - 1].pop()
            operations += self._each(OpKind.MAP, chunk, slot, index)
            table.append(chunk)
            self.owners[chunk] = 1
            self._pooled -= more
            index += more
        return operations

    def share(self, slot: int, source: int, units: int) -> list[Operation]:
        """The first units of `source` at the start of an empty slot."""
        table = self.tables.setdefault(slot, [])
        assert not table
        operations: list[Operation] = []
        for chunk in self.tables[source][: self.kv.chunks(units)]:
            operations += self._each(OpKind.MAP, chunk, slot, self.kv.chunk_start(len(table)))
            table.append(chunk)
            self.owners[chunk] += 1
        return operations

    def unmap(self, slot: int, keep: int = 0) -> list[Operation]:
        """A slot down to its first `keep` units; chunks nobody maps any more are pooled."""
        table = self.tables.get(slot, [])
        left = self.kv.chunks(keep)
        operations: list[Operation] = []
        while len(table) > left:
            chunk = table.pop()
            operations += self._each(OpKind.UNMAP, chunk, slot, self.kv.chunk_start(len(table)))
            self.owners[chunk] -= 1
            if not self.owners[chunk]:
                del self.owners[chunk]
                size = self._sizes[chunk]
                self.pooled[size].append(chunk)
                self._pooled += 1 << size
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
