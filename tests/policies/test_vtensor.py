"""vtensor by hand: exact maps, copies, evictions and bytes on chunks of four one-byte tokens."""

from __future__ import annotations

from typing import Any

import pytest

from vtsim.errors import ConfigError, InvariantError
from vtsim.plan import NO_MATCH, NOTHING, Keep, MemoryUsage, Phase, Plan, Shortage
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.ports import DeviceInfo
from vtsim.spec import KVLayout
from vtsim.testing.hand import Hand, counts

KV = KVLayout("token_major", 1, row_bytes=1, chunk_bytes=4, max_tokens=64)
SPLIT = KVLayout("kv_split", 2, row_bytes=1, chunk_bytes=4, max_tokens=64)
YI_34B = KVLayout("token_major", 1, row_bytes=15, chunk_bytes=128, max_tokens=256)
"""Rows and chunks as Yi-34B's 245,760 B and 2 MiB: 128 tokens fill 15 chunks."""


def hand(
    limit: int = 400, kv: KVLayout = KV, slots: int = 100, placement: bool = True, **parameters: Any
) -> Hand:
    return Hand(
        VTensorPolicy(VTensorParameters(**parameters), placement=placement), kv, limit, slots
    )


# -- create and extend -----------------------------------------------------------------------------


def test_create_maps_what_the_prompt_needs() -> None:
    world = hand()
    assert world.log == ["reserve [0] 6400 B"]
    assert counts(world.create(world.ask(6))) == {"create": 2, "map": 2}
    assert world.log == ["create 0", "map 0 -> 0[0].0", "create 1", "map 1 -> 0[0].1"]
    assert world.policy.usage() == MemoryUsage(kv_live=6, kv_slack=2)


def test_extend_maps_when_a_token_crosses_into_a_chunk() -> None:
    world = hand()
    world.admit(6)
    assert world.grow() is NOTHING and world.grow() is NOTHING
    assert counts(world.grow()) == {"create": 1, "map": 1}
    assert world.policy.usage() == MemoryUsage(kv_live=9, kv_slack=3)
    plan = world.grow(8)
    assert counts(plan) == {"create": 2, "map": 2}
    assert [op.due for op in plan.operations] == [3, 3, 7, 7]  # type: ignore[union-attr]
    assert world.policy.usage() == MemoryUsage(kv_live=17, kv_slack=3)


def test_equal_sequences_grow_in_the_same_step_in_batch_order() -> None:
    world = hand()
    world.admit(4)
    world.admit(8)
    world.log  # noqa: B018 - forget the creates
    assert counts(world.grow()) == {"create": 2, "map": 2}
    assert world.log == ["create 3", "map 3 -> 0[0].1", "create 4", "map 4 -> 1[0].2"]


def test_lookahead_maps_further_ahead() -> None:
    world = hand(lookahead=3)  # two tokens more than the next step's
    assert counts(world.create(world.ask(6))) == {"create": 2, "map": 2}
    assert counts(world.grow()) == {"create": 1, "map": 1}
    assert world.policy.usage() == MemoryUsage(kv_live=7, kv_slack=5)


def test_initial_tokens_come_with_the_last_chunk_and_are_used_up_first() -> None:
    world = hand(initial_tokens=5)
    seq = world.ask(6)
    assert counts(world.create(seq, tokens=4)) == {"create": 1, "map": 1}
    assert counts(world.extend_prompt(seq, 2, last=True)) == {"create": 2, "map": 2}
    assert world.policy.usage() == MemoryUsage(kv_live=6, kv_slack=6)
    assert world.grow(6) is NOTHING
    assert counts(world.grow()) == {"create": 1, "map": 1}


def test_every_arena_grows_in_lockstep() -> None:
    world = hand(kv=SPLIT)
    assert world.log == ["reserve [0] 6400 B", "reserve [1] 6400 B"]
    assert counts(world.create(world.ask(5))) == {"create": 4, "map": 4}
    assert world.log == [
        "create 0", "create 1", "map 0 -> 0[0].0", "map 1 -> 0[1].0",
        "create 2", "create 3", "map 2 -> 0[0].1", "map 3 -> 0[1].1",
    ]  # fmt: skip
    assert world.policy.usage() == MemoryUsage(kv_live=10, kv_slack=6)


