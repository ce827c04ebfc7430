"""vTensors for anyone: contiguous tensors whose memory grows, is shared, parked and given back.

A `VTensorPool` holds the device memory of one KV layout under a limit; a `VTensor` is a sequence's
K and V in it. Any kernel that takes strided tensors reads them, unmodified. One thread uses a pool;
the driver calls are made by the pool's own. Imports torch.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from sortedcontainers import SortedList

from vtsim.backends.cuda.backend import CudaBackend
from vtsim.backends.cuda.books import Books
from vtsim.backends.cuda.driver import CudaDriver
from vtsim.backends.cuda.tensors import ArenaTensors, KVShape
from vtsim.errors import CapacityError, ConfigError, InvariantError
from vtsim.plan import Operation, OpKind, Phase, Plan
from vtsim.spec import GrowingLayout

Guard = Literal["ahead", "alias"]
_GUARD_CHUNK = 1 << 40
"""Name of the chunk behind every vTensor's end; no other is called so."""


class VTensor:
    """One sequence's K and V. Made by `VTensorPool.create` and `fork`."""

    def __init__(self, pool: VTensorPool, slot: int) -> None:
        self.pool = pool
        self.slot = slot
        """Its row in `pool.tensors`: what kernels call the batch index."""
        self.tokens = 0
        self.units = 0
        """Mapped, in units: chunks of the smallest size in every arena."""
        self.shared = 0
        """The first of them, that belong to the vTensor it was forked from, too."""
        self.guards = 0
        """Aliases of the guard chunk behind them."""
        self.swapped = False

    def key(self, layer: int) -> torch.Tensor:
        """[tokens, H, D]."""
        return self._checked().tensors.keys(layer)[self.slot, : self.tokens]

    def value(self, layer: int) -> torch.Tensor:
        return self._checked().tensors.values(layer)[self.slot, : self.tokens]

    def _checked(self) -> VTensorPool:
        if self.slot < 0 or self.swapped:
            raise InvariantError("vtensor-use", "it was released, or is swapped out")
        return self.pool

    def extend(self, tokens: int) -> None:
        """Have memory for `tokens` more. CapacityError if there is none; nothing changes then."""
        self._checked()._grow(self, self.tokens + tokens)

    def shrink(self, tokens: int) -> None:
        """Forget the tokens behind the first `tokens`; their memory stays mapped. InvariantError
        where that would let it write into chunks that others share."""
        self._checked()._shrink(self, tokens)

    def release(self, *, park: bool = False) -> None:
        """Give it up once the kernels launched so far on torch's current stream have ended. Parked
        memory stays mapped for whoever is created next."""
        self._checked()._release(self, park)

    def swap_out(self) -> None:
        """Move the bytes to pinned host memory and give the device memory up."""
        self._checked()._swap_out(self)

    def swap_in(self) -> None:
        """Bring them back. CapacityError if they do not fit now."""
        self.pool._swap_in(self)


