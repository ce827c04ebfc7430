"""vtensor with inplace: a conversation goes on in its record's slot, and the record stays."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from vtsim.plan import NO_MATCH, Keep, OpKind, Phase, Plan, Shortage
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.request import Sequence
from vtsim.spec import KVLayout
from vtsim.testing import Ask, make_trace, random_case, toy_device
from vtsim.testing.cases import Case, run_case
from vtsim.testing.conformance import check_calls, check_refusals, compare_runs, maker

KIB = 1 << 10


class Hand:
    """A policy driven by hand: units of 4 tokens, one arena, 20 units."""

    def __init__(self, slots: int = 100, **parameters: Any) -> None:
        parameters = {"inplace": True, **parameters}
        self.policy = VTensorPolicy(VTensorParameters(**parameters), placement=True)
        kv = KVLayout("toy", 1, 16 * KIB, 64 * KIB, 64)
        limit = 20 * kv.unit_bytes
        self.policy.setup(toy_device(limit, slots * kv.slot_bytes), kv, limit)
        self._made = 0
        self._step = 0

    def create(self, content: tuple[tuple[int, int], ...], matched: int) -> tuple[Sequence, Plan]:
        seq = Sequence(self._made, sum(n for _, n in content), content, (), 0, self._made)
        self._made += 1
        match = self.policy.match(seq) if matched else NO_MATCH
        assert match.tokens == matched
        new = seq.prompt_tokens - match.tokens
        plan = self.policy.create(seq, match, new, seq.prompt_tokens)
        assert isinstance(plan, Plan)
        self.policy.check_integrity()
        return seq, plan

    def leave(self, seq: Sequence, keep: Keep = Keep.RECORD) -> Plan:
        self._step += 1
        self.policy.release(seq, keep, self._step)
        plan = self.policy.retire(self._step)
        self.policy.check_integrity()
        return plan

    def usage(self) -> tuple[int, ...]:
        """(live tokens, slack tokens, kept units, pooled units)"""
        usage = self.policy.usage()
        token, unit = 16 * KIB, 64 * KIB
        live, slack = usage.kv_live // token, usage.kv_slack // token
        return live, slack, usage.kv_prefix // unit, usage.kv_pooled // unit


def calls(plan: Plan) -> tuple[int, int, int]:
    """(maps, unmaps, copies)"""
    return plan.counts[OpKind.MAP], plan.counts[OpKind.UNMAP], plan.counts[OpKind.COPY]


def test_what_fits_the_tail_needs_no_call() -> None:
    hand = Hand()
    seq, _ = hand.create(((0, 10),), 0)
    hand.leave(seq)
    assert hand.usage() == (0, 0, 3, 0)
    again, plan = hand.create(((0, 12),), 10)
    assert not any(plan.counts), "tokens 10 and 11 go behind token 9, in the same chunk"
    assert hand.policy.slot_of(again) == 0 and hand.usage() == (12, 0, 0, 0)
    plan = hand.leave(again)
    assert not any(plan.counts) and hand.usage() == (0, 0, 3, 0), "one record, of 12 tokens"
    third, plan = hand.create(((0, 21),), 12)
    assert calls(plan) == (3, 0, 0), "what it adds, and nothing else"


def test_the_record_stays_for_others_meanwhile() -> None:
    hand = Hand()
    seq, _ = hand.create(((0, 10),), 0)
    hand.leave(seq)
    going, _ = hand.create(((0, 10), (100, 5)), 10)
    other, plan = hand.create(((0, 10), (200, 3)), 10)
    assert calls(plan) == (4, 0, 1), "2 shared, 2 of its own; the tail's 2 tokens are copied"
    copied = [op for op in plan.operations if op.kind is OpKind.COPY]
    assert [op.source for op in copied] == [hand.policy.slot_of(going)]
    assert hand.usage() == (15 + 13 - 8, 4, 0, 0)
    hand.leave(going)
    assert hand.usage() == (13, 3, 2, 0), "the longer record took the place of the first"
    hand.leave(other)
    _, plan = hand.create(((0, 10), (100, 5), (300, 1)), 15)
    assert calls(plan) == (0, 0, 0)


def test_the_record_is_as_before_if_nothing_is_kept() -> None:
    hand = Hand()
    seq, _ = hand.create(((0, 10),), 0)
    hand.leave(seq)
    going, plan = hand.create(((0, 10), (100, 8)), 10)
    assert calls(plan) == (2, 0, 0)
    plan = hand.leave(going, Keep.NONE)
    assert calls(plan) == (0, 2, 0) and hand.usage() == (0, 0, 3, 2)
    _, plan = hand.create(((0, 10), (200, 1)), 10)
    assert not any(plan.counts)


def test_a_record_evicted_meanwhile_leaves_its_slot_to_the_sequence() -> None:
    hand = Hand()
    seq, _ = hand.create(((0, 10),), 0)
    hand.leave(seq)
    going, _ = hand.create(((0, 10), (100, 1)), 10)
    assert hand.usage() == (11, 1, 0, 0)
    hand.policy._evict(Plan(Phase.EXTEND), None)  # as a shortage would, in vain
    hand.policy.check_integrity()
    assert hand.usage() == (11, 1, 0, 0)
    plan = hand.leave(going, Keep.NONE)
    assert calls(plan) == (0, 3, 0), "nobody else holds any of it"


def test_only_a_whole_record_is_continued() -> None:
    hand = Hand()
    seq, _ = hand.create(((0, 10),), 0)
    hand.leave(seq)
    part, plan = hand.create(((0, 9), (100, 3)), 9)
    assert calls(plan) == (3, 0, 1) and hand.policy.slot_of(part) == 1
    same, plan = hand.create(((0, 10),), 9)  # one token is always computed
    assert calls(plan) == (3, 0, 1)


def test_slots_are_counted_once() -> None:
    hand = Hand(slots=2)
    seq, _ = hand.create(((0, 8),), 0)
    hand.leave(seq)
    hand.create(((0, 8), (100, 1)), 8)
    hand.create(((500, 4),), 0)
    refused = hand.policy.create(Sequence(9, 4), NO_MATCH, 4, 4)
    assert isinstance(refused, Shortage) and refused.slots == 1, "the record's slot is in use"


@pytest.mark.parametrize(
    "parameters",
    [{}, {"tail": "recompute", "retain": "watermark"}, {"release": "park", "evict": "lfu"}],
    ids=lambda parameters: "-".join(parameters) or "defaults",
)
def test_it_is_held_to_the_contract(parameters: dict[str, Any]) -> None:
    make = maker(VTensorPolicy, VTensorParameters(inplace=True, **parameters))
    for seed in range(4):
        check_calls(make, seed)
        compare_runs(make, random_case(Random(seed), "high"))
    check_refusals(make, 2, most=10)


def test_a_conversation_costs_calls_for_what_it_adds_only() -> None:
    asks = [Ask(10**13 * k, 100 + 60 * k, 40, session=0, turn=k) for k in range(6)]
    case = Case(make_trace(asks), max_model_len=1000, limit_tokens=10_000)
    runs = {
        inplace: run_case(case, VTensorPolicy(VTensorParameters(inplace=inplace)))
        for inplace in (False, True)
    }
    work = {inplace: run.recorder.counts for inplace, run in runs.items()}
    maps = {i: sum(counts[OpKind.MAP] for counts in work[i]) for i in work}
    copies = {i: sum(counts[OpKind.COPY] for counts in work[i]) for i in work}
    assert runs[False].recorder.hit_tokens == runs[True].recorder.hit_tokens
    assert maps[True] == -(-440 // 32), "as many as the last turn's tokens fill, each once"
    assert maps[False] > 2 * maps[True]
    assert (copies[False], copies[True]) == (5, 0)
