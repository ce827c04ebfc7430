"""vtensor: the paper's memory manager. Contiguous in virtual memory, 2 MiB chunks mapped behind it.

Create maps the prompt's chunks, extend maps ahead of decoding, release hands the vTensor to retire
(its kernels may still read it), and lazy deallocation keeps chunks pooled, parked or recorded until
they are needed or trimmed. All decisions are made on counts of units (one chunk in each arena);
`vtsim.memory.placement` follows with the chunks' names where they are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from vtsim.errors import ConfigError, InvariantError
from vtsim.memory.eviction import EvictionRule, make_order
from vtsim.memory.extents import Extent, ExtentTree
from vtsim.memory.growth import Growth
from vtsim.memory.physical import ChunkPool
from vtsim.memory.placement import Placement
from vtsim.memory.prefixes import PrefixTree, Record
from vtsim.memory.radix import join, tokens_of
from vtsim.memory.slots import AdoptRule, SlotSet
from vtsim.plan import (
    NO_MATCH,
    NOTHING,
    Bounds,
    EqualPlans,
    Keep,
    Match,
    MemoryUsage,
    OpKind,
    Phase,
    Plan,
    Shortage,
)
from vtsim.policies.base import Policy
from vtsim.ports import Batch, DeviceInfo, Headroom
from vtsim.quantities import exact_bytes
from vtsim.request import Run, Sequence
from vtsim.spec import DEFAULT_CHUNK_BYTES, KVLayout, ModelSpec, check_chunk_bytes

# As plain ints: counts are indexed in every decision, and an enum member costs a look-up each time.
CREATE, DESTROY, MAP = int(OpKind.CREATE), int(OpKind.DESTROY), int(OpKind.MAP)
UNMAP, COPY = int(OpKind.UNMAP), int(OpKind.COPY)
CREATING, EXTENDING, RETIRING = Phase.CREATE, Phase.EXTEND, Phase.RETIRE
RECORD = Keep.RECORD

_new = tuple.__new__  # a NamedTuple's own is a Python function: these are made in every decision


@dataclass(frozen=True, slots=True)
class VTensorParameters:
    """`lookahead` adaptive: one step, and so much more for some that no step has more to map than
    compute hides, as the cost model states it. `retain_bytes` None is 5 % of the limit. `adopt`:
    which parked vTensor a create takes. `evict`: which record goes first; `belady` is an oracle.
    `inplace`: a prompt that continues a whole record goes on in its slot: no map, no copy.
    `max_chunk`: chunks grow with their position, from `chunk` by doubling up to this, about as the
    square root of `growth` times what lies before them; None is `chunk`: they do not."""

    layout: Literal["token_major", "kv_split", "per_layer"] = "token_major"
    chunk: int = 2 << 20
    initial_tokens: int = 0
    lookahead: int | Literal["adaptive"] = 1
    release: Literal["unmap", "park"] = "unmap"
    retain: Literal["all", "watermark", "none"] = "all"
    retain_bytes: int | None = None
    adopt: AdoptRule = "best"
    prefix_cache: bool = True
    evict: EvictionRule = "lru"
    tail: Literal["copy", "recompute"] = "copy"
    inplace: bool = False
    max_chunk: int | None = field(default=None, metadata={"unit": "bytes"})
    growth: int = 1

    def __post_init__(self) -> None:
        self._check_growth()
        for name in ("initial_tokens", "lookahead"):
            value = getattr(self, name)
            if value != "adaptive" and value < 0:
                raise ConfigError(f"vtensor.{name}: must be >= 0, got {value}")
        if self.retain_bytes is not None and self.retain_bytes < 0:
            raise ConfigError(f"vtensor.retain_bytes: must be >= 0, got {self.retain_bytes}")

    @property
    def grows(self) -> bool:
        """Whether chunks have several sizes."""
        return self.max_chunk is not None and self.max_chunk != self.chunk

    def _check_growth(self) -> None:
        if not 1 <= self.growth <= 1024:
            raise ConfigError(f"vtensor.growth: must be 1 ... 1024, got {self.growth}")
        if not self.grows:
            if self.growth != 1:
                raise ConfigError(
                    f"vtensor.growth: {self.growth} does nothing without a max_chunk beyond chunk"
                )
            return
        assert self.max_chunk is not None
        ratio, rest = divmod(self.max_chunk, self.chunk) if self.chunk > 0 else (0, 1)
        if rest or ratio < 1 or ratio & (ratio - 1):
            raise ConfigError(
                "vtensor.max_chunk: chunks grow by doubling, so it must be chunk "
                f"({exact_bytes(self.chunk)}) times a power of two, got "
                f"{exact_bytes(self.max_chunk)}"
            )
        if self.chunk < DEFAULT_CHUNK_BYTES:
            raise ConfigError(
                "vtensor.max_chunk: chunks grow from 2MiB or more (what a call on a smaller page "
                f"costs goes by its size), chunk is {exact_bytes(self.chunk)}"
            )


@dataclass(slots=True)
class VTensor:
    """A sequence's slot and page table: `shared` units of a recorded prefix, then its own."""

    slot: int
    leaf: Extent | None
    shared: int
    mapped: int
    """Units, shared ones included; while it decodes `Growth` counts."""
    tokens: int
    origin: Record | None = None
    """The record that it continues in place: their slot is one."""


