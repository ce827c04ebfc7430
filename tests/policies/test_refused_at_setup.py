"""What a policy cannot do it says before anything is made of it, in words of its own parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vtsim.errors import BackendError, ConfigError
from vtsim.plan import NOTHING
from vtsim.policies.base import Policy
from vtsim.policies.elastic import ElasticPagedPolicy
from vtsim.policies.radix import RadixParameters
from vtsim.policies.vattention import VAttentionPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.registry import POLICIES
from vtsim.request import Sequence
from vtsim.spec import KVLayout
from vtsim.testing import toy_device

KIB = 1 << 10
KV = KVLayout("toy", 1, 4 * KIB, 64 * KIB, 640)


@pytest.mark.parametrize("make", [VAttentionPolicy, VTensorPolicy])
def test_addresses_that_hold_no_slot(make: Callable[[], Any]) -> None:
    device = toy_device(100 * KV.unit_bytes, va_bytes=KV.slot_bytes - 1)
    with pytest.raises(ConfigError, match=f"one slot of {KV.slot_bytes} B does not fit"):
        make().setup(device, KV, device.capacity_bytes)


def test_elastic_pages_need_addresses_of_their_own() -> None:
    """A pool without addresses has no pages: everything is refused, nothing is reserved."""
    policy = ElasticPagedPolicy()
    device = toy_device(100 * KV.unit_bytes, va_bytes=KV.slot_bytes - 1)
    assert policy.setup(device, KV, device.capacity_bytes) is NOTHING
    assert sum(policy.usage()) == 0 and policy.teardown() is NOTHING


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RadixParameters(pool_tokens=-1), "radix.pool_tokens: must be >= 0, got -1"),
        (lambda: VTensorParameters(initial_tokens=-1), "vtensor.initial_tokens: must be >= 0"),
        (lambda: VTensorParameters(lookahead=-2), "vtensor.lookahead: must be >= 0, got -2"),
        (lambda: VTensorParameters(retain_bytes=-1), "vtensor.retain_bytes: must be >= 0"),
    ],
)
def test_parameters_that_make_no_sense(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("name", sorted(POLICIES.names()))
def test_a_plan_that_cannot_be_taken_back_says_how_it_could(name: str) -> None:
    """Alone, without a journal, no policy undoes a decision: it says what has happened."""
    with pytest.raises(BackendError, match=f"refused a plan of the {name} policy: it takes more"):
        POLICIES.load(name)().rollback(NOTHING)


def test_the_base_class_promises_nothing_that_it_cannot_do() -> None:
    """Whoever forgets a method that matters is told so, and what has a default needs none."""
    policy = Policy()
    device = toy_device(100 * KV.unit_bytes)
    seq = Sequence(0, 8)
    for missing in (
        lambda: policy.setup(device, KV, 1),
        lambda: policy.create(seq, policy.match(seq), 8, 8),
        lambda: policy.extend_prompt(seq, 1),
        lambda: policy.extend(None),  # type: ignore[arg-type]
        lambda: policy.release(seq, None, 1),  # type: ignore[arg-type]
        lambda: policy.set_limit(1),
        lambda: policy.slot_of(seq),
        policy.usage,
        policy.teardown,
    ):
        with pytest.raises(NotImplementedError):
            missing()
    assert policy.headroom(None, 9).steps == 0, "step me"  # type: ignore[arg-type]
    assert policy.retire(1) is NOTHING and policy.match(seq).tokens == 0
    assert policy.parameters() == {} and policy.oracle == ""