def test_sizes_that_do_not_divide_straddle_chunks() -> None:
    world = hand(limit=128 * 40, kv=YI_34B)
    world.admit(8)  # 120 of 128 bytes
    assert world.policy.usage() == MemoryUsage(kv_live=120, kv_slack=8)
    grown = [bool(world.grow() is not NOTHING) for _ in range(128)]
    at = [step + 9 for step, grew in enumerate(grown) if grew]  # the token that needed it
    assert at == [9, 18, 26, 35, 43, 52, 60, 69, 77, 86, 94, 103, 111, 120, 129]
    assert world.policy.usage() == MemoryUsage(kv_live=136 * 15, kv_slack=16 * 128 - 136 * 15)


def test_headroom_counts_steps_without_eviction() -> None:
    world = hand(limit=16)
    world.admit(3)
    world.admit(4)
    # Two of four chunks are left: the second sequence takes one in step 1, the first in step 2,
    # and the next are wanted in step 5.
    assert world.policy.headroom(world.batch, 9).steps == 4
    assert world.policy.headroom(world.batch, 2).steps == 2
    promise = world.policy.headroom(world.batch, 4)
    one_each = [0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]
    assert promise.peak is not None and promise.peak.counts == one_each
    assert promise.last is not None and promise.last.empty
    assert isinstance(world.grow(4), Plan)
    assert world.policy.headroom(world.batch, 9).steps == 0


# -- release, retire, retention --------------------------------------------------------------------


def test_nothing_is_reused_before_its_kernels_have_ended() -> None:
    world = hand(limit=8)
    seq = world.admit(5)
    assert world.release(seq) is NOTHING
    assert world.policy.usage() == MemoryUsage(kv_live=5, kv_slack=3)
    refusal = world.create(world.ask(6))
    assert refusal == Shortage(8, 0, pending_bytes=8, pending_slots=1)
    assert refusal.will_clear
    assert world.policy.retire(0) is NOTHING
    assert counts(world.retire()) == {"unmap": 2}
    assert world.policy.usage() == MemoryUsage(kv_pooled=8)


def test_pooled_chunks_are_mapped_again_without_being_created() -> None:
    world = hand()
    world.end(world.admit(7))
    world.log  # noqa: B018
    assert counts(world.create(world.ask(9))) == {"create": 1, "map": 3}
    # The tail was unmapped first, so the head's chunk was pooled last and goes first; and the slot
    # given back last is taken first.
    assert world.log == ["map 0 -> 0[0].0", "map 1 -> 0[0].1", "create 2", "map 2 -> 0[0].2"]


@pytest.mark.parametrize(
    ("parameters", "kept", "destroyed"),
    [
        ({"retain": "all"}, 12, 0),
        ({"retain": "none"}, 0, 3),
        ({"retain": "watermark"}, 8, 1),  # a twentieth of 160 bytes
        ({"retain": "watermark", "retain_bytes": 7}, 4, 2),
        ({"retain": "watermark", "retain_bytes": 0}, 0, 3),
    ],
)
def test_retention(parameters: dict[str, Any], kept: int, destroyed: int) -> None:
    world = hand(limit=160, **parameters)
    plan = world.end(world.admit(9), Keep.NONE)
    assert counts(plan).get("destroy", 0) == destroyed and counts(plan)["unmap"] == 3
    assert world.policy.usage() == MemoryUsage(kv_pooled=kept)


def test_a_watermark_lets_the_oldest_records_go_when_nothing_is_pooled() -> None:
    world = hand(limit=160, retain="watermark")  # keeps two chunks
    world.end(world.admit(4, (0, 4)))
    world.end(world.admit(4, (100, 4)))
    plan = world.end(world.admit(4, (200, 4)))
    assert counts(plan) == {"unmap": 1, "destroy": 1}
    assert world.policy.usage() == MemoryUsage(kv_prefix=8)
    known = [world.policy.match(world.ask(9, (first, 4))).tokens for first in (0, 100, 200)]
    assert known == [0, 4, 4]


# -- prefixes --------------------------------------------------------------------------------------


