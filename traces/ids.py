"""Hash ids: what they are, how many of them a prompt has (the block rule), their numbering."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vtsim.request import IntArray
from vtsim.traces.number import Where

MAX_BLOCK = 2**20


def check_blocks(
    where: Where, prompt: int, ids: int, block: int, tail_rule: str, field: str = "hash_ids"
) -> None:
    """The block rule: how many hash ids a prompt of `prompt` tokens has under `tail_rule`.

    Raises TraceFormatError with both counts and the block sizes that would fit this row.
    """
    whole, rest = divmod(prompt, block)
    if tail_rule == "exact":
        good = whole == ids and rest == 0
    elif tail_rule == "partial_tail":
        good = whole + (rest > 0) == ids
    else:
        good = whole == ids
    if good:
        return
    has = f"{whole + (tail_rule == 'partial_tail' and rest > 0)}"
    if tail_rule == "exact" and rest:
        has += f" and a rest of {rest}"
    message = (
        f"{ids} hash ids, but a prompt of {prompt} tokens in blocks of {block} has {has}; "
        f"{_fitting(prompt, ids, tail_rule)}"
    )
    raise where.error(message, field)


def _fitting(prompt: int, ids: int, tail_rule: str) -> str:
    if ids == 0:
        return "no block size fits"
    if tail_rule == "exact":
        low = high = prompt // ids if prompt % ids == 0 else 0
        if low == 0:
            return "no block size fits"
    elif tail_rule == "partial_tail":  # ceil(prompt / block) == ids
        low = -(-prompt // ids)
        high = (prompt - 1) // (ids - 1) if ids > 1 else MAX_BLOCK
    else:  # floor(prompt / block) == ids
        low, high = prompt // (ids + 1) + 1, prompt // ids
    if low > high or low < 1:
        return "no block size fits"
    sizes = f"{low}" if low == high else f"{low} to {high}"
    if high >= MAX_BLOCK:
        sizes = f"{low} or more"
    return f"block sizes that fit: {sizes} (--block-size N)"


def check_ids(where: Where, ids: object, field: str = "hash_ids") -> None:
    """Hash ids are a list of non-negative integers of any size, or of strings."""
    if type(ids) is not list:
        raise where.error("is not a list", field, ids)
    kinds = set(map(type, ids))
    if kinds == {int}:
        if min(ids) < 0:
            index = next(i for i, x in enumerate(ids) if x < 0)
            raise where.error("is negative", f"{field}[{index}]", ids[index])
    elif not kinds <= {int, str}:
        index = next(i for i, x in enumerate(ids) if type(x) not in (int, str))
        raise where.error("is neither an integer nor a string", f"{field}[{index}]", ids[index])


HashId: TypeAlias = int | str | bytes
"""A digest has 16 bytes."""
_PIECE = 1 << 18
"""Ids that are worked on at once."""
_BUCKET = 1 << 17
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TOP = np.array([0, 1 << 63], dtype=np.uint64)
_IdArray: TypeAlias = NDArray[np.unsignedinteger[Any]]


class HashIds:
    """The hash ids of a trace while it is read: 4 bytes an id while all are below 2**32, 8 while
    all are 64-bit numbers, else 16.

    `numbered` turns them into runs of dense numbers, with 5 bytes an id more. Nothing is kept by
    name in between, so that many distinct ids cost no more than few.
    """

    def __init__(self) -> None:
        self._low = array("I")
        """Becomes an array of 64 bits when that is needed."""
        self._high: array[int] | None = None
        """With its top bit set, the other half of a name's digest; 0 of a 64-bit number."""
        self._rows = array("q")
        """Of those that have ids, ascending."""
        self._counts = array("q")
        self._scopes: array[int] | None = None
        """Of each such row, a number of its namespace; 0 where ids mean the same everywhere."""
        self._scope_numbers: dict[object, int] = {}

    def add(self, row: int, names: Sequence[HashId], scope: object = None) -> None:
        """The ids of `row`, which comes behind those before: integers of any size, strings, or
        digests of 16 bytes. `scope` is any hashable name of the namespace that they belong to."""
        before = len(self._low)
        try:
            self._low.fromlist(names)  # type: ignore[arg-type] # what is no list is seen to below
        except (OverflowError, TypeError):
            self._add_others(names if type(names) in (list, array) else list(names))
        added = len(self._low) - before
        if not added:
            return
        if self._high is not None:
            self._high.frombytes(bytes(8 * (len(self._low) - len(self._high))))
        if scope is not None or self._scopes is not None:
            if self._scopes is None:
                self._scopes = array("q", bytes(8 * len(self._rows)))
            known = self._scope_numbers
            self._scopes.append(0 if scope is None else known.setdefault(scope, len(known) + 1))
        self._rows.append(row)
        self._counts.append(added)

    def _add_others(self, names: Sequence[HashId]) -> None:
        """What is no list of numbers that `_low` holds as it is."""
        if not self._add_numbers(names):
            if self._low.typecode == "I":
                self._low = array("Q", self._low)
            if not self._add_numbers(names):
                self._add_named(names)

    def _add_numbers(self, names: Sequence[HashId]) -> bool:
        """False, and nothing added, if one of them is no number that `_low` holds."""
        try:
            if type(names) is array and names.typecode == self._low.typecode:
                self._low.extend(names)
            else:
                # what is no integer is refused here
                self._low.fromlist(names if type(names) is list else list(names))  # type: ignore[arg-type]
        except (OverflowError, TypeError):
            return False
        return True

    def _add_named(self, names: Sequence[HashId]) -> None:
        """Names of which at least one is no 64-bit number."""
        if self._high is None:
            self._high = array("Q", bytes(8 * len(self._low)))
        if set(map(type, names)) == {str}:
            texts = [f"'{name!s}".encode() for name in names]
            data = b"".join([blake2b(text, digest_size=16).digest() for text in texts])
            halves = np.frombuffer(data, dtype="<u8").reshape(-1, 2) | _TOP
        else:
            data = b"".join([_digest(name) for name in names])
            halves = np.frombuffer(data, dtype="<u8").reshape(-1, 2)
        self._low.frombytes(halves[:, 0].astype(np.uint64).tobytes())
        self._high.frombytes(halves[:, 1].astype(np.uint64).tobytes())

    def numbered(self, place: IntArray | None) -> tuple[IntArray, IntArray, IntArray]:
        """(row, first id, count) of all runs of consecutive ids, in order of rows. `place` says
        where each row as it was added now stands (None: where it stood).

        Ids are numbered 0, 1, 2, ... in order of first appearance in the rows' new order, so that
        the numbers follow from the rows alone. Only once: the ids are used up.
        """
        rows, counts = (np.frombuffer(c, dtype=np.int64) for c in (self._rows, self._counts))
        columns = [np.frombuffer(c, dtype=c.typecode) for c in (self._low, self._high) if c]
        scopes = None if self._scopes is None else np.frombuffer(self._scopes, dtype=np.int64)
        self._low = array("I")  # the arrays stay alive in `columns` only
        self._high = None
        if place is not None and len(rows):
            rows = place[rows]
            order = np.argsort(rows, kind="stable")
            columns = [_gathered(columns.pop(0), counts, order) for _ in range(len(columns))]
            rows, counts = rows[order], counts[order]
            scopes = None if scopes is None else scopes[order]
        if not columns:
            return rows, rows, rows
        return _runs(rows, counts, _dense(columns, counts, scopes))


