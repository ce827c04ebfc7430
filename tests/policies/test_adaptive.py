"""vtensor with lookahead = adaptive: growth spread over the steps that compute can hide."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import vtsim
from vtsim.memory.growth import Growth
from vtsim.metrics.result import PolicyRun
from vtsim.plan import Phase
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.testing import Ask, make_trace, random_case
from vtsim.testing.conformance import check_calls, compare_runs, maker


def replayed(lookahead: object, layout: str, requests: int = 64, **more: object) -> PolicyRun:
    """Equal requests at once: without spreading, all extend in the same step."""
    trace = make_trace([Ask(0, 1000, 2200)] * requests)
    settings: Any = {"vtensor": {"layout": layout, "lookahead": lookahead, **more}}
    return vtsim.replay(trace, ["vtensor"], settings=settings, max_model_len=8192)["vtensor"]


def test_it_hides_the_maps_of_equal_requests() -> None:
    """FACTS: 64 sequences x 64 per_layer maps take an A100 about 0.28 s with their creates."""
    fixed, adaptive = replayed(1, "per_layer"), replayed("adaptive", "per_layer")
    assert fixed.recorder.exposed[Phase.EXTEND] > 15 * 10**10
    assert adaptive.recorder.exposed[Phase.EXTEND] == 0
    assert fixed.recorder.counts == adaptive.recorder.counts, "no more memory work, only earlier"
    slack = [run.summary["memory"]["mean_bytes"]["kv_slack"] for run in (fixed, adaptive)]
    assert slack[1] < 1.02 * slack[0], "and hardly more memory"


def test_chunks_that_grow_are_spread_as_well() -> None:
    how = {"max_chunk": 16 << 20, "growth": 4}
    fixed, adaptive = (replayed(ahead, "per_layer", **how) for ahead in (1, "adaptive"))
    assert fixed.recorder.exposed[Phase.EXTEND] > 10**11
    assert adaptive.recorder.exposed[Phase.EXTEND] == 0
    assert fixed.recorder.counts == adaptive.recorder.counts


def test_where_one_step_hides_all_it_is_the_paper_s_one_step_ahead() -> None:
    fixed, adaptive = replayed(1, "token_major"), replayed("adaptive", "token_major")
    for name in ("exposed", "counts", "samples", "end"):
        assert getattr(fixed.recorder, name) == getattr(adaptive.recorder, name)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_held_to_the_contract(seed: int) -> None:
    parameters = VTensorParameters(lookahead="adaptive", layout="kv_split", initial_tokens=seed % 3)
    check_calls(maker(VTensorPolicy, parameters), seed)
    compare_runs(maker(VTensorPolicy, parameters), random_case(Random(seed), "high"))


def test_the_least_further_tokens_are_taken() -> None:
    growth = Growth(8, ((0, 1),), lambda tokens: -(-tokens // 8))
    found = []
    for member in range(10):
        ahead = growth.least_ahead(16, 0)
        found.append(ahead)
        growth.join(member, 16, -(-(16 + ahead) // 8), 16 + ahead, member, ahead)
    assert found == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1], "evenly, once every step has one"
    assert growth.total_tokens == 160 and growth.tokens(3) == 16
    assert [growth.demand(1)] == [2], "members 0 and 8 cross now"
    growth.advance(1)
    assert growth.leave(3) == (17, 3) and growth.total_tokens == 9 * 17
    assert growth.least_ahead(20, 5) == 0, "few enough need units in that step"
