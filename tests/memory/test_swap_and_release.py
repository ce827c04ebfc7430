"""Swap with a policy that gives memory back as soon as a sequence is released: what is swapped out
must be read before the memory it lies in is gone."""

from __future__ import annotations

from typing import Any

from vtsim.backends.sim import SimBackend
from vtsim.memory.choices import Chosen
from vtsim.plan import NO_MATCH, Keep, OpKind, Phase, Plan
from vtsim.policies.native import NativePolicy
from vtsim.request import Sequence
from vtsim.spec import KVLayout
from vtsim.testing import toy_device

KIB = 1 << 10


class Hasty(NativePolicy):
    """Native without a fence: nobody else reads what a sequence leaves."""

    name = "hasty"
    fenced = False

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        super().release(seq, keep, step)
        return super().retire(step)


def released(host_bytes: int) -> tuple[Plan, SimBackend]:
    """What the release of a sequence of 8 tokens, preempted by swap, asks for and has done."""
    kv = KVLayout("toy", 1, 4 * KIB, 64 * KIB, 64)
    hasty: Any = Hasty(placement=True)
    policy = Chosen(hasty, "policy", host_bytes)
    device = toy_device(100 * kv.unit_bytes)
    backend = SimBackend(device, kv, placement=True)
    backend.settle(backend.submit(policy.setup(device, kv, device.capacity_bytes), 0))
    seq = Sequence(0, 8, order=0)
    created = policy.create(seq, NO_MATCH, 8, 8)
    assert isinstance(created, Plan)
    backend.settle(backend.submit(created, 1))
    plan = policy.release(seq, Keep.SWAP, 1)
    receipt = backend.settle(backend.submit(plan, 2))
    assert receipt.done and policy.retire(1).counts == [0] * len(plan.counts)
    return plan, backend


def test_what_is_swapped_out_is_read_before_it_is_freed() -> None:
    plan, backend = released(1 << 20)
    assert [operation.kind for operation in plan.operations] == [
        OpKind.SWAP_OUT,
        OpKind.DEALLOCATE,
    ]
    assert (plan.counts[OpKind.SWAP_OUT], plan.counts[OpKind.DEALLOCATE]) == (1, 1)
    assert plan.swapped_bytes == 8 * 4 * KIB and plan.phase is Phase.PREEMPT
    assert backend.bytes_in_use() == 0


def test_without_room_in_host_memory_it_is_freed_alone() -> None:
    plan, backend = released(7 * 4 * KIB)
    assert [operation.kind for operation in plan.operations] == [OpKind.DEALLOCATE]
    assert plan.counts[OpKind.SWAP_OUT] == plan.swapped_bytes == 0
    assert backend.bytes_in_use() == 0
