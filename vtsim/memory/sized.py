"""pSet with chunks of several sizes: counted, one free list a size.

Amounts are in units of the smallest size; size k has 2**k of them. A free chunk serves only where
its size belongs, so a chunk of another size may have to be created while others lie idle. Where the
limit leaves no room for it, free ones are given back: see `trim`. Which chunk is which is
placement's affair (`vtsim.memory.sized_placement`).
"""

from __future__ import annotations

from collections.abc import Sequence

Counts = Sequence[int]
"""Chunks of each size, smallest first."""


class SizedPool:
    """Units created and pooled under a limit, and the free chunks of each size; what is created and
    not pooled is in use."""

    __slots__ = ("available", "created", "free", "limit", "made", "pooled")

    def __init__(self, limit: int, sizes: int) -> None:
        self.limit = limit
        self.created = 0
        self.pooled = 0
        self.available = limit
        """Units that `take` can give, whatever their sizes: pooled ones, for free chunks of other
        sizes make room, and those that the limit still lets it create."""
        self.free: list[int] = [0] * sizes
        self.made: list[int] = [0] * sizes
        """Chunks of each size that have ever been created."""

    def has(self, wanted: Counts) -> bool:
        """Whether all of them are free. Pure."""
        for number, free in zip(wanted, self.free, strict=True):
            if number > free:
                return False
        return True

    def fits(self, wanted: Counts) -> bool:
        """Whether `take` would give nothing back to make room. Pure."""
        new = 0
        for size, (number, free) in enumerate(zip(wanted, self.free, strict=True)):
            if number > free:
                new += (number - free) << size
        return self.created + new <= self.limit

    def take(self, wanted: Counts, units: int) -> tuple[Counts | None, Counts | None]:
        """Use the `wanted` chunks, `units` (<= `available`) together: free ones of the size first,
        then new ones. Returns which had to be created, and which others, free ones, given back to
        make room; None for none."""
        free = self.free
        made: list[int] | None = None
        new = 0
        for size, number in enumerate(wanted):
            if number:
                short = number - free[size]
                if short <= 0:
                    free[size] -= number
                    continue
                free[size] = 0
                if made is None:
                    made = [0] * len(free)
                made[size] = short
                self.made[size] += short
                new += short << size
        self.pooled -= units - new
        self.available -= units
        if made is None:
            return None, None
        excess = self.created + new - self.limit
        gone = self.trim(excess) if excess > 0 else None
        self.created += new
        return made, gone

    def give(self, chunks: Counts, units: int) -> None:
        """`chunks`, `units` together, are no longer used: they are pooled."""
        free = self.free
        for size, number in enumerate(chunks):
            free[size] += number
        self.pooled += units
        self.available += units

    def trim(self, units: int) -> Counts:
        """Give at least `units` (<= `pooled`) of free chunks back to the device, by the fewest
        calls, and of equally few by the smallest chunks: the largest go first, and the last to go
        is the smallest that is enough. Returns which."""
        free = self.free
        gone = [0] * len(free)
        back = 0
        while back < units:
            left = units - back
            size = next((k for k, n in enumerate(free) if n and 1 << k >= left), -1)
            number = 1
            if size < 0:
                size = max(k for k, n in enumerate(free) if n)
                number = min(free[size], left >> size)
            free[size] -= number
            gone[size] += number
            back += number << size
        self.pooled -= back
        self.created -= back
        return gone

    def set_limit(self, limit: int) -> None:
        """No more than `limit` units from now on; what is above must have been trimmed."""
        assert self.created <= limit
        self.limit = limit
        self.available = limit - self.created + self.pooled
