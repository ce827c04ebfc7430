"""Options and fixtures of the whole suite: budgets, goldens, and every registered policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from vtsim.parameters import make_parameters
from vtsim.registry import POLICIES
from vtsim.testing.conformance import maker

MORE_PARAMETERS: dict[str, list[dict[str, object]]] = {
    "paged": [
        {"block": 1, "evict": "lfu"},
        {"block": 5, "prefix_cache": False},
        {"evict": "belady"},
    ],
    "vtensor": [
        {"lookahead": 0},
        {"lookahead": 40, "layout": "kv_split", "retain": "watermark"},
        {"initial_tokens": 7, "layout": "per_layer", "tail": "recompute", "evict": "belady"},
        {"release": "park", "adopt": "newest", "initial_tokens": 50, "lookahead": 2},
        {"release": "park", "adopt": "lowest", "retain": "watermark", "lookahead": 0},
        {"release": "park", "chunk": 1 << 20, "evict": "lfu"},
        {"retain": "none", "chunk": 16 << 20},
        {"prefix_cache": False, "retain": "watermark", "retain_bytes": 0},
        {"evict": "cost", "lookahead": 3},
        {"max_chunk": 64 << 20},
        {"max_chunk": 32 << 20, "growth": 7, "layout": "kv_split", "retain": "watermark"},
        {"max_chunk": 8 << 20, "growth": 90, "layout": "per_layer", "tail": "recompute"},
        {"max_chunk": 64 << 20, "growth": 4, "release": "park", "lookahead": 3, "evict": "lfu"},
        {"max_chunk": 64 << 20, "growth": 3, "lookahead": "adaptive", "inplace": True},
    ],
    "vattention": [
        {"layout": "kv_split", "slots": 40, "eager_slots": 0, "lookahead": 0},
        {"adopt": "newest", "lookahead": 3},
    ],
    "radix": [{"evict": "belady"}],
    "elastic-paged": [
        {"block": 5, "place": "oldest", "reserve_low": 0, "reserve_high": 0, "layout": "kv_split"},
        {"block": 1, "lookahead": 0, "evict": "cost"},
    ],
}
"""Beside the defaults. A policy not named here is held to everything with its defaults."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="property tests draw anew, and for much longer"
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden/*.json instead of comparing",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The same examples in every run, so that a failure is the change's; --long looks for new ones.
    settings.register_profile(
        "fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile(
        "long", settings.get_profile("fixed"), derandomize=False, max_examples=2000, database=None
    )
    settings.load_profile("long" if config.getoption("--long") else "fixed")


@pytest.fixture
def budget(request: pytest.FixtureRequest) -> int:
    """How many times the usual effort a property test may spend."""
    return 30 if request.config.getoption("--long") else 1


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def _variants() -> Iterator[Any]:
    for name in POLICIES.names():
        policy_class = POLICIES.load(name)
        for values in ({}, *MORE_PARAMETERS.get(name, [])):
            parameters = make_parameters(name, policy_class.parameters_type, values)
            shown = "-".join(f"{key}={value}" for key, value in values.items())
            yield pytest.param(maker(policy_class, parameters), id=f"{name}-{shown}".rstrip("-"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`make_policy`: each registered policy in several parameterisations."""
    if "make_policy" in metafunc.fixturenames:
        metafunc.parametrize("make_policy", list(_variants()))
