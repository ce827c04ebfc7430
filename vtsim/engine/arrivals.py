"""Where requests come from: the trace's arrivals, in a total order, and what finishes set free.

Open-loop rows come from the arrival column; a row with `after` arrives `wait` after the last of the
rows it waits for has been answered. It must not look at anything but times and row numbers.
"""

from __future__ import annotations

import heapq

from vtsim.request import NO_ARRIVAL, Tick, Trace

NEVER: Tick = 1 << 100
"""Later than any time that a run may reach."""


class Arrivals:
    """Rows in order of (arrival, row)."""

    def __init__(self, trace: Trace) -> None:
        column: list[int] = trace.arrival.tolist()
        self._next = 0
        """Index into `_order` and `_times`."""
        self._order = [row for row, at in enumerate(column) if at != NO_ARRIVAL]
        if any(column[a] > column[b] for a, b in zip(self._order, self._order[1:], strict=False)):
            self._order.sort(key=lambda row: (column[row], row))
        self._times = [*map(column.__getitem__, self._order), NEVER]
        self._due: list[tuple[Tick, int]] = []
        self._wait = trace.wait
        self._missing: dict[int, int] = {}
        self._latest: dict[int, Tick] = {}
        self._followers: dict[int, list[int]] = {}
        for row, befores in trace.after.items():
            if column[row] != NO_ARRIVAL:
                continue
            if befores:
                self._missing[row] = len(befores)
            else:
                heapq.heappush(self._due, (trace.wait.get(row, 0), row))
            for before in befores:
                self._followers.setdefault(before, []).append(row)
        self.next_at: Tick = NEVER
        """When the next row arrives, as far as is known now."""
        self.chained = bool(self._followers)
        """True if some rows wait for others."""
        self._look_ahead()

    def _look_ahead(self) -> None:
        at = self._times[self._next]
        if self._due and self._due[0][0] < at:
            at = self._due[0][0]
        self.next_at = at

    def take(self, now: Tick) -> list[tuple[Tick, int]]:
        """(arrival, row) of all that have arrived by `now`, in order."""
        taken: list[tuple[Tick, int]] = []
        order, times, at = self._order, self._times, self._next
        while (arrival := times[at]) <= now:
            taken.append((arrival, order[at]))
            at += 1
        self._next = at
        if not self._due:
            self.next_at = arrival
            return taken
        if self._due[0][0] <= now:
            while self._due and self._due[0][0] <= now:
                taken.append(heapq.heappop(self._due))
            taken.sort()
        self._look_ahead()
        return taken

    def answered(self, row: int, at: Tick) -> None:
        """`row` has finished or was rejected at `at`: its followers may arrive."""
        for follower in self._followers.pop(row, ()):
            self._missing[follower] -= 1
            latest = self._latest[follower] = max(at, self._latest.get(follower, 0))
            if not self._missing[follower]:
                del self._missing[follower], self._latest[follower]
                heapq.heappush(self._due, (latest + self._wait.get(follower, 0), follower))
                self._look_ahead()

    def stranded(self) -> list[int]:
        """Rows that wait for rows that will never be answered (a cycle)."""
        return sorted(self._missing)