def test_a_match_shares_full_chunks_and_copies_the_tail() -> None:
    world = hand()
    world.end(world.admit(10, (0, 10)))
    assert world.policy.usage() == MemoryUsage(kv_prefix=12)
    world.log  # noqa: B018
    seq = world.ask(14, (0, 10), (50, 4))
    assert world.policy.match(seq).tokens == 10
    plan = world.create(seq)
    assert counts(plan) == {"create": 2, "map": 4, "copy": 1}
    assert plan.copied_bytes == 2  # type: ignore[union-attr]
    assert world.log == [
        "map 0 -> 1[0].0", "map 1 -> 1[0].1", "create 3", "map 3 -> 1[0].2",
        "copy 2 B at 8: 0 -> 1[0]", "create 4", "map 4 -> 1[0].3",
    ]  # fmt: skip
    # Two chunks serve the sequence and the record; the record's third is only the record's.
    assert world.policy.usage() == MemoryUsage(kv_live=14, kv_slack=2, kv_prefix=4)


def test_recompute_shares_down_to_a_chunk_that_ends_with_a_row() -> None:
    world = hand(tail="recompute")
    world.end(world.admit(10, (0, 10)))
    assert world.policy.usage() == MemoryUsage(kv_prefix=8, kv_pooled=4)
    seq = world.ask(14, (0, 10), (50, 4))
    assert world.policy.match(seq).tokens == 8
    assert counts(world.create(seq)) == {"create": 1, "map": 4}


def test_yi_34b_shares_whole_periods_when_it_recomputes() -> None:
    for tail, tokens, shared, copied in (("copy", 140, 16, 52), ("recompute", 128, 15, 0)):
        world = hand(limit=128 * 100, kv=YI_34B, tail=tail)
        world.end(world.admit(140, (0, 140)))
        seq = world.ask(200, (0, 200))
        assert world.policy.match(seq).tokens == tokens
        plan = world.create(seq)
        assert isinstance(plan, Plan) and plan.copied_bytes == copied == tokens * 15 - shared * 128
        assert counts(plan)["map"] == KV.units(0) + YI_34B.units(200)


def test_at_least_one_token_is_computed() -> None:
    world = hand()
    world.end(world.admit(8, (0, 8)))
    seq = world.ask(8, (0, 8))
    assert world.policy.match(seq).tokens == 7
    assert counts(world.create(seq)) == {"create": 1, "map": 2, "copy": 1}


def test_outputs_are_recorded_where_they_have_names() -> None:
    world = hand()
    seq = world.admit(6, (0, 6), output=((6, 20),))
    world.grow(3)
    world.end(seq)
    assert world.policy.match(world.ask(30, (0, 30))).tokens == 9
    assert world.policy.usage() == MemoryUsage(kv_prefix=12)


def test_an_unnamed_tail_is_dropped_on_record() -> None:
    world = hand()
    seq = world.admit(6, (0, 6))
    world.grow(7)
    plan = world.end(seq)
    assert counts(plan) == {"unmap": 2}
    assert world.policy.usage() == MemoryUsage(kv_prefix=8, kv_pooled=8)


def test_what_is_recorded_already_is_not_recorded_twice() -> None:
    world = hand()
    first, second = world.admit(8, (0, 8)), world.admit(6, (0, 6))
    world.end(first)
    world.end(world.admit(4, (90, 4)))
    assert counts(world.end(second)) == {"unmap": 2}
    # But it has been used: the other one is now the oldest.
    assert counts(world.execute(world.policy.set_limit(8))) == {"unmap": 1, "destroy": 3}
    assert world.policy.match(world.ask(9, (90, 4))) == NO_MATCH
    assert world.policy.match(world.ask(9, (0, 8))).tokens == 8


def test_nothing_is_recorded_of_what_has_no_name_or_is_not_to_be_kept() -> None:
    for seq_content, keep in (((), Keep.RECORD), (((0, 8),), Keep.NONE)):
        world = hand()
        world.end(world.admit(8, *seq_content), keep)
        assert world.policy.usage() == MemoryUsage(kv_pooled=8)
    for parameters in ({"prefix_cache": False}, {"retain": "none"}):
        world = hand(**parameters)
        world.end(world.admit(8, (0, 8)))
        assert world.policy.usage().kv_prefix == 0
        assert world.policy.match(world.ask(9, (0, 9))) is NO_MATCH


