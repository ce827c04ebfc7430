"""Victims and swap, with any policy: leap = step, placement on = off, what host memory holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import vtsim
from vtsim.errors import ConfigError
from vtsim.memory.choices import Chosen, HostMemory, Swapped
from vtsim.options import Victim
from vtsim.plan import NO_MATCH, Keep, OpKind, Phase, Plan
from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedParameters, PagedPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.ports import Batch
from vtsim.registry import POLICIES
from vtsim.request import Sequence
from vtsim.testing import Ask, make_trace, random_case, toy_device, toy_model
from vtsim.testing.conformance import compare_runs, refuse_each_call

MIB = 1 << 20
VICTIMS = ("newest", "lowest-priority", "smallest-loss", "longest-remaining")


def pressed(policy: str, victim: Victim, host_bytes: int | None, seeds: range) -> Counter[str]:
    """Leapt and stepped, placed and counted runs compared; what happened in them."""
    policy_class = POLICIES.load(policy)
    seen: Counter[str] = Counter()
    for seed in seeds:
        case = random_case(Random(seed), "high")
        if host_bytes is not None:
            case = replace(case, limits=replace(case.limits, preemption="swap"))

        def make(placement: bool, trace: Any = case.trace) -> Any:
            return Chosen(policy_class(None, placement=placement), victim, host_bytes, trace)

        run = compare_runs(make, case)
        seen["preemptions"] += run.preemptions
        seen["out"] += sum(counts[OpKind.SWAP_OUT] for counts in run.recorder.counts)
        seen["in"] += sum(counts[OpKind.SWAP_IN] for counts in run.recorder.counts)
    return seen


@pytest.mark.parametrize("policy", ["paged", "radix", "vtensor", "vattention", "elastic-paged"])
def test_swap_goes_with_any_policy(policy: str) -> None:
    seen = pressed(policy, "policy", 4 * MIB, range(12))
    assert 0 < seen["in"] <= seen["out"]
    assert seen["preemptions"] > 0


@pytest.mark.parametrize("victim", VICTIMS)
def test_victims_go_with_any_policy(victim: Victim) -> None:
    assert pressed("vtensor", victim, None, range(20, 28))["preemptions"] > 0
    assert pressed("paged", victim, 64 * MIB, range(20, 28))["in"] > 0


def test_a_refused_call_is_undone_with_swaps_too() -> None:
    case = random_case(Random(4), "high", requests=6)
    case = replace(case, limits=replace(case.limits, preemption="swap"))

    def make(placement: bool) -> Any:
        policy: Any = VTensorPolicy(placement=placement)
        return Chosen(policy, "policy", 64 * MIB)

    assert refuse_each_call(make, case, most=15) >= 15


def test_host_memory_is_bounded() -> None:
    host = HostMemory(100)
    first = host.put(7, 60)
    assert first == Swapped(0, 60)
    assert host.put(8, 41) is None and host.refused == 1
    host.drop(7)
    host.drop(7)
    assert host.put(8, 100) == Swapped(1, 100), "another name, though nothing else lies there"
    assert (host.tokens, host.most) == (100, 100)


# -- by hand --------------------------------------------------------------------------------------


def opened(policy: Any, tokens: int, **choice: Any) -> Chosen:
    """A chosen policy with room for `tokens` of 64 KiB."""
    chosen = Chosen(policy, **choice)
    kv = chosen.kv_layout(toy_model(), 1, 4096)
    limit = tokens * kv.token_bytes
    chosen.setup(toy_device(limit), kv, limit)
    return chosen


def test_a_swapped_sequence_comes_back_as_a_match_of_all_but_one_token() -> None:
    chosen = opened(VTensorPolicy(placement=True), 256, host_bytes=64 * MIB)
    seq = Sequence(0, 40)
    chosen.create(seq, NO_MATCH, 40, 40)
    batch = Batch()
    batch.running[0] = batch.decoding[0] = seq
    chosen.extend(batch, 3)
    out = chosen.release(seq, Keep.SWAP, 5)
    assert out.phase is Phase.PREEMPT and out.counts[OpKind.SWAP_OUT] == 1
    assert out.swapped_bytes == out.operations[0].nbytes == 43 * 64 * 1024
    chosen.retire(5)
    seq.prompt_tokens = 44  # the token that the last step gave needs computing
    match = chosen.match(seq)
    assert match.tokens == 43
    plan = chosen.create(seq, match, 1, 44)
    assert isinstance(plan, Plan) and plan.swapped_bytes == out.swapped_bytes
    assert plan.operations[-1].kind is OpKind.SWAP_IN
    assert plan.operations[-1].chunk == out.operations[0].chunk, "found again under its name"
    chosen.check_integrity()
    assert chosen.usage().kv_live == 44 * 64 * 1024
    assert chosen.details() == {"swap_peak_bytes": 43 * 64 * 1024, "swap_refused": 0}


def test_what_does_not_fit_the_host_is_recomputed() -> None:
    chosen = opened(PagedPolicy(PagedParameters()), 256, host_bytes=2 * MIB)  # 32 tokens
    seq = Sequence(0, 40)
    chosen.create(seq, NO_MATCH, 40, 40)
    plan = chosen.release(seq, Keep.SWAP, 1)
    assert not any(plan.counts)
    assert chosen.match(seq) == NO_MATCH
    assert chosen.details()["swap_refused"] == 1


def test_a_host_copy_goes_when_the_sequence_is_computed_again() -> None:
    chosen = opened(PagedPolicy(PagedParameters(), placement=True), 256, host_bytes=64 * MIB)
    seq = Sequence(0, 40)
    chosen.create(seq, NO_MATCH, 40, 40)
    out = chosen.release(seq, Keep.SWAP, 1)
    assert out.operations[0].slot == -1, "blocks lie anywhere"
    assert chosen.match(seq).tokens == 39
    chosen.create(seq, NO_MATCH, 40, 40)
    chosen.release(seq, Keep.NONE, 2)
    assert chosen.match(seq) == NO_MATCH


def test_who_is_the_victim() -> None:
    trace = make_trace([Ask(0, 30, 90), Ask(0, 10, 5), Ask(0, 20, 50), Ask(0, 25, 1)])
    urgency = (0, 2, 1, 0)
    chosen_of: dict[str, int] = {}
    for victim in VICTIMS:
        chosen = opened(VTensorPolicy(VTensorParameters()), 1024, victim=victim, trace=trace)
        batch = Batch()
        assert chosen.select_victim(batch) is None
        for row in range(4):
            seq = Sequence(row, int(trace.prompt_tokens[row]), (), (), urgency[row], row)
            chosen.create(seq, NO_MATCH, seq.prompt_tokens, seq.prompt_tokens)
            batch.running[row] = batch.decoding[row] = seq
        found = chosen.select_victim(batch)
        assert found is not None
        chosen_of[victim] = found.index
    assert chosen_of == {
        "newest": 3,
        "lowest-priority": 1,
        "smallest-loss": 1,
        "longest-remaining": 0,
    }


def test_the_default_is_the_policys_own() -> None:
    chosen = opened(NativePolicy(), 8192)
    seq = Sequence(0, 10)
    chosen.create(seq, NO_MATCH, 10, 10)
    batch = Batch()
    batch.running[0] = seq
    assert chosen.select_victim(batch) is seq and chosen.oracle == ""


def test_an_oracle_must_be_given_the_trace() -> None:
    policy: Any = NativePolicy()
    with pytest.raises(ConfigError, match="victim 'longest-remaining' is an oracle"):
        Chosen(policy, "longest-remaining")


# -- whole replays ---------------------------------------------------------------------------------


def test_swaps_take_the_links_time_and_are_told() -> None:
    asks = [Ask(k, 900, 600) for k in range(6)]
    options: dict[str, Any] = {"kv_memory": 256 * MIB, "max_model_len": 2048}
    again = vtsim.replay(make_trace(asks), ["vtensor"], **options)["vtensor"]
    swap = vtsim.replay(make_trace(asks), ["vtensor"], preemption="swap", **options)["vtensor"]
    assert again.recorder.preemptions.count(0) < 6
    counts = swap.recorder.counts
    out = counts[Phase.PREEMPT][OpKind.SWAP_OUT]
    assert out == sum(swap.recorder.preemptions) == counts[Phase.CREATE][OpKind.SWAP_IN] > 0
    # 25 GB/s on the a100-80g: 64 KiB a token, at least 900 tokens each.
    assert swap.recorder.busy[Phase.PREEMPT] > out * 900 * 65536 * 10**12 // (25 * 10**9)
    assert sum(swap.recorder.rehit_tokens) > 0 == sum(again.recorder.rehit_tokens)
    assert swap.details["swap_refused"] == 0
    assert 900 * 65536 <= int(str(swap.details["swap_peak_bytes"])) <= 4 << 30


def test_oracles_are_named_in_the_results() -> None:
    asks = [Ask(0, 64, 8, ids=(0, 1)), Ask(9, 64, 8, ids=(0, 2))]
    trace = make_trace(asks, block=32)
    run = vtsim.replay(
        trace, ["paged"], settings={"paged": {"evict": "belady"}}, victim="longest-remaining"
    )["paged"]
    assert run.details["oracle"] == "evict=belady, victim=longest-remaining"
    assert "oracle" not in vtsim.replay(trace, ["paged"], victim="newest")["paged"].details


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="victim: 'oldest' is not one of policy, newest"):
        vtsim.replay(make_trace([Ask(0, 1, 1)]), victim="oldest")
    with pytest.raises(ConfigError, match="swap_memory: -1 is not a whole number of at least 0"):
        vtsim.replay(make_trace([Ask(0, 1, 1)]), swap_memory=-1)
