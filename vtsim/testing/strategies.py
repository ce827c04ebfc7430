"""Hypothesis strategies for traces and cases, and the state machine of a policy's calls.

The only module of vtsim that needs Hypothesis. `machine(make)` is a RuleBasedStateMachine class:

    test_my_policy = machine(maker(MyPolicy)).TestCase
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vtsim.plan import Keep
from vtsim.request import Trace
from vtsim.testing.cases import TOKENS_AND_CHUNKS, Case, random_case, random_trace
from vtsim.testing.driver import MakePolicy, PolicyDriver
from vtsim.testing.toys import Ask, make_trace


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
    """All calls of one policy in any order, checked after each by `PolicyDriver`."""

    class PolicyMachine(RuleBasedStateMachine):
        driver: PolicyDriver

        @initialize(
            tokens_in_chunks=st.sampled_from(TOKENS_AND_CHUNKS),
            max_model_len=st.integers(2, 200),
            limit_tokens=st.integers(0, 600),
            limit_units=st.integers(1, 5),
            slots=st.sampled_from((1000, 2, 5)),
        )
        def set_up(self, **numbers: Any) -> None:
            case = Case(make_trace([Ask(0, 1, 1)]), **numbers)
            self.driver = PolicyDriver(make, case)

        @rule(
            prompt=st.integers(1, 150),
            like=st.integers(-1, 20),
            alike=st.integers(1, 150),
            naming=st.sampled_from(((True, False), (True, True), (False, False))),
            tokens=st.sampled_from((1000, 40, 16, 1)),
            whole=st.sampled_from((0, 1, 10)),
            matching=st.sampled_from((True, True, True, False)),
            undo=st.booleans(),
        )
        def create(
            self,
            prompt: int,
            like: int,
            alike: int,
            naming: tuple[bool, bool],
            tokens: int,
            whole: int,
            matching: bool,
            undo: bool,
        ) -> None:
            driver = self.driver
            prompt = min(prompt, driver.max_model_len - 1)
            seq = driver.new_sequence(prompt, like, alike, *naming)
            whole = prompt + whole if whole else 0
            # What needs no plan cannot be undone: it is granted at once.
            if not (undo and driver.create(seq, tokens, whole, matching=matching, undo=True)):
                driver.create(seq, tokens, whole, matching=matching)

        @precondition(lambda self: self.driver.gone)
        @rule(which=st.integers(0, 20), tokens=st.sampled_from((1000, 16)))
        def come_back(self, which: int, tokens: int) -> None:
            gone = self.driver.gone
            seq = gone[which % len(gone)]
            if self.driver.create(seq, tokens, seq.prompt_tokens + 2):
                gone.remove(seq)

        @precondition(lambda self: self.unfinished)
        @rule(which=st.integers(0, 20), tokens=st.integers(1, 100), undo=st.booleans())
        def extend_prompt(self, which: int, tokens: int, undo: bool) -> None:
            index = self.unfinished[which % len(self.unfinished)]
            if not (undo and self.driver.extend_prompt(index, tokens, undo=True)):
                self.driver.extend_prompt(index, tokens)

        @precondition(lambda self: self.driver.batch.decoding)
        @rule(steps=st.sampled_from((1, 1, 2, 7, 33, 80)), undo=st.booleans())
        def extend(self, steps: int, undo: bool) -> None:
            if not (undo and self.driver.extend(steps, undo=True)):
                self.driver.extend(steps)

        @precondition(lambda self: self.driver.running)
        @rule(
            which=st.integers(0, 20),
            keep=st.sampled_from((Keep.RECORD, Keep.RECORD, Keep.NONE)),
            comes_back=st.booleans(),
        )
        def release(self, which: int, keep: Keep, comes_back: bool) -> None:
            running = list(self.driver.running)
            self.driver.release(running[which % len(running)], keep, comes_back=comes_back)

        @precondition(lambda self: self.driver.running)
        @rule(comes_back=st.booleans())
        def preempt(self, comes_back: bool) -> None:
            victim = self.driver.placed.policy.select_victim(self.driver.batch)
            if victim is not None:
                self.driver.release(victim.index, Keep.RECORD, comes_back=comes_back)

        @rule(running=st.booleans())
        def retire(self, running: bool) -> None:
            self.driver.retire(running)

        @rule(percent=st.sampled_from((100, 100, 90, 50, 10, 0)))
        def set_limit(self, percent: int) -> None:
            self.driver.set_limit(self.driver.placed.limit_bytes * percent // 100)

        @property
        def unfinished(self) -> list[int]:
            decoding = self.driver.batch.decoding
            return [index for index in self.driver.running if index not in decoding]

        @invariant()
        def books_agree(self) -> None:
            self.driver.check()

        def teardown(self) -> None:
            if hasattr(self, "driver"):
                self.driver.finish()

    return PolicyMachine