# -- eviction --------------------------------------------------------------------------------------


def test_the_least_recently_used_record_goes_first() -> None:
    world = hand(limit=24)
    for first in (0, 100, 200):
        world.end(world.admit(8, (first, 8)))
    user = world.admit(8, (0, 8))  # 7 of them matched: takes the oldest's memory
    assert world.policy.match(world.ask(9, (100, 8))) is NO_MATCH
    world.log  # noqa: B018
    plan = world.create(world.ask(5, (300, 5)))
    # The record at 0 is in use, the one at 200 is the oldest that is not.
    assert counts(plan) == {"unmap": 2, "map": 2}
    assert world.log[:2] == ["unmap 5 -> 2[0].1", "unmap 4 -> 2[0].0"]
    world.end(user)
    assert world.policy.match(world.ask(9, (0, 8))).tokens == 8


def test_a_match_is_never_evicted_for_its_own_sequence() -> None:
    world = hand(limit=12)
    world.end(world.admit(8, (0, 8)))
    seq = world.ask(17, (0, 8), (50, 9))
    match = world.policy.match(seq)
    # 17 tokens are five chunks, two of them matched: three where one is free.
    assert world.create(seq, match=match) == Shortage(8, 0, 0, 0)
    # Twelve tokens are one more than the matched two: that one is there.
    assert counts(world.create(world.ask(12, (0, 8), (60, 4)))) == {"create": 1, "map": 3}
    assert counts(hand(limit=12).create(world.ask(12), match=NO_MATCH)) == {"create": 3, "map": 3}


def test_without_its_match_a_sequence_may_evict_what_it_would_have_matched() -> None:
    world = hand(limit=12)
    world.end(world.admit(10, (0, 10)))
    seq = world.ask(12, (0, 2), (50, 10))
    assert isinstance(world.create(seq), Shortage)  # the tail copy's source holds all memory
    assert counts(world.create(seq, match=NO_MATCH)) == {"unmap": 3, "map": 3}


def test_extend_evicts_in_the_step_that_needs_it() -> None:
    world = hand(limit=12)
    world.end(world.admit(4, (0, 4)))
    world.admit(3)
    assert world.policy.headroom(world.batch, 9).steps == 5  # one chunk, for token 5
    plan = world.grow(6)
    assert counts(plan) == {"create": 1, "map": 2, "unmap": 1}
    assert [(op.kind.name, op.due) for op in plan.operations] == [  # type: ignore[union-attr]
        ("CREATE", 1), ("MAP", 1), ("UNMAP", 5), ("MAP", 5)
    ]  # fmt: skip
    assert world.grow(4) == Shortage(4)
    assert world.policy.usage() == MemoryUsage(kv_live=9, kv_slack=3)


def test_a_prompt_s_next_chunk_is_refused_or_evicts() -> None:
    world = hand(limit=12)
    world.end(world.admit(4, (0, 4)))
    seq = world.ask(20)
    world.create(seq, tokens=4)
    assert counts(world.extend_prompt(seq, 8)) == {"create": 1, "map": 2, "unmap": 1}
    assert world.extend_prompt(seq, 1) == Shortage(4)


# -- parking ---------------------------------------------------------------------------------------


def parked(adopt: str) -> Hand:
    """Idle vTensors of 2, 4 and 3 chunks in slots 0, 1, 2, parked in this order."""
    world = hand(release="park", adopt=adopt)
    seqs = [world.admit(8), world.admit(16), world.admit(12)]
    for seq in seqs:
        assert counts(world.end(seq)) == {}
    assert world.policy.usage() == MemoryUsage(kv_parked=36)
    world.log  # noqa: B018
    return world


