"""Rows of Dynamo's agentic_mooncake, which say whom a request waits for.

`wait_for` names the `request_id`s that must have finished before a row may start; it then waits
`delay` and `tool_wait_ms`. A row that waits for nobody starts at its `timestamp`; a `timestamp` of
one that waits is what was once measured, and is kept in `extra`. `branches` names the rows that
begin another agent when this one has finished: the same edges, told from the other side. Source:
the documentation of the crate dynamo-data-gen (`AgenticMooncakeRow`) and of DynoSim.
"""

from __future__ import annotations

from typing import Any

from vtsim.request import Tick
from vtsim.traces.builder import TraceBuilder
from vtsim.traces.number import MAX_TICK

MARKS = frozenset(("wait_for", "branches", "prefix_reset", "tool_wait_ms", "tool_events"))
"""Keys that no other form of the family has."""
MAPPED = frozenset(("request_id", "wait_for", "tool_wait_ms"))
"""Those of a waiting row that are more than `extra`."""


class Workflow:
    """Whom the rows of a file wait for, told by names; `finish` makes rows of them."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._where = builder.where
        self._row_of: dict[str, int | _Dropped | None] = {}
        """None of a name that two rows have."""
        self._waiting: list[tuple[int, int | None, tuple[str, ...], Tick]] = []
        """(row, line, whom it waits for, wait)"""
        self._branches: list[tuple[str, tuple[str, ...]]] = []

    def name(self, row: dict[str, Any]) -> str | None:
        """The row's `request_id`."""
        name = row.get("request_id")
        if name is None:
            return None
        if type(name) not in (str, int):
            raise self._where.error("is neither a string nor an integer", "request_id", name)
        return str(name)

    def waits_for(self, row: dict[str, Any]) -> tuple[str, ...]:
        """Names in `wait_for`; () where the row starts by itself."""
        return self._names(row, "wait_for")

    def tool_wait(self, row: dict[str, Any]) -> Tick:
        """`tool_wait_ms` in ticks."""
        value = row.get("tool_wait_ms")
        wait = 0 if value is None else self._where.ticks(value, "tool_wait_ms", "ms")
        if wait > MAX_TICK:
            said = f"is longer than the {MAX_TICK // 10**12:,} s that 64-bit picoseconds hold"
            raise self._where.error(said, "tool_wait_ms", value)
        return wait

    def added(self, row: dict[str, Any], number: int, wait: Tick) -> None:
        """`row` is kept, as row `number` of the trace."""
        self._named(row, number)
        names = self.waits_for(row)
        if names:
            self._builder.set_after(number, (), wait)
            self._waiting.append((number, self._where.line, names, wait))

    def dropped(self, row: dict[str, Any], arrival: Tick | None, wait: Tick) -> None:
        """`row` is not kept: what waits for it waits for those that it waited for instead, its
        wait added where it waits for nothing else."""
        self._named(row, _Dropped(arrival, self.waits_for(row), wait if arrival is None else 0))

    def _named(self, row: dict[str, Any], what: int | _Dropped) -> None:
        name = self.name(row)
        if name is None:
            return
        if name in self._row_of and not MARKS.isdisjoint(row):
            raise self._where.error("stands twice", "request_id", name)
        self._row_of[name] = None if name in self._row_of else what
        branches = self._names(row, "branches")
        if branches:
            self._branches.append((name, branches))

    def _names(self, row: dict[str, Any], key: str) -> tuple[str, ...]:
        names = row.get(key)
        if names is None:
            return ()
        if type(names) is not list or not all(type(name) in (str, int) for name in names):
            raise self._where.error("is not a list of request ids", key, names)
        return tuple(dict.fromkeys(map(str, names)))

    def finish(self) -> None:
        """Ties the rows. TraceFormatError for a name that no row has."""
        builder, where = self._builder, self._where
        edges = set()
        for number, line, names, wait in self._waiting:
            where.line = line
            parents: dict[int, None] = {}
            starts: list[Tick] = []
            left, seen = list(names), set(names)
            for name in names:
                if self._row_of.get(name) is None:
                    many = "two requests" if name in self._row_of else "no request"
                    raise where.error(f"names {many} of this file", "wait_for", name)
                edges.add((name, number))
            wait += self._added_wait(names)
            for name in left:  # which grows
                found = self._row_of.get(name)
                if isinstance(found, int):
                    parents[found] = None
                elif found is not None:
                    starts += [] if found.arrival is None else [found.arrival]
                    left += [other for other in found.names if other not in seen]
                    seen |= set(found.names)
            if parents:
                builder.set_after(number, tuple(parents), wait)
            else:  # all of them were dropped: from when the last would have come
                builder.set_arrival(number, max(starts, default=0) + wait)
        where.line = None
        loose = sum(
            (name, self._row_of.get(child)) not in edges
            for name, children in self._branches
            for child in children
        )
        if loose:
            builder.warn(
                f"branches names {loose} requests that do not wait_for the one that names them: "
                "only wait_for is followed"
            )

    def _added_wait(self, names: tuple[str, ...]) -> Tick:
        """Waits of rows that are dropped, as far as nothing else is waited for."""
        total, seen = 0, set(names)
        while names:
            found = [self._row_of.get(name) for name in names]
            gone = [each for each in found if isinstance(each, _Dropped)]
            if len(gone) < len(found):
                break
            total += max(each.wait for each in gone)
            names = tuple({n for each in gone for n in each.names} - seen)
            seen |= set(names)
        return total


class _Dropped:
    """A row that is not in the trace: when it would have come, or for whom it waited."""

    __slots__ = ("arrival", "names", "wait")

    def __init__(self, arrival: Tick | None, names: tuple[str, ...], wait: Tick) -> None:
        self.arrival = arrival
        self.names = names
        self.wait = wait
