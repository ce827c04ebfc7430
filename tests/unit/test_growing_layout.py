"""Chunks that grow with their position: conversions against a walk along the slot; the bound."""

from __future__ import annotations

from copy import deepcopy
from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.errors import ConfigError
from vtsim.spec import GrowingLayout, KVLayout, load_model

M = 1 << 20


def growing(
    row: int = 1, chunk: int = 4, doublings: int = 3, growth: int = 1, tokens: int = 600
) -> GrowingLayout:
    kv = KVLayout("token_major", 1, row, chunk, tokens)
    return GrowingLayout.of(kv, chunk << doublings, growth)


@st.composite
def layouts(draw: st.DrawFn) -> GrowingLayout:
    return growing(
        draw(st.sampled_from((1, 3, 4, 15))),
        draw(st.sampled_from((4, 32, 128))),
        draw(st.integers(0, 6)),
        draw(st.sampled_from((1, 2, 3, 8, 50, 1024))),
        draw(st.integers(1, 500)),
    )


def ends(kv: GrowingLayout) -> list[int]:
    """Where each chunk of a slot ends, in units: the rule, word for word."""
    at, found = 0, [0]
    most = kv.max_chunk_bytes // kv.chunk_bytes
    while at * kv.chunk_bytes < kv.max_tokens * kv.row_bytes:
        size = 1
        while size < most and (2 * size) ** 2 <= kv.growth * at:
            size *= 2
        at += size
        found.append(at)
    return found


