"""paged with an infinite pool, one request at a time, is the ideal prefix cache of full blocks: the
third of issue 4's equalities, request by request. One token of a prompt is always computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import vtsim
from vtsim.engine.loop import Limits
from vtsim.memory.radix import join, tokens_of
from vtsim.policies.paged import PagedParameters, PagedPolicy
from vtsim.request import Run, Trace
from vtsim.testing import Case, random_case, run_case
from vtsim.traces import load
from vtsim.traces.bundled import sample_path
from vtsim.traces.transform import limit_requests

MOONCAKE = (
    Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake/conversation_trace.jsonl"
)
SIZES = [(25, seed) for seed in range(12)] + [(120, seed) for seed in range(6)] + [(500, 0)]
"""(requests at most, seed)"""


def ideal_hits(trace: Trace, block: int) -> list[int]:
    """What an infinite cache of full blocks serves of each prompt, one request at a time, one token
    of each being computed: a tree of blocks, each found by the one before it and its first
    address, where a hash id covers whole blocks."""
    assert trace.block_size % block == 0
    blocks: dict[tuple[int, int], int] = {}
    hits = []
    for row in range(len(trace)):
        node, hit, depth, prompt = 0, 0, 0, int(trace.prompt_tokens[row])
        for first, length in trace.content(row):
            for at in range(first, first + length - block + 1, block):
                depth += block
                found = blocks.get((node, at))
                if found is not None and depth < prompt:
                    hit = depth
                node = blocks.setdefault((node, at), len(blocks) + 1) if found is None else found
        hits.append(hit)
    return hits


def hashed(seed: int, requests: int) -> Trace:
    """A trace with hash ids, all of one priority: served in its order."""
    random = Random(seed)
    while True:
        trace = random_case(random, "any", requests).trace
        if trace.has_hashes and len(trace) > requests // 2:
            return replace(trace, priority=np.zeros(len(trace), dtype=np.int64))


@pytest.mark.parametrize(("requests", "seed"), SIZES)
def test_paged_with_an_infinite_pool_hits_what_the_ideal_cache_holds(
    requests: int, seed: int
) -> None:
    trace = hashed(seed, requests)
    for block in {1, trace.block_size}:
        case = Case(trace, max_model_len=1000, limit_tokens=1 << 24, limits=Limits(max_num_seqs=1))
        run = run_case(case, PagedPolicy(PagedParameters(block=block)), check=False)
        assert not run.preemptions and not run.rejections
        ideal = ideal_hits(trace, block)
        assert list(run.recorder.hit_tokens) == ideal
        assert requests < 100 or any(ideal), "nothing is shared: the case shows little"


@pytest.mark.parametrize("block", [512, 16])
def test_paged_with_an_infinite_pool_hits_what_the_ideal_cache_holds_of_mooncake(
    block: int,
) -> None:
    if not MOONCAKE.exists():
        pytest.skip(f"no {MOONCAKE}")
    trace = limit_requests(load(MOONCAKE), 3000)
    result = vtsim.replay(
        trace,
        ["paged"],
        settings={"paged": {"block": block}},
        max_num_seqs=1,
        kv_memory="unlimited",
    )
    recorder = result.runs[0].recorder
    assert not sum(recorder.preemptions) and not recorder.reasons
    ideal = ideal_hits(trace, block)
    assert list(recorder.hit_tokens) == ideal
    assert sum(ideal) > 0.2 * int(trace.prompt_tokens.sum())


@pytest.mark.parametrize("block", [1, 16, 48])
def test_paged_with_an_infinite_pool_hits_what_conversations_have_left(block: int) -> None:
    """Answers are found too, but for their last token: nothing has computed its keys and values."""
    trace = load(sample_path("multi-turn"))
    trace = replace(trace, priority=np.zeros(len(trace), dtype=np.int64))
    options: dict[str, Any] = {"max_num_seqs": 1, "kv_memory": "unlimited"}
    result = vtsim.replay(trace, ["paged"], settings={"paged": {"block": block}}, **options)
    blocks: set[tuple[int, ...]] = set()
    ideal = []
    for row in range(len(trace)):
        prompt, output = int(trace.prompt_tokens[row]), int(trace.output_tokens[row])
        asked = trace.content(row)
        left = written_out(join(asked, trace.output_content(row)))[: prompt + output - 1]
        hit = 0
        names = chained(left, block)
        for name in names[: min(tokens_of(asked), prompt - 1) // block]:
            if name not in blocks:
                break
            hit += block
        ideal.append(hit)
        blocks.update(names)
    assert list(result.runs[0].recorder.hit_tokens) == ideal
    assert sum(ideal) > 0.5 * int(trace.prompt_tokens.sum())


def written_out(content: tuple[Run, ...]) -> list[int]:
    return [address for first, length in content for address in range(first, first + length)]


def chained(addresses: list[int], block: int) -> list[tuple[int, ...]]:
    """A name for each full block: it stands for all content up to the block's end."""
    names = []
    before = 0
    for end in range(block, len(addresses) + 1, block):
        names.append((before, *addresses[end - block : end]))
        before = hash(names[-1])
    return names
