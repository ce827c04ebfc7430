"""Policies broken in one way each, by the name of the clause or invariant that must tell.

Each is a shipped policy with one method changed, or with one of its books falsified as it works.
`test_broken.py` holds them to the suite and this table to the source.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from vtsim.memory.radix import tokens_of
from vtsim.memory.sized import SizedPool
from vtsim.plan import (
    NOTHING,
    Match,
    MemoryUsage,
    Operation,
    OpKind,
    Phase,
    Plan,
    Shortage,
)
from vtsim.policies.base import Policy
from vtsim.policies.elastic import ElasticPagedPolicy
from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedPolicy
from vtsim.policies.vattention import VAttentionParameters, VAttentionPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.policies.vtensor_growth import GrowingVTensorPolicy
from vtsim.ports import Headroom
from vtsim.request import Sequence

T = TypeVar("T", Plan, Plan | Shortage)


@dataclass(frozen=True)
class Broken:
    """A class, with its parameters, that `check` must catch under the name it stands for."""

    name: str
    policy: type
    check: str = "calls"
    parameters: Any = None


BROKEN: list[Broken] = []


def breaks(name: str, check: str = "calls", parameters: Any = None) -> Callable[[type], type]:
    """The class breaks `name`, and `check` is to find it."""

    def keep(policy: type) -> type:
        BROKEN.append(Broken(name, policy, check, parameters))
        return policy

    return keep


# -- declaration -----------------------------------------------------------------------------------


@breaks("declared-name", "declaration")
class Nameless(NativePolicy):
    name = ""


@breaks("declared-kernels", "declaration")
class WithoutKernels(NativePolicy):
    kernels = ()


@breaks("declared-lookahead", "declaration")
class LooksBehind(NativePolicy):
    lookahead = -1


@breaks("declared-fenced", "declaration")
class Undecided(NativePolicy):
    fenced = None  # type: ignore[assignment]


@breaks("parameters-typed", "declaration")
class Unsayable(NativePolicy):
    @dataclass(frozen=True)
    class Parameters:
        thing: object = field(default_factory=object)

    parameters_type = Parameters


# -- match -----------------------------------------------------------------------------------------


@breaks("match-pure")
class TouchingMatch(VTensorPolicy):
    def match(self, seq: Any) -> Match:
        found = super().match(seq)
        if found.tokens:
            self._prefixes.touch(found.handle)
        return found


@breaks("match-bounded")
class GreedyMatch(PagedPolicy):
    def match(self, seq: Any) -> Match:
        tokens, path = self._store.find(seq.content, seq.prompt_tokens)
        return Match(tokens, path)


@breaks("match-computed")
class WishfulMatch(VTensorPolicy):
    def match(self, seq: Any) -> Match:
        return Match(min(tokens_of(seq.content), seq.prompt_tokens - 1))


# -- refusals --------------------------------------------------------------------------------------


@breaks("refusal-changes-nothing")
class ForgetsWhatItRefuses(VTensorPolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        if isinstance(answer, Shortage) and self._prefixes.records:
            oldest = self._prefixes.oldest()
            assert oldest is not None
            self._prefixes.touch(oldest)
        return answer


@breaks("shortage-positive")
class RefusesForNothing(NativePolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        return Shortage(0) if isinstance(answer, Shortage) else answer


@breaks("shortage-clears")
class PromisesMemory(VTensorPolicy):
    def _shortage(self, missing: int) -> Shortage:
        short = super()._shortage(missing)
        return replace(short, pending_bytes=short.nbytes + 1)


# -- memory ----------------------------------------------------------------------------------------


@breaks("plan-within-limit")
class Unlimited(NativePolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        limit, self.limit_bytes = self.limit_bytes, 1 << 60
        answer = super().create(*arguments)
        self.limit_bytes = limit
        return answer


@breaks("held-while-read")
class Unfenced(VTensorPolicy):
    def release(self, seq: Any, keep: Any, step: int) -> Plan:
        super().release(seq, keep, step)
        return self.retire(step)


@breaks("tokens-are-mapped")
class MapsTooLittle(VTensorPolicy):
    """A token too few in every prompt; the books do not notice."""

    def create(self, seq: Any, match: Match, tokens: int, whole: int) -> Plan | Shortage:
        answer = super().create(seq, match, tokens, whole)
        if isinstance(answer, Plan):
            maps = [op for op in answer.operations if op.kind is OpKind.MAP]
            dropped = maps[-self.kv.arenas :]
            answer.operations = tuple(op for op in answer.operations if op not in dropped)
            answer.counts[OpKind.MAP] -= min(answer.counts[OpKind.MAP], self.kv.arenas)
        return answer


@breaks("written-has-one-owner")
class SharesItsTail(VTensorPolicy):
    """Maps the partly filled chunk of a record too, instead of copying it."""

    def _share(self, plan: Plan, vtensor: Any, record: Any, tokens: int) -> None:
        units = self.kv.units(tokens)
        if units > vtensor.shared and self._extents.idle_units(record.payload.leaf) >= 0:
            leaf = self._extents.branch(record.payload.leaf, units)
            self._extents.drop(vtensor.leaf)
            self._extents.hold(leaf)
            vtensor.leaf, vtensor.shared, vtensor.mapped = leaf, units, units
        plan.counts[OpKind.MAP] += vtensor.shared * self._arenas
        if self._placed is not None:
            self._placed.share(vtensor.slot, record.payload.slot, vtensor.shared)

    def create(self, seq: Any, match: Match, tokens: int, whole: int) -> Plan | Shortage:
        before = self.kv.full_units(match.tokens)
        answer = super().create(seq, match, tokens, whole)
        if isinstance(answer, Plan):
            more = self._vset[seq.index].shared - before
            self._shared_units += more
        return answer


@breaks("driver-leak")
class KeepsItsPool(PagedPolicy):
    def teardown(self) -> Plan:
        return NOTHING


@breaks("driver-unmap")
class UnmapsWhatIsNotThere(VTensorPolicy):
    def retire(self, step: int) -> Plan:
        plan = super().retire(step)
        if plan is not NOTHING:
            plan.operations = tuple(
                replace(op, chunk=op.chunk + 1) if op.kind is OpKind.UNMAP else op
                for op in plan.operations
            )
        return plan


@breaks("plan-counts")
class MiscountsItsPlan(VTensorPolicy):
    def retire(self, step: int) -> Plan:
        plan = super().retire(step)
        if plan is not NOTHING:
            plan.counts[OpKind.UNMAP] += 1
        return plan


# -- books -----------------------------------------------------------------------------------------


@breaks("usage-adds-up")
class ForgetsItsSlack(PagedPolicy):
    def usage(self) -> MemoryUsage:
        return super().usage()._replace(kv_slack=0)


@breaks("usage-not-negative")
class OwesSlack(NativePolicy):
    def usage(self) -> MemoryUsage:
        usage = super().usage()
        owed = usage.kv_slack + 1
        return usage._replace(kv_slack=-1, kv_pooled=usage.kv_pooled + owed)


@breaks("live-is-live")
class CallsSlackLive(VTensorPolicy):
    def usage(self) -> MemoryUsage:
        usage = super().usage()
        return usage._replace(kv_live=usage.kv_live + usage.kv_slack, kv_slack=0)


@breaks("still-tokens")
class LosesTokens(VTensorPolicy):
    def extend_prompt(self, seq: Any, tokens: int) -> Plan | Shortage:
        answer = super().extend_prompt(seq, tokens)
        if isinstance(answer, Plan):
            self._still_tokens -= 1
        return answer


# -- placement -------------------------------------------------------------------------------------


@breaks("placement-decides-nothing")
class DecidesByPlacement(VTensorPolicy):
    def setup(self, device: Any, kv: Any, limit_bytes: int) -> Plan:
        return super().setup(device, kv, limit_bytes - kv.unit_bytes * self.placement)


@breaks("plan-counts")
class WithoutOperations(VTensorPolicy):
    def __init__(self, parameters: Any = None, *, placement: bool = False) -> None:
        super().__init__(parameters)


# -- many steps at once ----------------------------------------------------------------------------


@breaks("headroom-granted")
class PromisesSteps(PagedPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return Headroom(at_most)


@breaks("headroom-without-eviction")
class EvictsInHeadroom(VTensorPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        steps, need = self._growth.within(self._reach(), at_most)
        return Headroom(steps, self._bounds[need, need, 0])


@breaks("peak-is-a-bound")
class PromisesNoWork(VTensorPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return Headroom(super().headroom(batch, at_most).steps)


@breaks("headroom-pure")
class CountsItsQuestions(NativePolicy):
    asked = 0

    def headroom(self, batch: Any, at_most: int) -> Headroom:
        self.asked += 1
        return super().headroom(batch, at_most)


@breaks("retire-later", parameters=VTensorParameters(retain="watermark"))
class RetiresWhenever(VTensorPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return super().headroom(batch, at_most)._replace(retire_later=True)


@breaks("extend-repeats")
class ForgetsSteps(NativePolicy):
    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        return super().extend(batch, 1)


@breaks("extend-repeats")
class MapsTheLastFirst(VTensorPolicy):
    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        answer = super().extend(batch, steps)
        if isinstance(answer, Plan) and steps > 1 and answer.operations:
            answer.operations = answer.operations[::-1]
        return answer


@breaks("last-is-true")
class SaysTheLastStepIsFree(VTensorPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return super().headroom(batch, at_most)._replace(last=NOTHING)


@breaks("last-is-true")
class SaysSoOnlyAfterwards(ElasticPagedPolicy):
    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        answer = super().extend(batch, steps)
        if isinstance(answer, Plan) and answer.last is not None:
            answer.last = NOTHING
        return answer


# -- the rest --------------------------------------------------------------------------------------


@breaks("victim-runs")
class ChoosesTheDead(NativePolicy):
    last: Any = None

    def create(self, seq: Any, *arguments: Any) -> Plan | Shortage:
        self.last = seq
        return super().create(seq, *arguments)

    def select_victim(self, batch: Any) -> Any:
        return self.last


@breaks("undo-exact")
class RemembersWhatWasUndone(VTensorPolicy):
    """State outside the policy: another answer each time the same calls are made."""

    serial = itertools.count()

    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        if isinstance(answer, Plan):
            self.number = next(type(self).serial)
        return answer


# -- declaration, continued ------------------------------------------------------------------------


@breaks("declared-grain", "declaration")
class Grainless(NativePolicy):
    grain_tokens = 0


@breaks("parameters-shown", "declaration")
class Secretive(PagedPolicy):
    def parameters(self) -> dict[str, object]:
        return {}


# -- any call --------------------------------------------------------------------------------------


@breaks("raises-nothing")
class Raises(NativePolicy):
    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        raise ZeroDivisionError("no chunks, please")


@breaks("answers-in-time", "progress")
class Hangs(NativePolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        while True:
            pass


@breaks("answer-type")
class AnswersNothing(NativePolicy):
    def release(self, *arguments: Any) -> Plan:
        super().release(*arguments)
        return None  # type: ignore[return-value]


@breaks("arguments-unchanged")
class Rewrites(NativePolicy):
    def create(self, seq: Sequence, *arguments: Any) -> Plan | Shortage:
        answer = super().create(seq, *arguments)
        seq.prompt_tokens += 1
        return answer


@breaks("arguments-unchanged")
class WritesToNothing(NativePolicy):
    def release(self, *arguments: Any) -> Plan:
        super().release(*arguments)
        NOTHING.counts[OpKind.UNMAP] += 1
        return NOTHING


@breaks("deterministic", "determinism")
class OrdersByHash(VTensorPolicy):
    def select_victim(self, batch: Any) -> Any:
        return min(batch.running.values(), key=lambda seq: hash(f"s{seq.index}"), default=None)


@breaks("deterministic", "determinism")
class Remembers(NativePolicy):
    """Other instances' calls."""

    calls = itertools.count()

    def create(self, *arguments: Any) -> Plan | Shortage:
        return Shortage(1) if next(type(self).calls) % 7 == 3 else super().create(*arguments)


