"""Hash ids: what they are, how many of them a prompt has (the block rule), their numbering."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

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


class HashRuns:
    """Hash ids under dense numbers in order of first appearance, kept as runs."""

    def __init__(self) -> None:
        self._dense: dict[object, int] = {}
        self._row = array("q")
        """Of each run: rows without ids own none."""
        self._first = array("q")
        self._count = array("q")

    def add(self, row: int, hash_ids: Iterable[object]) -> None:
        """The ids of `row`: any hashable names."""
        dense = self._dense
        first = -1
        expected = -2
        for name in hash_ids:
            index = dense.setdefault(name, len(dense))
            if index == expected:
                expected += 1
                continue
            if first >= 0:
                self._run(row, first, expected - first)
            first = index
            expected = index + 1
        if first >= 0:
            self._run(row, first, expected - first)

    def _run(self, row: int, first: int, count: int) -> None:
        self._row.append(row)
        self._first.append(first)
        self._count.append(count)

    def columns(self) -> tuple[IntArray, IntArray, IntArray]:
        """(row, first id, count) of all runs, in order of rows."""
        row, first, count = (
            np.frombuffer(column, dtype=np.int64)
            for column in (self._row, self._first, self._count)
        )
        return row, first, count


def renumbered(
    rows: IntArray, first: IntArray, count: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Runs (row, first id, count), in order of rows, with ids numbered anew in order of appearance.

    So the numbering follows from the rows alone, not from the file that they were read from.
    """
    if len(first) == 0:
        return rows, first, count
    starts = np.cumsum(count) - count
    ids = np.arange(int(count.sum())) - np.repeat(starts - first, count)
    seen, at, which = np.unique(ids, return_index=True, return_inverse=True)
    number = np.empty(len(seen), dtype=np.int64)
    number[np.argsort(at, kind="stable")] = np.arange(len(seen))
    ids, rows = number[which], np.repeat(rows, count)
    begins = np.concatenate(([True], (ids[1:] != ids[:-1] + 1) | (rows[1:] != rows[:-1])))
    heads = np.flatnonzero(begins)
    lengths = np.diff(np.append(heads, len(ids)))
    return rows[heads], ids[heads], lengths
