"""A strict model of CUDA's memory driver: it does what a card would, and refuses what one should.

It executes one operation at a time and knows nothing of plans. Every broken rule is an
`InvariantError`, because it is a fault of the caller:

| invariant | rule |
|---|---|
| driver-size | sizes are positive, whole multiples of what they are cut from, and the layout's |
| driver-reserve | an arena is reserved once, and freed whole with nothing mapped in it |
| driver-addresses | reservations fit the device's addresses |
| driver-create | a live chunk is not created again |
| driver-destroy | what is destroyed is live and mapped nowhere |
| driver-map | a live chunk, whole, at an index inside its slot where nothing is mapped |
| driver-unmap | the chunk named is mapped there |
| driver-access | copies and swaps touch mapped bytes only |
| driver-shared-write | nothing is written to a chunk that is mapped at more than one place |
| driver-allocation | an allocation is made once, and freed with the size it has |
| driver-leak | nothing is left at close |
"""

from __future__ import annotations

from collections.abc import Callable

from vtsim.backends.transaction import OutOfMemory, Place, broken
from vtsim.errors import InvariantError
from vtsim.plan import Operation, OpKind
from vtsim.ports import DeviceInfo
from vtsim.spec import KVLayout


class SimDriver:
    """Reservations, handles, mappings and ordinary allocations of one device."""

    def __init__(self, info: DeviceInfo, kv: KVLayout, available_bytes: int) -> None:
        self.info = info
        self.kv = kv
        self.available_bytes = available_bytes
        """What may be in use; lowering it below what is in use makes further calls fail."""
        self.bytes_in_use = 0
        self._reserved: dict[int, int] = {}
        self._sizes = kv.chunk_sizes
        self._chunks: dict[int, int] = {}
        """Live chunk -> places where it is mapped."""
        self._nbytes: dict[int, int] = {}
        """Live chunk -> its size."""
        self._mapped: dict[Place, int] = {}
        self._mapped_in: dict[int, int] = {}
        """Arena -> mappings in it."""
        self._allocations: dict[int, int] = {}
        table: dict[OpKind, Callable[[Operation], None]] = {
            OpKind.RESERVE: self._reserve,
            OpKind.FREE: self._free,
            OpKind.CREATE: self._create,
            OpKind.DESTROY: self._destroy,
            OpKind.MAP: self._map,
            OpKind.UNMAP: self._unmap,
            OpKind.COPY: self._copy,
            OpKind.SWAP_OUT: self._swap_out,
            OpKind.SWAP_IN: self._swap_in,
            OpKind.ALLOCATE: self._allocate,
            OpKind.DEALLOCATE: self._deallocate,
        }
        self._calls = [table[kind] for kind in OpKind]

    def execute(self, operation: Operation) -> None:
        """One call. Raises InvariantError or OutOfMemory, and has then changed nothing."""
        self._calls[operation.kind](operation)

    def flush(self) -> None:
        """Nothing is ever put off here."""

    def page_table(self) -> dict[Place, int]:
        """Place -> chunk, a copy."""
        return dict(self._mapped)

    def chunk_at(self, place: Place) -> int:
        """The chunk mapped at a place; -1 for none."""
        return self._mapped.get(place, -1)

    def snapshot(self) -> tuple[object, ...]:
        """All of the state, to compare."""
        return (
            self.bytes_in_use,
            dict(self._reserved),
            dict(self._chunks),
            dict(self._nbytes),
            dict(self._mapped),
            dict(self._allocations),
        )

    def check_empty(self) -> None:
        """Raises InvariantError (driver-leak) naming what is left."""
        left = {
            "mappings": len(self._mapped),
            "chunks": len(self._chunks),
            "allocations": len(self._allocations),
            "reservations": len(self._reserved),
        }
        if any(left.values()):
            what = ", ".join(f"{count} {name}" for name, count in left.items() if count)
            raise InvariantError("driver-leak", f"left at close: {what}")

    # -- addresses --------------------------------------------------------------------------------

    def _reserve(self, op: Operation) -> None:
        if not 0 <= op.arena < self.kv.arenas:
            raise broken("driver-reserve", op, f"the layout has {self.kv.arenas} arenas")
        if op.arena in self._reserved:
            raise broken("driver-reserve", op, "the arena is reserved already")
        if op.nbytes <= 0 or op.nbytes % self.info.granularity_bytes:
            raise broken("driver-size", op, "no positive multiple of the granularity")
        if sum(self._reserved.values()) + op.nbytes > self.info.va_bytes:
            raise broken("driver-addresses", op, f"the device has {self.info.va_bytes} B of them")
        self._reserved[op.arena] = op.nbytes

    def _free(self, op: Operation) -> None:
        if self._reserved.get(op.arena) != op.nbytes:
            raise broken("driver-reserve", op, f"reserved: {self._reserved.get(op.arena)} B")
        if self._mapped_in.get(op.arena):
            raise broken("driver-reserve", op, "something is mapped in the arena")
        del self._reserved[op.arena]

    def _check_place(self, invariant: str, op: Operation, slot: int) -> None:
        """The slot lies in its arena's reservation."""
        reserved = self._reserved.get(op.arena)
        if reserved is None:
            raise broken(invariant, op, "the arena is not reserved")
        if not 0 <= slot < reserved // self.kv.slot_stride_bytes:
            raise broken(invariant, op, f"slot {slot} is outside the arena")

    # -- chunks -----------------------------------------------------------------------------------

    def _create(self, op: Operation) -> None:
        if op.chunk < 0 or op.chunk in self._chunks:
            raise broken("driver-create", op, "the chunk is live already")
        if op.nbytes <= 0 or op.nbytes % self.info.granularity_bytes:
            raise broken("driver-size", op, "no positive multiple of the granularity")
        if op.nbytes not in self._sizes:
            raise broken("driver-size", op, f"chunks have {_or(self._sizes)} B")
        self._take(op.nbytes)
        self._chunks[op.chunk] = 0
        self._nbytes[op.chunk] = op.nbytes

    def _destroy(self, op: Operation) -> None:
        places = self._chunks.get(op.chunk)
        if places is None:
            raise broken("driver-destroy", op, "no such chunk")
        if places:
            raise broken("driver-destroy", op, f"the chunk is mapped at {places} places")
        if op.nbytes != self._nbytes[op.chunk]:
            raise broken("driver-size", op, f"the chunk has {self._nbytes[op.chunk]} B")
        del self._chunks[op.chunk], self._nbytes[op.chunk]
        self.bytes_in_use -= op.nbytes

    def _map(self, op: Operation) -> None:
        if op.chunk not in self._chunks:
            raise broken("driver-map", op, "no such chunk")
        self._check_place("driver-map", op, op.slot)
        if not 0 <= op.index < self.kv.slot_units:
            raise broken("driver-map", op, f"a slot has {self.kv.slot_units} indices")
        if op.nbytes != self._nbytes[op.chunk]:
            raise broken("driver-size", op, "a chunk maps whole or not at all")
        here = self.kv.chunk_bytes_at(op.index)
        if op.nbytes != here:
            raise broken("driver-size", op, f"a chunk of {here} B belongs there")
        if op.index + here // self.kv.chunk_bytes > self.kv.slot_units:
            raise broken("driver-map", op, f"a slot has {self.kv.slot_units} indices")
        place = (op.arena, op.slot, op.index)
        if place in self._mapped:
            raise broken("driver-map", op, f"chunk {self._mapped[place]} is mapped there")
        self._mapped[place] = op.chunk
        self._chunks[op.chunk] += 1
        self._mapped_in[op.arena] = self._mapped_in.get(op.arena, 0) + 1

    def _unmap(self, op: Operation) -> None:
        place = (op.arena, op.slot, op.index)
        there = self._mapped.get(place)
        if there is None or there != op.chunk:
            what = "nothing" if there is None else f"chunk {there}"
            raise broken("driver-unmap", op, f"{what} is mapped there")
        if op.nbytes != self._nbytes[op.chunk]:
            raise broken("driver-size", op, "a mapping is undone whole")
        del self._mapped[place]
        self._chunks[op.chunk] -= 1
        self._mapped_in[op.arena] -= 1

    # -- bytes ------------------------------------------------------------------------------------

    def _copy(self, op: Operation) -> None:
        if op.source == op.slot:
            raise broken("driver-access", op, "source and destination are one slot")
        self._touch(op, op.source, write=False)
        self._touch(op, op.slot, write=True)

    def _swap_out(self, op: Operation) -> None:
        if op.slot != -1:
            self._touch(op, op.slot, write=False)
        elif op.nbytes <= 0:  # blocks of a pool, wherever they lie
            raise broken("driver-size", op, "not positive")

    def _swap_in(self, op: Operation) -> None:
        if op.slot != -1:
            self._touch(op, op.slot, write=True)
        elif op.nbytes <= 0:
            raise broken("driver-size", op, "not positive")

    def _touch(self, op: Operation, slot: int, *, write: bool) -> None:
        """Every byte of the operation's range is mapped in `slot`, and may be written."""
        self._check_place("driver-access", op, slot)
        end = op.offset + op.nbytes
        if op.offset < 0 or op.nbytes <= 0 or end > self.kv.slot_stride_bytes:
            raise broken("driver-size", op, f"a slot has {self.kv.slot_stride_bytes} B")
        chunk_bytes = self.kv.chunk_bytes
        for index in self.kv.chunk_starts(op.offset // chunk_bytes, -(-end // chunk_bytes)):
            chunk = self._mapped.get((op.arena, slot, index))
            if chunk is None:
                raise broken("driver-access", op, f"slot {slot} has nothing mapped at {index}")
            if write and self._chunks[chunk] > 1:
                raise broken(
                    "driver-shared-write", op, f"chunk {chunk} has {self._chunks[chunk]} owners"
                )

    # -- ordinary memory --------------------------------------------------------------------------

    def _allocate(self, op: Operation) -> None:
        if op.chunk < 0 or op.chunk in self._allocations:
            raise broken("driver-allocation", op, "it is allocated already")
        if op.nbytes <= 0:
            raise broken("driver-size", op, "not positive")
        self._take(op.nbytes)
        self._allocations[op.chunk] = op.nbytes

    def _deallocate(self, op: Operation) -> None:
        if self._allocations.get(op.chunk) != op.nbytes:
            raise broken("driver-allocation", op, f"allocated: {self._allocations.get(op.chunk)} B")
        del self._allocations[op.chunk]
        self.bytes_in_use -= op.nbytes

    def _take(self, nbytes: int) -> None:
        short = self.bytes_in_use + nbytes - self.available_bytes
        if short > 0:
            raise OutOfMemory(short)
        self.bytes_in_use += nbytes


def _or(sizes: tuple[int, ...]) -> str:
    return " or ".join(map(str, sizes))
