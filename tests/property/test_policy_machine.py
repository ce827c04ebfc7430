"""One Hypothesis machine over all calls of a policy, for every registered one (DESIGN 8)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from vtsim.testing.driver import MakePolicy
from vtsim.testing.strategies import machine


def test_any_order_of_calls(make_policy: MakePolicy, budget: int) -> None:
    run_state_machine_as_test(
        machine(make_policy),
        settings=settings(max_examples=12 * budget, stateful_step_count=30, print_blob=True),
    )
