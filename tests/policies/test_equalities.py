"""Policies that are one another under other names (the third equality is in test_ideal_hits.py).

Each pair is compared in all that a run decided, held and took (`Ran.account`), on random traces
with room and under pressure and on the first rows of the real ones. The executor is the same for
both sides, as kernels of paged and contiguous memory do not take the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

import vtsim
from vtsim.backends.gpus import load_gpu
from vtsim.backends.sim import CostModel, VmmTimes
from vtsim.engine.loop import Limits
from vtsim.memory.slots import AdoptRule
from vtsim.plan import MemoryUsage
from vtsim.policies.elastic import ElasticPagedPolicy, ElasticParameters
from vtsim.policies.vattention import VAttentionParameters, VAttentionPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.request import Trace
from vtsim.spec import load_model
from vtsim.testing import Case, Ran, ToyTimes, random_case, run_case
from vtsim.traces import load
from vtsim.traces.transform import limit_requests

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
AZURE = SHARED / "azure2023/AzureLLMInferenceTrace_conv.csv"

SIZES = [(25, seed) for seed in range(12)] + [(120, seed) for seed in range(6)] + [(500, 0)]
"""(requests at most, seed)"""
Pressure = Literal["any", "high"]
FREE = ToyTimes(0, 0, 0, 0, 0, 0, 0, 0, 0)
"""Memory work that takes no time: for pairs that do not do the same work."""


def shared(path: Path) -> Trace:
    if not path.exists():
        pytest.skip(f"no {path}")
    return load(path)


def azure_case(requests: int, limit_tokens: int) -> Case:
    """The first Azure requests on a simulated A100, whose costs both sides are given."""
    model, gpu = load_model("yi-6b"), load_gpu("a100-80g")
    return Case(
        limit_requests(shared(AZURE), requests),
        tokens_in_chunks=(32, 1),  # Yi-6B, token-major, 2 MiB
        max_model_len=16_384,
        limit_tokens=limit_tokens,
        limits=Limits(max_num_seqs=256, max_batched_tokens=8192),
        executor=CostModel(model, gpu),
        times=VmmTimes(gpu, 2 << 20),
    )


def assert_equal(left: Ran, right: Ran, but: Iterable[str] = ()) -> None:
    """Everything that both runs have decided, held and taken; `but`: what is known to differ."""
    one, other = left.account(), right.account()
    assert one.keys() == other.keys()
    assert [name for name in one if name not in but and one[name] != other[name]] == []


def samples(run: Ran) -> list[tuple[int, MemoryUsage, int]]:
    """(time, usage, free bytes) of each sample."""
    rows = list(run.recorder.samples)
    width = len(MemoryUsage._fields) + 2
    cut = [rows[at : at + width] for at in range(0, len(rows), width)]
    return [(row[0], MemoryUsage(*row[1:-1]), row[-1]) for row in cut]


# -- elastic-paged is vtensor ----------------------------------------------------------------------


def one_block_each(case: Case) -> tuple[Case, int]:
    """`case` with chunks of a whole number of tokens: those are the block."""
    tokens = max(2, case.tokens_in_chunks[0] // 2)
    return replace(case, tokens_in_chunks=(tokens, 1), slots=1 << 20), tokens


LAYOUTS = (("token_major", 1), ("kv_split", 2), ("per_layer", 4))
"""And their arenas, of a model of two layers."""


def elastic(block: int, **parameters: Any) -> ElasticPagedPolicy:
    return ElasticPagedPolicy(
        ElasticParameters(block=block, prefix_cache=False, reserve_low=0, **parameters)
    )


def why(rows: Any) -> list[tuple[object, ...]]:
    """Decisions without their reasons: each has its own for the prefix that it does not cache."""
    return [(*row[:4], *row[5:]) for row in rows]


def vtensor(**parameters: Any) -> VTensorPolicy:
    return VTensorPolicy(VTensorParameters(prefix_cache=False, **parameters))


def assert_one_block_is_one_chunk(case: Case, block: int, layout: str, check: bool) -> Ran:
    """Nothing kept for later on either side: calls, times and footprints are one."""
    left = run_case(case, elastic(block, reserve_high=0, layout=layout), check=check)
    right = run_case(case, vtensor(retain="none", layout=layout), check=check)
    assert_equal(left, right, ("decision_rows",))
    assert why(left.recorder.decision_rows) == why(right.recorder.decision_rows)
    return left


@pytest.mark.parametrize("pressure", ["any", "high"])
@pytest.mark.parametrize(("requests", "seed"), SIZES)
def test_elastic_paged_with_pages_of_a_block_is_vtensor_with_chunks_of_a_block(
    requests: int, seed: int, pressure: Pressure
) -> None:
    case, block = one_block_each(random_case(Random(seed), pressure, requests))
    layout, arenas = LAYOUTS[seed % 3]
    run = assert_one_block_is_one_chunk(case, block * arenas, layout, requests < 100)
    if pressure == "high" and requests == 500:
        assert run.preemptions, "no pressure: the case shows little"


@pytest.mark.parametrize("limit_tokens", [1 << 20, 40_000])
def test_elastic_paged_is_vtensor_on_azure(limit_tokens: int) -> None:
    run = assert_one_block_is_one_chunk(azure_case(1500, limit_tokens), 32, "token_major", False)
    assert bool(run.preemptions) is (limit_tokens == 40_000)


@pytest.mark.parametrize("pressure", ["any", "high"])
@pytest.mark.parametrize(("requests", "seed"), SIZES)
def test_they_hold_the_same_when_they_keep_what_they_have_mapped(
    requests: int, seed: int, pressure: Pressure
) -> None:
    """Empty pages stay mapped, chunks pooled. The one calls the driver where the other does not,
    so their footprints are compared where calls take no time."""
    case, block = one_block_each(random_case(Random(seed), pressure, requests))
    case = replace(case, times=FREE)
    left = run_case(case, elastic(block, reserve_high=1 << 40), check=False)
    right = run_case(case, vtensor(), check=False)
    for (now, mine, free), (then, theirs, also) in zip(samples(left), samples(right), strict=True):
        assert (now, free, sum(mine)) == (then, also, sum(theirs))
        assert (mine.kv_live, mine.kv_slack) == (theirs.kv_live, theirs.kv_slack)
        assert mine.pool_unused == theirs.kv_pooled
    assert why(left.recorder.decision_rows) == why(right.recorder.decision_rows)


# -- vattention is vtensor that parks --------------------------------------------------------------

ADOPT: list[AdoptRule] = ["best", "newest", "lowest"]


def assert_parking_is_vattention(case: Case, adopt: AdoptRule, check: bool) -> Ran:
    """Without eager slots, lookahead and prefixes, and with the same choice of slots: call by call,
    chunk by chunk."""
    left = VAttentionPolicy(
        VAttentionParameters(eager_slots=0, lookahead=0, slots=1 << 40, adopt=adopt),
        placement=check,
    )
    right = VTensorPolicy(
        VTensorParameters(
            layout="per_layer", lookahead=0, release="park", prefix_cache=False, adopt=adopt
        ),
        placement=check,
    )
    runs = [run_case(case, each, placement=check, check=check) for each in (left, right)]
    assert_equal(runs[0], runs[1], ("decision_rows",))
    assert why(runs[0].recorder.decision_rows) == why(runs[1].recorder.decision_rows)
    assert runs[0].calls or not check
    return runs[0]


@pytest.mark.parametrize("adopt", ADOPT)
@pytest.mark.parametrize("pressure", ["any", "high"])
@pytest.mark.parametrize(("requests", "seed"), SIZES)
def test_vattention_per_layer_is_vtensor_per_layer_that_parks(
    requests: int, seed: int, pressure: Pressure, adopt: AdoptRule
) -> None:
    case = random_case(Random(seed), pressure, requests)
    run = assert_parking_is_vattention(case, adopt, requests < 100)
    if pressure == "high" and requests == 500:
        assert run.preemptions, "no pressure: the case shows little"


@pytest.mark.parametrize("kv_memory", [30 << 30, 5 << 30])
def test_vattention_is_vtensor_that_parks_on_azure(kv_memory: int) -> None:
    """The real model, card and layout: 2 MiB in each of 64 arenas, 2,048 tokens a unit."""
    common = {"lookahead": 0, "adopt": "best"}
    result = vtsim.replay(
        limit_requests(shared(AZURE), 1500),
        ["vattention", "vtensor"],
        settings={
            "vattention": {"layout": "per_layer", "eager_slots": 0, **common},
            "vtensor": {
                "layout": "per_layer",
                "release": "park",
                "prefix_cache": False,
                **common,
            },
        },
        max_model_len=16_384,
        kv_memory=kv_memory,
    )
    left, right = (run.recorder for run in result.runs)
    for name in left.__slots__:
        if not name.startswith("_"):
            assert getattr(left, name) == getattr(right, name), name
    assert bool(sum(left.preemptions)) is (kv_memory == 5 << 30)
