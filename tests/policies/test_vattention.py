"""vattention: growth units, slots that stay mapped, and where it is vtensor under another name."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import vtsim
from vtsim.errors import ConfigError
from vtsim.plan import NO_MATCH, Keep, OpKind, Phase, Plan, Shortage
from vtsim.policies.vattention import VAttentionParameters, VAttentionPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.ports import Batch
from vtsim.request import Sequence
from vtsim.spec import KVLayout, load_model
from vtsim.testing import Ask, make_trace, random_case, run_case, toy_device
from vtsim.testing.conformance import assert_equal_runs

KIB = 1 << 10
PAGES = (64 * KIB, 128 * KIB, 256 * KIB, 2048 * KIB)

# FACTS.md, from the vAttention paper: tokens that one page group in each virtual tensor holds.
GROWTH_UNITS = [
    ("yi-6b", 1, "per_layer", (64, 128, 256, 2048)),
    ("yi-6b", 1, "kv_split", (2, 4, 8, 64)),
    ("llama-3-8b", 1, "per_layer", (32, 64, 128, 1024)),
    ("llama-3-8b", 1, "kv_split", (1, 2, 4, 32)),
    ("yi-34b", 2, "per_layer", (64, 128, 256, 2048)),
    ("yi-34b", 2, "kv_split", (1, 2, 4, 34)),
]


@pytest.mark.parametrize(("model", "tp", "layout", "tokens"), GROWTH_UNITS)
def test_growth_units_are_the_papers(
    model: str, tp: int, layout: Any, tokens: tuple[int, ...]
) -> None:
    spec = load_model(model)
    for page, expected in zip(PAGES, tokens, strict=True):
        policy = VAttentionPolicy(VAttentionParameters(page=page, layout=layout))
        assert policy.kv_layout(spec, tp, 4096).unit_tokens(1) == expected


def test_other_page_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="vattention.page: 524288 B is not a page group"):
        VAttentionParameters(page=512 * KIB)
    with pytest.raises(ConfigError, match="vattention.slots: must be >= 1, got 0"):
        VAttentionParameters(slots=0)


def test_small_pages_are_simulated_at_the_patched_drivers_costs() -> None:
    trace = make_trace([Ask(0, 1000, 50), Ask(10**12, 300, 20)])
    small = vtsim.replay(trace, ["vattention"], settings={"vattention": {"page": 64 * KIB}})
    large = vtsim.replay(trace, ["vattention"])
    assert [run.chunk_bytes for run in (*small.runs, *large.runs)] == [64 * KIB, 2048 * KIB]
    recorders = [run.recorder for run in (*small.runs, *large.runs)]
    assert all(min(recorder.finished_at) > 0 for recorder in recorders)
    # Four eager groups and one more in each of 64 arenas; of 64 tokens, 1,050 need 16 more.
    created = [sum(counts[OpKind.CREATE] for counts in r.counts) for r in recorders]
    assert created == [64 * (5 + 16), 64 * 5]
    # The prompt's 15, at 1.7 us to create and 8 to map; its first group was there.
    assert [r.busy[Phase.CREATE] for r in recorders] == [64 * 15 * 9_700_000, 0]


@pytest.mark.parametrize("seed", range(30))
def test_equals_vtensor_that_parks(seed: int) -> None:
    """No eager slots, no lookahead, no prefixes: the same decisions, calls and times."""
    case = random_case(Random(seed), "high" if seed % 2 else "any")
    left = VAttentionPolicy(
        VAttentionParameters(eager_slots=0, lookahead=0, slots=1 << 20), placement=True
    )
    right = VTensorPolicy(
        VTensorParameters(layout="per_layer", lookahead=0, release="park", prefix_cache=False),
        placement=True,
    )
    assert_equal_runs(
        run_case(case, left, placement=True),
        run_case(case, right, placement=True),
        "vattention and vtensor",
    )


# -- slots, by hand: units of 4 tokens, one arena --------------------------------------------------


class Hand:
    """A policy driven by hand."""

    def __init__(self, units: int, **parameters: Any) -> None:
        self.policy = VAttentionPolicy(VAttentionParameters(**parameters), placement=True)
        kv = KVLayout("toy", 1, 16 * KIB, 64 * KIB, 64)
        device = toy_device(units * kv.unit_bytes)
        self.setup = self.policy.setup(device, kv, units * kv.unit_bytes)
        self.batch = Batch()
        self._made = 0

    def create(self, tokens: int) -> tuple[Sequence, Plan | Shortage]:
        seq = Sequence(self._made, tokens, order=self._made)
        self._made += 1
        plan = self.policy.create(seq, NO_MATCH, tokens, tokens)
        if isinstance(plan, Plan):
            self.batch.running[seq.index] = self.batch.decoding[seq.index] = seq
        return seq, plan

    def leave(self, seq: Sequence) -> None:
        del self.batch.running[seq.index], self.batch.decoding[seq.index]
        self.policy.release(seq, Keep.NONE, 1)
        self.policy.retire(1)

    def used(self) -> tuple[int, int]:
        """(parked, pooled) units."""
        usage, unit = self.policy.usage(), self.policy.kv.unit_bytes
        self.policy.check_integrity()
        return usage.kv_parked // unit, usage.kv_pooled // unit


def made(plan: Plan | Shortage) -> tuple[int, int, int]:
    """(creates, maps, unmaps)"""
    assert isinstance(plan, Plan)
    counts = plan.counts
    return counts[OpKind.CREATE], counts[OpKind.MAP], counts[OpKind.UNMAP]


def test_a_slot_is_reused_as_it_is_the_best_fit_first() -> None:
    hand = Hand(20, eager_slots=0)
    large, small = hand.create(32)[0], hand.create(12)[0]
    hand.leave(large)
    hand.leave(small)
    assert hand.used() == (11, 0)
    seq, plan = hand.create(9)  # 3 units: the small slot fits
    assert made(plan) == (0, 0, 0) and hand.policy.slot_of(seq) == 1
    seq, plan = hand.create(40)  # 10 units: the large slot has 8 of them
    assert made(plan) == (2, 2, 0) and hand.policy.slot_of(seq) == 0


def test_idle_slots_get_pages_eagerly_one_a_step() -> None:
    hand = Hand(20, eager_slots=2)
    assert made(hand.setup) == (2, 2, 0) and hand.used() == (2, 0)
    _, plan = hand.create(3)
    assert made(plan) == (0, 0, 0), "the first page group is there already"
    assert hand.policy.headroom(hand.batch, 10).steps == 0
    assert made(hand.policy.extend(hand.batch)) == (1, 1, 0)
    assert hand.used() == (2, 0)
    assert hand.policy.headroom(hand.batch, 10).steps == 10
    assert made(hand.policy.extend(hand.batch)) == (1, 1, 0), "its own second page group"


def test_a_shortage_takes_the_pages_that_have_been_idle_longest() -> None:
    hand = Hand(8, eager_slots=0)
    first, second = hand.create(8)[0], hand.create(12)[0]
    hand.leave(first)
    hand.leave(second)
    _, plan = hand.create(12)  # adopts the second, which fits
    assert made(plan) == (0, 0, 0) and hand.used() == (2, 0)
    hand.create(12)  # adopts the first, and creates one unit
    assert hand.used() == (0, 0)
    _, refused = hand.create(12)  # two are left
    assert isinstance(refused, Shortage) and refused.nbytes == 64 * KIB and not refused.slots


def test_what_steals_unmaps_a_whole_slot() -> None:
    hand = Hand(6, eager_slots=0)
    first, second = hand.create(8)[0], hand.create(8)[0]
    running = hand.create(8)[0]
    hand.leave(first)
    hand.leave(second)
    plan = hand.policy.extend(hand.batch)
    assert made(plan) == (0, 1, 2), "the first slot's two units: one mapped again, one pooled"
    assert hand.used() == (2, 1) and running.index in hand.batch.decoding


def test_a_full_batch_is_short_of_slots_not_of_bytes() -> None:
    hand = Hand(20, slots=1, eager_slots=0)
    seq, _ = hand.create(4)
    _, refused = hand.create(4)
    assert isinstance(refused, Shortage) and (refused.nbytes, refused.slots) == (0, 1)
    hand.batch.running.clear()
    hand.policy.release(seq, Keep.NONE, 1)
    _, refused = hand.create(4)
    assert isinstance(refused, Shortage) and refused.will_clear