# -- match, continued ------------------------------------------------------------------------------


@breaks("match-named")
class MatchesTheNameless(PagedPolicy):
    def match(self, seq: Any) -> Match:
        found = super().match(seq)
        return found if seq.content else Match(min(1, seq.prompt_tokens - 1), found.handle)


@breaks("match-grain")
class OtherGrain(PagedPolicy):
    def setup(self, *arguments: Any) -> Plan:
        plan = super().setup(*arguments)
        self.grain_tokens = 7
        return plan


@breaks("match-in-memory")
class ServesAnother(VTensorPolicy):
    """The first chunk of a match is somebody else's."""

    def create(self, seq: Any, match: Match, *arguments: Any) -> Plan | Shortage:
        answer = super().create(seq, match, *arguments)
        if isinstance(answer, Plan) and match.tokens and self._placed is not None:
            first = self._placed.tables[self._vset[seq.index].slot][0]
            others = [unit for unit in self._placed.references if unit != first]
            if others and self.kv.full_units(match.tokens):
                other = others[0] * self.kv.arenas

                def elsewhere(op: Operation) -> dict[str, int]:
                    return {} if op.index else {"chunk": other + op.arena}

                return changed(answer, OpKind.MAP, elsewhere)
        return answer


# -- plans, continued ------------------------------------------------------------------------------


