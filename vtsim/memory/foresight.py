"""What the rest of a trace will ask for: the oracle behind clairvoyant eviction.

No server can know this. It exists to show how far a policy is from perfect, and whoever uses it
says so in its results.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

from vtsim.request import Run, Trace

NEVER = 1 << 60
"""Row of a use that does not come."""


class Admitted:
    """Rows that have been admitted: mostly all up to some row, and a few beyond."""

    __slots__ = ("_beyond", "up_to")

    def __init__(self) -> None:
        self.up_to = 0
        """Every row below has been."""
        self._beyond: dict[int, None] = {}

    def add(self, row: int) -> None:
        if row >= self.up_to:
            self._beyond[row] = None
        while self.up_to in self._beyond:
            del self._beyond[self.up_to]
            self.up_to += 1

    def __contains__(self, row: int) -> bool:
        return row < self.up_to or row in self._beyond


class Foresight:
    """Which requests hold a token address in their prompts. Never changes; copies are itself."""

    __slots__ = ("_starts", "_users")

    def __init__(self, contents: Iterable[tuple[Run, ...]]) -> None:
        """`contents`: of each row's prompt, in order of rows."""
        runs = [(first, first + n, row) for row, runs in enumerate(contents) for first, n in runs]
        self._starts = sorted({edge for first, end, _ in runs for edge in (first, end)})
        """Where the set of users changes."""
        self._users = [array("l") for _ in self._starts]
        for first, end, row in runs:
            at, stop = bisect_left(self._starts, first), bisect_left(self._starts, end)
            for users in self._users[at:stop]:
                if not users or users[-1] != row:
                    users.append(row)

    @classmethod
    def of(cls, trace: Trace) -> Foresight:
        return cls(trace.content(row) for row in range(len(trace)))

    def nobody(self) -> Admitted:
        return Admitted()

    def next_use(self, address: int, admitted: Admitted) -> int:
        """The first row not admitted yet whose prompt holds `address`; NEVER if there is none."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return NEVER
        users = self._users[at]
        for place in range(bisect_left(users, admitted.up_to), len(users)):
            if users[place] not in admitted:
                return users[place]
        return NEVER

    def alike(self, first: int, last: int) -> int:
        """How many of the addresses up to `last`, from `first` on, the same requests hold as hold
        `last`."""
        at = bisect_right(self._starts, last) - 1
        begin = self._starts[at] if at >= 0 else first
        return last + 1 - max(begin, first)

    def __copy__(self) -> Foresight:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Foresight:
        return self


NOTHING_KNOWN = Foresight(())
"""Of a future that nobody has told: no use is foreseen."""
