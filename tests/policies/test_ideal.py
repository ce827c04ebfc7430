"""Policies against what can be known without them: ideal prefix caches, and published figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from vtsim.memory.blocks import BlockStore
from vtsim.memory.eviction import EvictionRule, Knowledge, Work, make_order
from vtsim.memory.foresight import Foresight
from vtsim.memory.radix import clip, tokens_of
from vtsim.policies.paged import PagedParameters, PagedPolicy
from vtsim.policies.radix import RadixPolicy
from vtsim.request import Run, Trace
from vtsim.spec import load_model
from vtsim.testing import random_case, run_case
from vtsim.traces import load
from vtsim.traces.stats import ideal_prefix_hits

MOONCAKE = (
    Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake/conversation_trace.jsonl"
)


def hits_of(trace: Trace, policy: Any, seed: int) -> list[int]:
    """First-admission hits with memory for everything and one request at a time."""
    case = random_case(Random(seed))
    limits = replace(case.limits, max_num_seqs=1)
    case = replace(case, trace=trace, limits=limits, limit_tokens=1 << 20, max_model_len=1000)
    run = run_case(case, policy)
    assert not run.preemptions and not run.rejections
    return list(run.recorder.hit_tokens)


def hashed(seed: int) -> Trace:
    """A trace whose content comes from hashes alone, and all of one priority: in order."""
    for offset in range(1000):
        trace = random_case(Random(1000 * seed + offset)).trace
        if trace.has_hashes and len(trace) > 3 and not trace.priority.any():
            return trace
    raise AssertionError("no such trace")


@pytest.mark.parametrize("block", [1, 4, 16])
@pytest.mark.parametrize("seed", range(6))
def test_paged_with_an_infinite_pool_is_the_ideal_cache_of_full_blocks(
    seed: int, block: int
) -> None:
    trace = hashed(seed)
    seen: set[tuple[Run, ...]] = set()
    ideal = []
    for row in range(len(trace)):
        content = trace.content(row)
        full = min(tokens_of(content), int(trace.prompt_tokens[row]) - 1) // block
        hit = 0
        while hit < full and clip(content, 0, (hit + 1) * block) in seen:
            hit += 1
        ideal.append(hit * block)
        seen |= {clip(content, 0, k * block) for k in range(1, tokens_of(content) // block + 1)}
    assert hits_of(trace, PagedPolicy(PagedParameters(block=block)), seed) == ideal
    assert seed or any(ideal)


@pytest.mark.parametrize("seed", range(6))
def test_radix_with_an_infinite_pool_is_the_ideal_cache(seed: int) -> None:
    """To the token; but one token of each prompt is always computed."""
    trace = hashed(seed)
    ideal = ideal_prefix_hits(trace).tolist()
    most = (trace.prompt_tokens - 1).tolist()
    assert hits_of(trace, RadixPolicy(), seed) == list(map(min, ideal, most))


# FACTS, Mooncake conversation, 512-token blocks, share of block references that hit; and what the
# other rules make of it here. The clairvoyant figure of FACTS, 25.7, may leave blocks out of the
# cache and evict any of them; here all are taken in and only leaves can go.
FIGURES: list[tuple[EvictionRule, int, float, float]] = [
    ("lru", 2048, 5.5, 0.05),
    ("lru", 16384, 26.6, 0.05),
    ("lru", 1 << 30, 36.6, 0.05),
    ("belady", 2048, 25.7, 0.6),
    ("belady", 16384, 36.6, 0.05),
    ("lfu", 2048, 6.91, 0.01),
    ("lfu", 16384, 19.32, 0.01),
    ("cost", 2048, 7.49, 0.01),
    ("cost", 16384, 27.30, 0.01),
]


@pytest.fixture(scope="module")
def mooncake() -> tuple[Trace, Knowledge]:
    if not MOONCAKE.exists():
        pytest.skip(f"no {MOONCAKE}")
    trace = load(MOONCAKE)
    return trace, Knowledge(Work.of(load_model("yi-6b"), 1), Foresight.of(trace))


@pytest.mark.parametrize(("rule", "blocks", "percent", "within"), FIGURES)
def test_hits_of_a_bounded_cache_on_mooncake(
    mooncake: tuple[Trace, Knowledge],
    rule: EvictionRule,
    blocks: int,
    percent: float,
    within: float,
) -> None:
    """References in the order of the trace, one request at a time, a partial block as a whole."""
    trace, known = mooncake
    order = make_order(rule, known)
    store = BlockStore(blocks, 512, order, in_line=not order.leaves_only)
    hits = references = 0
    for row in range(len(trace)):
        *runs, (first, length) = trace.content(row)
        prompt = int(trace.prompt_tokens[row])
        padded = -(-prompt // 512) * 512
        content = (*runs, (first, length + padded - prompt))
        tokens, path = store.find(content, padded)
        leaf = store.pin(path, tokens) if tokens else store.root
        order.seen(row)
        store.take((padded - tokens) // 512)
        leaf, moved = store.keep(leaf, tokens // 512, content, padded)
        store.give((padded - tokens) // 512 - moved)
        store.unpin(leaf)
        hits += tokens // 512
        references += padded // 512
    assert abs(100 * hits / references - percent) <= within
