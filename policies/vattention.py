"""vattention: a slot a request in one virtual tensor for the whole batch (arXiv 2405.04437).

Page groups are mapped behind a slot as its request grows, one step ahead. When a request leaves,
its slot stays mapped (deferred reclamation) and is handed whole to a later one, the best fit first;
a few idle slots get a page group eagerly; when memory runs short the slots that have been idle
longest give their pages. Nothing goes back to the device, and no prefix is shared. Page groups
under 2 MiB need the paper's patched driver, which only the simulator has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vtsim.errors import ConfigError, InvariantError
from vtsim.memory.growth import Growth
from vtsim.memory.physical import ChunkPool
from vtsim.memory.placement import Placement
from vtsim.memory.slots import AdoptRule, SlotSet
from vtsim.plan import NOTHING, Bounds, Keep, Match, MemoryUsage, OpKind, Phase, Plan, Shortage
from vtsim.policies.base import Policy
from vtsim.ports import Batch, DeviceInfo, Headroom
from vtsim.request import Sequence
from vtsim.spec import KVLayout, ModelSpec, check_chunk_bytes

CREATE, DESTROY = int(OpKind.CREATE), int(OpKind.DESTROY)
MAP, UNMAP = int(OpKind.MAP), int(OpKind.UNMAP)

PAGES = (64 << 10, 128 << 10, 256 << 10, 2 << 20)
"""Page groups of the paper: those of its driver, and that of CUDA's."""


