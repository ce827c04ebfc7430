"""vSet: the slots that no sequence holds, empty or parked with their units still mapped.

A parked slot keeps its mappings (vAttention's deferred reclamation) until a sequence adopts it
whole, with no driver call, or memory runs short. Which units they are is placement's affair.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from sortedcontainers import SortedList

AdoptRule = Literal["best", "newest", "lowest"]
"""Which parked slot a sequence takes over. best: the smallest with enough units, else the largest;
newest: the one parked last; lowest: the lowest slot."""


class SlotSet:
    """Slots 0 .. count - 1; each is held by a sequence or a record, empty, or parked."""

    __slots__ = ("_adopt", "_by_size", "_empty", "count", "empty", "parked", "parked_units", "used")

    def __init__(self, count: int, adopt: AdoptRule) -> None:
        self.count = count
        self.used = 0
        """Slots that have ever been held: a new one is the lowest of the rest."""
        self.parked: OrderedDict[int, int] = OrderedDict()
        """Slot -> units mapped, the one that has been idle longest first."""
        self.parked_units = 0
        self.empty = count
        """Slots that nobody holds and nothing is mapped in, new ones included."""
        self._adopt = adopt
        self._empty: list[int] = []
        self._by_size: SortedList[tuple[int, int]] = SortedList()  # (units, slot)

    @property
    def idle(self) -> int:
        """Slots that have been used and nobody holds now."""
        return len(self.parked) + len(self._empty)

    def take(self) -> int:
        """An empty slot: the one given up last, else a new one."""
        self.empty -= 1
        if self._empty:
            return self._empty.pop()
        assert self.used < self.count, "no slot is empty: the caller did not check"
        self.used += 1
        return self.used - 1

    def give(self, slot: int) -> None:
        """`slot` is held no more, and has nothing mapped."""
        self.empty += 1
        self._empty.append(slot)

    def park(self, slot: int, units: int) -> None:
        """`slot` is held no more, and keeps its `units` (> 0) mapped."""
        self.parked[slot] = units
        self._by_size.add((units, slot))
        self.parked_units += units

    def unpark(self, slot: int) -> int:
        """Take a parked slot out, to be held or emptied; returns its units."""
        units = self.parked.pop(slot)
        self._by_size.remove((units, slot))
        self.parked_units -= units
        return units

    def adopt(self, units: int) -> tuple[int, int]:
        """Hold the parked slot that suits a sequence of `units` best: (slot, units mapped)."""
        if self._adopt == "newest":
            slot = next(reversed(self.parked))
        elif self._adopt == "lowest":
            slot = min(self.parked)
        else:
            at = self._by_size.bisect_left((units, -1))
            slot = self._by_size[min(at, len(self._by_size) - 1)][1]
        return slot, self.unpark(slot)

    def oldest(self) -> tuple[int, int]:
        """Take out the slot that has been parked longest: (slot, units mapped)."""
        slot = next(iter(self.parked))
        return slot, self.unpark(slot)
