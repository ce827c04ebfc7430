"""paged by hand: blocks of four one-byte tokens in a pool of ten."""

from __future__ import annotations

from typing import Any

import pytest

from vtsim.errors import InvariantError
from vtsim.plan import NO_MATCH, NOTHING, Keep, MemoryUsage, Phase, Shortage
from vtsim.policies.paged import PagedParameters, PagedPolicy
from vtsim.ports import Headroom
from vtsim.request import Run
from vtsim.spec import KVLayout
from vtsim.testing.hand import Hand

KV = KVLayout("token_major", 1, row_bytes=1, chunk_bytes=4, max_tokens=64)


def hand(blocks: int = 10, **parameters: Any) -> Hand:
    policy = PagedPolicy(PagedParameters(block=4, **parameters), placement=True)
    return Hand(policy, KV, 4 * blocks + 3)


def known(world: Hand, *content: Run) -> int:
    """Tokens that a long prompt of this content would find."""
    tokens: int = world.policy.match(world.ask(60, *content)).tokens
    return tokens


# -- blocks ----------------------------------------------------------------------------------------


def test_the_pool_is_one_allocation_from_the_start() -> None:
    world = hand()
    assert world.log == ["allocate 0 40 B"]
    assert world.policy.blocks == 10
    assert world.policy.usage() == MemoryUsage(pool_unused=40)
    assert world.policy.details() == {"derived_blocks": 10, "blocks": 10}


def test_a_measured_pool_is_told_beside_the_derived_one() -> None:
    world = hand(num_gpu_blocks=7)
    assert world.log == ["allocate 0 28 B"]
    assert world.policy.details() == {"derived_blocks": 10, "blocks": 7}


def test_a_pool_of_nothing_allocates_nothing() -> None:
    world = hand(blocks=0)
    assert world.log == []
    assert world.create(world.ask(1)) == Shortage(4)
    assert world.policy.teardown() is NOTHING


def test_a_sequence_takes_blocks_as_it_grows_and_no_driver_call() -> None:
    world = hand()
    assert world.create(world.ask(6)) is NOTHING
    assert world.policy.usage() == MemoryUsage(kv_live=6, kv_slack=2, pool_unused=32)
    world.grow(2)
    assert world.policy.usage() == MemoryUsage(kv_live=8, pool_unused=32)
    world.grow()
    assert world.policy.usage() == MemoryUsage(kv_live=9, kv_slack=3, pool_unused=28)
    assert world.log == ["allocate 0 40 B"]


def test_chunks_of_a_prompt_take_their_blocks_one_by_one() -> None:
    world = hand()
    seq = world.ask(10)
    world.create(seq, tokens=3)
    assert world.policy.usage() == MemoryUsage(kv_live=3, kv_slack=1, pool_unused=36)
    world.extend_prompt(seq, 7, last=True)
    assert world.policy.usage() == MemoryUsage(kv_live=10, kv_slack=2, pool_unused=28)


def test_blocks_are_free_at_release() -> None:
    world = hand()
    seq = world.admit(17)
    assert world.release(seq) is NOTHING
    assert world.policy.usage() == MemoryUsage(pool_unused=40)
    assert world.retire() is NOTHING
    assert not world.policy.fenced


def test_refusals_say_how_many_bytes() -> None:
    world = hand()
    world.admit(33)
    assert world.create(world.ask(9)) == Shortage(8)
    assert world.create(world.ask(3), whole=6) == Shortage(4)
    seq = world.admit(4)
    assert world.grow() == Shortage(4)
    world.end(seq)
    part = world.ask(9)
    world.create(part, tokens=4)
    assert world.extend_prompt(part, 4) == Shortage(4)
    assert world.policy.headroom(world.batch, 50) == Headroom(3)


def test_headroom_includes_what_can_be_evicted() -> None:
    world = hand(blocks=3)
    world.end(world.admit(8, (0, 8)))
    world.admit(3)
    assert world.policy.headroom(world.batch, 50).steps == 9
    world.grow(9)
    assert world.policy.usage() == MemoryUsage(kv_live=12)


# -- cached content --------------------------------------------------------------------------------


def test_full_blocks_of_a_complete_prompt_can_be_shared_while_it_runs() -> None:
    world = hand()
    seq = world.ask(10, (0, 10))
    world.create(seq, tokens=6)
    assert known(world, (0, 10)) == 0  # not yet
    world.extend_prompt(seq, 4, last=True)
    assert known(world, (0, 10)) == 8
    assert known(world, (0, 7)) == 4
    assert known(world, (1, 7)) == 0
    other = world.admit(10, (0, 8), (50, 2))
    # Three and three blocks, two of them shared: each token is counted once.
    assert world.policy.usage() == MemoryUsage(kv_live=12, kv_slack=4, pool_unused=24)
    world.release(seq)
    assert world.policy.usage() == MemoryUsage(kv_live=10, kv_slack=2, pool_unused=28)
    world.release(other)
    assert world.policy.usage() == MemoryUsage(kv_prefix=8, pool_unused=32)


def test_a_match_leaves_one_token_to_compute() -> None:
    world = hand()
    world.end(world.admit(8, (0, 8)))
    assert world.policy.match(world.ask(8, (0, 8))).tokens == 4
    assert world.policy.match(world.ask(9, (0, 8))).tokens == 8


def test_outputs_are_cached_at_the_end_where_they_have_names() -> None:
    for keep, tokens in ((Keep.RECORD, 12), (Keep.NONE, 4)):
        world = hand()
        seq = world.admit(6, (0, 6), output=((6, 20),))
        world.grow(6)
        world.end(seq, keep)
        assert known(world, (0, 30)) == tokens