class VTensorPool:
    """Device memory for vTensors of one shape.

    `guard_tokens`: rows behind a vTensor's last token that stay readable and finite (FlashAttention
    3 reads up to the next multiple of 176); `guard` says how: `ahead` maps real memory for them,
    `alias` maps one shared chunk of zeros. `max_chunk_bytes`: chunks grow up to it with their
    position (`GrowingLayout`). Raises ConfigError where there is no device.
    """

    def __init__(
        self,
        shape: KVShape,
        max_tokens: int,
        *,
        slots: int = 256,
        layout: str = "token_major",
        chunk_bytes: int = 2 << 20,
        max_chunk_bytes: int | None = None,
        growth: int = 1,
        limit_bytes: int | None = None,
        guard_tokens: int = 0,
        guard: Guard = "ahead",
        driver: CudaDriver | None = None,
        ordinal: int = 0,
        poison: bool = False,
    ) -> None:
        if guard not in ("ahead", "alias"):
            raise ConfigError(f"guard: {guard!r} is neither 'ahead' nor 'alias'")
        self.shape = shape
        self.max_tokens = max_tokens
        self.guard_tokens = guard_tokens
        self.guard = guard
        self.kv = shape.layout(layout, chunk_bytes, max_tokens + guard_tokens)
        if max_chunk_bytes not in (None, chunk_bytes):
            if guard == "alias":
                raise ConfigError(
                    "guard: 'alias' maps one chunk everywhere, and chunks that grow have several "
                    "sizes: use 'ahead'"
                )
            self.kv = GrowingLayout.of(self.kv, max_chunk_bytes, growth)
        self.backend = CudaBackend(
            None, self.kv, driver=driver, ordinal=ordinal, poison=poison, keep_log=False
        )
        try:
            self.slots = slots
            self.limit_bytes = self.backend.info.capacity_bytes
            if limit_bytes is not None:
                self.backend.check_limit(limit_bytes)
                self.limit_bytes = limit_bytes
            self._books = Books(self.kv)
            self._free_slots = list(range(slots - 1, -1, -1))
            self._live: dict[int, VTensor] = {}
            self._parked: OrderedDict[int, tuple[int, int]] = OrderedDict()  # slot: units, guards
            self._parked_sizes: SortedList[tuple[int, int]] = SortedList()  # (units, slot)
            self._swaps = 0
            self._arena_bytes = (slots + 1) * self.kv.slot_stride_bytes
            self._execute(Phase.SETUP, self._books.reserve(OpKind.RESERVE, self._arena_bytes))
            self.tensors = ArenaTensors(self.backend.memory, shape)
            if guard_tokens and guard == "alias":
                self._make_guard()
        except BaseException:
            self.backend.abandon()
            raise

    # -- what there is ----------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.tensors.device

    @property
    def held_bytes(self) -> int:
        """Device memory held: live, parked and pooled."""
        return self.backend.bytes_in_use()

    @property
    def pooled_bytes(self) -> int:
        """Of it, handles that are mapped nowhere."""
        return self._books.pooled_units * self.kv.unit_bytes

    @property
    def parked_bytes(self) -> int:
        """Of it, mapped in idle slots."""
        return sum(units for units, _ in self._parked.values()) * self.kv.unit_bytes

    def _stream(self) -> int:
        """The stream that kernels are launched on: torch's current one."""
        if self.device.type != "cuda":
            return 0
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def protect(self, *vtensors: VTensor) -> None:
        """Kernels launched so far on torch's current stream may use these. `release`, `fork`, the
        swaps and an `extend` that moves a guard say so themselves."""
        self.backend.protect(self._stream(), [vtensor.slot for vtensor in vtensors])

    # -- create, fork, extend ---------------------------------------------------------------------

    def create(self, tokens: int = 0) -> VTensor:
        """A vTensor with memory for `tokens`; takes over the parked one that fits best.

        Raises CapacityError: no memory, or no slot.
        """
        vtensor = self._adopt(self._need(tokens)) or VTensor(self, self._take_slot())
        self._live[vtensor.slot] = vtensor
        try:
            self._grow(vtensor, tokens)
        except BaseException:
            self._release(vtensor, park=False)
            raise
        return vtensor

    def fork(self, source: VTensor, tokens: int) -> VTensor:
        """A vTensor that starts with the first `tokens` of `source`: full chunks are shared, the
        rest is copied, so neither sees what the other writes later."""
        source._checked()
        if not 0 <= tokens <= source.tokens:
            raise ConfigError(f"fork: {tokens} of {source.tokens} tokens")
        kv = self.kv
        shared = kv.full_units(tokens)
        vtensor = VTensor(self, self._take_slot())
        self._live[vtensor.slot] = vtensor
        try:
            self.protect(source)
            if shared:
                self._map(vtensor, self._books.share(vtensor.slot, source.slot, shared))
                vtensor.units = vtensor.shared = shared
            self._grow(vtensor, tokens)
            tail = tokens * kv.row_bytes - shared * kv.chunk_bytes
            if tail:
                start = shared * kv.chunk_bytes
                copies = self._books.copy(vtensor.slot, source.slot, start, tail)
                self._execute(Phase.CREATE, copies)
        except BaseException:
            self._release(vtensor, park=False)
            raise
        return vtensor

    def _need(self, tokens: int) -> int:
        """Units that `tokens` want mapped for real."""
        if tokens > self.max_tokens:
            raise CapacityError(f"{tokens} tokens: a vTensor of this pool holds {self.max_tokens}")
        ahead = self.guard_tokens if self.guard == "ahead" and tokens else 0
        return self.kv.units(tokens + ahead)

    def _grow(self, vtensor: VTensor, tokens: int) -> None:
        units = max(self._need(tokens), vtensor.units)
        more = units - vtensor.units
        guards = self._guards(tokens, units)
        if more:
            self._make_room(vtensor.units, units)
            if vtensor.guards:
                self.protect(vtensor)  # they are unmapped: kernels may be reading there
            moved = self._guard_operations(OpKind.UNMAP, vtensor, vtensor.units, vtensor.guards)
            moved += self._books.map(vtensor.slot, more)
            self._map(vtensor, moved + self._guard_operations(OpKind.MAP, vtensor, units, guards))
        elif guards > vtensor.guards:
            start, count = units + vtensor.guards, guards - vtensor.guards
            self._map(vtensor, self._guard_operations(OpKind.MAP, vtensor, start, count))
        else:
            guards = vtensor.guards
        vtensor.units, vtensor.guards, vtensor.tokens = units, guards, tokens

    def _shrink(self, vtensor: VTensor, tokens: int) -> None:
        if not 0 <= tokens <= vtensor.tokens:
            raise ConfigError(f"shrink: {tokens} of {vtensor.tokens} tokens")
        if not self._books.owned_alone(vtensor.slot, self.kv.full_units(tokens)):
            raise InvariantError("vtensor-shared", f"what lies behind {tokens} tokens is shared")
        vtensor.tokens = tokens

    def _map(self, vtensor: VTensor, operations: list[Operation]) -> None:
        """Execute what the books already say; if the device refuses, take it back there."""
        try:
            self._execute(Phase.EXTEND, operations)
        except CapacityError:
            self._books.unmap(vtensor.slot, vtensor.units)
            raise

    def _make_room(self, first: int, behind: int) -> None:
        """Have the chunks at the units [first, behind) of a slot pooled: those that are, new ones
        up to the limit, then parked ones, oldest first. Free ones of other sizes are given back
        where the limit leaves no room beside them."""
        books, unit = self._books, self.kv.unit_bytes
        spare = max(0, self.limit_bytes // unit - books.created)
        parked = sum(held for held, _ in self._parked.values())
        missing = behind - first - books.pooled_units - spare - parked
        if missing > 0:
            raise CapacityError(f"{missing * unit} B short of the pool's limit")
        while True:
            lacking = books.missing(first, behind)
            new = sum(number << size for size, number in enumerate(lacking))
            others = books.pooled_units - (behind - first - new)
            if new <= spare + others:
                break
            self._unpark()
        if new > spare:
            keep = list(self.kv.chunks_by_size(first, behind))
            self._execute(Phase.EXTEND, books.destroy(new - spare, keep))
        if new:
            self._execute(Phase.EXTEND, books.create(lacking))
            books.add()

    # -- guards -----------------------------------------------------------------------------------

    def _guards(self, tokens: int, units: int) -> int:
        """Aliases of the guard chunk that `tokens` want behind `units` real ones."""
        if self.guard != "alias" or not tokens:
            return 0
        return max(0, self.kv.units(tokens + self.guard_tokens) - units)

    def _make_guard(self) -> None:
        """One chunk of zeros, mapped in a slot of its own so that it is never anybody's."""
        kv = self.kv
        create = Operation(OpKind.CREATE, chunk=_GUARD_CHUNK, nbytes=kv.chunk_bytes)
        home = Operation(
            OpKind.MAP, chunk=_GUARD_CHUNK, slot=self.slots, arena=0, index=0, nbytes=kv.chunk_bytes
        )
        self._execute(Phase.SETUP, [create, home])
        self.backend.fill((0, self.slots, 0), 0)

    def _guard_operations(
        self, kind: OpKind, vtensor: VTensor, start: int, count: int
    ) -> list[Operation]:
        return [
            Operation(
                kind,
                chunk=_GUARD_CHUNK,
                slot=vtensor.slot,
                arena=arena,
                index=index,
                nbytes=self.kv.chunk_bytes,
            )
            for index in range(start, start + count)
            for arena in range(self.kv.arenas)
        ]

    # -- release, parking, swap -------------------------------------------------------------------

    def _release(self, vtensor: VTensor, park: bool) -> None:
        slot = vtensor.slot
        self.protect(vtensor)
        if park and vtensor.units and self._books.owned_alone(slot):
            self._parked[slot] = (vtensor.units, vtensor.guards)
            self._parked_sizes.add((vtensor.units, slot))
        else:
            self._unmap(vtensor)
            self._free_slots.append(slot)
        del self._live[slot]
        vtensor.slot = -1

    def _unmap(self, vtensor: VTensor) -> None:
        guards = self._guard_operations(OpKind.UNMAP, vtensor, vtensor.units, vtensor.guards)
        self._execute(Phase.RETIRE, guards + self._books.unmap(vtensor.slot))
        vtensor.units = vtensor.guards = vtensor.shared = 0

    def _unpark(self) -> None:
        slot, (units, guards) = self._parked.popitem(last=False)
        self._parked_sizes.remove((units, slot))
        idle = VTensor(self, slot)
        idle.units, idle.guards = units, guards
        self._unmap(idle)
        self._free_slots.append(slot)

    def _adopt(self, units: int) -> VTensor | None:
        """The parked vTensor that fits `units` best: the smallest that holds them, else the
        largest. No driver call is made."""
        sizes = self._parked_sizes
        if not sizes:
            return None
        slot = sizes[min(sizes.bisect_left((units, -1)), len(sizes) - 1)][1]
        vtensor = VTensor(self, slot)
        vtensor.units, vtensor.guards = self._parked.pop(slot)
        sizes.remove((vtensor.units, slot))
        return vtensor

    def _take_slot(self) -> int:
        if not self._free_slots and self._parked:
            self._unpark()
        if not self._free_slots:
            raise CapacityError(f"all {self.slots} slots of the pool are taken")
        return self._free_slots.pop()

    def _swap_out(self, vtensor: VTensor) -> None:
        self.protect(vtensor)
        self._swaps += 1
        nbytes = vtensor.tokens * self.kv.row_bytes
        out = self._books.swap(OpKind.SWAP_OUT, vtensor.slot, self._swaps, nbytes)
        self._execute(Phase.RETIRE, out)
        self._unmap(vtensor)
        del self._live[vtensor.slot]
        self._free_slots.append(vtensor.slot)
        vtensor.slot, vtensor.swapped = self._swaps, True

    def _swap_in(self, vtensor: VTensor) -> None:
        if not vtensor.swapped:
            raise InvariantError("vtensor-use", "it is not swapped out")
        fresh = self.create(vtensor.tokens)
        nbytes = vtensor.tokens * self.kv.row_bytes
        back = self._books.swap(OpKind.SWAP_IN, fresh.slot, vtensor.slot, nbytes)
        self._execute(Phase.CREATE, back)
        vtensor.slot, vtensor.units, vtensor.guards = fresh.slot, fresh.units, fresh.guards
        vtensor.swapped = False
        self._live[vtensor.slot] = vtensor

    # -- limits and the end -----------------------------------------------------------------------

    def trim(self, keep_bytes: int = 0) -> int:
        """Give pooled and parked memory back to the device until no more than `keep_bytes` of it
        are left; returns the bytes given back. Live vTensors stay as they are."""
        unit = self.kv.unit_bytes
        while self._parked and self.pooled_bytes + self.parked_bytes > keep_bytes:
            self._unpark()
        pooled = self.pooled_bytes
        units = max(0, -(-(pooled - keep_bytes) // unit))
        self._execute(Phase.LIMIT, self._books.destroy(units))
        return pooled - self.pooled_bytes

    def set_limit(self, limit_bytes: int) -> None:
        """A new limit, met at once. CapacityError, with nothing changed, if live vTensors alone
        hold more."""
        idle = self.pooled_bytes + self.parked_bytes
        excess = self._books.created * self.kv.unit_bytes - limit_bytes
        if excess > idle:
            raise CapacityError(f"live vTensors hold {excess - idle} B more than the new limit")
        if excess > 0:
            self.trim(idle - excess)
        self.limit_bytes = limit_bytes

    def close(self) -> None:
        """Give everything back. Tensors of the pool must be gone: InvariantError if any lives."""
        for vtensor in list(self._live.values()):
            self._release(vtensor, park=False)
        self.trim()
        self.tensors.close()
        if self.guard_tokens and self.guard == "alias" and self.backend.memory.left()["chunks"]:
            home = self._guard_operations(OpKind.UNMAP, VTensor(self, self.slots), 0, 1)[:1]
            destroy = Operation(OpKind.DESTROY, chunk=_GUARD_CHUNK, nbytes=self.kv.chunk_bytes)
            self._execute(Phase.TEARDOWN, [*home, destroy])
        self._execute(Phase.TEARDOWN, self._books.reserve(OpKind.FREE, self._arena_bytes))
        self.backend.close()

    def _execute(self, phase: Phase, operations: list[Operation]) -> None:
        """Raises CapacityError if the device refuses; nothing is changed then."""
        if not operations:
            return
        plan = Plan(phase, chunk_bytes=self.kv.chunk_bytes, operations=tuple(operations))
        if self.kv.grows:
            plan.created_bytes = 0
        for operation in operations:
            plan.counts[operation.kind] += 1
            if plan.created_bytes is not None and operation.kind is OpKind.CREATE:
                plan.created_bytes += operation.nbytes
            elif operation.kind is OpKind.DESTROY:
                plan.destroyed_bytes += operation.nbytes
            elif operation.kind is OpKind.COPY:
                plan.copied_bytes += operation.nbytes
            elif operation.kind in (OpKind.SWAP_OUT, OpKind.SWAP_IN):
                plan.swapped_bytes += operation.nbytes
        receipt = self.backend.execute(plan, 0)
        if not receipt.done:
            raise CapacityError(f"the device is {receipt.short_bytes} B short")