def _digest(name: HashId) -> bytes:
    """16 bytes, the same for equal names only: a 64-bit number as it is, with 0 behind; others by
    their digest, with the top bit set."""
    if type(name) is int:
        if 0 <= name < 1 << 64:
            return name.to_bytes(16, "little")
        name = f"#{name}"
    elif type(name) is str:
        name = f"'{name}"
    elif type(name) is bytes and len(name) == 16:
        return name[:15] + bytes((name[15] | 0x80,))
    else:
        raise TypeError(f"a hash id is an integer, a string or 16 bytes, not {name!r}")
    digest = blake2b(name.encode(), digest_size=16).digest()
    return digest[:15] + bytes((digest[15] | 0x80,))


def _gathered(column: _IdArray, counts: IntArray, order: IntArray) -> _IdArray:
    """The ids of rows, `counts[i]` of row i, with the rows in `order`."""
    starts = (np.cumsum(counts) - counts)[order]
    counts = counts[order]
    ends = np.cumsum(counts)
    result = np.empty_like(column)
    low = 0
    while low < len(order):  # some rows at once, a longer one alone
        begin = int(ends[low] - counts[low])
        high = max(int(np.searchsorted(ends, begin + _PIECE, side="right")), low + 1)
        at = np.arange(begin, int(ends[high - 1]))
        inside = ends[low:high] - counts[low:high]
        at += np.repeat(starts[low:high] - inside, counts[low:high])
        result[begin : int(ends[high - 1])] = column[at]
        low = high
    return result


