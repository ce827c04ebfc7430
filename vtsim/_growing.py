"""GrowingLayout: a KVLayout whose chunks grow with their position in the vTensor.

The size of a chunk follows from where it begins and from nothing else, so the page tables of
sequences that begin alike line up, and a prefix is shared chunk by chunk whatever its owners did.
Positions and amounts stay in *units* of the smallest size; a chunk takes 1, 2, 4, ... of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from vtsim._layout import KVLayout
from vtsim.errors import ConfigError


class Schedule(NamedTuple):
    """Where chunks begin, in units, as long as their sizes change; from the last start on, all
    have the largest size."""

    starts: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    """Chunks of each size before each start."""


@lru_cache(maxsize=64)
def _schedule(sizes: int, growth: int) -> Schedule:
    at = size = 0
    counts = [0] * sizes
    starts, before = [0], [tuple(counts)]
    while size < sizes - 1:
        at += 1 << size
        counts[size] += 1
        starts.append(at)
        before.append(tuple(counts))
        while size < sizes - 1 and (2 << size) ** 2 <= growth * at:
            size += 1
    return Schedule(tuple(starts), tuple(before))


@dataclass(frozen=True, slots=True)
class GrowingLayout(KVLayout):
    """Chunks of `chunk_bytes`, twice that, ..., `max_chunk_bytes`.

    With `before` bytes in front of it in its arena, a chunk has the largest of these sizes whose
    square is no more than `growth * before * chunk_bytes`, and `chunk_bytes` at least. So what a
    sequence has mapped beyond its last token is, an arena, less than the larger of `chunk_bytes`
    and `sqrt(growth * its bytes * chunk_bytes)`. `period_tokens` and `crossings` are those of
    chunks of the smallest size. Raises ConfigError: sizes that are no such row.
    """

    max_chunk_bytes: int = 0
    growth: int = 1
    chunk_sizes: tuple[int, ...] = field(init=False)
    """Bytes of each size that a slot has room to reach, ascending."""
    schedule: Schedule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        KVLayout.__post_init__(self)
        ratio, rest = divmod(self.max_chunk_bytes, self.chunk_bytes)
        if rest or ratio < 1 or ratio & (ratio - 1):
            raise ConfigError(
                f"layout {self.name}: max_chunk_bytes {self.max_chunk_bytes} must be "
                f"{self.chunk_bytes} times a power of two"
            )
        if type(self.growth) is not int or not 1 <= self.growth <= 1024:
            raise ConfigError(f"layout {self.name}: growth must be 1 ... 1024, got {self.growth!r}")
        sizes, units = ratio.bit_length(), KVLayout.units(self, self.max_tokens)
        while (1 << (sizes - 1)) ** 2 > self.growth * (units - 1) and sizes > 1:
            sizes -= 1
        put = object.__setattr__
        put(self, "chunk_sizes", tuple(self.chunk_bytes << k for k in range(sizes)))
        put(self, "schedule", _schedule(sizes, self.growth))
        # The last chunk may pass the end of the tokens: slots have room for it.
        whole = self.period_units * self.chunk_bytes
        longest = self.units(self.max_tokens) * self.chunk_bytes
        put(self, "slot_stride_bytes", -(-longest // whole) * whole)

    @classmethod
    def of(cls, kv: KVLayout, max_chunk_bytes: int, growth: int) -> GrowingLayout:
        """`kv` with chunks that grow."""
        return cls(
            kv.name, kv.arenas, kv.row_bytes, kv.chunk_bytes, kv.max_tokens, max_chunk_bytes, growth
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> GrowingLayout:
        return self  # never changes

    # -- units ------------------------------------------------------------------------------------

    def _up(self, units: int) -> int:
        """The end of the chunk that holds the last of the first `units`."""
        starts = self.schedule.starts
        flat = starts[-1]
        if units <= flat:
            return starts[bisect_left(starts, units)]
        largest = 1 << (len(self.chunk_sizes) - 1)
        return flat - (flat - units) // largest * largest

    def _down(self, units: int) -> int:
        """Where the chunk that holds the unit behind the first `units` begins."""
        starts = self.schedule.starts
        flat = starts[-1]
        if units < flat:
            return starts[bisect_right(starts, units) - 1]
        largest = 1 << (len(self.chunk_sizes) - 1)
        return flat + (units - flat) // largest * largest

    def units(self, tokens: int) -> int:
        return self._up(-(-tokens * self.row_bytes // self.chunk_bytes))

    def full_units(self, tokens: int) -> int:
        return self._down(tokens * self.row_bytes // self.chunk_bytes)

    def shared_boundary_units(self, tokens: int) -> int:
        units = self.full_units(tokens)
        while units % self.period_units:
            units = self._down(units - 1)
        return units

    def tail_bytes(self, tokens: int) -> int:
        return tokens * self.token_bytes - self.full_units(tokens) * self.unit_bytes

    # -- chunks -----------------------------------------------------------------------------------

    def chunks(self, units: int) -> int:
        starts = self.schedule.starts
        flat = starts[-1]
        if units <= flat:
            return bisect_left(starts, units)
        return len(starts) - 1 + ((units - flat) >> (len(self.chunk_sizes) - 1))

    def chunk_start(self, number: int) -> int:
        starts = self.schedule.starts
        beyond = number - len(starts) + 1
        if beyond <= 0:
            return starts[number]
        return starts[-1] + (beyond << (len(self.chunk_sizes) - 1))

    def chunk_bytes_at(self, index: int) -> int:
        if index < 0 or self._down(index) != index:
            return 0
        return (self._up(index + 1) - index) * self.chunk_bytes

    def chunk_starts(self, first: int, behind: int) -> Iterator[int]:
        index = self._down(first)
        while index < behind:
            yield index
            index = self._up(index + 1)

    def chunk_end(self, index: int) -> int:
        return self._up(index + 1)

    def chunks_by_size(self, first: int, behind: int) -> tuple[int, ...]:
        return _between(len(self.chunk_sizes), self.growth, first, behind)


@lru_cache(maxsize=1 << 16)
def _between(sizes: int, growth: int, first: int, behind: int) -> tuple[int, ...]:
    before, until = _before(sizes, growth, first), _before(sizes, growth, behind)
    return tuple(b - a for a, b in zip(before, until, strict=True))


def _before(sizes: int, growth: int, units: int) -> tuple[int, ...]:
    starts, before = _schedule(sizes, growth)
    flat = starts[-1]
    if units <= flat:
        return before[bisect_left(starts, units)]
    *small, largest = before[-1]
    return (*small, largest + ((units - flat) >> len(small)))