@pytest.mark.parametrize(
    ("adopt", "prompt", "slot", "maps"),
    [
        ("best", 9, 2, 0),  # three chunks fit exactly
        ("best", 5, 0, 0),
        ("best", 13, 1, 0),
        ("best", 30, 1, 4),  # none is large enough: the largest
        ("newest", 5, 2, 0),
        ("newest", 13, 2, 1),
        ("lowest", 5, 0, 0),
        ("lowest", 13, 0, 2),
    ],
)
def test_which_parked_vtensor_is_adopted(adopt: str, prompt: int, slot: int, maps: int) -> None:
    world = parked(adopt)
    plan = world.create(world.ask(prompt))
    assert counts(plan) == ({"create": maps, "map": maps} if maps else {})
    assert world.policy._vset[3].slot == slot


def test_an_adopted_vtensor_keeps_all_it_has() -> None:
    world = parked("newest")
    world.create(world.ask(5))
    assert world.policy.usage() == MemoryUsage(kv_live=5, kv_slack=7, kv_parked=24)
    assert world.grow(7) is NOTHING
    assert counts(world.grow()) == {"create": 1, "map": 1}


def test_parked_vtensors_are_evicted_oldest_first_and_before_records() -> None:
    world = hand(limit=20, release="park", adopt="lowest")
    world.end(world.admit(4, (0, 4)))
    world.end(world.admit_fresh(4))
    world.end(world.admit_fresh(4))
    # The second adopted what the first had parked: one record and one parked vTensor of a chunk.
    assert world.policy.usage() == MemoryUsage(kv_prefix=4, kv_parked=4)
    for _ in range(2):
        world.admit(8, (0, 4), (70, 4))  # matching: nothing is adopted
    assert world.policy.usage().kv_parked == 4
    plan = world.create(world.ask(12, (0, 4), (80, 8)))
    assert counts(plan) == {"create": 1, "unmap": 1, "map": 3}
    assert world.policy.usage().kv_parked == 0


def test_what_shares_a_prefix_is_unmapped_not_parked() -> None:
    world = hand(release="park")
    world.end(world.admit(8, (0, 8)))
    plan = world.end(world.admit(9, (0, 9)), Keep.NONE)
    assert counts(plan) == {"unmap": 3}


def test_nothing_is_parked_where_nothing_is_retained() -> None:
    world = hand(release="park", retain="none")
    assert counts(world.end(world.admit(8))) == {"unmap": 2, "destroy": 2}


# -- slots -----------------------------------------------------------------------------------------


def test_slots_run_out_and_come_back() -> None:
    world = hand(slots=2)
    first, _ = world.admit(1), world.admit(1)
    assert world.create(world.ask(1)) == Shortage(0, slots=1)
    world.release(first)
    refusal = world.create(world.ask(1))
    assert refusal == Shortage(0, 1, pending_bytes=4, pending_slots=1)
    world.retire()
    assert counts(world.create(world.ask(1))) == {"map": 1}


def test_records_and_parked_vtensors_make_room_for_slots() -> None:
    world = hand(slots=2)
    world.end(world.admit(4, (0, 4)))
    world.end(world.admit(4, (100, 4)))
    world.log  # noqa: B018
    assert counts(world.create(world.ask(2))) == {"unmap": 1, "map": 1}
    assert world.log[0] == "unmap 0 -> 0[0].0"
    # One record is left, and matched: it may not make room for its own sequence.
    seq = world.ask(6, (100, 4), (300, 2))
    assert world.create(seq) == Shortage(0, slots=1)
    assert counts(world.create(seq, match=NO_MATCH)) == {"create": 1, "unmap": 1, "map": 2}
    parking = hand(slots=1, release="park")
    parking.end(parking.admit(4))
    assert counts(parking.create(parking.ask(9))) == {"create": 2, "map": 2}


def test_addresses_too_few_for_one_slot_are_refused() -> None:
    policy = VTensorPolicy()
    with pytest.raises(ConfigError, match="one slot of 64 B does not fit 63 B of addresses"):
        policy.setup(DeviceInfo("toy", 100, 4, 63), KV, 100)


def test_a_device_s_granularity_is_respected() -> None:
    with pytest.raises(ConfigError, match="multiple of the device's granularity, 3 B"):
        VTensorPolicy().setup(DeviceInfo("toy", 100, 3, 1000), KV, 100)


@pytest.mark.parametrize("name", ["initial_tokens", "lookahead", "retain_bytes"])
def test_negative_parameters_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"vtensor.{name}: must be >= 0, got -1"):
        VTensorParameters(**{name: -1})  # type: ignore[arg-type]