def _dense(columns: list[_IdArray], counts: IntArray, scopes: IntArray | None) -> _IdArray:
    """Numbers of the ids in order of first appearance, in the place of the first of `columns`.

    Equal ids are found bucket by bucket, so that only one bucket is sorted at a time.
    """
    low = columns[0]
    count = len(low)
    assert count < 2**32
    ends = np.cumsum(counts)

    def scope_at(at: IntArray) -> NDArray[np.uint64]:
        assert scopes is not None
        return scopes[np.searchsorted(ends, at, side="right")].astype(np.uint64)

    bits = min(max((count // _BUCKET).bit_length(), 0), 8)
    bucket = np.zeros(count if bits else 0, dtype=np.uint8)
    for start in range(0, len(bucket), _PIECE):
        piece = slice(start, min(start + _PIECE, count))
        mixed = low[piece].astype(np.uint64)
        if scopes is not None:
            mixed += scope_at(np.arange(piece.start, piece.stop)) << np.uint64(32)
        mixed *= _GOLDEN
        bucket[piece] = mixed >> np.uint64(64 - bits)
    for which in range(1 << bits):
        at = np.flatnonzero(bucket == which) if bits else np.arange(count)
        if not len(at):
            continue
        keys = [column[at] for column in columns]
        if scopes is not None:
            keys.append(scope_at(at))
        order = np.argsort(keys[0]) if len(keys) == 1 else np.lexsort(keys)
        begins = np.zeros(len(at), dtype=bool)
        begins[0] = True
        for key in keys:
            ranked = key[order]
            begins[1:] |= ranked[1:] != ranked[:-1]
        at = at[order]
        heads = np.flatnonzero(begins)
        first = np.minimum.reduceat(at, heads)
        low[at] = np.repeat(first, np.diff(np.append(heads, len(at))))  # where it first appears
    del columns[1:], bucket
    dense = np.empty(count, dtype=np.uint32)
    seen = 0
    for start in range(0, count, _PIECE):
        piece = slice(start, min(start + _PIECE, count))
        new = np.cumsum(low[piece] == np.arange(piece.start, piece.stop))
        dense[piece] = new + (seen - 1)
        seen += int(new[-1])
    for start in range(0, count, _PIECE):
        piece = slice(start, min(start + _PIECE, count))
        low[piece] = dense[low[piece]]
    return low


def _runs(rows: IntArray, counts: IntArray, ids: _IdArray) -> tuple[IntArray, IntArray, IntArray]:
    """(row, first id, count) of the runs of consecutive `ids`, `counts[i]` of them of `rows[i]`."""
    starts = np.cumsum(counts) - counts
    begins = np.zeros(len(ids), dtype=bool)
    for start in range(1, len(ids), _PIECE):
        end = min(start + _PIECE, len(ids))
        begins[start:end] = ids[start:end] != ids[start - 1 : end - 1] + 1
    begins[starts] = True
    heads = np.flatnonzero(begins)
    of_row = rows[np.searchsorted(starts, heads, side="right") - 1]
    return of_row, ids[heads].astype(np.int64), np.diff(np.append(heads, len(ids)))