def test_without_a_prefix_cache_nothing_is_found() -> None:
    world = hand(prefix_cache=False)
    world.end(world.admit(8, (0, 8)))
    assert world.policy.match(world.ask(9, (0, 8))) is NO_MATCH
    assert world.policy.usage() == MemoryUsage(pool_unused=40)


def test_a_second_copy_of_what_is_cached_stays_private() -> None:
    world = hand()
    first, second = world.admit_fresh(8, (0, 8)), world.admit_fresh(8, (0, 8))
    assert world.policy.usage() == MemoryUsage(kv_live=16, pool_unused=24)
    world.end(second)
    assert world.policy.usage() == MemoryUsage(kv_live=8, pool_unused=32)
    assert known(world, (0, 8)) == 8
    world.end(first)
    assert world.policy.usage() == MemoryUsage(kv_prefix=8, pool_unused=32)


def test_contents_that_part_inside_a_block_share_the_blocks_before() -> None:
    world = hand()
    first = world.admit(12, (0, 12))
    second = world.admit(12, (0, 6), (50, 6))  # finds four, and holds two blocks of its own
    assert world.policy.usage() == MemoryUsage(kv_live=20, pool_unused=20)
    assert (known(world, (0, 12)), known(world, (0, 6), (50, 6))) == (12, 12)
    world.end(first)
    assert (known(world, (0, 12)), known(world, (0, 6), (50, 6))) == (12, 12)
    world.end(second)
    assert world.policy.usage() == MemoryUsage(kv_prefix=20, pool_unused=20)


# -- eviction --------------------------------------------------------------------------------------


def test_blocks_never_used_go_first_then_the_tail_of_the_least_recently_used() -> None:
    world = hand(blocks=8)
    world.end(world.admit(14, (0, 14)))  # three cached, one partly filled
    world.end(world.admit(12, (100, 12)))
    assert world.policy.usage() == MemoryUsage(kv_prefix=24, pool_unused=8)
    world.admit(8)  # the last fresh block, then the partly filled one
    assert (known(world, (0, 14)), known(world, (100, 12))) == (12, 12)
    world.grow()
    assert (known(world, (0, 14)), known(world, (100, 12))) == (8, 12)
    world.grow(8)
    assert (known(world, (0, 14)), known(world, (100, 12))) == (0, 12)
    world.grow(4)
    assert (known(world, (0, 14)), known(world, (100, 12))) == (0, 8)
    assert world.policy.usage() == MemoryUsage(kv_live=21, kv_slack=3, kv_prefix=8)


def test_being_matched_makes_content_recent() -> None:
    world = hand(blocks=6)
    world.end(world.admit(8, (0, 8)))
    world.end(world.admit(8, (100, 8)))
    world.end(world.admit(9, (0, 8)))
    world.admit(8)
    assert (known(world, (0, 8)), known(world, (100, 8))) == (8, 4)


def test_what_is_matched_is_not_free_for_its_own_sequence() -> None:
    world = hand(blocks=3)
    world.end(world.admit(8, (0, 8)))
    seq = world.ask(16, (0, 8), (50, 8))
    assert world.create(seq) == Shortage(4)
    assert world.policy.usage() == MemoryUsage(kv_prefix=8, pool_unused=4)
    assert world.create(world.ask(12, (0, 8), (50, 4))) is NOTHING
    assert world.policy.usage() == MemoryUsage(kv_live=12)


def test_only_a_part_of_a_cached_run_may_be_pinned() -> None:
    world = hand(blocks=4)
    world.end(world.admit(12, (0, 12)))
    seq = world.admit(6, (0, 4), (50, 2))
    # One of the three is in use; the other two are free still, and found.
    assert world.policy.usage() == MemoryUsage(kv_live=6, kv_slack=2, kv_prefix=8)
    assert known(world, (0, 12)) == 12
    world.grow(2)
    world.grow(5)
    assert known(world, (0, 12)) == 4
    world.end(seq, Keep.NONE)
    assert known(world, (0, 12)) == 4


# -- the rest --------------------------------------------------------------------------------------


def test_the_pool_cannot_shrink() -> None:
    world = hand()
    assert world.policy.set_limit(39) == Shortage(1)
    assert world.policy.set_limit(40) is NOTHING
    assert world.policy.limit_bytes == 40


def test_teardown_gives_the_pool_back_whatever_runs() -> None:
    world = hand()
    world.admit(12, (0, 12))
    world.end(world.admit(9, (40, 9)))
    plan = world.policy.teardown()
    assert plan.phase is Phase.TEARDOWN
    world.execute(plan)
    world.backend.close()
    assert world.log[-1] == "deallocate 0 40 B"


def forget_cached(store: Any) -> None:
    """Idle content drops out of the eviction order."""
    store._order.discard(next(node for node in store._tree if not node.live and node.blocks))


@pytest.mark.parametrize(
    ("invariant", "harm"),
    [
        ("table-covers-its-path", lambda p: setattr(p._tables[0], "cached", 9)),
        ("live-count", lambda p: setattr(next(iter(p._store._tree)), "live", 7)),
        ("node-holds-its-blocks", lambda p: setattr(p._tables[0].leaf, "length", 99)),
        ("idle-content-is-in-the-order", lambda p: forget_cached(p._store)),
        ("idle-count", lambda p: setattr(p._store, "idle", 9)),
        ("cached-count", lambda p: setattr(p._store, "cached_idle", 9)),
        ("each-block-is-free-or-held", lambda p: setattr(p._store, "fresh", 9)),
    ],
)
def test_check_integrity_names_what_is_broken(invariant: str, harm: Any) -> None:
    world = hand()
    world.admit(9, (0, 9))
    world.end(world.admit(9, (20, 9)))
    harm(world.policy)
    with pytest.raises(InvariantError, match=invariant):
        world.policy.check_integrity()
