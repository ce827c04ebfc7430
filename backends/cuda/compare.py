"""Two backends, one run each: were the calls, the page tables and the footprint the same all along?

`Witness` stands between an engine and a backend and takes a hash after every plan: of the calls it
made, of what the backend now has mapped at each place they touched, and of the bytes in use. Two
runs agree if their hashes do, plan for plan; as untouched places cannot have changed, that covers
the whole table, which is hashed as a whole now and then besides. It changes nothing it passes on.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from vtsim.backends.transaction import Place
from vtsim.plan import KINDS, OpKind, Plan
from vtsim.ports import DeviceInfo, DriverCall, MemoryBackend, Receipt

WHOLE_TABLE_EVERY = 1000
"""Plans between two hashes of the whole page table."""


@dataclass
class Trail:
    """What a witness saw. `hashes` has 8 bytes a plan; `steps` the step each was for."""

    steps: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    calls: list[int] = field(default_factory=lambda: [0] * KINDS)
    refused: int = 0
    peak_bytes: int = 0
    wall_s: float = 0.0
    """Of the backend's calls, as its receipts tell."""

    def digest(self) -> str:
        """One hash of all."""
        whole = hashlib.sha256()
        for part in self.hashes:
            whole.update(part)
        for table in self.tables:
            whole.update(table.encode())
        return whole.hexdigest()

    def counts(self) -> dict[str, int]:
        """Calls that returned, by kind."""
        return {kind.name.lower(): self.calls[kind] for kind in OpKind if self.calls[kind]}

    def first_difference(self, other: Trail) -> str:
        """Where two runs part; empty if they do not."""
        for plan, (mine, theirs) in enumerate(zip(self.hashes, other.hashes, strict=False)):
            if mine != theirs:
                return f"plan {plan} (step {self.steps[plan]} here, {other.steps[plan]} there)"
        if len(self.hashes) != len(other.hashes):
            return f"{len(self.hashes)} plans here, {len(other.hashes)} there"
        if self.tables != other.tables:
            return "a whole page table"
        return ""


class Observable(MemoryBackend, Protocol):
    """What both backends offer to be watched by."""

    def calls_since(self, first: int) -> list[DriverCall]: ...
    def chunk_at(self, place: Place) -> int: ...
    def set_reserved(self, reserved_bytes: int) -> None: ...


class Witness:
    """A `MemoryBackend` that passes everything on and keeps a `Trail`."""

    def __init__(self, backend: Observable) -> None:
        self.backend = backend
        self.info: DeviceInfo = backend.info
        self.trail = Trail()
        self._seen = 0
        self._settling: dict[int, tuple[Plan, int]] = {}

    def submit(self, plan: Plan, step: int) -> int:
        ticket = self.backend.submit(plan, step)
        self._settling[ticket] = (plan, step)
        return ticket

    def settle(self, ticket: int) -> Receipt:
        """Tickets must be settled in order: the hash is taken here."""
        plan, step = self._settling.pop(ticket)
        receipt = self.backend.settle(ticket)
        self._look(plan, step, receipt)
        return receipt

    def execute(self, plan: Plan, step: int) -> Receipt:
        return self.settle(self.submit(plan, step))

    def calls(self) -> Iterable[DriverCall]:
        return self.backend.calls()

    def page_table(self) -> Mapping[Place, int]:
        return self.backend.page_table()

    def bytes_in_use(self) -> int:
        return self.backend.bytes_in_use()

    def free_bytes(self) -> int:
        return self.backend.free_bytes()

    def set_reserved(self, reserved_bytes: int) -> None:
        self.backend.set_reserved(reserved_bytes)

    def close(self) -> None:
        self.backend.close()

    def __getattr__(self, name: str) -> Any:
        """What only some backends offer: abandon, check_limit, report."""
        return getattr(self.backend, name)

    def _look(self, plan: Plan, step: int, receipt: Receipt) -> None:
        trail = self.trail
        new = self.backend.calls_since(self._seen)
        self._seen += len(new)
        numbers = array("q", [plan.phase, receipt.done, receipt.short_bytes, receipt.failed_call])
        for call in new:
            op = call.operation
            trail.calls[op.kind] += 1
            numbers.extend((
                call.step, call.phase, op.kind, op.chunk, op.slot, op.arena, op.index, op.nbytes,
                op.offset, op.source, op.due,
            ))  # fmt: skip
            if op.kind is OpKind.MAP or op.kind is OpKind.UNMAP:
                numbers.append(self.backend.chunk_at((op.arena, op.slot, op.index)))
        in_use = self.backend.bytes_in_use()
        numbers.append(in_use)
        trail.steps.append(step)
        trail.hashes.append(hashlib.blake2b(numbers.tobytes(), digest_size=8).digest())
        trail.peak_bytes = max(trail.peak_bytes, in_use)
        trail.refused += not receipt.done
        trail.wall_s += receipt.wall_s or 0.0
        if len(trail.hashes) % WHOLE_TABLE_EVERY == 0:
            trail.tables.append(table_hash(self.backend.page_table()))


def table_hash(table: Mapping[Place, int]) -> str:
    """A hash of a page table, whatever its order."""
    numbers = array("q")
    for place in sorted(table):
        numbers.extend((*place, table[place]))
    return hashlib.sha256(numbers.tobytes()).hexdigest()