@dataclass(slots=True)
class Recorded:
    """A record's page table."""

    slot: int
    leaf: Extent | None
    units: int
    user: VTensor | None = None
    """The vTensor that continues it in place."""


class Leaving(NamedTuple):
    """A released vTensor that kernels up to `step` may still read."""

    step: int
    vtensor: VTensor
    content: tuple[Run, ...]
    """What to record of it; () for nothing."""


class VTensorPolicy(Policy):
    """docs/names.md maps the paper's names (VTM, vSet, pSet, rTree, ...) to this code."""

    # An object of more than 30 attributes is slow to look into without.
    __slots__ = (
        "_adaptive",
        "_arenas",
        "_bounds",
        "_chunk_bytes",
        "_continued",
        "_creates",
        "_extends",
        "_extents",
        "_foreseen",
        "_foresees",
        "_growth",
        "_keeps_all",
        "_lead_tokens",
        "_leaving",
        "_leaving_mapped",
        "_leaving_units",
        "_own_units",
        "_parks",
        "_placed",
        "_plain_retires",
        "_pool",
        "_prefixes",
        "_records",
        "_retain_units",
        "_retires",
        "_shared_units",
        "_slots",
        "_still_tokens",
        "_token_bytes",
        "_uneven",
        "_unit_bytes",
        "_vset",
    )

    name = "vtensor"
    summary = "vTensor / FlexInfer: chunks mapped on demand behind contiguous virtual memory"
    parameters_type = VTensorParameters
    kernels = ("flash",)
    options: VTensorParameters
    grows_chunks: ClassVar[bool] = False
    """True: a class that honours `max_chunk`."""

    def __new__(cls, parameters: Any = None, *, placement: bool = False) -> VTensorPolicy:
        if cls is VTensorPolicy and parameters is not None and parameters.grows:
            from vtsim.policies.vtensor_growth import GrowingVTensorPolicy

            cls = GrowingVTensorPolicy
        return object.__new__(cls)

    def kv_layout(self, model: ModelSpec, tp: int, max_model_len: int) -> KVLayout:
        options = self.options
        if options.grows and not self.grows_chunks:
            raise ConfigError(
                f"max_chunk: {type(self).__name__} is made of VTensorPolicy, whose chunks have one "
                "size; to have them grow, derive it from GrowingVTensorPolicy of "
                "vtsim.policies.vtensor_growth"
            )
        longest = max_model_len + self._lead() + options.initial_tokens
        if options.lookahead == "adaptive":
            # A sequence is mapped less than a period further, whatever that is in tokens.
            kv = KVLayout.build(model, tp, options.layout, options.chunk, longest)
            longest += kv.period_tokens
        return KVLayout.build(model, tp, options.layout, options.chunk, longest)

    def _lead(self) -> int:
        """Tokens mapped ahead: a plan submitted when step t starts is for step t + 1, so looking
        ahead by one needs no more than the step itself does."""
        lookahead = self.options.lookahead
        return 0 if lookahead == "adaptive" else max(0, lookahead - 1)

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        check_chunk_bytes(kv.chunk_bytes, device.granularity_bytes)
        options = self.options
        self.kv = kv
        self._adaptive = options.lookahead == "adaptive"
        self.lookahead = 1 if options.lookahead == "adaptive" else options.lookahead
        self.limit_bytes = limit_bytes
        if options.tail == "recompute":
            self.grain_tokens = kv.period_tokens
        self._arenas = kv.arenas
        self._chunk_bytes = kv.chunk_bytes
        self._records = options.prefix_cache and options.retain != "none"
        self._parks = options.release == "park" and options.retain != "none"
        self._unit_bytes = kv.unit_bytes
        self._token_bytes = kv.token_bytes
        self._lead_tokens = self._lead()
        self._uneven = self._adaptive or options.initial_tokens > 0
        """Sequences begin to decode with more than the lead."""
        self._pool = ChunkPool(limit_bytes // kv.unit_bytes)
        self._growth = Growth(
            kv.period_tokens, kv.crossings, kv.units, self._lead_tokens, self.placement
        )
        self._extents = ExtentTree()
        lru = options.evict == "lru"
        self._prefixes = PrefixTree(None if lru else make_order(options.evict, self.known))
        self._foresees = not lru
        self._vset: dict[int, VTensor] = {}  # of running sequences
        self._leaving: list[Leaving] = []
        self._slots = SlotSet(kv.slots(device.va_bytes), options.adopt)
        self._own_units = 0  # of running and leaving sequences, beyond what they share
        self._shared_units = 0  # of the same, shared ones counted by each
        self._still_tokens = 0  # of prompts in progress and leaving sequences
        self._leaving_units = 0  # their own
        self._leaving_mapped = 0  # shared ones included
        self._continued = 0  # records whose slot a sequence goes on in
        self._foreseen = (-1, 0, 0)  # changes and steps of the growth, and their demand
        self._keeps_all = options.retain == "all"
        retain = options.retain_bytes
        self._retain_units = (limit_bytes // 20 if retain is None else retain) // kv.unit_bytes
        self._placed = Placement(kv.arenas, kv.chunk_bytes) if self.placement else None
        self._plain_retires = self._placed is None and self._keeps_all and not self._parks
        # Most plans map pooled units, or unmap: equal ones are one object.
        alike = kv.arenas, kv.chunk_bytes
        self._creates = EqualPlans(Phase.CREATE, OpKind.MAP, *alike)
        self._extends = EqualPlans(Phase.EXTEND, OpKind.MAP, *alike)
        self._retires = EqualPlans(Phase.RETIRE, OpKind.UNMAP, *alike)
        self._bounds = Bounds(*alike)
        if self._slots.count < 1:
            raise ConfigError(
                f"one slot of {kv.slot_bytes} B does not fit {device.va_bytes} B of addresses"
            )
        plan = Plan(Phase.SETUP, chunk_bytes=kv.chunk_bytes)
        plan.counts[OpKind.RESERVE] = self._arenas
        if self._placed is not None:
            self._placed.reserve(OpKind.RESERVE, self._slots.count * kv.slot_stride_bytes)
        return self._close(plan)

    def _close(self, plan: Plan) -> Plan:
        if self._placed is not None:
            plan.operations = self._placed.drain()
        return plan

    # -- match and create -------------------------------------------------------------------------

    def match(self, seq: Sequence) -> Match:
        if not seq.content or not self._prefixes.records:
            return NO_MATCH
        tokens, record = self._prefixes.match(seq.content)
        tokens = min(tokens, seq.prompt_tokens - 1)
        if self.options.tail == "recompute":
            tokens = self.kv.unit_tokens(self.kv.shared_boundary_units(tokens))
        return Match(tokens, record) if tokens > 0 else NO_MATCH

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        if match.handle is not None:
            return self._create_shared(seq, match, tokens, whole_tokens)
        # With nothing to share: in an empty slot, or in a parked one with all it has.
        kv, pool, slots = self.kv, self._pool, self._slots
        complete = tokens >= seq.prompt_tokens
        ahead = self._lead_tokens
        if complete and self._uneven:
            ahead = self._ahead(seq, tokens)
        units = kv.units(tokens + ahead if complete else tokens)
        whole = self._whole_units(seq, whole_tokens) if self._uneven else kv.units(whole_tokens)
        missing = (whole if whole > units else units) - pool.available
        if missing > 0:
            missing -= slots.parked_units + self._extents.record_units
        parked, empty = slots.parked, slots.empty
        no_slot = 0 if parked or empty else self._slot_shortage(None)
        if missing > 0 or no_slot:
            return self._no_room(missing, no_slot)
        if self._foresees:
            self._prefixes.admitted(seq.index)
        if empty and not parked and units <= pool.pooled and self._placed is None:
            pool.reuse(units)
            self._own_units += units
            plan, slot, mapped = self._creates[units], slots.take(), units
            vtensor = VTensor(slot, None, 0, units, tokens)
        else:
            plan, mapped = Plan(CREATING, None, self._chunk_bytes), 0
            if parked:
                slot, mapped = slots.adopt(units)
                self._own_units += mapped
            else:
                slot = slots.take() if empty else self._new_slot(plan, None)
            vtensor = VTensor(slot, None, 0, mapped, tokens)
            self._map(plan, vtensor, units, None)
            self._close(plan)
        self._vset[seq.index] = vtensor
        if not complete:
            self._still_tokens += tokens
        elif mapped > units or self._uneven:
            self._still_tokens += tokens
            self._decode(seq, vtensor)
        else:  # no more is mapped than its tokens and the lead need
            self._growth.join(seq.index, tokens, units, tokens, seq.order)
        return plan

    def _create_shared(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        """`create` that shares the matched record's full units and copies the rest of it."""
        record: Record = match.handle
        kv = self.kv
        held = match.tokens + tokens
        inplace = self._goes_on(record, match.tokens)
        shared = record.payload.units if inplace else kv.full_units(match.tokens)
        units = kv.units(held + self._ahead(seq, held))
        missing = max(units, self._whole_units(seq, whole_tokens)) - shared - self._reach()
        missing += self._extents.idle_units(record.payload.leaf)
        no_slot = 0 if inplace else self._slot_shortage(record)
        if missing > 0 or no_slot:
            return self._no_room(missing, no_slot)
        plan = Plan(CREATING, None, self._chunk_bytes)
        self._prefixes.admitted(seq.index)
        self._prefixes.touch(record)
        leaf = None
        if shared:
            leaf = self._extents.branch(record.payload.leaf, shared)
            self._extents.hold(leaf)
        slot = record.payload.slot if inplace else self._new_slot(plan, record)
        vtensor = VTensor(slot, leaf, shared, shared, held)
        if inplace:
            vtensor.origin = record
            record.payload.user = vtensor
            self._continued += 1
        else:
            self._share(plan, vtensor, record, match.tokens)
        self._vset[seq.index] = vtensor
        self._shared_units += shared
        self._map(plan, vtensor, units, record)
        self._still_tokens += held
        if held >= seq.prompt_tokens:
            self._decode(seq, vtensor)
        return self._close(plan)

    def _no_room(self, missing: int, no_slot: int) -> Shortage:
        return Shortage(
            max(0, missing) * self._unit_bytes,
            no_slot,
            self._leaving_units * self._unit_bytes,
            len(self._leaving),
        )

    def _goes_on(self, record: Record, tokens: int) -> bool:
        """A match of `tokens` can be continued where it lies: it is all of its record, which nobody
        else continues. The record stays for others, who share it as ever."""
        whole = tokens == record.tokens and record.payload.user is None
        return self.options.inplace and whole

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        vtensor = self._vset[seq.index]
        held = vtensor.tokens + tokens
        units = self.kv.units(held + self._ahead(seq, held))
        missing = units - vtensor.mapped - self._reach()
        if missing > 0:
            return self._shortage(missing)
        plan = Plan(Phase.PREFILL, None, self.kv.chunk_bytes)
        self._map(plan, vtensor, units, None)
        vtensor.tokens = held
        self._still_tokens += tokens
        if held >= seq.prompt_tokens:
            self._decode(seq, vtensor)
        return self._close(plan)

    def _ahead(self, seq: Sequence, held: int) -> int:
        """Tokens to map beyond those held: none before the prompt's last chunk."""
        if held < seq.prompt_tokens:
            return 0
        if self._adaptive:
            return self._further(held) + self.options.initial_tokens
        return self._lead_tokens + self.options.initial_tokens

    def _whole_units(self, seq: Sequence, whole_tokens: int) -> int:
        """Units for `whole_tokens`; a whole prompt comes with what is mapped behind it."""
        if whole_tokens >= seq.prompt_tokens:
            behind = self._lead_tokens + self.options.initial_tokens
            whole_tokens = max(whole_tokens, seq.prompt_tokens + behind)
        return self.kv.units(whole_tokens)

    def _further(self, held: int) -> int:
        """Tokens that a sequence about to decode is mapped further, so that it does not need its
        chunks in a step that has as many to map as compute hides. By the stated costs, and by who
        decodes now: never by a measured time."""
        return self._growth.least_ahead(held, max(0, self.hidden_units - 1))

    def _share(self, plan: Plan, vtensor: VTensor, record: Record, tokens: int) -> None:
        """Map the record's full units and copy the rest of the match."""
        source: Recorded = record.payload
        shared = vtensor.shared
        plan.counts[MAP] += shared * self._arenas
        if self._placed is not None:
            self._placed.share(vtensor.slot, source.slot, shared)
        tail_bytes = tokens * self.kv.token_bytes - shared * self._unit_bytes
        if tail_bytes:
            self._map(plan, vtensor, self.kv.units(tokens), record)
            plan.counts[COPY] += self._arenas
            plan.copied_bytes += tail_bytes
            if self._placed is not None:
                offset = shared * self.kv.chunk_bytes
                each = tail_bytes // self._arenas
                self._placed.copy(vtensor.slot, source.slot, offset, each)

    def _map(self, plan: Plan, vtensor: VTensor, units: int, pinned: Record | None) -> None:
        """Map `vtensor` up to `units`, evicting anything idle but `pinned`."""
        need = units - vtensor.mapped
        if need <= 0:
            return
        self._take(plan, need, pinned)
        if self._placed is not None:
            self._placed.map_new(vtensor.slot, need)
        vtensor.mapped = units

    def _take(self, plan: Plan, units: int, pinned: Record | None, due: int = 0) -> None:
        pool, counts = self._pool, plan.counts
        while units > pool.available:
            self._evict(plan, pinned, due)
        counts[CREATE] += pool.take(units) * self._arenas
        counts[MAP] += units * self._arenas
        self._own_units += units

    def _decode(self, seq: Sequence, vtensor: VTensor) -> None:
        """The prompt is complete: from the next step on `seq` grows with the others."""
        tokens, mapped = vtensor.tokens, vtensor.mapped
        self._still_tokens -= tokens
        ahead = self._further(tokens) if self._adaptive else 0
        covered = self.kv.unit_tokens(mapped)
        self._growth.join(seq.index, tokens, mapped, covered, seq.order, ahead)

    # -- extend -----------------------------------------------------------------------------------

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        growth, pool = self._growth, self._pool
        changes, at_most, need = self._foreseen
        foreseen = at_most == steps and changes == growth.changes
        if not foreseen:
            need = growth.demand(steps)
        if not need:
            growth.advance(steps)
            return NOTHING
        fits = need <= pool.available
        if not fits and need > self._reach():
            return self._shortage(need - self._reach())
        if need <= pool.pooled and self._placed is None:
            pool.reuse(need)
            self._own_units += need
            growth.advance(steps)
            return self._extends[need]
        plan = Plan(EXTENDING, None, self._chunk_bytes)
        if fits and self._placed is None:
            counts = plan.counts
            counts[CREATE] = pool.take(need) * self._arenas
            counts[MAP] = need * self._arenas
            self._own_units += need
            growth.advance(steps)
            return plan
        for due in range(steps):
            self._extend_once(plan, due)
        return self._close(plan)

    def _extend_once(self, plan: Plan, due: int) -> None:
        """One step of `extend`: evictions fall due with the units they make room for."""
        growth = self._growth
        self._take(plan, growth.demand(1), None, due)
        if self._placed is not None:
            for _, member, units in growth.crossing():
                self._placed.map_new(self._vset[member].slot, units, due)
        growth.advance(1)

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        growth, pool = self._growth, self._pool
        steps = at_most
        if growth.asleep:
            steps = min(steps, growth.until_wake())
        need = growth.demand(steps)
        if need > pool.available:
            steps, need = growth.within(pool.available, steps)
        self._foreseen = (growth.changes, steps, need)
        # Pooled units serve all of it, and what retires is pooled too: the order is all one, but
        # for placement, which has names for them.
        later = need <= pool.pooled and self._keeps_all and self._placed is None
        unmaps = self._leaving_mapped
        if not (need or unmaps):
            return _new(Headroom, (steps, None, later, NOTHING))
        # All of it bounds any step's part, and most often compute hides all of it.
        units = need if need <= self.hidden_units else growth.peak(steps)
        bounds, new = self._bounds, need - pool.pooled
        due = growth.last(steps) if steps else 0
        if new <= 0:
            peak, last = bounds[0, units, unmaps], bounds[0, due, 0]
        else:
            peak, last = bounds[units, units, unmaps], bounds[min(due, new), due, 0]
        return _new(Headroom, (steps, peak, later, last))

    # -- release and retire -----------------------------------------------------------------------

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        vtensor = self._vset.pop(seq.index)
        if seq.index in self._growth.bases:
            vtensor.tokens, vtensor.mapped = self._growth.leave(seq.index)
            self._still_tokens += vtensor.tokens
        content: tuple[Run, ...] = ()
        if keep is RECORD and self._records:
            content = join(seq.content, seq.output_content)
        self._leaving.append(_new(Leaving, (step, vtensor, content)))
        mapped = vtensor.mapped
        self._leaving_units += mapped - vtensor.shared
        self._leaving_mapped += mapped
        return NOTHING

    def retire(self, step: int) -> Plan:
        if not self._leaving:
            return NOTHING
        ended = self._leaving
        if ended[-1].step <= step:  # they are in order
            self._leaving = []
        else:
            ended = [leaving for leaving in ended if leaving.step <= step]
            if not ended:
                return NOTHING
            del self._leaving[: len(ended)]
        plan: Plan | None = None
        unmapped = 0
        plain = self._plain_retires
        for _, vtensor, content in ended:
            mapped, shared = vtensor.mapped, vtensor.shared
            own = mapped - shared
            self._own_units -= own
            self._leaving_units -= own
            self._leaving_mapped -= mapped
            self._shared_units -= shared
            self._still_tokens -= vtensor.tokens
            if plain and vtensor.leaf is None and not content:
                unmapped += own
                self._pool.give(own)
                self._slots.give(vtensor.slot)
                continue
            if plan is None:
                plan = Plan(RETIRING, None, self._chunk_bytes)
            if not (content and self._record(plan, vtensor, content)):
                self._let_go(plan, vtensor)
        if plan is None:
            return self._retires[unmapped]
        plan.counts[UNMAP] += unmapped * self._arenas
        self._retain(plan)
        return self._close(plan)

    def _record(self, plan: Plan, vtensor: VTensor, content: tuple[Run, ...]) -> bool:
        """Keep what is known of a vTensor's content for later matches; the rest is pooled."""
        tokens = min(tokens_of(content), vtensor.tokens)
        if self.options.tail == "recompute":
            tokens = self.kv.unit_tokens(self.kv.shared_boundary_units(tokens))
        if tokens <= 0:
            return False
        covering = self._prefixes.covers(content, tokens)
        if covering is not None:
            self._prefixes.touch(covering)
            return False
        units = self.kv.units(tokens)
        leaf = vtensor.leaf
        if units > vtensor.shared:
            leaf = Extent(vtensor.shared, units, vtensor.leaf)
        if vtensor.mapped > units:
            self._cut(plan, vtensor.slot, units, vtensor.mapped)
        self._extents.record(leaf)
        self._extents.drop(vtensor.leaf)
        origin = vtensor.origin
        uses = 1 if origin is None else origin.uses
        self._prefixes.insert(content, tokens, Recorded(vtensor.slot, leaf, units), uses)
        if origin is not None:  # the new record begins with all of it, in the same slot
            self._part(vtensor)
            self._prefixes.remove(origin, evicted=False)
            self._extents.forget(origin.payload.leaf)
        return True

    def _part(self, vtensor: VTensor) -> None:
        """`vtensor` and the record that it continues have no more to do with each other."""
        if vtensor.origin is not None:
            vtensor.origin.payload.user = None
            vtensor.origin = None
            self._continued -= 1

    def _let_go(self, plan: Plan, vtensor: VTensor) -> None:
        """Park a vTensor as it is, or unmap it and pool its units."""
        if self._parks and not vtensor.shared and vtensor.mapped:
            self._slots.park(vtensor.slot, vtensor.mapped)
            return
        self._unmap_own(plan, vtensor)

    def _unmap_own(self, plan: Plan, vtensor: VTensor) -> None:
        """Unmap a vTensor's slot; where it continues a record, down to what is the record's."""
        freed = vtensor.mapped - vtensor.shared + self._extents.drop(vtensor.leaf)
        if vtensor.origin is None:
            self._unmap_all(plan, vtensor.slot, vtensor.mapped, freed)
            return
        self._part(vtensor)
        self._cut(plan, vtensor.slot, vtensor.mapped - freed, vtensor.mapped)

    def _cut(self, plan: Plan, slot: int, keep: int, mapped: int) -> None:
        """Unmap a slot down to its first `keep` units, the rest of which nobody else maps."""
        plan.counts[UNMAP] += (mapped - keep) * self._arenas
        self._pool.give(mapped - keep)
        if self._placed is not None:
            self._placed.unmap(slot, keep)

    def _unmap_all(self, plan: Plan, slot: int, units: int, freed: int, due: int = 0) -> None:
        plan.counts[UNMAP] += units * self._arenas
        self._pool.give(freed)
        self._slots.give(slot)
        if self._placed is not None:
            self._placed.unmap(slot, 0, due)

    def _retain(self, plan: Plan) -> None:
        """Give back what lazy deallocation may not keep."""
        if self._keeps_all:
            return
        most = 0 if self.options.retain == "none" else self._retain_units
        while True:
            excess = self._idle_units() - most
            if excess <= 0:
                return
            if not self._pool.pooled:
                self._evict(plan, None)
                continue
            self._destroy(plan, min(excess, self._pool.pooled))

    def _idle_units(self) -> int:
        return self._pool.pooled + self._slots.parked_units + self._extents.record_units

    def _destroy(self, plan: Plan, units: int) -> None:
        plan.counts[DESTROY] += units * self._arenas
        self._pool.destroy(units)
        if self._placed is not None:
            self._placed.destroy(units)

    def _evict(self, plan: Plan, pinned: Record | None, due: int = 0) -> None:
        """Unmap the oldest parked vTensor, or else the least recently used record."""
        if self._slots.parked:
            slot, units = self._slots.oldest()
            self._unmap_all(plan, slot, units, units, due)
            return
        record = self._prefixes.oldest(but=pinned)
        assert record is not None, "nothing left to evict: the caller did not check"
        self._prefixes.remove(record)
        table: Recorded = record.payload
        if table.user is not None:  # its slot and its memory are in use
            self._part(table.user)
            self._extents.forget(table.leaf)
            return
        self._unmap_all(plan, table.slot, table.units, self._extents.forget(table.leaf), due)

    # -- slots ------------------------------------------------------------------------------------

    def _slot_shortage(self, pinned: Record | None) -> int:
        """1 if no slot is free nor can be made free."""
        if self._slots.empty or self._slots.parked:
            return 0
        holding = len(self._prefixes.records) - self._continued
        if pinned is not None and pinned.payload.user is None:
            holding -= 1
        return 0 if holding > 0 else 1

    def _new_slot(self, plan: Plan, pinned: Record | None) -> int:
        while not self._slots.empty:
            self._evict(plan, pinned)
        return self._slots.take()

    # -- the rest ---------------------------------------------------------------------------------

    def slot_of(self, seq: Sequence) -> int:
        return self._vset[seq.index].slot

    def _reach(self) -> int:
        """Units that can be had: pooled, creatable, and all that is idle."""
        return self._pool.available + self._slots.parked_units + self._extents.record_units

    def _shortage(self, missing: int) -> Shortage:
        return Shortage(
            missing * self._unit_bytes, pending_bytes=self._leaving_units * self._unit_bytes
        )

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        units = limit_bytes // self._unit_bytes
        excess = self._pool.created - units
        if excess > self._idle_units():
            return self._shortage(excess - self._idle_units())
        plan = Plan(Phase.LIMIT, chunk_bytes=self.kv.chunk_bytes)
        while excess > self._pool.pooled:
            self._evict(plan, None)
        if excess > 0:
            self._destroy(plan, excess)
        self._pool.set_limit(units)
        self.limit_bytes = limit_bytes
        return self._close(plan)

    def usage(self) -> MemoryUsage:
        unit_bytes = self._unit_bytes
        extents = self._extents
        tokens = self._growth.total_tokens + self._still_tokens
        if not (extents.live_units or extents.record_units or self._slots.parked_units):
            live = tokens * self._token_bytes
            slack = self._own_units * unit_bytes - live
            return _new(MemoryUsage, (live, slack, 0, self._pool.pooled * unit_bytes, 0, 0))
        shared = extents.live_units * unit_bytes
        live = tokens * self._token_bytes + shared - self._shared_units * unit_bytes
        slack = self._own_units * unit_bytes + shared - live
        prefix = extents.record_units * unit_bytes
        pooled = self._pool.pooled * unit_bytes
        parked = self._slots.parked_units * unit_bytes
        return _new(MemoryUsage, (live, slack, prefix, pooled, parked, 0))

    @staticmethod
    def _demand(invariant: str, seen: object, counted: object) -> None:
        if seen != counted:
            raise InvariantError(invariant, f"{seen} found, {counted} counted")

    def check_integrity(self) -> None:
        demand = self._demand
        extents = self._extents
        own = shared = still = slots = 0
        tables: list[tuple[Extent | None, bool]] = []
        vtensors = [(v, self._vset_units(i, v)) for i, v in self._vset.items()]
        vtensors += [(leaving.vtensor, leaving.vtensor.mapped) for leaving in self._leaving]
        for vtensor, mapped in vtensors:
            own += mapped - vtensor.shared
            shared += vtensor.shared
            tables.append((vtensor.leaf, True))
            slots += 1
        for index, vtensor in self._vset.items():
            growing = index in self._growth
            still += 0 if growing else vtensor.tokens
            tokens = self._growth.tokens(index) if growing else vtensor.tokens
            if self.kv.units(tokens) > self._vset_units(index, vtensor):
                raise InvariantError("mapped-covers-used", f"sequence {index}: {tokens} tokens")
            if tokens > self.kv.max_tokens:
                raise InvariantError("inside-its-slot", f"sequence {index}: {tokens} tokens")
        still += sum(leaving.vtensor.tokens for leaving in self._leaving)
        for record in self._prefixes.records.values():
            table: Recorded = record.payload
            tables.append((table.leaf, False))
            demand("record-table-length", table.leaf.end if table.leaf else 0, table.units)
            slots += table.user is None  # else it is the vTensor's, counted already
        holders: dict[Extent, list[int]] = {}
        for leaf, live in tables:
            node = leaf
            while node is not None:
                counts = holders.setdefault(node, [0, 0])
                counts[0 if live else 1] += 1
                if node.start != (node.parent.end if node.parent else 0):
                    raise InvariantError("tables-are-contiguous", f"extent at {node.start}")
                node = node.parent
        for node, (live_count, record_count) in holders.items():
            demand("extent-holders", (live_count, record_count), (node.live, node.records))
        size = {node: node.end - node.start for node in holders}
        live_units = sum(size[n] for n, (live, _) in holders.items() if live)
        idle_units = sum(size[n] for n, (live, _) in holders.items() if not live)
        demand("live-units", live_units, extents.live_units)
        demand("record-units", idle_units, extents.record_units)
        demand("own-units", own, self._own_units)
        demand("shared-units", shared, self._shared_units)
        demand("still-tokens", still, self._still_tokens)
        parked = self._slots.parked_units
        demand("parked-units", sum(self._slots.parked.values()), parked)
        demand(
            "each-chunk-is-free-or-mapped",
            own + live_units + idle_units + parked + self._pool.pooled,
            self._pool.created,
        )
        demand("each-slot-is-free-or-held", slots + self._slots.idle, self._slots.used)
        if self._pool.created > self._pool.limit:
            raise InvariantError("within-the-limit", f"{self._pool.created} units created")
        if self._placed is not None:
            self._placed.check(self._pool.pooled, self._pool.created)

    def _vset_units(self, index: int, vtensor: VTensor) -> int:
        return self._growth.mapped(index) if index in self._growth else vtensor.mapped

    def teardown(self) -> Plan:
        plan = Plan(Phase.TEARDOWN, chunk_bytes=self.kv.chunk_bytes)
        for index in sorted(self._vset):
            vtensor = self._vset[index]
            if index in self._growth:
                vtensor.tokens, vtensor.mapped = self._growth.leave(index)
                self._still_tokens += vtensor.tokens
            self._leaving.append(Leaving(0, vtensor, ()))
        self._vset.clear()
        for leaving in self._leaving:
            self._unmap_own(plan, leaving.vtensor)
        self._leaving.clear()
        self._own_units = self._shared_units = self._still_tokens = 0
        self._leaving_units = self._leaving_mapped = 0
        while self._slots.parked or self._prefixes.records:
            self._evict(plan, None)
        self._destroy(plan, self._pool.pooled)
        plan.counts[OpKind.FREE] = self._arenas
        if self._placed is not None:
            self._placed.reserve(OpKind.FREE, self._slots.count * self.kv.slot_stride_bytes)
        return self._close(plan)