def test_the_schedule_of_the_paper_s_chunk() -> None:
    """2 MiB, 4 from 8 MiB on, 8 from 32, 16 from 128, 32 from 512, 64 from 2 GiB on."""
    kv = KVLayout.build(load_model("yi-6b"), 1, "token_major", 2 * M, 200_000)
    grown = GrowingLayout.of(kv, 64 * M, 1)
    sizes = [grown.chunk_bytes_at(i) // M for i in grown.chunk_starts(0, grown.slot_units)]
    assert sizes[:10] == [2, 2, 2, 2, 4, 4, 4, 4, 4, 4]
    first = {size: sum(sizes[: sizes.index(size)]) for size in sorted(set(sizes))}
    assert first == {2: 0, 4: 8, 8: 32, 16: 128, 32: 512, 64: 2048}
    assert [grown.chunks(grown.units(t)) for t in (100, 1000, 10_000, 100_000)] == [4, 14, 50, 160]
    assert [kv.units(t) for t in (100, 1000, 10_000, 100_000)] == [4, 32, 313, 3125]


@given(layouts())
def test_every_conversion_is_that_of_a_walk_along_the_slot(kv: GrowingLayout) -> None:
    walk = ends(kv)
    sizes = [b - a for a, b in zip(walk, walk[1:], strict=False)]
    kinds = [size // kv.chunk_bytes for size in kv.chunk_sizes]
    assert set(sizes) <= set(kinds) and kinds == [1 << k for k in range(len(kinds))]
    for number, end in enumerate(walk):
        assert kv.chunks(end) == number and kv.chunk_start(number) == end
        if number:
            start = walk[number - 1]
            assert kv.chunk_end(start) == end
            assert kv.chunk_bytes_at(start) == sizes[number - 1] * kv.chunk_bytes
            for inside in range(start + 1, end):
                assert kv.chunk_bytes_at(inside) == 0
                assert list(kv.chunk_starts(inside, end)) == [start]
    assert list(kv.chunk_starts(0, walk[-1])) == walk[:-1]
    for number in range(0, len(walk), 1 + len(walk) // 10):
        counted = kv.chunks_by_size(walk[number // 2], walk[number])
        assert list(counted) == [sizes[number // 2 : number].count(kind) for kind in kinds]
    for tokens in range(0, kv.max_tokens + 1, 1 + kv.max_tokens // 20):
        used = tokens * kv.row_bytes
        mapped = next(end for end in walk if end * kv.chunk_bytes >= used)
        full = max(end for end in walk if end * kv.chunk_bytes <= used)
        assert (kv.units(tokens), kv.full_units(tokens)) == (mapped, full)
        assert kv.tail_bytes(tokens) == used - full * kv.chunk_bytes
        whole = [e for e in walk if e <= full and e * kv.chunk_bytes % kv.row_bytes == 0]
        assert kv.shared_boundary_units(tokens) == max(whole)


@given(layouts(), st.data())
def test_slack_is_bounded_and_mapped_memory_a_step_function(
    kv: GrowingLayout, data: st.DataObject
) -> None:
    tokens = data.draw(st.integers(1, kv.max_tokens))
    used = tokens * kv.row_bytes
    slack = kv.units(tokens) * kv.chunk_bytes - used
    assert 0 <= slack < max(kv.chunk_bytes, isqrt(kv.growth * used * kv.chunk_bytes) + 1)
    assert slack < kv.max_chunk_bytes
    assert kv.units(tokens - 1) <= kv.units(tokens) <= kv.slot_units
    assert kv.unit_tokens(kv.units(tokens)) >= tokens


@given(layouts(), st.integers(1, 900))
def test_a_shorter_slot_has_the_same_chunks(kv: GrowingLayout, tokens: int) -> None:
    """The size follows from the position alone: not from how long a sequence may get."""
    other = GrowingLayout.of(
        KVLayout(kv.name, 1, kv.row_bytes, kv.chunk_bytes, tokens), kv.max_chunk_bytes, kv.growth
    )
    common = min(kv.max_tokens, tokens)
    assert kv.units(common) == other.units(common)
    assert kv.full_units(common) == other.full_units(common)
    end = kv.units(common)
    assert list(kv.chunk_starts(0, end)) == list(other.chunk_starts(0, end))


@given(layouts())
def test_a_slot_is_whole_chunks_and_whole_rows(kv: GrowingLayout) -> None:
    stride = kv.slot_stride_bytes
    assert stride % kv.chunk_bytes == 0 and stride % kv.row_bytes == 0
    assert stride >= kv.units(kv.max_tokens) * kv.chunk_bytes


def test_one_size_is_the_plain_layout() -> None:
    kv = KVLayout("per_layer", 4, 15, 128, 300)
    same = GrowingLayout.of(kv, 128, 1)
    assert not same.grows and not kv.grows and same.chunk_sizes == kv.chunk_sizes == (128,)
    for tokens in range(301):
        for name in ("units", "full_units", "shared_boundary_units", "tail_bytes"):
            assert getattr(same, name)(tokens) == getattr(kv, name)(tokens), name
    for units in range(kv.slot_units):
        assert same.chunks(units) == kv.chunks(units) == units
        assert same.chunk_start(units) == kv.chunk_start(units) == units
        assert same.chunk_bytes_at(units) == kv.chunk_bytes_at(units) == 128
    assert list(same.chunk_starts(3, 7)) == list(kv.chunk_starts(3, 7)) == [3, 4, 5, 6]
    assert same.slot_stride_bytes == kv.slot_stride_bytes


def test_sizes_that_a_slot_never_reaches_are_not_there() -> None:
    assert growing(tokens=16).chunk_sizes == (4,)
    assert growing(tokens=17).chunk_sizes == (4, 8)
    assert growing(doublings=40, tokens=600).chunk_sizes == (4, 8, 16, 32)
    assert deepcopy(growing()) == growing()


@pytest.mark.parametrize(
    ("most", "growth", "words"),
    [
        (12, 1, "max_chunk_bytes 12 must be 4 times a power of two"),
        (6, 1, "max_chunk_bytes 6 must be"),
        (2, 1, "max_chunk_bytes 2 must be"),
        (0, 1, "max_chunk_bytes 0 must be"),
        (8, 0, "growth must be 1 ... 1024, got 0"),
        (8, 1025, "growth must be 1 ... 1024, got 1025"),
    ],
)
def test_rows_of_sizes_that_are_none(most: int, growth: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GrowingLayout.of(KVLayout("token_major", 1, 1, 4, 100), most, growth)
