"""elastic-paged: what scattered blocks hold back, what placement changes, pages given back."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from vtsim.errors import ConfigError
from vtsim.plan import NO_MATCH, NOTHING, Keep, OpKind, Plan, Shortage
from vtsim.policies.elastic import ElasticPagedPolicy, ElasticParameters
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.ports import Batch
from vtsim.request import Sequence
from vtsim.spec import KVLayout
from vtsim.testing import random_case, run_case, toy_device
from vtsim.testing.conformance import assert_equal_runs

KIB = 1 << 10
BLOCK = 4
PER_PAGE = 16


class Hand:
    """A policy driven by hand: blocks of 4 tokens, pages of 16 blocks, one arena."""

    def __init__(self, pages: int, **parameters: Any) -> None:
        parameters = {"block": BLOCK, "reserve_low": 0, "reserve_high": 0, **parameters}
        self.policy = ElasticPagedPolicy(ElasticParameters(**parameters), placement=True)
        kv = KVLayout("toy", 1, 64 * KIB // (BLOCK * PER_PAGE), 64 * KIB, 640)
        self.setup = self.policy.setup(toy_device(pages * kv.unit_bytes), kv, pages * kv.unit_bytes)
        self._made = 0
        self._step = 0
        self.batch = Batch()

    def create(self, tokens: int) -> tuple[Sequence, Plan | Shortage]:
        seq = Sequence(self._made, tokens, order=self._made)
        self._made += 1
        plan = self.policy.create(seq, NO_MATCH, tokens, tokens)
        if isinstance(plan, Plan):
            self.batch.running[seq.index] = self.batch.decoding[seq.index] = seq
        return seq, plan

    def one_block(self) -> Sequence:
        seq, plan = self.create(1)
        assert isinstance(plan, Plan)
        return seq

    def leave(self, *seqs: Sequence) -> Plan:
        self._step += 1
        for seq in seqs:
            del self.batch.running[seq.index], self.batch.decoding[seq.index]
            self.policy.release(seq, Keep.NONE, self._step)
        return self.policy.retire(self._step)

    @property
    def pages(self) -> int:
        """Mapped, as the books say."""
        self.policy.check_integrity()
        return sum(self.policy.usage()) // (64 * KIB)


def scattered(place: str) -> tuple[Hand, list[Sequence]]:
    """1,000 live blocks over 89 pages of 16: what is left of 1,424 after 424 others have ended."""
    hand = Hand(200, place=place)
    live = [hand.one_block() for _ in range(89 * PER_PAGE)]
    assert hand.pages == 89
    random = Random(4)
    left = {page: PER_PAGE for page in range(89)}
    ending: list[int] = []
    for place_of in random.sample(range(len(live)), len(live)):
        if len(ending) < 424 and left[place_of // PER_PAGE] > 1:
            left[place_of // PER_PAGE] -= 1
            ending.append(place_of)
    plan = hand.leave(*(live[i] for i in ending))
    assert plan is NOTHING, "no page has become empty: nothing can be given back"
    gone = set(ending)
    return hand, [seq for i, seq in enumerate(live) if i not in gone]


def test_a_thousand_scattered_blocks_free_no_page() -> None:
    """FACTS, kvcached: with 1,000 live blocks over 89 pages no page could be freed, though 63
    pages would hold them."""
    hand, live = scattered("oldest")
    assert (len(live), hand.pages) == (1000, 89)
    assert hand.policy.usage().pool_unused == 424 * 4 * KIB
    refused = hand.policy.set_limit(88 * 64 * KIB)
    assert isinstance(refused, Shortage), "nor does anything else empty one"


def test_placement_at_allocation_decides_what_churn_gives_back() -> None:
    """The same 3,000 departures and arrivals: fullest page first packs 1,000 live blocks into few
    more pages than they need (63), a free queue leaves them spread for good."""
    held = {}
    for place in ("oldest", "newest", "lowest", "fullest"):
        hand, live = scattered(place)
        random = Random(5)
        for _ in range(3000):
            hand.leave(live.pop(random.randrange(len(live))))
            live.append(hand.one_block())
        held[place] = hand.pages
    assert held == {"oldest": 89, "newest": 71, "lowest": 73, "fullest": 68}


@pytest.mark.parametrize("seed", range(30))
def test_a_page_of_one_block_holds_what_vtensor_holds(seed: int) -> None:
    """Chunks of one block, nothing kept for later: the same footprint, and all else."""
    case = random_case(Random(seed), "high" if seed % 2 else "any")
    trace = case.trace  # without content, as what is missed for which reason is not the same
    nobody = np.full(len(trace), -1, dtype=np.int64)
    trace = replace(
        trace, session=nobody, turn=nobody, run_offsets=np.zeros(len(trace) + 1, dtype=np.int64)
    )
    case = replace(case, trace=trace, tokens_in_chunks=(16, 1), slots=1000)
    elastic = ElasticPagedPolicy(
        ElasticParameters(block=16, reserve_low=0, reserve_high=0, prefix_cache=False)
    )
    vtensor = VTensorPolicy(VTensorParameters(retain="none", prefix_cache=False))
    assert_equal_runs(run_case(case, elastic), run_case(case, vtensor), "elastic-paged and vtensor")


def calls(plan: Plan | Shortage) -> tuple[int, int]:
    """(pages mapped, pages unmapped)"""
    assert isinstance(plan, Plan)
    assert plan.counts[OpKind.CREATE] == plan.counts[OpKind.MAP]
    assert plan.counts[OpKind.DESTROY] == plan.counts[OpKind.UNMAP]
    return plan.counts[OpKind.MAP], plan.counts[OpKind.UNMAP]


def test_the_reserve_stays_between_its_watermarks() -> None:
    hand = Hand(20, reserve_low=2, reserve_high=3)
    assert calls(hand.setup) == (2, 0) and hand.pages == 2
    first, plan = hand.create(64)  # a whole page, from the reserve
    assert calls(plan) == (0, 0) and hand.pages == 2
    assert calls(hand.policy.extend(hand.batch)) == (1, 0), "its next block opens the other page"
    assert calls(hand.policy.extend(hand.batch)) == (1, 0), "one page a step refills the reserve"
    assert hand.policy.extend(hand.batch) is NOTHING and hand.pages == 4
    others = [hand.create(64)[0] for _ in range(4)]  # 15 blocks of the second page, then 4 pages
    assert hand.pages == 6
    assert calls(hand.leave(first, *others)) == (0, 3) and hand.pages == 3


def test_a_block_larger_than_a_chunk_gets_several() -> None:
    policy = ElasticPagedPolicy(ElasticParameters(block=96, chunk=64 * KIB, reserve_low=1))
    kv = KVLayout("toy", 1, KIB, 64 * KIB, 640)  # a block has 96 KiB, a page two chunks
    plan = policy.setup(toy_device(100 * kv.unit_bytes), kv, 100 * kv.unit_bytes)
    assert isinstance(plan, Plan) and plan.counts[OpKind.MAP] == 2
    usage = policy.usage()
    assert sum(usage) == usage.pool_unused == 128 * KIB, "32 KiB of it can hold no block"


def test_cached_content_holds_its_page_until_it_is_evicted() -> None:
    hand = Hand(2, prefix_cache=True)
    seq = Sequence(0, 64, ((0, 64),), order=0)
    assert calls(hand.policy.create(seq, NO_MATCH, 64, 64)) == (1, 0)
    hand.policy.release(seq, Keep.RECORD, 1)
    assert hand.policy.retire(1) is NOTHING, "all its blocks are cached"
    assert hand.policy.usage().kv_prefix == 64 * KIB
    assert calls(hand.create(64)[1]) == (1, 0)
    assert calls(hand.create(4)[1]) == (0, 0), "the limit is reached: the tail's block goes"
    assert hand.policy.usage().kv_prefix == 60 * KIB
    refused = hand.policy.set_limit(64 * KIB)
    assert isinstance(refused, Shortage), "live blocks lie in both pages"


def test_parameters_are_checked() -> None:
    with pytest.raises(ConfigError, match="elastic-paged.reserve_high: 1 is less than reserve_low"):
        ElasticParameters(reserve_low=2, reserve_high=1)
    with pytest.raises(ConfigError, match="elastic-paged.block: must be >= 1, got 0"):
        ElasticParameters(block=0)
