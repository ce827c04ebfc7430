"""When sequences that grow by one token a step need new memory, where chunks have several sizes.

What `vtsim.memory.growth` does by a histogram of phases needs a period, and sizes that grow with
the position have none. Here every member has one next crossing, at which what it has mapped is
full; they stand in a line by the clock. Asking what some steps need walks those that are due in
them. It must not know plans, pools or devices.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple, Protocol

from vtsim.memory.growth import Members

_new = tuple.__new__  # a NamedTuple's own is a Python function


class Chunks(Protocol):
    """What is asked of a layout."""

    def units(self, tokens: int) -> int: ...
    def unit_tokens(self, units: int) -> int: ...
    def chunk_end(self, index: int) -> int: ...


class Crossing(NamedTuple):
    """In step `due`, counted from the next one, `member` needs the chunk that is the units
    [first, behind) of its slot. In order of time, then of the batch."""

    due: int
    order: int
    member: int
    first: int
    behind: int


class Crossings(Members):
    """Members, their lengths, and the chunks their next tokens need.

    Of `layout`: `unit_tokens(units)` are the tokens that lie wholly in the first units of a slot,
    `chunk_end(units)` is where the chunk behind them ends. `lead` tokens are mapped ahead of every
    member.
    """

    __slots__ = ("_chunk_end", "_due", "_line", "_mapped", "_orders", "_unit_tokens", "_units")

    def __init__(self, layout: Chunks, lead: int = 0) -> None:
        super().__init__(lead)
        self._units = layout.units
        self._unit_tokens = layout.unit_tokens
        self._chunk_end = layout.chunk_end
        self._mapped: dict[int, int] = {}
        self._orders: dict[int, int] = {}
        self._due: dict[int, int] = {}  # member -> clock of the step that needs more
        self._line: list[tuple[int, int, int]] = []  # (due, order, member), sorted

    def mapped(self, member: int) -> int:
        """Units the member has."""
        return self._mapped[member]

    def join(
        self,
        member: int,
        tokens: int,
        mapped: int,
        covered_tokens: int,
        order: int,
        ahead: int = 0,
    ) -> None:
        """A member with `tokens` tokens and `mapped` units, which hold `covered_tokens` tokens: no
        fewer than its length and the lead need. `ahead`: it is mapped so many tokens further."""
        self.changes += 1
        self.total_tokens += tokens
        if ahead:
            self._ahead[member] = ahead
        base = self.bases[member] = tokens + ahead - self._clock
        self._mapped[member] = mapped
        self._orders[member] = order
        due = self._due[member] = covered_tokens - self._lead - base
        insort(self._line, (due, order, member))

    def leave(self, member: int) -> tuple[int, int]:
        """Forget a member; returns its (tokens, units)."""
        self.changes += 1
        tokens = self.bases.pop(member) + self._clock - self._ahead.pop(member, 0)
        del self._line[self._place(member)]
        del self._due[member], self._orders[member]
        self.total_tokens -= tokens
        return tokens, self._mapped.pop(member)

    def _place(self, member: int) -> int:
        return bisect_left(self._line, (self._due[member], self._orders[member], member))

    def least_ahead(self, tokens: int, most: int, furthest: int) -> int:
        """How far ahead, less than `furthest`, a member of `tokens` tokens must be mapped so that
        at most `most` others are next due in the step in which it is; if none is, the step with the
        fewest. Pure."""
        best, fewest = 0, len(self._line) + 1
        for ahead in range(furthest):
            length = tokens + ahead + self._lead
            due = self._clock + self._unit_tokens(self._units(length)) - length
            others = bisect_left(self._line, (due + 1,)) - bisect_left(self._line, (due,))
            if others <= most:
                return ahead
            if others < fewest:
                best, fewest = ahead, others
        return best

    def coming(self, steps: int) -> list[Crossing]:
        """What the next `steps` steps need, in order. Pure."""
        line, clock = self._line, self._clock
        end = clock + steps
        if not line or line[0][0] >= end:
            return []
        found: list[Crossing] = []
        unit_tokens, chunk_end = self._unit_tokens, self._chunk_end
        for due, order, member in line[: bisect_left(line, (end,))]:
            mapped = self._mapped[member]
            ahead = self.bases[member] + self._lead
            while due < end:
                behind = chunk_end(mapped)
                found.append(_new(Crossing, (due - clock, order, member, mapped, behind)))
                mapped = behind
                due = unit_tokens(behind) - ahead
        found.sort()
        return found

    def advance(self, steps: int, coming: list[Crossing]) -> None:
        """`steps` steps have been granted, with `coming`, all that they need."""
        self.changes += 1
        self._clock += steps
        self.total_tokens += len(self.bases) * steps
        if not coming:
            return
        line = self._line
        past = line[: bisect_left(line, (self._clock,))]
        del line[: len(past)]
        for crossing in coming:
            self._mapped[crossing.member] = crossing.behind
        for _, order, member in past:
            covered = self._unit_tokens(self._mapped[member])
            due = self._due[member] = covered - self._lead - self.bases[member]
            insort(line, (due, order, member))