# -- limit and teardown ----------------------------------------------------------------------------


def test_a_lower_limit_destroys_what_is_idle_and_evicts_for_it() -> None:
    world = hand(limit=40)
    world.end(world.admit(8, (0, 8)))
    world.admit(9)
    world.end(world.admit(4))
    assert world.policy.usage() == MemoryUsage(kv_live=9, kv_slack=3, kv_prefix=8, kv_pooled=4)
    assert counts(world.execute(world.policy.set_limit(21))) == {"destroy": 1}
    assert counts(world.execute(world.policy.set_limit(19))) == {"unmap": 2, "destroy": 1}
    assert world.policy.usage() == MemoryUsage(kv_live=9, kv_slack=3, kv_pooled=4)
    assert world.policy.set_limit(11) == Shortage(4)
    assert world.policy.limit_bytes == 19
    assert world.create(world.ask(5)) == Shortage(4, 0, 0, 0)
    assert counts(world.execute(world.policy.set_limit(40))) == {}
    assert counts(world.create(world.ask(5))) == {"create": 1, "map": 2}


def test_teardown_gives_back_everything() -> None:
    world = hand(release="park", kv=SPLIT)
    world.end(world.admit(9, (0, 9)))  # a record
    world.end(world.admit(5))  # parked
    world.admit(20, (0, 20))  # live, sharing
    world.create(world.ask(20), tokens=3)  # a prompt in progress
    world.release(world.admit(4))  # leaving
    plan = world.policy.teardown()
    assert plan.phase is Phase.TEARDOWN
    world.execute(plan)
    world.backend.close()
    assert sum(world.policy.usage()) == 0


# -- integrity -------------------------------------------------------------------------------------


def rich() -> Hand:
    """A live sharer, a prompt in progress, a leaver, a record, a parked vTensor, a pooled chunk."""
    world = hand(release="park")
    world.end(world.admit(9, (0, 9)))
    parked, second = world.admit_fresh(8), world.admit_fresh(8)
    world.end(parked)
    world.admit(20, (0, 20))
    world.create(world.ask(20), tokens=3, match=NO_MATCH)
    world.release(second)
    world.admit(6)
    return world


@pytest.mark.parametrize(
    ("invariant", "harm"),
    [
        ("mapped-covers-used", lambda p: setattr(p._vset[4], "tokens", 63)),
        ("inside-its-slot", lambda p: setattr(p.kv, "max_tokens", 1)),
        ("record-table-length", lambda p: setattr(record(p).payload, "units", 7)),
        ("tables-are-contiguous", lambda p: setattr(record(p).payload.leaf, "start", 1)),
        ("extent-holders", lambda p: setattr(record(p).payload.leaf, "records", 5)),
        ("live-units", lambda p: setattr(p._extents, "live_units", 99)),
        ("record-units", lambda p: setattr(p._extents, "record_units", 99)),
        ("own-units", lambda p: setattr(p, "_own_units", 99)),
        ("shared-units", lambda p: setattr(p, "_shared_units", 99)),
        ("still-tokens", lambda p: setattr(p, "_still_tokens", 99)),
        ("parked-units", lambda p: setattr(p._slots, "parked_units", 99)),
        ("each-chunk-is-free-or-mapped", lambda p: setattr(p._pool, "created", 99)),
        ("each-slot-is-free-or-held", lambda p: setattr(p._slots, "used", 99)),
        ("within-the-limit", lambda p: setattr(p._pool, "limit", 1)),
        ("pooled-count", lambda p: p._placed.pooled.append(77)),
    ],
)
def test_check_integrity_names_what_is_broken(invariant: str, harm: Any) -> None:
    world = rich()
    world.policy.check_integrity()
    if invariant == "inside-its-slot":
        object.__setattr__(world.policy.kv, "max_tokens", 1)
    else:
        harm(world.policy)
    try:
        with pytest.raises(InvariantError, match=invariant):
            world.policy.check_integrity()
    finally:
        object.__setattr__(KV, "max_tokens", 64)


def record(policy: VTensorPolicy) -> Any:
    return next(iter(policy._prefixes.records.values()))
