"""What tests of a memory backend are made of: a toy layout, operations, plans, worlds to run in.

Sizes are in MiB so that a real card, whose chunks are multiples of 2 MiB, can run the same cases.
Nothing here judges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vtsim.plan import Operation, OpKind, Phase, Plan
from vtsim.ports import DeviceInfo
from vtsim.spec import KVLayout

M = 1 << 20
KV = KVLayout("kv_split", arenas=2, row_bytes=3 * M, chunk_bytes=4 * M, max_tokens=8)
"""Slots of 24 MiB, 6 chunks."""
INFO = DeviceInfo("toy", capacity_bytes=40 * M, granularity_bytes=2 * M, va_bytes=1000 * M)
SLOTS = 3
ARENA_BYTES = SLOTS * KV.slot_stride_bytes


@dataclass
class World:
    """A kind of backend: `make(info=..., **options)` makes one, `state` gives all of its state."""

    name: str
    make: Callable[..., Any]
    state: Callable[[Any], object]


def reserve(arena: int = 0, nbytes: int = ARENA_BYTES) -> Operation:
    return Operation(OpKind.RESERVE, arena=arena, nbytes=nbytes)


def free(arena: int = 0, nbytes: int = ARENA_BYTES) -> Operation:
    return Operation(OpKind.FREE, arena=arena, nbytes=nbytes)


def create(chunk: int, nbytes: int = 4 * M) -> Operation:
    return Operation(OpKind.CREATE, chunk=chunk, nbytes=nbytes)


def destroy(chunk: int, nbytes: int = 4 * M) -> Operation:
    return Operation(OpKind.DESTROY, chunk=chunk, nbytes=nbytes)


def mapped(chunk: int, slot: int, index: int, arena: int = 0, nbytes: int = 4 * M) -> Operation:
    return Operation(OpKind.MAP, chunk=chunk, slot=slot, arena=arena, index=index, nbytes=nbytes)


def unmapped(chunk: int, slot: int, index: int, arena: int = 0, nbytes: int = 4 * M) -> Operation:
    return Operation(OpKind.UNMAP, chunk=chunk, slot=slot, arena=arena, index=index, nbytes=nbytes)


def copy(slot: int, source: int, offset: int, nbytes: int, arena: int = 0) -> Operation:
    return Operation(
        OpKind.COPY, slot=slot, source=source, arena=arena, offset=offset, nbytes=nbytes
    )


def swap(kind: OpKind, slot: int, offset: int, nbytes: int, chunk: int = -1) -> Operation:
    return Operation(kind, chunk=chunk, slot=slot, arena=0, offset=offset, nbytes=nbytes)


def allocate(number: int, nbytes: int) -> Operation:
    return Operation(OpKind.ALLOCATE, chunk=number, nbytes=nbytes)


def deallocate(number: int, nbytes: int) -> Operation:
    return Operation(OpKind.DEALLOCATE, chunk=number, nbytes=nbytes)


def plan_of(*operations: Operation, phase: Phase = Phase.EXTEND) -> Plan:
    """A plan whose counts are those of its operations."""
    plan = Plan(phase, operations=tuple(operations))
    for op in operations:
        plan.counts[op.kind] += 1
        if op.kind in (OpKind.CREATE, OpKind.DESTROY):
            plan.chunk_bytes = op.nbytes
        elif op.kind in (OpKind.ALLOCATE, OpKind.DEALLOCATE):
            plan.allocation_bytes = op.nbytes
        elif op.kind is OpKind.COPY:
            plan.copied_bytes += op.nbytes
        elif op.kind in (OpKind.SWAP_OUT, OpKind.SWAP_IN):
            plan.swapped_bytes += op.nbytes
    return plan
