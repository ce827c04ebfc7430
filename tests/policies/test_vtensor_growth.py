"""vtensor with chunks that grow, by hand: sizes, shares, what is given back to make room.

Tokens of one byte; chunks of 4 bytes up to 16 tokens, of 8 up to 64, of 16 from there on.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from typing import Any

import pytest

from vtsim.api import replay
from vtsim.errors import ConfigError, InvariantError
from vtsim.plan import NO_MATCH, NOTHING, Keep, MemoryUsage, OpKind, Phase, Plan, Shortage
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.policies.vtensor_growth import GrowingVTensorPolicy
from vtsim.request import TICKS_PER_S
from vtsim.spec import GrowingLayout, KVLayout
from vtsim.testing.cases import random_case
from vtsim.testing.conformance import compare_runs, maker
from vtsim.testing.hand import Hand, counts
from vtsim.testing.toys import Ask, make_trace, toy_model

M = 1 << 20
KV = GrowingLayout.of(KVLayout("token_major", 1, 1, 4, 300), 32, 1)
SPLIT = GrowingLayout.of(KVLayout("kv_split", 2, 1, 4, 300), 32, 1)


def hand(limit: int = 400, kv: KVLayout = KV, placement: bool = True, **parameters: Any) -> Hand:
    options = VTensorParameters(max_chunk=64 * M, **parameters)
    return Hand(VTensorPolicy(options, placement=placement), kv, limit)


def taken(answer: Plan | Shortage) -> tuple[int | None, int]:
    """Bytes created and destroyed."""
    assert isinstance(answer, Plan), answer
    return answer.created_bytes, answer.destroyed_bytes


# -- sizes -----------------------------------------------------------------------------------------


def test_create_takes_chunks_by_their_places() -> None:
    world = hand()
    world.log  # noqa: B018 - forget the set-up
    plan = world.create(world.ask(30))
    assert counts(plan) == {"create": 6, "map": 6} and taken(plan) == (32, 0)
    assert world.log[6:] == [
        "create 3", "map 3 -> 0[0].3", "create 4", "map 4 -> 0[0].4", "create 5", "map 5 -> 0[0].6",
    ]  # fmt: skip
    assert [op.nbytes for op in plan.operations][::2] == [4, 4, 4, 4, 8, 8]  # type: ignore[union-attr]
    assert world.policy.usage() == MemoryUsage(kv_live=30, kv_slack=2)


def test_extend_takes_the_next_chunk_of_its_size() -> None:
    world = hand()
    world.admit(14)
    assert world.grow(2) is NOTHING
    plan = world.grow()  # token 17
    assert counts(plan) == {"create": 1, "map": 1} and taken(plan) == (8, 0)
    said = world.policy.headroom(world.batch, 48)
    assert said.steps == 48 and said.last.counts == [0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]
    plan = world.grow(48)  # to 65: five more of 8 bytes, one of 16 with the last token
    assert counts(plan) == {"create": 6, "map": 6} and taken(plan) == (56, 0)
    assert isinstance(plan, Plan)
    assert [op.due for op in plan.operations[::2]] == [7, 15, 23, 31, 39, 47]
    assert world.policy.usage() == MemoryUsage(kv_live=65, kv_slack=15)
    counted = hand(placement=False)
    counted.admit(14)
    counted.grow(3)
    assert counted.policy.headroom(counted.batch, 48).last.counts == said.last.counts
    bare = counted.grow(48)
    assert isinstance(bare, Plan) and not bare.operations
    assert (bare.counts, taken(bare)) == (plan.counts, taken(plan))


def test_every_arena_grows_in_lockstep() -> None:
    world = hand(kv=SPLIT)
    plan = world.create(world.ask(30))
    assert counts(plan) == {"create": 12, "map": 12} and taken(plan) == (64, 0)
    assert world.policy.usage() == MemoryUsage(kv_live=60, kv_slack=4)


def test_a_parked_vtensor_of_any_length_is_adopted_whole() -> None:
    world = hand(release="park", prefix_cache=False)
    world.end(world.admit(30))
    assert world.policy.usage() == MemoryUsage(kv_parked=32)
    plan = world.create(world.ask(40))
    assert counts(plan) == {"create": 1, "map": 1} and taken(plan) == (8, 0)
    assert world.policy.usage() == MemoryUsage(kv_live=40)


# -- prefixes --------------------------------------------------------------------------------------


def test_a_prefix_is_shared_by_chunks_of_every_size_and_its_tail_copied() -> None:
    world = hand()
    world.end(world.admit(70, (0, 70)))
    assert world.policy.usage() == MemoryUsage(kv_prefix=80)
    plan = world.create(world.ask(50, (0, 45), (500, 5)))
    # Of 45 tokens 40 fill chunks: four of 4 and three of 8 are mapped again, 5 tokens copied into a
    # chunk of its own; 48 to 50 take one more.
    assert counts(plan) == {"create": 2, "map": 9, "copy": 1} and taken(plan) == (16, 0)
    assert isinstance(plan, Plan) and plan.copied_bytes == 5
    copies = [op for op in plan.operations if op.kind is OpKind.COPY]
    assert [(op.offset, op.nbytes, op.source, op.slot) for op in copies] == [(40, 5, 0, 1)]
    assert world.policy.usage() == MemoryUsage(kv_live=50, kv_slack=6, kv_prefix=40)


def test_recompute_shares_where_chunk_and_row_end_together() -> None:
    kv = GrowingLayout.of(KVLayout("token_major", 1, 3, 4, 300), 32, 1)
    world = hand(limit=2000, kv=kv, tail="recompute")
    world.end(world.admit(40, (0, 40)))
    # 4 tokens fill 3 units: of the chunks' ends 1, 2, 3, 4, 6, 8, ... units, 3, 6, 12 and 24 do.
    for tokens, match in ((5, 4), (17, 16), (31, 16), (33, 32), (39, 32)):
        assert world.policy.match(world.ask(tokens, (0, tokens))).tokens == match, tokens
    world.admit(33, (0, 33))


def test_a_successor_goes_on_in_place_with_larger_chunks() -> None:
    world = hand(inplace=True)
    world.end(world.admit(30, (0, 30)))
    plan = world.create(world.ask(60, (0, 60)))
    assert counts(plan) == {"create": 4, "map": 4} and taken(plan) == (32, 0)
    assert world.policy.usage() == MemoryUsage(kv_live=60, kv_slack=4)


# -- free chunks of other sizes --------------------------------------------------------------------


def full_of_large() -> Hand:
    """At the limit of 64 bytes: four chunks of 4 bytes free, and six of 8."""
    world = hand(limit=64)
    world.end(world.admit(64), Keep.NONE)
    world.log  # noqa: B018
    assert world.policy.usage() == MemoryUsage(kv_pooled=64)
    return world


def test_free_chunks_of_other_sizes_make_room() -> None:
    world = full_of_large()
    assert counts(world.create(world.ask(16))) == {"map": 4}
    world.log  # noqa: B018
    plan = world.create(world.ask(13))
    assert counts(plan) == {"create": 4, "destroy": 2, "map": 4} and taken(plan) == (16, 16)
    assert [word.split()[0] for word in world.log] == ["destroy"] * 2 + ["create", "map"] * 4
    assert world.policy.usage() == MemoryUsage(kv_live=29, kv_slack=3, kv_pooled=32)


def test_an_extend_makes_room_in_the_step_that_needs_it() -> None:
    world = full_of_large()
    world.admit(16)
    world.admit(4)  # a chunk of 8 went for its chunk of 4: five are left, and room for one of 4
    world.log  # noqa: B018
    plan = world.grow(8)
    # The first is given one of 8 with token 17. The second wants one of 4 with token 5, for which
    # there is room, and one more with token 9, for which there is not.
    assert counts(plan) == {"create": 2, "destroy": 1, "map": 3} and taken(plan) == (8, 8)
    assert isinstance(plan, Plan)
    shown = [(word.split()[0], op.due) for word, op in zip(world.log, plan.operations, strict=True)]
    assert shown == [
        ("map", 0), ("create", 0), ("map", 0), ("destroy", 4), ("create", 4), ("map", 4)
    ]  # fmt: skip


def test_headroom_ends_where_room_must_be_made() -> None:
    world = hand(limit=64)
    world.end(world.admit(64), Keep.NONE)
    world.admit(2)
    world.admit(14)
    # Nothing of 4 bytes is free; the first sequence wants such chunks.
    promised = world.policy.headroom(world.batch, 40)
    before = world.policy.usage()
    assert 0 < promised.steps < 40
    plan = world.policy.extend(world.batch, promised.steps)
    assert isinstance(plan, Plan) and not plan.counts[OpKind.DESTROY]
    world.execute(plan)
    assert world.policy.headroom(world.batch, 1).steps == 0
    plan = world.grow()
    assert isinstance(plan, Plan) and plan.counts[OpKind.DESTROY] == 1
    assert sum(before) <= 64


def test_a_lower_limit_takes_the_fewest_calls() -> None:
    world = full_of_large()
    plan = world.execute(world.policy.set_limit(40))  # 6 units are to go: three chunks of 2
    assert counts(plan) == {"destroy": 3} and taken(plan) == (0, 24)
    plan = world.execute(world.policy.set_limit(36))  # one unit: a chunk of 1
    assert counts(plan) == {"destroy": 1} and taken(plan) == (0, 4)
    plan = world.execute(world.policy.set_limit(0))
    assert counts(plan) == {"destroy": 6} and taken(plan) == (0, 36)
    assert world.policy.details() == {"chunks_created_by_bytes": {"4": 4, "8": 6, "16": 0, "32": 0}}


def test_a_watermark_and_nothing_retained() -> None:
    world = hand(retain="watermark", retain_bytes=20)
    plan = world.end(world.admit(64), Keep.NONE)
    assert counts(plan) == {"unmap": 10, "destroy": 6}  # 44 bytes: five of 8, one of 4
    assert world.policy.usage() == MemoryUsage(kv_pooled=20)
    world = hand(retain="none")
    assert counts(world.end(world.admit(64, (0, 64)))) == {"unmap": 10, "destroy": 10}
    assert world.policy.usage() == MemoryUsage()


def test_a_record_evicted_frees_what_nobody_else_maps() -> None:
    world = hand(limit=104)
    world.end(world.admit(64, (0, 64)))
    world.admit(40, (0, 30), (500, 10))  # maps 24 bytes of it, and has 16 of its own
    assert world.policy.usage() == MemoryUsage(kv_live=40, kv_prefix=40)
    assert world.create(world.ask(65)) == Shortage(
        16
    )  # 80 bytes; 24 are left, and 40 of the record
    plan = world.create(world.ask(48))
    assert counts(plan) == {"unmap": 10, "create": 4, "map": 8} and taken(plan) == (16, 0)
    assert world.policy.match(world.ask(60, (0, 60))) is NO_MATCH
    assert world.policy.usage() == MemoryUsage(kv_live=88, kv_pooled=8)


def test_teardown_gives_back_every_size() -> None:
    world = hand(kv=SPLIT)
    world.end(world.admit(70, (0, 70)))
    world.admit(90, (0, 60), (500, 30))
    plan = world.execute(world.policy.teardown())
    assert isinstance(plan, Plan) and plan.destroyed_bytes == 2 * (80 + 96 - 56)
    assert world.backend.bytes_in_use() == 0
    world.backend.close()


# -- what there is to say --------------------------------------------------------------------------


def test_off_is_the_plain_class() -> None:
    for parameters in (None, VTensorParameters(), VTensorParameters(max_chunk=2 * M)):
        assert type(VTensorPolicy(parameters)) is VTensorPolicy
    assert type(VTensorPolicy(VTensorParameters(max_chunk=4 * M))) is GrowingVTensorPolicy
    plain, same = (VTensorPolicy(VTensorParameters(max_chunk=most)) for most in (None, 2 * M))
    assert plain.kv_layout(toy_model(), 1, 900) == same.kv_layout(toy_model(), 1, 900)


def test_a_class_that_knows_one_size_refuses_several() -> None:
    class Mine(VTensorPolicy):
        pass

    with pytest.raises(ConfigError, match="max_chunk: Mine is made of VTensorPolicy, whose chunks"):
        Mine(VTensorParameters(max_chunk=4 * M)).kv_layout(toy_model(), 1, 900)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"max_chunk": 3 * M}, r"chunk \(2MiB\) times a power of two, got 3MiB"),
        ({"max_chunk": M}, r"chunk \(2MiB\) times a power of two, got 1MiB"),
        ({"max_chunk": 0}, "times a power of two, got 0B"),
        ({"max_chunk": 4 * M, "chunk": 0}, r"chunk \(0B\) times a power of two"),
        ({"max_chunk": 4 * M, "chunk": M}, "chunks grow from 2MiB or more .*, chunk is 1MiB"),
        ({"growth": 0}, "vtensor.growth: must be 1 ... 1024, got 0"),
        ({"growth": 1025}, "vtensor.growth: must be 1 ... 1024, got 1025"),
    ],
)
def test_growth_that_makes_no_sense(how: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VTensorParameters(**how)  # type: ignore[arg-type]


def test_a_table_that_does_not_fit_its_sizes_is_found() -> None:
    world = hand()
    world.admit(30)
    world.policy._sized._sizes[5] = 0
    with pytest.raises(InvariantError, match="size-by-position"):
        world.policy.check_integrity()


# -- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["token_major", "kv_split", "per_layer"])
def test_leap_is_step_under_pressure_of_mixed_sizes(layout: str) -> None:
    """Leapt and stepped, placed and not, where free chunks of other sizes are in the way."""
    how: Any = {"max_chunk": 64 * M, "growth": 8, "layout": layout}
    make = maker(VTensorPolicy, VTensorParameters(**how))
    leaps = preempted = destroyed = 0
    for seed in range(12):
        case = replace(random_case(Random(seed), "high"), tokens_in_chunks=(2, 3))
        run = compare_runs(make, case)
        leaps += run.recorder.leaps
        preempted += run.preemptions
        phases = (Phase.CREATE, Phase.PREFILL, Phase.EXTEND)
        destroyed += sum(run.recorder.counts[phase][OpKind.DESTROY] for phase in phases)
    assert leaps >= 50 and preempted >= 20 and destroyed >= 100, (leaps, preempted, destroyed)


def test_off_changes_nothing_but_the_parameters_it_shows() -> None:
    trace = make_trace(
        [
            Ask(row * TICKS_PER_S // 30, 300 + 7 * row % 90, 50, ids=tuple(range(row % 4)))
            for row in range(40)
        ],
        block=100,
    )
    kept: dict[str, Any] = {"kv_memory": 300 * M, "max_model_len": 2048}
    runs = []
    for how in ({}, {"max_chunk": 2 * M}, {"max_chunk": 64 * M}):
        result = replay(trace, ["vtensor"], settings={"vtensor": how}, **kept)
        (document,) = result.as_json()["runs"]
        assert document["parameters"] == asdict(VTensorParameters(**how))  # type: ignore[arg-type]
        del document["parameters"]
        runs.append(document)
    assert runs[0] == runs[1]
    assert runs[2]["vmm"]["calls"]["map"] < runs[0]["vmm"]["calls"]["map"]
    made = runs[2]["details"]["chunks_created_by_bytes"]
    assert sum(made.values()) == runs[2]["vmm"]["calls"]["create"]
    assert list(made)[:2] == [str(2 * M), str(4 * M)] and made[str(4 * M)] > 0