@breaks("whole-fits")
class AdmitsTheFirstChunk(PagedPolicy):
    def create(self, seq: Any, match: Match, tokens: int, whole: int) -> Plan | Shortage:
        return super().create(seq, match, tokens, match.tokens + tokens)


@breaks("plan-form")
class CountsBackwards(NativePolicy):
    def retire(self, step: int) -> Plan:
        plan = super().retire(step)
        if plan is not NOTHING:
            plan.counts[OpKind.ALLOCATE] = -plan.counts[OpKind.DEALLOCATE]
            plan.counts[OpKind.DEALLOCATE] = 0
        return plan


@breaks("plan-form")
class BooksElsewhere(NativePolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        if isinstance(answer, Plan):
            answer.phase = Phase.EXTEND
        return answer


@breaks("plan-form")
class SharesWhatTakesBytes(NativePolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        if isinstance(answer, Plan):
            answer.shared = True
        return answer


@breaks("unfenced-retires-nothing")
class RetiresUnasked(PagedPolicy):
    """Not fenced, it reserves addresses and frees them."""

    def retire(self, step: int) -> Plan:
        plan = Plan(Phase.RETIRE)
        plan.counts[OpKind.RESERVE] = plan.counts[OpKind.FREE] = 1
        if self.placement:
            plan.operations = tuple(
                Operation(kind, arena=0, nbytes=64 << 10) for kind in (OpKind.RESERVE, OpKind.FREE)
            )
        return plan


@breaks("driver-access")
class CopiesFromNowhere(VTensorPolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        return changed(super().create(*arguments), OpKind.COPY, lambda op: {"source": 1 << 20})


@breaks("driver-addresses")
class ReservesTooMuch(VTensorPolicy):
    def setup(self, *arguments: Any) -> Plan:
        return changed(super().setup(*arguments), OpKind.RESERVE, lambda op: {"nbytes": 1 << 60})


@breaks("driver-allocation")
class FreesAnother(NativePolicy):
    def retire(self, step: int) -> Plan:
        return changed(super().retire(step), OpKind.DEALLOCATE, lambda op: {"chunk": 1 << 20})


@breaks("driver-create")
class CreatesAgain(VTensorPolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        return changed(super().create(*arguments), OpKind.CREATE, lambda op: {"chunk": 0})


@breaks("driver-destroy")
class DestroysWhatIsMapped(VTensorPolicy):
    def teardown(self) -> Plan:
        return first_of(super().teardown(), OpKind.DESTROY)


@breaks("driver-map")
class MapsOutside(VTensorPolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        return changed(super().create(*arguments), OpKind.MAP, lambda op: {"index": 1 << 20})


@breaks("driver-reserve")
class FreesTooEarly(VTensorPolicy):
    def teardown(self) -> Plan:
        return first_of(super().teardown(), OpKind.FREE)


@breaks("driver-shared-write")
class CopiesOverShared(VTensorPolicy):
    """To the start of the slot, where chunks are the record's too."""

    def create(self, *arguments: Any) -> Plan | Shortage:
        return changed(super().create(*arguments), OpKind.COPY, lambda op: {"offset": 0})


@breaks("driver-size")
class MapsAByte(VTensorPolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        return changed(super().create(*arguments), OpKind.MAP, lambda op: {"nbytes": 1})


def changed(answer: T, kind: OpKind, how: Callable[[Operation], dict[str, int]]) -> T:
    """The plan with its operations of `kind` falsified; what it counts stays."""
    if isinstance(answer, Plan) and answer.operations:
        answer.operations = tuple(
            replace(op, **how(op)) if op.kind is kind else op  # type: ignore[arg-type]
            for op in answer.operations
        )
    return answer


def first_of(plan: Plan, kind: OpKind) -> Plan:
    """The plan with the operations of `kind` before all others."""
    plan.operations = tuple(sorted(plan.operations, key=lambda op: op.kind is not kind))
    return plan


# -- many steps at once, continued -----------------------------------------------------------------


@breaks("headroom-at-most")
@breaks("headroom-is-bounded", "leap")
class PromisesMore(NativePolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return Headroom(at_most + 1)


@breaks("headroom-is-kept", "leap")
class PromisesWhatItRefuses(PagedPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return Headroom(at_most)


@breaks("leap-equals-step", "leap")
class TakesOneStep(NativePolicy):
    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        return super().extend(batch, 1)


# -- memory, continued -----------------------------------------------------------------------------


@breaks("one-slot-each")
class MapsElsewhere(VTensorPolicy):
    """The last chunk of a prompt goes to the next slot."""

    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        if isinstance(answer, Plan) and answer.operations:
            *others, last = answer.operations
            if last.kind is OpKind.MAP and last.index:
                answer.operations = (*others, replace(last, slot=last.slot + 1))
        return answer


@breaks("usage-within-limit")
class IgnoresItsLimit(NativePolicy):
    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        return NOTHING


@breaks("categories-sum", "plans")
class ForgetsSlackInRuns(PagedPolicy):
    def usage(self) -> MemoryUsage:
        return super().usage()._replace(kv_slack=0)


# -- victims and runs ------------------------------------------------------------------------------


@breaks("victim-pure")
class CountsItsVictims(NativePolicy):
    asked = 0

    def select_victim(self, batch: Any) -> Any:
        self.asked += 1
        return super().select_victim(batch)


@breaks("victim-runs")
@breaks("progress", "progress")
class HasNoVictim(PagedPolicy):
    def select_victim(self, batch: Any) -> Any:
        return None


@breaks("progress", "progress")
class GrantsNothing(NativePolicy):
    """It admits, and says for ever that memory is on its way."""

    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        return Shortage(1, pending_bytes=1)

    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return Headroom(0)

    def select_victim(self, batch: Any) -> Any:
        return None


@breaks("plenty-is-served", "progress")
class ServesOneAtATime(NativePolicy):
    """Whoever is not alone is preempted."""

    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        return Shortage(1) if len(batch.decoding) > 1 else super().extend(batch, steps)

    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return Headroom(0)


@breaks("refused-alike", "refusals")
class GivesMoreWhenPlaced(NativePolicy):
    """After a refusal by the device it keeps another limit with placement than without."""

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        answer = super().set_limit(limit_bytes)
        if self.placement and isinstance(answer, Plan):
            self.limit_bytes = 0
        return answer


@breaks("undo-exact", "refusals")
class CannotBeUndone(VTensorPolicy):
    """A count of creates that all instances share."""

    serial = itertools.count()

    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        if isinstance(answer, Plan):
            self.number = next(type(self).serial)
        return answer


# -- books that are off ----------------------------------------------------------------------------


def off(
    name: str, base: type[Policy], damage: Callable[[Any], None], parameters: Any = None
) -> None:
    """A policy whose books are falsified as soon as there is something to falsify."""

    def check_integrity(self: Any) -> None:
        try:
            damage(self)
        except (LookupError, StopIteration, AttributeError):  # nothing there yet
            pass
        base.check_integrity(self)

    title = "Off" + "".join(word.capitalize() for word in name.split("-")) + base.__name__
    made = type(title, (base,), {"check_integrity": check_integrity})
    BROKEN.append(Broken(name, made, "calls", parameters))


def one_more(path: str, by: int = 1) -> Callable[[Any], None]:
    """Adds `by` to the number at `path`: attributes, and `0` for the first value of what is
    iterated over."""

    def damage(policy: Any) -> None:
        *way, last = path.split(".")
        thing = policy
        for step in way:
            if step == "0":
                thing = next(iter(thing.values() if isinstance(thing, dict) else thing))
            else:
                thing = getattr(thing, step)
        setattr(thing, last, getattr(thing, last) + by)

    return damage


def _idle_node(policy: Any) -> Any:
    return next(n for n in policy._store._tree if not n.live and n.blocks and n in _order(policy))


def _order(policy: Any) -> Any:
    return policy._store._order


def _wrong_idle_blocks(policy: Any) -> None:
    _idle_node(policy).blocks += 1


def _out_of_order(policy: Any) -> None:
    _order(policy).discard(_idle_node(policy))


def _in_a_slot_too_small(tables: str) -> Callable[[Any], None]:
    def damage(policy: Any) -> None:
        held = next(h for i, h in getattr(policy, tables).items() if i not in policy._growth)
        held.tokens += 1 << 30
        held.mapped += 1 << 30

    return damage


def _pooled_twice(policy: Any) -> None:
    policy._placed.pooled.append(1 << 30)


def _pooled_and_mapped(policy: Any) -> None:
    policy._placed.pooled[0] = next(iter(policy._placed.references))


def _counted_once_more(policy: Any) -> None:
    unit = next(iter(policy._placed.references))
    policy._placed.references[unit] += 1


def _empty_page_in_use(policy: Any) -> None:
    page = policy._held_blocks()[0] // policy._pages.per_page
    policy._pages.empty[0] = page


def _lost_block(policy: Any) -> None:
    next(table for i, table in policy._tables.items() if i in policy._growth).own.pop()


def _lost_allocation(policy: Any) -> None:
    policy._held.popitem()


def _too_long(policy: Any) -> None:
    policy._lengths[next(iter(policy._lengths))] += 1 << 30


def _over_its_limit(policy: Any) -> None:
    if policy._pool.created:
        policy._pool.limit = 0


def _freed_unclaimed(policy: Any) -> None:
    if policy._tables:
        policy._store.freed.append(0)


def _pages_over_the_limit(policy: Any) -> None:
    if policy._pages.mapped:
        policy._limit_pages = 0


ADOPTING = VTensorParameters(release="park", prefix_cache=False)
off("token-count", NativePolicy, one_more("_tokens"))
off("one-allocation-a-sequence", NativePolicy, _lost_allocation)
off("mapped-covers-used", NativePolicy, _too_long)
off("mapped-covers-used", VAttentionPolicy, one_more("_held.0.tokens", 1 << 30))
off("mapped-covers-used", VTensorPolicy, one_more("_vset.0.tokens", 1 << 30))
off("table-count", PagedPolicy, one_more("_prefill_tokens"))
off("held-count", PagedPolicy, one_more("_store.live"))
off("idle-count", PagedPolicy, one_more("_store.idle"))
off("cached-count", PagedPolicy, one_more("_store.cached_idle"))
off("live-count", PagedPolicy, one_more("_store._tree.0.live"))
off("table-covers-its-path", PagedPolicy, one_more("_tables.0.cached"))
off("node-holds-its-blocks", PagedPolicy, _wrong_idle_blocks)
off("idle-content-is-in-the-order", PagedPolicy, _out_of_order)
off("each-block-is-free-or-held", PagedPolicy, one_more("_store.fresh"))
off("each-block-is-free-or-held", ElasticPagedPolicy, one_more("_pages.free_blocks"))
off("blocks-are-mapped", ElasticPagedPolicy, _empty_page_in_use)
off("table-covers-its-tokens", ElasticPagedPolicy, _lost_block)
off("still-tokens", ElasticPagedPolicy, one_more("_still_tokens"))
off("table-blocks", ElasticPagedPolicy, one_more("_table_blocks"))
off("own-blocks", ElasticPagedPolicy, one_more("_own_blocks"))
off("leaving-blocks", ElasticPagedPolicy, one_more("_leaving_blocks"))
off("freed-are-claimed", ElasticPagedPolicy, _freed_unclaimed)
off("within-the-limit", ElasticPagedPolicy, _pages_over_the_limit)
off("own-units", VAttentionPolicy, one_more("_own_units"))
off("leaving-units", VAttentionPolicy, one_more("_leaving_units"))
off("still-tokens", VAttentionPolicy, one_more("_still_tokens"))
off("parked-units", VAttentionPolicy, one_more("_slots.parked_units"))
off("available-units", VAttentionPolicy, one_more("_pool.available"))
off("each-chunk-is-free-or-mapped", VAttentionPolicy, one_more("_pool.created"))
off("each-slot-is-free-or-held", VAttentionPolicy, one_more("_slots.used"))
off("inside-its-slot", VAttentionPolicy, _in_a_slot_too_small("_held"))
off("within-the-limit", VAttentionPolicy, _over_its_limit, VAttentionParameters(eager_slots=0))
off("own-units", VTensorPolicy, one_more("_own_units"))
off("shared-units", VTensorPolicy, one_more("_shared_units"))
off("live-units", VTensorPolicy, one_more("_extents.live_units"))
off("record-units", VTensorPolicy, one_more("_extents.record_units"))
off("parked-units", VTensorPolicy, one_more("_slots.parked_units"), ADOPTING)
off("extent-holders", VTensorPolicy, one_more("_prefixes.records.0.payload.leaf.records"))
off("tables-are-contiguous", VTensorPolicy, one_more("_prefixes.records.0.payload.leaf.start"))
off("record-table-length", VTensorPolicy, one_more("_prefixes.records.0.payload.units"))
off("each-slot-is-free-or-held", VTensorPolicy, one_more("_slots.used"))
off("each-chunk-is-free-or-mapped", VTensorPolicy, one_more("_pool.created"))
off("inside-its-slot", VTensorPolicy, _in_a_slot_too_small("_vset"))
off("within-the-limit", VTensorPolicy, _over_its_limit)
off("mapped-reference-count-times", VTensorPolicy, _counted_once_more)
off("pooled-count", VTensorPolicy, _pooled_twice)
off("free-or-mapped", VTensorPolicy, _pooled_and_mapped)


# -- chunks of several sizes -----------------------------------------------------------------------

GROWING = VTensorParameters(max_chunk=64 << 20, growth=8)


@breaks("plan-counts", "plans", GROWING)
class BytesAsIfOfOneSize(GrowingVTensorPolicy):
    def _take_chunks(self, plan: Plan, *arguments: Any) -> Any:
        made = super()._take_chunks(plan, *arguments)
        plan.created_bytes = None
        return made


@breaks("plan-counts", "plans", GROWING)
class CountsUnitsForChunks(GrowingVTensorPolicy):
    def _cut(self, plan: Plan, slot: int, keep: int, mapped: int) -> None:
        super()._cut(plan, slot, keep, mapped)
        more = mapped - keep - self.kv.chunks(mapped) + self.kv.chunks(keep)
        plan.counts[OpKind.UNMAP] += more * self._arenas

    def _unmap_all(self, plan: Plan, slot: int, units: int, freed: int, due: int = 0) -> None:
        super()._unmap_all(plan, slot, units, freed, due)
        plan.counts[OpKind.UNMAP] += (units - self.kv.chunks(units)) * self._arenas


@breaks("driver-size", parameters=replace(GROWING, growth=2))
class LargestEverywhere(GrowingVTensorPolicy):
    def extend(self, *arguments: Any) -> Plan | Shortage:
        largest = self.kv.chunk_sizes[-1]
        return changed(super().extend(*arguments), OpKind.MAP, lambda op: {"nbytes": largest})


@breaks("headroom-without-eviction", parameters=replace(GROWING, prefix_cache=False))
class PromisesWhatOtherSizesHold(GrowingVTensorPolicy):
    """Free units are no free chunks of the sizes that are wanted."""

    def headroom(self, batch: Any, at_most: int) -> Headroom:
        coming, left, steps = self._growth.coming(at_most), self._pool.available, at_most
        for crossing in coming:
            left -= crossing.behind - crossing.first
            if left < 0:
                steps = crossing.due
                break
        return Headroom(steps, self._bounds[len(coming), len(coming), 1 << 40])


@breaks("plan-within-limit", parameters=GROWING)
class MakesNoRoom(GrowingVTensorPolicy):
    """Creates beyond the limit while free chunks of other sizes lie idle."""

    class Pool(SizedPool):
        def take(self, *arguments: Any) -> Any:
            limit, self.limit = self.limit, 1 << 60
            taken = super().take(*arguments)
            self.limit = limit
            return taken

    def setup(self, *arguments: Any) -> Plan:
        plan = super().setup(*arguments)
        self._pool = self.Pool(self._pool.limit, len(self._pool.free))
        return plan


@breaks("last-is-true", parameters=GROWING)
class ForgetsALargerOne(GrowingVTensorPolicy):
    """Says of the last step what would be due if all its chunks had the smallest size."""

    def headroom(self, batch: Any, at_most: int) -> Headroom:
        said = super().headroom(batch, at_most)
        due = [c for c in self._growth.coming(said.steps) if c.due == said.steps - 1]
        units = sum(c.behind - c.first for c in due)
        return said._replace(last=self._bounds[0, units, 0]) if units else said


def _free_of_another_size(policy: Any) -> None:
    free = policy._pool.free
    if len(free) > 1 and free[0] > 1:
        free[0] -= 2
        free[1] += 1


def _not_so_many_units_free(policy: Any) -> None:
    policy._pool.free[0] += 1


def _placed_out_of_place(policy: Any) -> None:
    sizes = policy._sized._sizes
    unit = next(unit for unit in policy._sized.references)
    sizes[unit] += 1


off("pooled-by-size", GrowingVTensorPolicy, _not_so_many_units_free, GROWING)
off("pooled-by-size", GrowingVTensorPolicy, _free_of_another_size, GROWING)
off("size-by-position", GrowingVTensorPolicy, _placed_out_of_place, GROWING)
