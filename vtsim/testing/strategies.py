"""Hypothesis strategies for traces and cases, and the state machine of a policy's calls.

The only module of vtsim that needs Hypothesis. `machine(make)` is a RuleBasedStateMachine class:

    test_my_policy = machine(maker(MyPolicy)).TestCase
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from vtsim.request import Trace
from vtsim.testing.cases import TOKENS_AND_CHUNKS, Case, random_case, random_trace
from vtsim.testing.driver import MakePolicy
from vtsim.testing.walk import Walk


def traces(requests: int = 25) -> st.SearchStrategy[Trace]:
    """Traces as `random_trace` draws them."""
    return st.randoms(use_true_random=False).map(lambda random: random_trace(random, requests))


def cases(requests: int = 25) -> st.SearchStrategy[Case]:
    """Cases as `random_case` draws them: memory from scarce to plenty."""
    return st.builds(
        lambda random, pressure: random_case(random, pressure, requests),
        st.randoms(use_true_random=False),
        st.sampled_from(("any", "high")),
    )


def machine(make: MakePolicy) -> type[RuleBasedStateMachine]:
    """All calls of one policy in any order, checked after each by `PolicyDriver`.

    The class's `last` is the walk of the latest example: of the failing one, if it has failed.
    """

    class PolicyMachine(RuleBasedStateMachine):
        last: ClassVar[Walk | None] = None
        walk: Walk

        @initialize(
            tokens_in_chunks=st.sampled_from(TOKENS_AND_CHUNKS),
            max_model_len=st.integers(2, 200),
            limit_tokens=st.integers(0, 600),
            limit_units=st.integers(1, 5),
            slots=st.sampled_from((1000, 2, 5)),
        )
        def set_up(self, **numbers: Any) -> None:
            type(self).last = None
            self.walk = type(self).last = Walk(make, numbers)

        @rule(
            prompt=st.integers(1, 150),
            like=st.integers(-1, 20),
            alike=st.integers(1, 150),
            known=st.sampled_from((1, 1, 0)),
            output=st.integers(0, 1),
            tokens=st.sampled_from((1000, 40, 16, 1)),
            whole=st.sampled_from((0, 1, 10)),
            matching=st.sampled_from((1, 1, 1, 0)),
            undo=st.integers(0, 1),
        )
        def create(self, **numbers: int) -> None:
            self.walk.do("create", **numbers)

        @precondition(lambda self: self.walk.driver.gone)
        @rule(which=st.integers(0, 20), tokens=st.sampled_from((1000, 16)))
        def come_back(self, **numbers: int) -> None:
            self.walk.do("come_back", **numbers)

        @precondition(lambda self: self.walk.unfinished)
        @rule(which=st.integers(0, 20), tokens=st.integers(1, 100), undo=st.integers(0, 1))
        def extend_prompt(self, **numbers: int) -> None:
            self.walk.do("extend_prompt", **numbers)

        @precondition(lambda self: self.walk.driver.batch.decoding)
        @rule(steps=st.sampled_from((1, 1, 2, 7, 33, 80)), undo=st.integers(0, 1))
        def extend(self, **numbers: int) -> None:
            self.walk.do("extend", **numbers)

        @precondition(lambda self: self.walk.driver.running)
        @rule(
            which=st.integers(0, 20), keep=st.sampled_from((1, 1, 0)), comes_back=st.integers(0, 1)
        )
        def release(self, **numbers: int) -> None:
            self.walk.do("release", **numbers)

        @precondition(lambda self: self.walk.driver.running)
        @rule(comes_back=st.integers(0, 1))
        def preempt(self, **numbers: int) -> None:
            self.walk.do("preempt", **numbers)

        @rule(running=st.integers(0, 1))
        def retire(self, **numbers: int) -> None:
            self.walk.do("retire", **numbers)

        @rule(percent=st.sampled_from((100, 100, 90, 50, 10, 0)))
        def set_limit(self, **numbers: int) -> None:
            self.walk.do("set_limit", **numbers)

        def teardown(self) -> None:
            if hasattr(self, "walk"):
                self.walk.finish()

    return PolicyMachine
