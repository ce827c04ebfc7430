"""vtensor with chunks that grow: one driver call backs 64 MiB as cheaply as 2.

Chosen by `vtensor.max_chunk`. What vtensor decides stays as it is, in units of the smallest chunk;
the layout rounds them up to whole chunks (`vtsim.spec.GrowingLayout`), whose sizes follow from
their positions. Here is what has to know sizes: counts of calls, one free list a size, and the
chunks given back where free ones of other sizes leave no room.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import ClassVar

from vtsim.memory.crossings import Crossing, Crossings
from vtsim.memory.prefixes import Record
from vtsim.memory.sized import Counts, SizedPool
from vtsim.memory.sized_placement import SizedPlacement
from vtsim.plan import NOTHING, Match, OpKind, Phase, Plan, Shortage
from vtsim.policies.vtensor import Recorded, VTensor, VTensorPolicy
from vtsim.ports import Batch, DeviceInfo, Headroom
from vtsim.request import Sequence
from vtsim.spec import GrowingLayout, KVLayout, ModelSpec

CREATE, DESTROY, MAP = int(OpKind.CREATE), int(OpKind.DESTROY), int(OpKind.MAP)
UNMAP, COPY = int(OpKind.UNMAP), int(OpKind.COPY)

_new = tuple.__new__  # a NamedTuple's own is a Python function
_due = attrgetter("due")


class GrowingVTensorPolicy(VTensorPolicy):
    """`VTensorPolicy(parameters)` is one of these where `parameters.grows`."""

    __slots__ = ("_sized",)

    grows_chunks: ClassVar[bool] = True

    # Of other types than without growth, for what both have to do with them.
    kv: GrowingLayout
    _pool: SizedPool  # type: ignore[assignment]
    _growth: Crossings  # type: ignore[assignment]
    _foreseen: tuple[int, int, list[Crossing]]  # type: ignore[assignment]
    _sized: SizedPlacement | None

    def kv_layout(self, model: ModelSpec, tp: int, max_model_len: int) -> KVLayout:
        options = self.options
        kv = super().kv_layout(model, tp, max_model_len)
        return GrowingLayout.of(kv, options.max_chunk or options.chunk, options.growth)

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        plan = super().setup(device, kv, limit_bytes)
        assert isinstance(kv, GrowingLayout)
        self._plain_retires = False
        self._pool = SizedPool(limit_bytes // kv.unit_bytes, len(kv.chunk_sizes))
        self._growth = Crossings(kv, self._lead_tokens)
        self._foreseen = (-1, 0, [])
        self._sized = self._placed = SizedPlacement(kv) if self.placement else None
        return plan

    def details(self) -> dict[str, object]:
        """Handles created by size, all arenas, for the result."""
        made = {
            str(nbytes): number * self._arenas
            for nbytes, number in zip(self.kv.chunk_sizes, self._pool.made, strict=True)
        }
        return {"chunks_created_by_bytes": made}

    # -- chunks -----------------------------------------------------------------------------------

    def _take_chunks(
        self, plan: Plan, wanted: Counts, units: int, pinned: Record | None, due: int = 0
    ) -> Counts | None:
        """Have the `wanted` chunks, `units` together, to map: evict what is idle, and give free
        chunks of other sizes back, as far as the limit asks for it. Returns which were created."""
        pool, counts, arenas = self._pool, plan.counts, self._arenas
        while units > pool.available:
            self._evict(plan, pinned, due)
        made, gone = pool.take(wanted, units)
        if gone is not None:
            self._destroyed(plan, gone, due)
        if made is not None:
            counts[CREATE] += sum(made) * arenas
            new = sum(number << size for size, number in enumerate(made))
            plan.created_bytes = (plan.created_bytes or 0) + new * self._unit_bytes
        counts[MAP] += sum(wanted) * arenas
        self._own_units += units
        return made

    def _destroyed(self, plan: Plan, gone: Counts, due: int = 0) -> None:
        plan.counts[DESTROY] += sum(gone) * self._arenas
        units = sum(number << size for size, number in enumerate(gone))
        plan.created_bytes = plan.created_bytes or 0
        plan.destroyed_bytes += units * self._unit_bytes
        if self._sized is not None:
            for size in range(len(gone) - 1, -1, -1):
                self._sized.destroy(gone[size], size, due)

    def _destroy(self, plan: Plan, units: int) -> None:
        self._destroyed(plan, self._pool.trim(units))

    def _map(self, plan: Plan, vtensor: VTensor, units: int, pinned: Record | None) -> None:
        mapped = vtensor.mapped
        if units <= mapped:
            return
        self._take_chunks(plan, self.kv.chunks_by_size(mapped, units), units - mapped, pinned)
        if self._placed is not None:
            self._placed.map_new(vtensor.slot, units - mapped)
        vtensor.mapped = units

    def _pooled(self, first: int, behind: int) -> None:
        """Nobody maps the units [first, behind) of a page table any more."""
        self._pool.give(self.kv.chunks_by_size(first, behind), behind - first)

    def _cut(self, plan: Plan, slot: int, keep: int, mapped: int) -> None:
        chunks = self.kv.chunks(mapped) - self.kv.chunks(keep)
        plan.counts[UNMAP] += chunks * self._arenas
        self._pooled(keep, mapped)
        if self._placed is not None:
            self._placed.unmap(slot, keep)

    def _unmap_all(self, plan: Plan, slot: int, units: int, freed: int, due: int = 0) -> None:
        # Whoever maps a chunk of a prefix maps all before it: what is freed is the end.
        plan.counts[UNMAP] += self.kv.chunks(units) * self._arenas
        self._pooled(units - freed, units)
        self._slots.give(slot)
        if self._placed is not None:
            self._placed.unmap(slot, 0, due)

    # -- create -----------------------------------------------------------------------------------

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        if match.handle is not None:
            return self._create_shared(seq, match, tokens, whole_tokens)
        slots = self._slots
        units = self.kv.units(tokens + self._ahead(seq, tokens))
        missing = max(units, self._whole_units(seq, whole_tokens)) - self._reach()
        no_slot = self._slot_shortage(None)
        if missing > 0 or no_slot:
            return self._no_room(missing, no_slot)
        if self._foresees:
            self._prefixes.admitted(seq.index)
        wanted = self.kv.chunks_by_size(0, units)
        if slots.empty and not slots.parked and self._placed is None and self._pool.has(wanted):
            self._pool.take(wanted, units)
            self._own_units += units
            plan = self._creates[sum(wanted)]
            vtensor = VTensor(slots.take(), None, 0, units, tokens)
        else:
            plan, mapped = Plan(Phase.CREATE, None, self._chunk_bytes), 0
            if slots.parked:
                slot, mapped = slots.adopt(units)
                self._own_units += mapped
            else:
                slot = self._new_slot(plan, None)
            vtensor = VTensor(slot, None, 0, mapped, tokens)
            self._map(plan, vtensor, units, None)
            self._close(plan)
        self._vset[seq.index] = vtensor
        self._still_tokens += tokens
        if tokens >= seq.prompt_tokens:
            self._decode(seq, vtensor)
        return plan

    def _share(self, plan: Plan, vtensor: VTensor, record: Record, tokens: int) -> None:
        source: Recorded = record.payload
        shared = vtensor.shared
        plan.counts[MAP] += self.kv.chunks(shared) * self._arenas
        if self._placed is not None:
            self._placed.share(vtensor.slot, source.slot, shared)
        tail_bytes = self.kv.tail_bytes(tokens) if tokens else 0
        if tail_bytes:
            self._map(plan, vtensor, self.kv.units(tokens), record)
            plan.counts[COPY] += self._arenas
            plan.copied_bytes += tail_bytes
            if self._placed is not None:
                offset = shared * self._chunk_bytes
                self._placed.copy(vtensor.slot, source.slot, offset, tail_bytes // self._arenas)

    def _further(self, held: int) -> int:
        hidden = max(0, self.hidden_units - 1)
        return self._growth.least_ahead(held, hidden, self.kv.period_tokens)

    # -- extend -----------------------------------------------------------------------------------

    def _coming(self, steps: int) -> list[Crossing]:
        changes, at_most, coming = self._foreseen
        if at_most == steps and changes == self._growth.changes:
            return coming
        return self._growth.coming(steps)

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        growth, pool = self._growth, self._pool
        coming = self._coming(steps)
        if not coming:
            growth.advance(steps, coming)
            return NOTHING
        units, wanted = self._wanted(coming)
        fits = units <= pool.available
        if not fits and units > self._reach():
            return self._shortage(units - self._reach())
        if self._placed is None and pool.has(wanted):
            pool.take(wanted, units)
            self._own_units += units
            growth.advance(steps, coming)
            return self._extends[len(coming)]
        plan = Plan(Phase.EXTEND, None, self._chunk_bytes)
        if fits and self._placed is None and pool.fits(wanted):
            self._take_chunks(plan, wanted, units, None)
        else:
            for due, crossings in groupby(coming, _due):
                self._extend_at(plan, list(crossings), due)
        growth.advance(steps, coming)
        return self._close(plan)

    def _wanted(self, crossings: list[Crossing]) -> tuple[int, list[int]]:
        """Units, and chunks of each size."""
        wanted = [0] * len(self.kv.chunk_sizes)
        units = 0
        for _, _, _, first, behind in crossings:
            more = behind - first
            units += more
            wanted[more.bit_length() - 1] += 1
        return units, wanted

    def _extend_at(self, plan: Plan, crossings: list[Crossing], due: int) -> None:
        """What one step needs: evictions and destroys fall due with the chunks they make room
        for."""
        units, wanted = self._wanted(crossings)
        self._take_chunks(plan, wanted, units, None, due)
        if self._placed is not None:
            for _, _, member, first, behind in crossings:
                self._placed.map_new(self._vset[member].slot, behind - first, due)

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        """Steps for which no free chunk of another size need be given back."""
        pool = self._pool
        coming = self._growth.coming(at_most)
        steps = at_most
        later = self._keeps_all and self._placed is None
        most_maps = most_creates = 0
        step = before = (-1, 0, 0)  # due, creates, maps: of the step looked at and the one before
        if coming:
            free = list(pool.free)
            room = pool.limit - pool.created
            at, begun, creates, maps = -1, 0, 0, 0
            for number, (due, _, _, first, behind) in enumerate(coming):
                if due != at:
                    before = at, creates, maps
                    at, begun, creates, maps = due, number, 0, 0
                units = behind - first
                size = units.bit_length() - 1
                if free[size]:
                    free[size] -= 1
                else:
                    room -= units
                    if room < 0:
                        steps, coming = at, coming[:begun]
                        break
                    creates += 1
                    later = False
                maps += 1
                if maps > most_maps:
                    most_maps = maps
                if creates > most_creates:
                    most_creates = creates
            step = at, creates, maps
        self._foreseen = (self._growth.changes, steps, coming)
        bounds, last = self._bounds, NOTHING
        for due, creates, maps in (step, before):
            if due == steps - 1 and maps:
                last = bounds[creates, maps, 0]
        unmaps = 0
        if self._leaving:
            unmaps = sum(self.kv.chunks(leaving.vtensor.mapped) for leaving in self._leaving)
        peak = bounds[most_creates, most_maps, unmaps] if most_maps or unmaps else None
        return _new(Headroom, (steps, peak, later, last))

    # -- the rest ---------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        super().check_integrity()
        pool = self._pool
        free = sum(number << size for size, number in enumerate(pool.free))
        self._demand("pooled-by-size", free, pool.pooled)
        if self._sized is not None:
            self._demand("pooled-by-size", self._sized.free_by_size(), pool.free)