@dataclass(frozen=True, slots=True)
class VAttentionParameters:
    """`page`: bytes of a page group. `layout`: a virtual tensor for K and V of each layer, or, by
    tensor slicing, one for K and one for V. `slots`: the largest batch. `eager_slots`: how many
    idle slots are to have pages. `lookahead`: steps mapped ahead; 0 maps on the critical path.
    `adopt`: which idle slot a request takes."""

    page: int = field(default=2 << 20, metadata={"unit": "bytes"})
    layout: Literal["per_layer", "kv_split"] = "per_layer"
    slots: int = 256
    eager_slots: int = 4
    lookahead: int = 1
    adopt: AdoptRule = "best"

    def __post_init__(self) -> None:
        if self.page not in PAGES:
            raise ConfigError(
                f"vattention.page: {self.page} B is not a page group: 64KiB, 128KiB, 256KiB, 2MiB"
            )
        for name, least in (("slots", 1), ("eager_slots", 0), ("lookahead", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"vattention.{name}: must be >= {least}, got {getattr(self, name)}"
                )


@dataclass(slots=True)
class Held:
    """A slot in use: its mapped units and tokens; while it decodes `Growth` counts both."""

    slot: int
    mapped: int
    tokens: int


class VAttentionPolicy(Policy):
    """All decisions on counts of units, a unit being a page group in each virtual tensor."""

    name = "vattention"
    summary = "vAttention: slots of one virtual tensor, pages left mapped for the next request"
    parameters_type = VAttentionParameters
    kernels = ("flash",)
    options: VAttentionParameters

    def kv_layout(self, model: ModelSpec, tp: int, max_model_len: int) -> KVLayout:
        options = self.options
        longest = max_model_len + self._lead()
        return KVLayout.build(model, tp, options.layout, options.page, longest)

    def _lead(self) -> int:
        """Tokens mapped beyond those of the step that a plan is for."""
        return max(0, self.options.lookahead - 1)

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        check_chunk_bytes(kv.chunk_bytes, device.granularity_bytes)
        options = self.options
        self.kv = kv
        self.lookahead = options.lookahead
        self.limit_bytes = limit_bytes
        self._arenas = kv.arenas
        self._unit_bytes = kv.unit_bytes
        self._lead_tokens = self._lead()
        self._pool = ChunkPool(limit_bytes // kv.unit_bytes)
        self._bounds = Bounds(kv.arenas, kv.chunk_bytes)
        self._growth = Growth(
            kv.period_tokens, kv.crossings, kv.units, self._lead_tokens, self.placement
        )
        self._slots = SlotSet(min(options.slots, kv.slots(device.va_bytes)), options.adopt)
        self._held: dict[int, Held] = {}
        self._leaving: list[tuple[int, Held]] = []  # (last step that reads it, it)
        self._leaving_units = 0
        self._own_units = 0  # of running and leaving requests
        self._still_tokens = 0  # of prompts in progress and leaving requests
        self._placed = Placement(kv.arenas, kv.chunk_bytes) if self.placement else None
        if self._slots.count < 1:
            raise ConfigError(
                f"one slot of {kv.slot_bytes} B does not fit {device.va_bytes} B of addresses"
            )
        plan = Plan(Phase.SETUP, chunk_bytes=kv.chunk_bytes)
        self._reserve(plan, OpKind.RESERVE)
        while self._eager_due():
            self._map_idle(plan)
        return self._close(plan)

    def _reserve(self, plan: Plan, kind: OpKind) -> None:
        plan.counts[kind] = self._arenas
        if self._placed is not None:
            self._placed.reserve(kind, self._slots.count * self.kv.slot_stride_bytes)

    def _close(self, plan: Plan) -> Plan:
        if self._placed is not None:
            plan.operations = self._placed.drain()
        return plan

    # -- create and prefill -----------------------------------------------------------------------

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        units = self.kv.units(tokens + self._ahead(seq, tokens))
        missing = max(units, self.kv.units(whole_tokens)) - self._reach()
        no_slot = int(not (self._slots.empty or self._slots.parked))
        if missing > 0 or no_slot:
            return Shortage(
                max(0, missing) * self._unit_bytes,
                no_slot,
                self._leaving_units * self._unit_bytes,
                len(self._leaving),
            )
        plan = Plan(Phase.CREATE, chunk_bytes=self.kv.chunk_bytes)
        if self._slots.parked:
            held = Held(*self._slots.adopt(units), tokens)
        else:
            held = Held(self._slots.take(), 0, tokens)
        self._own_units += held.mapped
        self._held[seq.index] = held
        self._map(plan, held, units)
        self._still_tokens += tokens
        self._decode_if_complete(seq, held)
        return self._close(plan)

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        held = self._held[seq.index]
        after = held.tokens + tokens
        units = self.kv.units(after + self._ahead(seq, after))
        missing = units - held.mapped - self._reach()
        if missing > 0:
            return self._shortage(missing)
        plan = Plan(Phase.PREFILL, chunk_bytes=self.kv.chunk_bytes)
        self._map(plan, held, units)
        held.tokens = after
        self._still_tokens += tokens
        self._decode_if_complete(seq, held)
        return self._close(plan)

    def _ahead(self, seq: Sequence, tokens: int) -> int:
        return self._lead_tokens if tokens >= seq.prompt_tokens else 0

    def _map(self, plan: Plan, held: Held, units: int) -> None:
        need = units - held.mapped
        if need > 0:
            self._take(plan, need)
            self._own_units += need
            held.mapped = units
            if self._placed is not None:
                self._placed.map_new(held.slot, need)

    def _take(self, plan: Plan, units: int, due: int = 0) -> None:
        """Units to be mapped: the idle slots' where the pool has none left."""
        while units > self._pool.available:
            self._empty_one(plan, due)
        plan.counts[CREATE] += self._pool.take(units) * self._arenas
        plan.counts[MAP] += units * self._arenas

    def _empty_one(self, plan: Plan, due: int = 0) -> None:
        """The slot that has been idle longest gives its pages."""
        slot, units = self._slots.oldest()
        self._unmap_all(plan, slot, units, due)

    def _unmap_all(self, plan: Plan, slot: int, units: int, due: int = 0) -> None:
        plan.counts[UNMAP] += units * self._arenas
        self._pool.give(units)
        self._slots.give(slot)
        if self._placed is not None and units:
            self._placed.unmap(slot, 0, due)

    def _decode_if_complete(self, seq: Sequence, held: Held) -> None:
        if held.tokens >= seq.prompt_tokens:
            self._still_tokens -= held.tokens
            covered = self.kv.unit_tokens(held.mapped)
            self._growth.join(seq.index, held.tokens, held.mapped, covered, seq.order)

    # -- extend -----------------------------------------------------------------------------------

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        growth, pool = self._growth, self._pool
        need = growth.demand(steps)
        eager = self._eager_due()
        if not need and not eager:
            growth.advance(steps)
            return NOTHING
        fits = need <= pool.available
        if not fits and need > self._reach():
            return self._shortage(need - self._reach())
        plan = Plan(Phase.EXTEND, chunk_bytes=self.kv.chunk_bytes)
        if not eager and fits and self._placed is None:
            plan.counts[CREATE] = pool.take(need) * self._arenas
            plan.counts[MAP] = need * self._arenas
            self._own_units += need
            growth.advance(steps)
            return plan
        for due in range(steps):
            self._extend_once(plan, due)
        return self._close(plan)

    def _extend_once(self, plan: Plan, due: int) -> None:
        """One step: what the running need, then perhaps a page group for an idle slot."""
        growth = self._growth
        need = growth.demand(1)
        eager = self._eager_due()
        self._take(plan, need, due)
        self._own_units += need
        if self._placed is not None:
            for _, member, units in growth.crossing():
                self._placed.map_new(self._held[member].slot, units, due)
        growth.advance(1)
        if eager:
            self._map_idle(plan, due)

    def _eager_due(self) -> bool:
        """Too few idle slots have pages, and there is one beyond what the next step needs."""
        slots = self._slots
        few = len(slots.parked) < self.options.eager_slots
        return few and slots.empty > 0 and self._pool.available > self._growth.demand(1)

    def _map_idle(self, plan: Plan, due: int = 0) -> None:
        """Map a page group behind an empty slot, for whoever comes next."""
        slot = self._slots.take()
        self._take(plan, 1, due)
        if self._placed is not None:
            self._placed.map_new(slot, 1, due)
        self._slots.park(slot, 1)

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        """Nothing that steps do depends on what retires meanwhile: that stays parked."""
        growth, pool = self._growth, self._pool
        if self._eager_due():
            return Headroom(0)  # one idle slot a step
        steps, need = growth.within(pool.available, min(at_most, growth.until_wake()))
        if not need:
            return Headroom(steps, None, True)
        new, units, due = max(0, need - pool.pooled), growth.peak(steps), growth.last(steps)
        peak = self._bounds[units if new else 0, units, 0]
        return Headroom(steps, peak, True, self._bounds[min(due, new), due, 0])

    # -- release and retire -----------------------------------------------------------------------

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        held = self._held.pop(seq.index)
        if seq.index in self._growth:
            held.tokens, held.mapped = self._growth.leave(seq.index)
            self._still_tokens += held.tokens
        self._leaving.append((step, held))
        self._leaving_units += held.mapped
        return NOTHING

    def retire(self, step: int) -> Plan:
        """Slots whose readers have ended are idle, and stay as they are."""
        ended = [held for last, held in self._leaving if last <= step]
        if ended:
            self._leaving = [entry for entry in self._leaving if entry[0] > step]
            for held in ended:
                self._forget(held)
                self._slots.park(held.slot, held.mapped)
        return NOTHING

    def _forget(self, held: Held) -> None:
        self._own_units -= held.mapped
        self._leaving_units -= held.mapped
        self._still_tokens -= held.tokens

    # -- the rest ---------------------------------------------------------------------------------

    def slot_of(self, seq: Sequence) -> int:
        return self._held[seq.index].slot

    def _reach(self) -> int:
        """Units that can be had: pooled, creatable, and those of idle slots."""
        return self._pool.available + self._slots.parked_units

    def _shortage(self, missing: int) -> Shortage:
        return Shortage(
            missing * self._unit_bytes, pending_bytes=self._leaving_units * self._unit_bytes
        )

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        """The only way by which memory goes back to the device."""
        units = limit_bytes // self._unit_bytes
        excess = self._pool.created - units
        spare = self._pool.pooled + self._slots.parked_units
        if excess > spare:
            return self._shortage(excess - spare)
        plan = Plan(Phase.LIMIT, chunk_bytes=self.kv.chunk_bytes)
        while excess > self._pool.pooled:
            self._empty_one(plan)
        if excess > 0:
            self._destroy(plan, excess)
        self._pool.set_limit(units)
        self.limit_bytes = limit_bytes
        return self._close(plan)

    def _destroy(self, plan: Plan, units: int) -> None:
        plan.counts[DESTROY] += units * self._arenas
        self._pool.destroy(units)
        if self._placed is not None:
            self._placed.destroy(units)

    def usage(self) -> MemoryUsage:
        unit_bytes = self._unit_bytes
        live = (self._growth.total_tokens + self._still_tokens) * self.kv.token_bytes
        return MemoryUsage(
            kv_live=live,
            kv_slack=self._own_units * unit_bytes - live,
            kv_pooled=self._pool.pooled * unit_bytes,
            kv_parked=self._slots.parked_units * unit_bytes,
        )

    def check_integrity(self) -> None:
        def demand(invariant: str, seen: object, counted: object) -> None:
            if seen != counted:
                raise InvariantError(invariant, f"{seen} found, {counted} counted")

        own = still = 0
        for index, held in self._held.items():
            growing = index in self._growth
            tokens = self._growth.tokens(index) if growing else held.tokens
            mapped = self._growth.mapped(index) if growing else held.mapped
            if self.kv.units(tokens) > mapped:
                raise InvariantError("mapped-covers-used", f"sequence {index}: {tokens} tokens")
            if tokens > self.kv.max_tokens:
                raise InvariantError("inside-its-slot", f"sequence {index}: {tokens} tokens")
            own += mapped
            still += 0 if growing else tokens
        leaving = sum(held.mapped for _, held in self._leaving)
        still += sum(held.tokens for _, held in self._leaving)
        slots, pool = self._slots, self._pool
        demand("own-units", own + leaving, self._own_units)
        demand("leaving-units", leaving, self._leaving_units)
        demand("still-tokens", still, self._still_tokens)
        demand("parked-units", sum(slots.parked.values()), slots.parked_units)
        in_use = own + leaving + slots.parked_units
        demand("each-chunk-is-free-or-mapped", in_use + pool.pooled, pool.created)
        held_slots = len(self._held) + len(self._leaving)
        demand("each-slot-is-free-or-held", held_slots + slots.idle, slots.used)
        if pool.created > pool.limit:
            raise InvariantError("within-the-limit", f"{pool.created} units created")
        demand("available-units", pool.limit - pool.created + pool.pooled, pool.available)
        if self._placed is not None:
            self._placed.check(pool.pooled, pool.created)

    def teardown(self) -> Plan:
        plan = Plan(Phase.TEARDOWN, chunk_bytes=self.kv.chunk_bytes)
        for index in sorted(self._held):
            held = self._held[index]
            if index in self._growth:
                held.tokens, held.mapped = self._growth.leave(index)
            self._leaving.append((0, held))
        self._held.clear()
        for _, held in self._leaving:
            self._unmap_all(plan, held.slot, held.mapped)
        self._leaving.clear()
        self._own_units = self._leaving_units = self._still_tokens = 0
        while self._slots.parked:
            self._empty_one(plan)
        self._destroy(plan, self._pool.pooled)
        self._reserve(plan, OpKind.FREE)
        return self._close(plan)
