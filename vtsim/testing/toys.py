"""Small worlds for tests: traces from a few rows, costs one can add up by hand, a toy model.

Everything here is public: whoever writes a policy can build a case in three lines. Nothing here
draws at random (`vtsim.testing.cases`) or judges (`vtsim.testing.conformance`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vtsim.plan import OpKind
from vtsim.ports import Affine, DeviceInfo, StepShape
from vtsim.request import NO_ARRIVAL, IntArray, Tick, Trace
from vtsim.spec import ModelSpec

TOY_GRANULARITY_BYTES = 64 << 10
_EVER = 1 << 60


class Ask(NamedTuple):
    """One request of a toy trace."""

    arrival: Tick
    """Ticks; ignored where `after` is given."""
    prompt: int
    output: int
    priority: int = 0
    ids: tuple[int, ...] = ()
    """Hash ids of the prompt's blocks."""
    session: int = -1
    turn: int = -1
    after: tuple[int, ...] = ()
    """Rows that must be answered before it arrives, `wait` ticks later."""
    wait: Tick = 0


def make_trace(asks: Iterable[Ask], block: int = 0, name: str = "toy") -> Trace:
    """A trace of `asks`, in their order. `block`: tokens a hash id; what they leave has no name."""
    rows = list(asks)
    first: list[int] = []
    count: list[int] = []
    offsets = [0]
    for ask in rows:
        begin = len(first)
        for hash_id in ask.ids:
            if len(first) > begin and first[-1] + count[-1] == hash_id:
                count[-1] += 1
            else:
                first.append(hash_id)
                count.append(1)
        offsets.append(len(first))
    sessions = max((ask.session for ask in rows), default=-1) + 1
    return Trace(
        name,
        "",
        _column(NO_ARRIVAL if ask.after else ask.arrival for ask in rows),
        _column(ask.prompt for ask in rows),
        _column(ask.output for ask in rows),
        _column(ask.priority for ask in rows),
        _column(ask.session for ask in rows),
        _column(ask.turn for ask in rows),
        _column(offsets),
        _column(first),
        _column(count),
        block_size=block,
        tail_rule="prefix_only",
        session_names=tuple(f"s{k}" for k in range(sessions)),
        after={row: ask.after for row, ask in enumerate(rows) if ask.after},
        wait={row: ask.wait for row, ask in enumerate(rows) if ask.after},
    )


def _column(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def toy_model(token_bytes: int = 65_536) -> ModelSpec:
    """A model of two layers whose tokens have `token_bytes` (a multiple of 8) of KV."""
    if token_bytes % 8:
        raise ValueError(f"token_bytes {token_bytes} is no multiple of 8")
    return ModelSpec("toy", 2, 64, 1, 1, token_bytes // 8, 64, 64, max_positions=1 << 30)


def toy_device(capacity_bytes: int, va_bytes: int = _EVER) -> DeviceInfo:
    """A device that can create chunks of any multiple of 64 KiB."""
    return DeviceInfo("toy", capacity_bytes, TOY_GRANULARITY_BYTES, va_bytes)


@dataclass(frozen=True, slots=True)
class ToyExecutor:
    """Linear step costs in ticks; beyond `bend` KV tokens a token costs twice as much, so that
    closed forms end somewhere. `closed_form=False` has none: every step is taken singly."""

    step_ticks: Tick = 9_000_000_000
    sequence_ticks: Tick = 3_000_000
    kv_token_ticks: Tick = 40_000
    prompt_token_ticks: Tick = 60_000_000
    attended_ticks: Tick = 1_300
    bend: int = _EVER
    closed_form: bool = True

    def step(self, shape: StepShape) -> Tick:
        kv_tokens = shape.kv_tokens + max(0, shape.kv_tokens - self.bend)
        ticks = self.step_ticks + shape.decoding * self.sequence_ticks
        ticks += kv_tokens * self.kv_token_ticks
        for new, before in shape.chunks:
            ticks += new * self.prompt_token_ticks + new * (2 * before + new) * self.attended_ticks
        return ticks

    def affine(self, decoding: int, kv_tokens: int) -> Affine | None:
        if not self.closed_form:
            return None
        first = self.step(StepShape(decoding, kv_tokens))
        slope = decoding * self.kv_token_ticks
        if kv_tokens > self.bend:
            return Affine(first, 2 * slope, _EVER)
        return Affine(first, slope, (self.bend - kv_tokens) // decoding + 1)


@dataclass(frozen=True, slots=True)
class ToyTimes:
    """Ticks of each memory operation, by kind; the defaults are microseconds of an A100."""

    reserve: Tick = 2_000_000
    free: Tick = 1_000_000
    create: Tick = 29_000_000
    destroy: Tick = 23_000_000
    map: Tick = 40_000_000
    unmap: Tick = 34_000_000
    allocate: Tick = 100_000_000
    deallocate: Tick = 100_000_000
    copied_byte: Tick = 1
    larger_mib: Tick = 1_000_000
    """Of a MiB more in a handle that is destroyed."""
    random: bool = False

    def counts(
        self, counts: list[int], allocation_bytes: int, copied_bytes: int, swapped_bytes: int
    ) -> Tick:
        return (
            counts[OpKind.RESERVE] * self.reserve
            + counts[OpKind.FREE] * self.free
            + counts[OpKind.CREATE] * self.create
            + counts[OpKind.DESTROY] * self.destroy
            + counts[OpKind.MAP] * self.map
            + counts[OpKind.UNMAP] * self.unmap
            + counts[OpKind.ALLOCATE] * self.allocate
            + counts[OpKind.DEALLOCATE] * self.deallocate
            + (copied_bytes + swapped_bytes) * self.copied_byte
        )

    def larger(self, nbytes: int) -> Tick:
        return nbytes * self.larger_mib >> 20
