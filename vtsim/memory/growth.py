"""When sequences that grow by one token a step need new memory: arithmetic instead of a loop.

All members gain one token in each step, so their lengths differ from a common clock by constants,
and the next crossing of a unit boundary falls at a phase of that clock. A histogram of phases then
gives the units needed by any run of steps. It must not know chunks, blocks or devices: a *unit* is
whatever the owner maps at once, and the boundaries may be irregular (sizes that do not divide).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator


class Members:
    """Sequences that grow by one token a step, and their lengths, by a clock that all share.

    `lead` tokens are mapped ahead of every member.
    """

    __slots__ = ("_ahead", "_clock", "_lead", "bases", "changes", "total_tokens")

    def __init__(self, lead: int) -> None:
        self._lead = lead
        self._clock = 0
        self.bases: dict[int, int] = {}
        """Member -> tokens, with what is mapped ahead for it alone, less the clock."""
        self.total_tokens = 0
        """Tokens of all members together."""
        self._ahead: dict[int, int] = {}  # member -> tokens mapped for it beyond the lead, if any
        self.changes = 0
        """Counts joins, leaves and advances: equal numbers, equal answers."""

    def __len__(self) -> int:
        return len(self.bases)

    def __contains__(self, member: int) -> bool:
        return member in self.bases

    def tokens(self, member: int) -> int:
        return self.bases[member] + self._clock - self._ahead.get(member, 0)


class Growth(Members):
    """Members, their lengths, and the units their next tokens need.

    `period` tokens span a whole number of units, and `crossings` lists (phase, units): adding token
    number `phase` (counted from 0, modulo `period`) needs that many new units. `lead` tokens are
    mapped ahead of every member. `ordered=True` also keeps who crosses when, for placement.
    """

    __slots__ = (
        "_buckets",
        "_count",
        "_crossings",
        "_hist",
        "_mapped",
        "_orders",
        "_period",
        "_units",
        "_units_in_period",
        "_wakes",
        "asleep",
    )

    def __init__(
        self,
        period: int,
        crossings: tuple[tuple[int, int], ...],
        units: Callable[[int], int],
        lead: int = 0,
        ordered: bool = False,
    ) -> None:
        super().__init__(lead)
        self._period = period
        self._crossings = crossings
        self._units_in_period = sum(n for _, n in crossings)
        self._units = units
        self._count = 0  # members that are awake
        self._hist = [0] * (2 * period)
        """Members by phase, twice over: no run of phases wraps around."""
        self.asleep: dict[int, int] = {}
        """Member -> the clock at which its mapped units are full."""
        self._mapped: dict[int, int] = {}  # the same members -> units mapped
        self._wakes: list[tuple[int, int]] = []
        self._orders: dict[int, int] = {}  # only with `ordered`
        self._buckets: list[dict[int, int]] | None = (
            [{} for _ in range(period)] if ordered else None
        )

    def mapped(self, member: int) -> int:
        """Units the member has: what its length and the lead need, or what it brought along."""
        if member in self.asleep:
            return self._mapped[member]
        return self._units(self.bases[member] + self._clock + self._lead)

    def join(
        self,
        member: int,
        tokens: int,
        mapped: int,
        covered_tokens: int,
        order: int,
        ahead: int = 0,
    ) -> None:
        """A member with `tokens` tokens and `mapped` units, which hold `covered_tokens` tokens.

        More units than the length and lead need is fine: the member sleeps until they are full.
        `ahead`: this member is mapped so many tokens further than the lead.
        """
        self.changes += 1
        self.total_tokens += tokens
        if ahead:
            self._ahead[member] = ahead
            tokens += ahead
        base = tokens - self._clock
        self.bases[member] = base
        if self._buckets is not None:
            self._orders[member] = order
        spare = covered_tokens - self._lead - tokens
        if spare > 0 and mapped > self._units(tokens + self._lead):
            wake = self._clock + spare
            self.asleep[member] = wake
            self._mapped[member] = mapped
            heapq.heappush(self._wakes, (wake, member))
        else:
            self._count_in(member, base)

    def leave(self, member: int) -> tuple[int, int]:
        """Forget a member; returns its (tokens, units)."""
        self.changes += 1
        base = self.bases.pop(member)
        if self.asleep and self.asleep.pop(member, None) is not None:
            mapped = self._mapped.pop(member)
        else:
            mapped = self._units(base + self._clock + self._lead)
            phase = base % self._period
            self._hist[phase] -= 1
            self._hist[phase + self._period] -= 1
            self._count -= 1
            if self._buckets is not None:
                del self._buckets[phase][member]
        if self._orders:
            self._orders.pop(member, None)
        tokens = base + self._clock
        if self._ahead:
            tokens -= self._ahead.pop(member, 0)
        self.total_tokens -= tokens
        return tokens, mapped

    def least_ahead(self, tokens: int, most: int) -> int:
        """How far ahead a member of `tokens` tokens must be mapped so that at most `most` others
        need units in the same step; within a period, the step with the fewest if none is. Pure."""
        hist, period = self._hist, self._period
        phase = (tokens - self._clock) % period
        best = 0
        for ahead in range(period):
            others = hist[(phase + ahead) % period]
            if others <= most:
                return ahead
            if others < hist[(phase + best) % period]:
                best = ahead
        return best

    # -- what steps need --------------------------------------------------------------------------

    def demand(self, steps: int) -> int:
        """Units that the next `steps` steps need. Pure."""
        hist, period = self._hist, self._period
        need, part = 0, steps
        if steps >= period:
            full, part = divmod(steps, period)
            need = full * self._count * self._units_in_period
        if part:
            start = self._clock + self._lead
            for crossing, units in self._crossings:
                # The members that cross in step j have phase crossing - start - j, mod period.
                first = (crossing - start) % period
                if part == 1:
                    need += units * hist[first]
                else:
                    high = first + period + 1
                    need += units * sum(hist[high - part : high])
        if self._wakes and self._next_wake() < self._clock + steps:
            need += sum(self._late(member, steps) for member in self._sleepers(steps))
        return need

    def last(self, steps: int) -> int:
        """Units that the last of the next `steps` steps needs, nobody waking before it. Pure."""
        start = self._clock + self._lead + steps - 1
        hist, period = self._hist, self._period
        need = 0
        for crossing, units in self._crossings:
            need += units * hist[(crossing - start) % period]
        return need

    def peak(self, steps: int) -> int:
        """An upper bound of the units needed in any one of the next `steps` steps. Pure."""
        hist, period = self._hist, self._period
        start = self._clock + self._lead
        span = steps if steps < period else period
        bound = 0
        for crossing, units in self._crossings:
            high = (crossing - start) % period + period + 1
            bound += units * max(hist[high - span : high])
        if self._wakes and self._next_wake() < self._clock + steps:
            most_units = max(n for _, n in self._crossings)
            bound += most_units * sum(1 for _ in self._sleepers(steps))
        return bound

    def crossing(self) -> list[tuple[int, int, int]]:
        """(order, member, new units) of all that need units in the next step, in batch order."""
        assert self._buckets is not None, "made without ordered=True"
        found = []
        start = self._clock + self._lead
        for crossing, units in self._crossings:
            bucket = self._buckets[(crossing - start) % self._period]
            found += [(order, member, units) for member, order in bucket.items()]
        found.sort()
        return found

    def until_wake(self) -> int:
        """Steps before a sleeping member starts to need units; a large number if none sleeps."""
        return self._next_wake() - self._clock if self._wakes else 1 << 60

    def within(self, units: int, at_most: int) -> tuple[int, int]:
        """The largest number of steps <= `at_most` whose demand is <= `units`, and that demand."""
        if at_most <= 0:
            return 0, 0
        need = self.demand(at_most)
        if need <= units:
            return at_most, need
        low, high, need = 0, at_most, 0
        while high - low > 1:
            middle = (low + high) // 2
            asked = self.demand(middle)
            if asked <= units:
                low, need = middle, asked
            else:
                high = middle
        return low, need

    def advance(self, steps: int) -> None:
        """`steps` steps have been granted."""
        self.changes += 1
        self._clock += steps
        self.total_tokens += len(self.bases) * steps
        if not self._wakes:
            return
        while self._wakes and self._wakes[0][0] <= self._clock:
            wake, member = heapq.heappop(self._wakes)
            if self.asleep.get(member) == wake:
                del self.asleep[member]
                self._count_in(member, self.bases[member])
                self._mapped.pop(member, None)

    # -- inside -----------------------------------------------------------------------------------

    def _count_in(self, member: int, base: int) -> None:
        phase = base % self._period
        self._hist[phase] += 1
        self._hist[phase + self._period] += 1
        self._count += 1
        if self._buckets is not None:
            self._buckets[phase][member] = self._orders[member]

    def _next_wake(self) -> int:
        wakes, asleep = self._wakes, self.asleep
        while wakes and asleep.get(wakes[0][1]) != wakes[0][0]:
            heapq.heappop(wakes)
        return wakes[0][0] if wakes else 1 << 60

    def _sleepers(self, steps: int) -> Iterator[int]:
        """Members that wake within the next `steps` steps."""
        end = self._clock + steps
        return (member for member, wake in self.asleep.items() if wake < end)

    def _late(self, member: int, steps: int) -> int:
        tokens = self.bases[member] + self._clock + steps + self._lead
        return self._units(tokens) - self._mapped[member]
