"""The device's memory as operations see it: names of chunks, arenas and slots become owned objects.

One operation is one `execute`: checked by the same rules as the simulated driver's, then done by
the card. What is in use and what is mapped where is told by the owned objects. It must not know
plans, tickets or threads; the caller's thread must have the device's context.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from vtsim.backends.cuda.driver import CudaDriver, DeviceOutOfMemory
from vtsim.backends.cuda.fence import Fence
from vtsim.backends.cuda.moves import Mover
from vtsim.backends.cuda.owners import Allocation, Handle, Mapping, Reservation, grant
from vtsim.backends.transaction import OutOfMemory, Place, broken
from vtsim.errors import CudaDriverError, InvariantError
from vtsim.plan import Operation, OpKind
from vtsim.ports import DeviceInfo
from vtsim.spec import KVLayout


def slot_use(slot: int) -> tuple[str, int]:
    """What the fence calls a slot."""
    return ("slot", slot)


def allocation_use(number: int) -> tuple[str, int]:
    """What the fence calls an ordinary allocation."""
    return ("allocation", number)


class CudaMemory:
    """Reservations, handles, mappings and allocations of one device, by name.

    `poison`: a chunk that is mapped for a new owner is filled with 0xFF (NaN in every float type)
    first, so that reading what was never written shows.
    """

    def __init__(
        self,
        driver: CudaDriver,
        info: DeviceInfo,
        kv: KVLayout,
        available_bytes: int,
        *,
        fence: Fence,
        poison: bool = False,
    ) -> None:
        self.driver = driver
        self.info = info
        self.kv = kv
        self.available_bytes = available_bytes
        self.bytes_in_use = 0
        self.fence = fence
        self.poison = poison
        self.moves = Mover(driver, fence)
        self._stride = kv.slot_stride_bytes
        self._chunk_bytes = kv.chunk_bytes
        self._sizes = kv.chunk_sizes
        self._units = kv.slot_units
        self._reservations: dict[int, Reservation] = {}
        self._handles: dict[int, Handle] = {}
        self._mapped: dict[Place, Mapping] = {}
        self._ungranted: dict[int, int] = {}
        """Addresses mapped since `flush`, in order, and the bytes at each."""
        self._allocations: dict[int, Allocation] = {}
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
        """One operation: done, or refused with nothing changed.

        Raises OutOfMemory (the device's own refusal too), InvariantError for a broken rule,
        CudaDriverError for any other status.
        """
        try:
            self._calls[operation.kind](operation)
        except DeviceOutOfMemory:
            raise OutOfMemory(operation.nbytes) from None

    def flush(self) -> None:
        """Grant access to what was mapped since the last time. Raises as `execute` does."""
        if self._ungranted:
            mapped, self._ungranted = self._ungranted, {}
            try:
                grant(self.driver, mapped)
            except DeviceOutOfMemory:
                raise OutOfMemory(self._chunk_bytes) from None

    # -- what there is ----------------------------------------------------------------------------

    def page_table(self) -> dict[Place, int]:
        """Place -> chunk, by the mappings that live."""
        return {place: mapping.handle.name for place, mapping in self._mapped.items()}

    def chunk_at(self, place: Place) -> int:
        """The chunk mapped at a place; -1 for none."""
        mapping = self._mapped.get(place)
        return -1 if mapping is None else mapping.handle.name

    def ask_driver(self, place: Place) -> bool:
        """True if by the driver's own books the place's chunk is mapped there, for writing."""
        mapping = self._mapped[place]
        found = self.driver.handle_at(mapping.address)
        try:
            same = int(found) == int(mapping.handle.value)
        finally:
            self.driver.release(found)
        return same and self.driver.get_access(mapping.address) == 3

    def fill(self, place: Place, byte: int) -> None:
        """Begin to set every byte of the chunk mapped at a place."""
        mapping = self._mapped[place]
        self.moves.fill(mapping.address, byte, mapping.handle.nbytes)

    def reservation(self, arena: int) -> Reservation:
        """The addresses of an arena."""
        return self._reservations[arena]

    def allocation(self, number: int) -> Allocation:
        return self._allocations[number]

    def left(self) -> dict[str, int]:
        """What lives, by kind."""
        return {
            "mappings": len(self._mapped),
            "chunks": len(self._handles),
            "allocations": len(self._allocations),
            "reservations": len(self._reservations),
        }

    def snapshot(self) -> tuple[object, ...]:
        """All of the state, to compare."""
        return (
            self.bytes_in_use,
            {arena: found.nbytes for arena, found in self._reservations.items()},
            {chunk: handle.mappings for chunk, handle in self._handles.items()},
            {chunk: handle.nbytes for chunk, handle in self._handles.items()},
            self.page_table(),
            {number: found.nbytes for number, found in self._allocations.items()},
        )

    def check_empty(self) -> None:
        """Raises InvariantError (driver-leak) naming what is left."""
        left = self.left()
        if any(left.values()):
            what = ", ".join(f"{count} {name}" for name, count in left.items() if count)
            raise InvariantError("driver-leak", f"left at close: {what}")

    def give_all_back(self) -> None:
        """Close whatever lives, once kernels have ended; a context that is broken is let be."""
        with suppress(CudaDriverError):
            self.fence.wait_all()
            self.moves.finish()
        for owners in (
            list(self._mapped.values()),
            list(self._handles.values()),
            list(self._allocations.values()),
            list(self._reservations.values()),
        ):
            for owner in owners:
                with suppress(CudaDriverError, InvariantError):
                    owner.close()
        self._ungranted.clear()
        for books in (self._mapped, self._handles, self._allocations, self._reservations):
            books.clear()
        self.bytes_in_use = 0

    # -- addresses --------------------------------------------------------------------------------

    def _reserve(self, op: Operation) -> None:
        if not 0 <= op.arena < self.kv.arenas:
            raise broken("driver-reserve", op, f"the layout has {self.kv.arenas} arenas")
        if op.arena in self._reservations:
            raise broken("driver-reserve", op, "the arena is reserved already")
        if op.nbytes <= 0 or op.nbytes % self.info.granularity_bytes:
            raise broken("driver-size", op, "no positive multiple of the granularity")
        if sum(r.nbytes for r in self._reservations.values()) + op.nbytes > self.info.va_bytes:
            raise broken("driver-addresses", op, f"the device has {self.info.va_bytes} B of them")
        self._reservations[op.arena] = Reservation(self.driver, op.nbytes)

    def _free(self, op: Operation) -> None:
        found = self._reservations.get(op.arena)
        if found is None or found.nbytes != op.nbytes:
            raise broken("driver-reserve", op, f"reserved: {found.nbytes if found else None} B")
        if found.mappings:
            raise broken("driver-reserve", op, "something is mapped in the arena")
        if self.moves.busy:
            self.moves.finish()
        found.close()
        del self._reservations[op.arena]

    # -- chunks -----------------------------------------------------------------------------------

    def _create(self, op: Operation) -> None:
        nbytes = op.nbytes
        if op.chunk < 0 or op.chunk in self._handles:
            raise broken("driver-create", op, "the chunk is live already")
        if nbytes <= 0 or nbytes % self.info.granularity_bytes:
            raise broken("driver-size", op, "no positive multiple of the granularity")
        if nbytes not in self._sizes:
            sizes = " or ".join(map(str, self._sizes))
            raise broken("driver-size", op, f"chunks have {sizes} B")
        self._check_room(nbytes)
        self._handles[op.chunk] = Handle(self.driver, nbytes, op.chunk)
        self.bytes_in_use += nbytes

    def _destroy(self, op: Operation) -> None:
        handle = self._handles.get(op.chunk)
        if handle is None:
            raise broken("driver-destroy", op, "no such chunk")
        if handle.mappings:
            raise broken("driver-destroy", op, f"the chunk is mapped at {handle.mappings} places")
        if op.nbytes != handle.nbytes:
            raise broken("driver-size", op, f"the chunk has {handle.nbytes} B")
        handle.close()
        del self._handles[op.chunk]
        self.bytes_in_use -= handle.nbytes

    def _map(self, op: Operation) -> None:
        handle = self._handles.get(op.chunk)
        if handle is None:
            raise broken("driver-map", op, "no such chunk")
        slot, index = op.slot, op.index
        reservation = self._check_slot("driver-map", op, slot)
        if not 0 <= index < self._units:
            raise broken("driver-map", op, f"a slot has {self._units} indices")
        if op.nbytes != handle.nbytes:
            raise broken("driver-size", op, "a chunk maps whole or not at all")
        here = self.kv.chunk_bytes_at(index)
        if op.nbytes != here:
            raise broken("driver-size", op, f"a chunk of {here} B belongs there")
        if index + here // self._chunk_bytes > self._units:
            raise broken("driver-map", op, f"a slot has {self._units} indices")
        place = (op.arena, slot, index)
        there = self._mapped.get(place)
        if there is not None:
            raise broken("driver-map", op, f"chunk {there.handle.name} is mapped there")
        offset = slot * self._stride + index * self._chunk_bytes
        mapping = self._mapped[place] = Mapping(reservation, offset, handle)
        self._ungranted[mapping.address] = handle.nbytes
        if self.poison and handle.mappings == 1:
            self.flush()
            self.moves.fill(mapping.address, 0xFF, handle.nbytes)

    def _unmap(self, op: Operation) -> None:
        place = (op.arena, op.slot, op.index)
        there = self._mapped.get(place)
        if there is None or there.handle.name != op.chunk:
            what = "nothing" if there is None else f"chunk {there.handle.name}"
            raise broken("driver-unmap", op, f"{what} is mapped there")
        if op.nbytes != there.handle.nbytes:
            raise broken("driver-size", op, "a mapping is undone whole")
        if self.fence.active:
            self.fence.wait(slot_use(op.slot))
        if self.moves.busy:
            self.moves.finish()
        address = there.address
        there.close()
        del self._mapped[place]
        if self._ungranted:
            self._ungranted.pop(address, None)

    def _check_slot(self, invariant: str, op: Operation, slot: int) -> Reservation:
        """The reservation in which the slot lies."""
        reservation = self._reservations.get(op.arena)
        if reservation is None:
            raise broken(invariant, op, "the arena is not reserved")
        if slot < 0 or (slot + 1) * self._stride > reservation.nbytes:
            raise broken(invariant, op, f"slot {slot} is outside the arena")
        return reservation

    # -- bytes ------------------------------------------------------------------------------------

    def _copy(self, op: Operation) -> None:
        if op.source == op.slot:
            raise broken("driver-access", op, "source and destination are one slot")
        source = self._touch(op, op.source, write=False)
        target = self._touch(op, op.slot, write=True)
        self.moves.copy(target, source, op.nbytes, after=(slot_use(op.source), slot_use(op.slot)))

    def _swap_out(self, op: Operation) -> None:
        source = self._touch(op, op.slot, write=False)
        name = _swap_name(op)
        if self.moves.swapped_bytes(name):
            raise broken("driver-access", op, "bytes are swapped out under that name already")
        self.moves.swap_out(name, source, op.nbytes, after=slot_use(op.slot))

    def _swap_in(self, op: Operation) -> None:
        target = self._touch(op, op.slot, write=True)
        name = _swap_name(op)
        held = self.moves.swapped_bytes(name)
        if held != op.nbytes:
            raise broken("driver-access", op, f"{held} B were swapped out under that name")
        self.moves.swap_in(name, target, op.nbytes, after=slot_use(op.slot))

    def _touch(self, op: Operation, slot: int, *, write: bool) -> int:
        """Every byte of the operation's range is mapped in `slot`, and may be written.

        Returns the address of the first.
        """
        reservation = self._check_slot("driver-access", op, slot)
        self.flush()
        end = op.offset + op.nbytes
        if op.offset < 0 or op.nbytes <= 0 or end > self._stride:
            raise broken("driver-size", op, f"a slot has {self._stride} B")
        chunk_bytes = self._chunk_bytes
        for index in self.kv.chunk_starts(op.offset // chunk_bytes, -(-end // chunk_bytes)):
            mapping = self._mapped.get((op.arena, slot, index))
            if mapping is None:
                raise broken("driver-access", op, f"slot {slot} has nothing mapped at {index}")
            owners = mapping.handle.mappings
            if write and owners > 1:
                name = mapping.handle.name
                raise broken("driver-shared-write", op, f"chunk {name} has {owners} owners")
        return reservation.address + slot * self._stride + op.offset

    # -- ordinary memory --------------------------------------------------------------------------

    def _allocate(self, op: Operation) -> None:
        if op.chunk < 0 or op.chunk in self._allocations:
            raise broken("driver-allocation", op, "it is allocated already")
        if op.nbytes <= 0:
            raise broken("driver-size", op, "not positive")
        self._check_room(op.nbytes)
        self._allocations[op.chunk] = Allocation(self.driver, op.nbytes)
        self.bytes_in_use += op.nbytes

    def _deallocate(self, op: Operation) -> None:
        found = self._allocations.get(op.chunk)
        if found is None or found.nbytes != op.nbytes:
            raise broken("driver-allocation", op, f"allocated: {found.nbytes if found else None} B")
        self.fence.wait(allocation_use(op.chunk))
        found.close()
        del self._allocations[op.chunk]
        self.bytes_in_use -= found.nbytes

    def _check_room(self, nbytes: int) -> None:
        short = self.bytes_in_use + nbytes - self.available_bytes
        if short > 0:
            raise OutOfMemory(short)


def _swap_name(op: Operation) -> tuple[int, int, int]:
    """Swapped bytes are found again by the operation's `chunk`, or its slot where it has none."""
    return (op.slot if op.chunk < 0 else -1 - op.chunk, op.arena, op.offset)
