"""Time order: arrivals relative to the first, a stable sort, a place for rows without arrival."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from vtsim.request import NO_ARRIVAL, IntArray, Tick
from vtsim.traces.number import MAX_TICK, seconds_text

V = TypeVar("V")


class WaitsForItself(ValueError):
    """A row waits for itself, directly or through others."""

    def __init__(self, row: int) -> None:
        self.row = row
        super().__init__(row)


class Timing(NamedTuple):
    """Rows in time order."""

    arrival: IntArray
    """Ticks behind the first arrival, ascending; NO_ARRIVAL where a row waits for others."""
    order: IntArray | None
    """Old row of each; None where nothing moved."""
    moved: int
    """Rows that stood out of time order."""
    offset_s: float
    """The first arrival, subtracted from all."""


def in_time_order(
    arrivals: Sequence[int | None], after: Mapping[int, tuple[int, ...]], quantum: Tick
) -> Timing:
    """Sorts rows by arrival (in units of `quantum` ticks), stable.

    A row without arrival sorts with the latest of those that it waits for, never before one of
    them, wherever it stands in the file. ValueError if no row has an arrival, or 64-bit picoseconds
    do not hold the span.
    """
    waiting: NDArray[np.bool_] | None = None
    if isinstance(arrivals, array):
        stamps = np.frombuffer(arrivals, dtype=np.int64)
        base = int(stamps.min())
        _check_span((int(stamps.max()) - base) * quantum)
        keys = stamps - base
    else:
        known = [a for a in arrivals if a is not None]
        if not known:
            raise ValueError("no request has an arrival: all wait for others")
        base = min(known)
        _check_span((max(known) - base) * quantum)
        listed = [-1 if a is None else a - base for a in arrivals]
        if len(known) < len(listed):
            waiting = np.array([a is None for a in arrivals], dtype=bool)
        order = rows_in_order(listed, after)
        keys = np.array(listed, dtype=np.int64)
    moved = 0
    if isinstance(arrivals, array):
        order = _stable(keys)
    if order is not None:
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order), dtype=np.int64)
        moved = int((place < np.maximum.accumulate(place)).sum())
        keys = keys[order]
        waiting = None if waiting is None else waiting[order]
    arrival = keys * quantum
    if waiting is not None:
        arrival[waiting] = NO_ARRIVAL
    return Timing(arrival, order, moved, base * quantum / 10**12)


def _check_span(span: Tick) -> None:
    if span > MAX_TICK:
        raise ValueError(
            f"spans {seconds_text(span)} s, more than the {seconds_text(MAX_TICK)} s that 64-bit "
            "picoseconds hold"
        )


def rows_in_order(keys: list[int], after: Mapping[int, tuple[int, ...]]) -> IntArray | None:
    """Rows sorted by key, stable, each behind all that it waits for; None where nothing moves.

    Sets the key of every waiting row, in place, to the largest key of the rows that it waits for.
    A row that stands before one of these comes right behind it. Raises WaitsForItself for a row
    that does, directly or through others.
    """
    parents_first = _inherit_keys(keys, after)
    sortable = np.array(keys, dtype=np.int64)
    if not any(row < max(parents) for row, parents in after.items() if parents):
        return _stable(sortable)
    place = list(range(len(keys)))
    depth = [0] * len(keys)
    for row in parents_first:
        for parent in after[row]:
            if keys[parent] == keys[row] and (place[parent], depth[parent]) >= (
                place[row],
                depth[row],
            ):
                place[row], depth[row] = place[parent], depth[parent] + 1
    order = np.lexsort((np.array(depth), np.array(place), sortable))  # which is stable
    return None if bool((order[1:] > order[:-1]).all()) else order


def _stable(keys: IntArray) -> IntArray | None:
    return None if bool((keys[1:] >= keys[:-1]).all()) else np.argsort(keys, kind="stable")


def _inherit_keys(keys: list[int], after: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Sets the keys of waiting rows; returns these, each behind those that it waits for."""
    done: list[int] = []
    state: dict[int, int] = {}  # 1: its parents are being worked out, 2: done
    for start in after:
        stack = [start]
        while stack:
            row = stack[-1]
            if row not in after or state.get(row) == 2:
                stack.pop()
            elif state.get(row) == 1:
                keys[row] = max((keys[parent] for parent in after[row]), default=keys[row])
                state[row] = 2
                done.append(row)
                stack.pop()
            else:
                state[row] = 1
                for parent in after[row]:
                    if state.get(parent) == 1:
                        raise WaitsForItself(parent)
                    if parent in after and state.get(parent) != 2:
                        stack.append(parent)
    return done


class Column:
    """A number of each row, `fill` where none was put; as long as the last row that has one."""

    __slots__ = ("fill", "values")

    def __init__(self, fill: int) -> None:
        self.fill = fill
        self.values = array("q")

    def put(self, row: int, value: int) -> None:
        values = self.values
        if row < len(values):
            values[row] = value
            return
        if row > len(values):
            values.extend([self.fill] * (row - len(values)))
        values.append(value)


class Places:
    """Where the rows of a file stand in time order."""

    def __init__(self, rows: int, order: IntArray | None) -> None:
        """`order`: old row of each new one; None where nothing moved."""
        self._rows = rows
        self.place: IntArray | None = None
        """New row of each old one; None where nothing moved."""
        self._listed: list[int] = []
        if order is not None:
            self.place = np.empty(rows, dtype=np.int64)
            self.place[order] = np.arange(rows, dtype=np.int64)
            self._listed = self.place.tolist()

    def of(self, rows: IntArray) -> IntArray:
        return rows if self.place is None else self.place[rows]

    def moved(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        return rows if self.place is None else tuple(self._listed[row] for row in rows)

    def keyed(self, column: Mapping[int, V]) -> dict[int, V]:
        """What is known of some rows."""
        if self.place is None:
            return dict(column)
        return {self._listed[row]: value for row, value in column.items()}

    def column(self, values: Column) -> IntArray:
        """The same of all rows."""
        full = np.full(self._rows, values.fill, dtype=np.int64)
        known = np.frombuffer(values.values, dtype=np.int64)
        full[: len(known)] = known
        if self.place is None or not len(known):
            return full
        moved = np.empty_like(full)
        moved[self.place] = full
        return moved

    def names(self, named: Sequence[object]) -> tuple[object, ...]:
        """The name of each row: its own, else (None, or none for the last rows) its number, or the
        next that nobody has. () if that is the number for all."""
        if not named:
            return ()
        names = [*named, *[None] * (self._rows - len(named))]
        if self.place is not None:
            for old, new in enumerate(self._listed):
                names[new] = named[old] if old < len(named) else None
        if None in names:
            taken = set(names)
            unused = (number for number in count(self._rows) if number not in taken)
            for row, name in enumerate(names):
                if name is None:
                    names[row] = row if row not in taken else next(unused)
        numbers = all(type(name) is int and name == row for row, name in enumerate(names))
        return () if numbers else tuple(names)
