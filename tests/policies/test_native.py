"""native by hand: one reservation a request, given back when its last kernel has ended."""

from __future__ import annotations

from typing import Any

import pytest

from vtsim.errors import InvariantError
from vtsim.plan import NOTHING, MemoryUsage, Phase, Shortage
from vtsim.policies.native import NativePolicy
from vtsim.spec import KVLayout
from vtsim.testing.hand import Hand, counts

MIB = 1 << 20
KV = KVLayout("token_major", 1, row_bytes=MIB, chunk_bytes=2 * MIB, max_tokens=5)
EACH = 6 * MIB
"""Five tokens of 1 MiB in whole pages of 2 MiB."""


def hand(limit: int = 3 * EACH) -> Hand:
    return Hand(NativePolicy(placement=True), KV, limit)


def test_a_request_takes_its_longest_from_the_start() -> None:
    world = hand()
    seq = world.ask(2)
    plan = world.create(seq)
    assert counts(plan) == {"allocate": 1} and plan.allocation_bytes == EACH  # type: ignore[union-attr]
    assert world.log == [f"allocate 0 {EACH} B"]
    assert world.policy.usage() == MemoryUsage(kv_live=2 * MIB, kv_slack=4 * MIB)
    assert world.grow() is NOTHING and world.grow(2) is NOTHING
    assert world.policy.usage() == MemoryUsage(kv_live=5 * MIB, kv_slack=1 * MIB)
    assert world.policy.headroom(world.batch, 7).steps == 7


def test_chunks_of_a_prompt_take_nothing_more() -> None:
    world = hand()
    seq = world.ask(4)
    world.create(seq, tokens=1)
    assert world.grow() is NOTHING  # it does not decode yet
    assert world.extend_prompt(seq, 3, last=True) is NOTHING
    assert world.policy.usage().kv_live == 4 * MIB
    world.grow()
    assert world.policy.usage().kv_live == 5 * MIB


def test_memory_comes_back_when_its_step_has_ended() -> None:
    world = hand(2 * EACH)
    first, second = world.admit(2), world.admit(3)
    assert world.release(first) is NOTHING
    refusal = world.create(world.ask(1))
    assert refusal == Shortage(EACH, pending_bytes=EACH) and refusal.will_clear
    assert world.policy.usage().kv_live == 5 * MIB
    assert world.policy.retire(0) is NOTHING
    assert counts(world.retire()) == {"deallocate": 1}
    assert world.policy.usage().kv_live == 3 * MIB
    third = world.admit(1)
    assert world.log[-2:] == [f"deallocate 0 {EACH} B", f"allocate 2 {EACH} B"]
    world.end(second)
    world.release(third)
    world.finish()


def test_what_cannot_fit_alone_has_nothing_pending() -> None:
    refusal = hand(EACH - 1).create(hand().ask(1))
    assert refusal == Shortage(1) and not refusal.will_clear


def test_the_limit_must_cover_what_is_reserved() -> None:
    world = hand()
    seqs = [world.admit(1), world.admit(1)]
    world.release(seqs[0])
    assert world.policy.set_limit(EACH) == Shortage(EACH, pending_bytes=EACH)
    assert world.policy.set_limit(2 * EACH) is NOTHING
    assert world.policy.limit_bytes == 2 * EACH
    assert isinstance(world.create(world.ask(1)), Shortage)


def test_teardown_gives_back_everything_in_order_of_number() -> None:
    world = hand()
    a, _ = world.admit(1), world.admit(1)
    world.release(a)
    plan = world.policy.teardown()
    assert plan.phase is Phase.TEARDOWN
    assert [op.chunk for op in plan.operations] == [0, 1]
    world.execute(plan)
    world.backend.close()
    assert world.policy.teardown() is NOTHING
    assert sum(world.policy.usage()) == 0


@pytest.mark.parametrize(
    ("invariant", "harm"),
    [
        ("token-count", lambda p: setattr(p, "_tokens", 9)),
        ("mapped-covers-used", lambda p: p._lengths.update({0: 6})),
        ("one-allocation-a-sequence", lambda p: p._held.clear()),
    ],
)
def test_check_integrity_names_what_is_broken(invariant: str, harm: Any) -> None:
    world = hand()
    world.admit(2)
    harm(world.policy)
    with pytest.raises(InvariantError, match=invariant):
        world.policy.check_integrity()
