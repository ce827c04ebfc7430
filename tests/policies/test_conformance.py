"""Every registered policy, in several parameterisations, is held to the public suite."""

from __future__ import annotations

from vtsim.testing import conformance
from vtsim.testing.driver import MakePolicy


def test_declaration(make_policy: MakePolicy) -> None:
    conformance.check_declaration(make_policy)


def test_calls(make_policy: MakePolicy, budget: int) -> None:
    for seed in range(4 * budget):
        conformance.check_calls(make_policy, seed)


def test_refusals(make_policy: MakePolicy, budget: int) -> None:
    for seed in range(budget):
        conformance.check_refusals(make_policy, seed, most=6 * budget)
