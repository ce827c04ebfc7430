"""pSet: physical chunks, counted. One unit is one chunk in each arena.

A unit is in use, pooled (handle kept, unmapped) or not created. Which unit is which is placement's
affair (`vtsim.memory.placement`).
"""

from __future__ import annotations


class ChunkPool:
    """Counts of created and pooled units under a limit; the rest of the created are in use."""

    __slots__ = ("available", "created", "limit", "pooled")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.created = 0
        self.pooled = 0
        self.available = limit
        """Units that `take` can give: pooled ones, and those the limit still lets it create."""

    @property
    def in_use(self) -> int:
        return self.created - self.pooled

    def take(self, units: int) -> int:
        """Use `units` of the available, pooled ones first; returns how many had to be created."""
        from_pool = units if units < self.pooled else self.pooled
        new = units - from_pool
        self.pooled -= from_pool
        self.created += new
        self.available -= units
        return new

    def reuse(self, units: int) -> None:
        """`take`, where as many are pooled."""
        self.pooled -= units
        self.available -= units

    def give(self, units: int) -> None:
        """Units no longer used are pooled."""
        self.pooled += units
        self.available += units

    def destroy(self, units: int) -> None:
        """Pooled units go back to the device."""
        assert units <= self.pooled
        self.pooled -= units
        self.created -= units

    def set_limit(self, limit: int) -> None:
        """No more than `limit` units from now on; what is above must have been destroyed."""
        assert self.created <= limit
        self.limit = limit
        self.available = limit - self.created + self.pooled
