"""The suite finds what it is for: policies broken in one way each, and what is said of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from vtsim.errors import InvariantError
from vtsim.memory.radix import tokens_of
from vtsim.plan import NOTHING, Match, MemoryUsage, OpKind, Plan, Shortage
from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.ports import Headroom
from vtsim.testing.conformance import check_policy, check_refusals, maker

BROKEN: list[tuple[type, str]] = []


def caught(message: str) -> Any:
    """The class is held to the suite, which must say `message`."""

    def keep(broken: type) -> type:
        BROKEN.append((broken, message))
        return broken

    return keep


# -- declaration -----------------------------------------------------------------------------------


@caught("a policy needs a name")
class Nameless(NativePolicy):
    name = ""


@caught("kernels must name at least one")
class WithoutKernels(NativePolicy):
    kernels = ()


@caught("lookahead -1 is not a number of steps")
class LooksBehind(NativePolicy):
    lookahead = -1


@caught("fenced None is not a bool")
class Undecided(NativePolicy):
    fenced = None  # type: ignore[assignment]


@caught("parameters are not JSON")
class Unsayable(NativePolicy):
    @dataclass(frozen=True)
    class Parameters:
        thing: object = field(default_factory=object)

    parameters_type = Parameters


# -- match -----------------------------------------------------------------------------------------


@caught("match changed something")
class TouchingMatch(VTensorPolicy):
    def match(self, seq: Any) -> Match:
        found = super().match(seq)
        if found.tokens:
            self._prefixes.touch(found.handle)
        return found


@caught("tokens, prompt - 1 is")
class GreedyMatch(PagedPolicy):
    def match(self, seq: Any) -> Match:
        tokens, path = self._store.find(seq.content, seq.prompt_tokens)
        return Match(tokens, path)


@caught("tokens that nobody has computed")
class WishfulMatch(VTensorPolicy):
    def match(self, seq: Any) -> Match:
        return Match(min(tokens_of(seq.content), seq.prompt_tokens - 1))


# -- refusals --------------------------------------------------------------------------------------


@caught("create was refused and changed something")
class ForgetsWhatItRefuses(VTensorPolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        if isinstance(answer, Shortage) and self._prefixes.records:
            oldest = self._prefixes.oldest()
            assert oldest is not None
            self._prefixes.touch(oldest)
        return answer


@caught("refused without a shortage")
class RefusesForNothing(NativePolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        return Shortage(0) if isinstance(answer, Shortage) else answer


@caught("the retire that it waits for did not help")
class PromisesMemory(VTensorPolicy):
    def _shortage(self, missing: int) -> Shortage:
        short = super()._shortage(missing)
        return replace(short, pending_bytes=short.nbytes + 1)


# -- memory ----------------------------------------------------------------------------------------


@caught("more than the limit")
class Unlimited(NativePolicy):
    def create(self, *arguments: Any) -> Plan | Shortage:
        limit, self.limit_bytes = self.limit_bytes, 1 << 60
        answer = super().create(*arguments)
        self.limit_bytes = limit
        return answer


@caught("was taken while a kernel may read it")
class Unfenced(VTensorPolicy):
    def release(self, seq: Any, keep: Any, step: int) -> Plan:
        super().release(seq, keep, step)
        return self.retire(step)


@caught("not mapped")
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


@caught("is written and shared")
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


@caught("driver-leak")
class KeepsItsPool(PagedPolicy):
    def teardown(self) -> Plan:
        return NOTHING


@caught("driver-unmap")
class UnmapsWhatIsNotThere(VTensorPolicy):
    def retire(self, step: int) -> Plan:
        plan = super().retire(step)
        if plan is not NOTHING:
            plan.operations = tuple(
                replace(op, chunk=op.chunk + 1) if op.kind is OpKind.UNMAP else op
                for op in plan.operations
            )
        return plan


@caught("plan-counts")
class MiscountsItsPlan(VTensorPolicy):
    def retire(self, step: int) -> Plan:
        plan = super().retire(step)
        if plan is not NOTHING:
            plan.counts[OpKind.UNMAP] += 1
        return plan


# -- books -----------------------------------------------------------------------------------------


@caught("add up to")
class ForgetsItsSlack(PagedPolicy):
    def usage(self) -> MemoryUsage:
        return super().usage()._replace(kv_slack=0)


@caught("a category is negative")
class OwesSlack(NativePolicy):
    def usage(self) -> MemoryUsage:
        usage = super().usage()
        owed = usage.kv_slack + 1
        return usage._replace(kv_slack=-1, kv_pooled=usage.kv_pooled + owed)


@caught("kv_live is")
class CallsSlackLive(VTensorPolicy):
    def usage(self) -> MemoryUsage:
        usage = super().usage()
        return usage._replace(kv_live=usage.kv_live + usage.kv_slack, kv_slack=0)


@caught("invariant still-tokens")
class LosesTokens(VTensorPolicy):
    def extend_prompt(self, seq: Any, tokens: int) -> Plan | Shortage:
        answer = super().extend_prompt(seq, tokens)
        if isinstance(answer, Plan):
            self._still_tokens -= 1
        return answer


# -- placement -------------------------------------------------------------------------------------


@caught("with placement on and off")
class DecidesByPlacement(VTensorPolicy):
    def setup(self, device: Any, kv: Any, limit_bytes: int) -> Plan:
        return super().setup(device, kv, limit_bytes - kv.unit_bytes * self.placement)


@caught("plan-counts")
class WithoutOperations(VTensorPolicy):
    def __init__(self, parameters: Any = None, *, placement: bool = False) -> None:
        super().__init__(parameters)


# -- many steps at once ----------------------------------------------------------------------------


@caught("headroom promised")
class PromisesSteps(PagedPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return Headroom(at_most)


@caught("steps that evict")
class EvictsInHeadroom(VTensorPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        steps, need = self._growth.within(self._reach(), at_most)
        return Headroom(steps, self._counts(need, need))


@caught("than its peak says")
class PromisesNoWork(VTensorPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return Headroom(super().headroom(batch, at_most).steps)


@caught("headroom changed something")
class CountsItsQuestions(NativePolicy):
    asked = 0

    def headroom(self, batch: Any, at_most: int) -> Headroom:
        self.asked += 1
        return super().headroom(batch, at_most)


@caught("retire_later, but it matters when")
class RetiresWhenever(VTensorPolicy):
    def headroom(self, batch: Any, at_most: int) -> Headroom:
        return super().headroom(batch, at_most)._replace(retire_later=True)


@caught("steps at once leaves another state than singly")
class ForgetsSteps(NativePolicy):
    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        return super().extend(batch, 1)


@caught("other operations")
class MapsAllAtOnce(VTensorPolicy):
    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        answer = super().extend(batch, steps)
        if isinstance(answer, Plan) and answer is not NOTHING:
            answer.operations = tuple(replace(op, due=0) for op in answer.operations)
        return answer


@caught("plan.last")
class SaysTheLastStepIsFree(VTensorPolicy):
    def extend(self, batch: Any, steps: int = 1) -> Plan | Shortage:
        answer = super().extend(batch, steps)
        if isinstance(answer, Plan) and answer.last is not None:
            answer.last = [0] * len(answer.counts)
        return answer


# -- the rest --------------------------------------------------------------------------------------


@caught("the victim does not run")
class ChoosesTheDead(NativePolicy):
    last: Any = None

    def create(self, seq: Any, *arguments: Any) -> Plan | Shortage:
        self.last = seq
        return super().create(seq, *arguments)

    def select_victim(self, batch: Any) -> Any:
        return self.last


@caught("undone and left something changed")
class RemembersWhatWasUndone(VTensorPolicy):
    """State outside the policy: another answer each time the same calls are made."""

    serial = itertools.count()

    def create(self, *arguments: Any) -> Plan | Shortage:
        answer = super().create(*arguments)
        if isinstance(answer, Plan):
            self.number = next(type(self).serial)
        return answer


@pytest.mark.parametrize(("broken", "message"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_is_caught(broken: type, message: str) -> None:
    parameters = VTensorParameters(retain="watermark") if broken is RetiresWhenever else None
    with pytest.raises((AssertionError, InvariantError)) as raised:
        check_policy(broken, parameters, seeds=range(30))
    assert message in str(raised.value)


def test_refusals_alone_catch_what_cannot_be_undone() -> None:
    with pytest.raises(AssertionError, match="undoing a decision is not exact"):
        for seed in range(5):
            check_refusals(maker(RemembersWhatWasUndone), seed)


def test_a_failure_says_where() -> None:
    with pytest.raises(AssertionError) as raised:
        check_policy(ForgetsItsSlack, seeds=range(30))
    policy, case = raised.value.__notes__
    assert policy.startswith("paged {'block': 16") and "seed" in policy
    assert case.startswith("Case(")


def test_a_sound_policy_passes() -> None:
    check_policy(PagedPolicy, seeds=range(2))
