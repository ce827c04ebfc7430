"""KVLayout: the one place that converts between tokens, bytes, chunks and slots.

A *unit* is one chunk in each arena: arenas grow in lockstep, so units are what is counted. Rows
need not divide chunks nor chunks rows (Yi-34B: 245,760 B a token); everything is integer ceil and
floor arithmetic on bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import lcm

from vtsim._model import ModelSpec
from vtsim.errors import ConfigError

LAYOUTS = ("token_major", "kv_split", "per_layer")
DEFAULT_CHUNK_BYTES = 2 << 20


def check_chunk_bytes(chunk_bytes: int, granularity_bytes: int) -> None:
    """Raises ConfigError unless a device of this granularity can create such chunks."""
    if chunk_bytes <= 0 or chunk_bytes % granularity_bytes:
        raise ConfigError(
            f"chunk of {chunk_bytes} B: must be a positive multiple of the device's granularity, "
            f"{granularity_bytes} B"
        )


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How the KV bytes of a sequence lie in its slots.

    `row_bytes` is one token in one arena, `max_tokens` what a slot must hold. Conversions do not
    check their arguments (they are the hot path): tokens and units are non-negative.
    """

    name: str
    arenas: int
    row_bytes: int
    chunk_bytes: int
    max_tokens: int

    token_bytes: int = field(init=False)
    """All arenas' bytes of one token."""
    unit_bytes: int = field(init=False)
    """All arenas' bytes of one unit."""
    period_tokens: int = field(init=False)
    """Growth repeats after so many tokens, which fill `period_units` units exactly."""
    period_units: int = field(init=False)
    slot_stride_bytes: int = field(init=False)
    """One slot in one arena: whole chunks and whole rows, so kernels need one base pointer."""
    crossings: tuple[tuple[int, int], ...] = field(init=False)
    """Sorted (phase, new units): growing from t to t + 1 tokens needs `new units` when
    t % period_tokens == phase, and nothing at phases not listed."""

    def __post_init__(self) -> None:
        for name in ("arenas", "row_bytes", "chunk_bytes", "max_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value <= 0:
                raise ConfigError(f"layout {self.name}: {name} must be positive, got {value!r}")
        whole = lcm(self.chunk_bytes, self.row_bytes)
        period_units = whole // self.chunk_bytes
        # The n-th unit (from 0) is first needed by the token whose row ends beyond n chunks.
        needed: dict[int, int] = {}
        for unit in range(period_units):
            phase = unit * self.chunk_bytes // self.row_bytes
            needed[phase] = needed.get(phase, 0) + 1
        put = object.__setattr__
        put(self, "token_bytes", self.row_bytes * self.arenas)
        put(self, "unit_bytes", self.chunk_bytes * self.arenas)
        put(self, "period_tokens", whole // self.row_bytes)
        put(self, "period_units", period_units)
        put(self, "slot_stride_bytes", -(-self.max_tokens * self.row_bytes // whole) * whole)
        put(self, "crossings", tuple(needed.items()))

    @classmethod
    def build(
        cls, model: ModelSpec, tp: int, layout_name: str, chunk_bytes: int, max_tokens: int
    ) -> KVLayout:
        """The layout of `model` on one of `tp` GPUs, slots of `max_tokens`.

        Raises ConfigError: unknown layout, bad tp, size not positive. Whether a device can create
        such chunks is `check_chunk_bytes`'s question.
        """
        token_bytes = model.token_bytes(tp)
        arenas = {"token_major": 1, "kv_split": 2, "per_layer": 2 * model.layers}.get(layout_name)
        if arenas is None:
            raise ConfigError(f"unknown layout {layout_name!r}: use one of {', '.join(LAYOUTS)}")
        return cls(layout_name, arenas, token_bytes // arenas, chunk_bytes, max_tokens)

    def units(self, tokens: int) -> int:
        """Units that hold `tokens` (the last one perhaps in part)."""
        return -(-tokens * self.row_bytes // self.chunk_bytes)

    def full_units(self, tokens: int) -> int:
        """Units that `tokens` fill completely."""
        return tokens * self.row_bytes // self.chunk_bytes

    def unit_tokens(self, units: int) -> int:
        """Tokens that lie wholly in the first `units` units."""
        return units * self.chunk_bytes // self.row_bytes

    def shared_boundary_units(self, tokens: int) -> int:
        """Most units, all filled by `tokens`, that end where a row ends: sharing them leaves no
        row cut in two (Yi-34B tp 1: multiples of 15)."""
        return self.full_units(tokens) // self.period_units * self.period_units

    def tail_bytes(self, tokens: int) -> int:
        """All arenas' bytes of `tokens` behind the last full unit: what a tail copy copies."""
        return (tokens * self.row_bytes % self.chunk_bytes) * self.arenas

    @property
    def grows(self) -> bool:
        """Whether chunks have several sizes (`GrowingLayout`). A chunk is then a run of units, and
        goes by the index of the first in operations and page tables."""
        return len(self.chunk_sizes) > 1

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Bytes of each size that chunks have, ascending."""
        return (self.chunk_bytes,)

    def chunks(self, units: int) -> int:
        """Chunks, in each arena, that the first `units` are made of."""
        return units

    def chunk_start(self, number: int) -> int:
        """The index, in units, at which chunk `number` of a slot begins, counted from 0."""
        return number

    def chunk_bytes_at(self, index: int) -> int:
        """Size of the chunk that begins at `index`; 0 if none does."""
        return self.chunk_bytes

    def chunk_starts(self, first: int, behind: int) -> Iterable[int]:
        """Where the chunks that hold the units [first, behind) begin, in order."""
        return range(first, behind)

    def chunk_end(self, index: int) -> int:
        """Where the chunk that begins at `index` ends."""
        return index + 1

    def chunks_by_size(self, first: int, behind: int) -> tuple[int, ...]:
        """Chunks of each size between two ends of chunks, in units."""
        return (behind - first,)

    def new_units(self, tokens: int, more: int) -> int:
        """Units to add when `tokens` grow by `more`, all of them being exactly mapped."""
        return self.units(tokens + more) - self.units(tokens)

    @property
    def slot_units(self) -> int:
        """Indices of a slot: units beyond this do not exist."""
        return self.slot_stride_bytes // self.chunk_bytes

    @property
    def slot_bytes(self) -> int:
        """Addresses one slot takes, all arenas."""
        return self.slot_stride_bytes * self.arenas

    def slots(self, va_bytes: int) -> int:
        """Slots that fit `va_bytes` of addresses."""
        return va_bytes // self.slot_bytes

    def block_bytes(self, block_tokens: int) -> int:
        """Bytes of one block of a static pool, all layers."""
        return block_tokens * self.token_bytes

    def pool_blocks(self, pool_bytes: int, block_tokens: int) -> int:
        """Blocks that a static pool of `pool_bytes` holds."""
        return pool_bytes // self.block_bytes(block_tokens)
