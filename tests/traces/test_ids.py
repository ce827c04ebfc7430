"""Hash ids while a file is read: numbered as a dictionary would, in a few bytes each."""

from __future__ import annotations

import json
import random
import tracemalloc
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.traces import ids, load
from vtsim.traces.ids import HashId, HashIds

Row = tuple[Sequence[HashId], object]

NAMES = st.one_of(
    st.integers(0, 9),
    st.integers(2**32 - 2, 2**32 + 2),
    st.integers(2**63 - 2, 2**63 + 2),
    st.integers(2**64 - 2, 2**64 + 2),
    st.sampled_from(["", "0", "1", "a", "ff", "é", "#18446744073709551616"]),
    st.binary(min_size=16, max_size=16).map(lambda b: b[:15] + b"\0"),
)
ROWS = st.lists(
    st.tuples(
        st.one_of(st.lists(st.integers(0, 30), max_size=8), st.lists(NAMES, max_size=8)),
        st.sampled_from([None, None, "a", "b", ("c", 1)]),
    ),
    max_size=12,
)


def by_dictionary(rows: list[Row], order: list[int]) -> list[list[int]]:
    """The numbers of each row's ids, as they were worked out once."""
    seen: dict[object, int] = {}
    return [
        [seen.setdefault((rows[row][1], name), len(seen)) for name in rows[row][0]] for row in order
    ]


def by_columns(rows: list[Row], order: list[int]) -> list[list[int]]:
    held = HashIds()
    for row, (names, scope) in enumerate(rows):
        held.add(row, names, scope)
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.arange(len(rows))
    runs = held.numbered(None if order == sorted(order) else place)
    found: list[list[int]] = [[] for _ in rows]
    ends = [-1 for _ in rows]
    for row, first, count in zip(*(column.tolist() for column in runs), strict=True):
        assert count > 0 and first != ends[row]  # a run that goes on would have been one
        ends[row] = first + count
        found[row] += range(first, first + count)
    assert runs[0].tolist() == sorted(runs[0].tolist())
    return found


@pytest.mark.parametrize("bucket, piece", [(2, 3), (1 << 17, 1 << 18)])
@given(ROWS, st.randoms(use_true_random=False))
def test_as_a_dictionary_would(
    bucket: int, piece: int, rows: list[Row], draw: random.Random
) -> None:
    """Whatever the names are, in any order of rows, also where one bucket or piece is not all."""
    order = list(range(len(rows)))
    if draw.random() < 0.5:
        draw.shuffle(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_BUCKET", bucket)
        patch.setattr(ids, "_PIECE", piece)
        assert by_columns(rows, order) == by_dictionary(rows, order)


def test_a_name_is_no_other_kind_of_name() -> None:
    big = 2**64
    rows: list[Row] = [([7, "7", big, str(big), f"#{big}", 0, "0", "", b"7" * 16], None)]
    assert by_columns(rows, [0]) == [list(range(9))]


def test_numbers_may_come_as_an_array() -> None:
    held = HashIds()
    held.add(0, array("Q", [5, 2**40]))
    held.add(1, array("Q", [2**40]))
    row, first, count = held.numbered(None)
    assert (row.tolist(), first.tolist(), count.tolist()) == ([0, 1], [0, 1], [2, 1])


@pytest.mark.parametrize("name", [1.5, None, ("a", 1), b"short"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match="16 bytes"):
        HashIds().add(0, [name])


def mooncake(names: list[Any]) -> str:
    rows = []
    for start in range(0, len(names), 500):
        row = {"timestamp": start, "input_length": 16 * 500, "output_length": 1}
        rows.append(json.dumps({**row, "hash_ids": names[start : start + 500]}))
    return "\n".join(rows)


def weka(names: list[Any]) -> str:
    rows = [
        {"t": start, "in": 16 * 500, "out": 1, "hash_ids": names[start : start + 500]}
        for start in range(0, len(names), 500)
    ]
    head = {"id": "x", "block_size": 16, "hash_id_scope": "local"}
    return json.dumps({**head, "requests": rows}, indent=0)


def native(names: list[Any]) -> str:
    rows = [
        {"arrival_s": start, "prompt_tokens": 16 * 500, "output_tokens": 1, "session": f"{start}"}
        | {"hash_ids": names[start : start + 500]}
        for start in range(0, len(names), 500)
    ]
    head = {"format": "vtsim-trace", "version": 1, "block_size": 16, "hash_scope": "local"}
    return json.dumps({**head, "requests": rows}, indent=0)


def tokens(names: list[Any]) -> str:
    """A prompt of token ids a row."""
    rows = [
        {"arrival_time_ns": start, "input_toks": 8000, "output_toks": 1}
        | {"input_tok_ids": names[start : start + 8000]}
        for start in range(0, len(names), 8000)
    ]
    return "\n".join(map(json.dumps, rows))


@pytest.mark.parametrize("form", [mooncake, weka, native, tokens])
@pytest.mark.parametrize("kind", [int, str])
def test_many_distinct_ids_take_little_more_than_the_file(
    tmp_path: Path, form: Any, kind: Any
) -> None:
    """Peak of all that is allocated while reading, of 200,000 distinct ids: by names in a
    dictionary they took ten times the file."""
    if form is tokens and kind is str:
        pytest.skip("token ids are numbers")
    draw = random.Random(0)
    path = tmp_path / "trace"
    path.write_text(form([kind(draw.getrandbits(48)) for _ in range(200_000)]))
    load(path, block_size=16)  # what is imported and cached once
    tracemalloc.start()
    try:
        trace = load(path, block_size=16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert int(trace.run_count.sum()) == (200_000 if form is not tokens else 12_500)
    size = path.stat().st_size
    assert peak < 3 * size + 4e6, f"{peak / size:.1f} x the file"
