"""Leap = step and placement on = off, bit for bit, under pressure (DESIGN 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedParameters, PagedPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.testing import Ran, random_case
from vtsim.testing.conformance import check_runs, compare_runs
from vtsim.testing.driver import MakePolicy


def test_random_cases(make_policy: MakePolicy, budget: int) -> None:
    for seed in range(8 * budget):
        check_runs(make_policy, seed)


class CountingVTensor(VTensorPolicy):
    evictions = 0

    def _evict(self, *arguments: Any) -> None:
        self.evictions += 1
        super()._evict(*arguments)

    def teardown(self) -> Any:
        before = self.evictions
        plan = super().teardown()
        self.evictions = before
        return plan


class CountingPaged(PagedPolicy):
    evictions = 0

    def teardown(self) -> Any:
        self.evictions = self._store.evicted
        return super().teardown()


def vtensor(**parameters: Any) -> Callable[[bool], VTensorPolicy]:
    return lambda placement: CountingVTensor(VTensorParameters(**parameters), placement=placement)


def paged(**parameters: Any) -> Callable[[bool], PagedPolicy]:
    return lambda placement: CountingPaged(PagedParameters(**parameters), placement=placement)


PRESSED = {
    "vtensor": vtensor(),
    "vtensor-ahead": vtensor(lookahead=20, initial_tokens=5, tail="recompute"),
    "vtensor-park": vtensor(release="park", retain="watermark"),
    "paged": paged(),
    "paged-fine": paged(block=1),
}


def pressed_runs(make: MakePolicy, equal: bool, seeds: range) -> Counter[str]:
    """Compare four runs of each case under pressure; what happened in all of them together."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        random = Random(seed)
        case = random_case(random, "high")
        lengths = {(int(p), int(o)) for p, o in zip(
            case.trace.prompt_tokens, case.trace.output_tokens, strict=True
        )}  # fmt: skip
        if (len(lengths) == 1) is not equal or len(case.trace) < 5:
            continue
        run: Ran = compare_runs(make, case)
        seen["runs"] += 1
        seen["preemptions"] += run.preemptions
        seen["rejections"] += run.rejections
        seen["leaps"] += run.recorder.leaps
        seen["evictions"] += run.policy.evictions
    return seen


@pytest.mark.parametrize("equal", [True, False], ids=["equal-lengths", "mixed-lengths"])
@pytest.mark.parametrize("policy", PRESSED)
def test_under_pressure(policy: str, equal: bool, budget: int) -> None:
    seeds = range(1000, 1000 + (90 if equal else 30) * budget)
    seen = pressed_runs(PRESSED[policy], equal, seeds)
    assert seen["evictions"] >= 100, seen
    assert seen["preemptions"] >= 20, seen
    assert seen["rejections"] >= 1, seen
    assert seen["leaps"] >= 20, seen


def test_native_under_pressure(budget: int) -> None:
    """Native has no cache to evict from, and what it admits never needs more: it only rejects."""
    rejections = leaps = 0
    for seed in range(2000, 2000 + 30 * budget):
        run = compare_runs(lambda placement: NativePolicy(placement=placement),
                           random_case(Random(seed), "high"))  # fmt: skip
        assert run.preemptions == 0
        rejections += run.rejections
        leaps += run.recorder.leaps
    assert rejections >= 1 and leaps >= 20
