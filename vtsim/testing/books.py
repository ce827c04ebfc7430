"""What must agree between a policy, its device and a model of its sequences, after every call.

The model is plain: who runs, with how many tokens, where. Nothing here calls for a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vtsim.plan import MemoryUsage, OpKind, Plan
from vtsim.ports import Batch
from vtsim.request import Sequence
from vtsim.spec import KVLayout
from vtsim.testing.contracts import demand
from vtsim.testing.state import fingerprint


@dataclass(eq=False)
class Member:
    """What the model knows of a sequence from create until its memory is reusable."""

    seq: Sequence
    tokens: int
    matched: int
    slot: int = -1
    """Where its KV lies, once a plan has told; -1 until then."""
    table: dict[tuple[int, int], int] = field(default_factory=dict)
    """(arena, index) -> chunk, as seen in the page table."""
    noted: int = 0
    """Chunks of its first arena that are full and whose tokens are noted."""
    last_step: int = -1
    """The last step that reads it, once it has been released."""


def check_usage(policy: Any, in_use: int, limit_bytes: int) -> None:
    """The policy's own account of its bytes, and the device's."""
    policy.check_integrity()
    usage = policy.usage()
    demand(
        isinstance(usage, MemoryUsage) and all(type(value) is int for value in usage),
        "answer-type",
        f"usage returned {usage!r}",
        "usage",
    )
    demand(min(usage) >= 0, "usage-not-negative", f"a category is negative: {usage}", "usage")
    demand(
        sum(usage) == in_use,
        "usage-adds-up",
        f"{usage} add up to {sum(usage)}, device has {in_use}",
        "usage",
    )
    demand(
        in_use <= limit_bytes, "usage-within-limit", f"{in_use} bytes, the limit is {limit_bytes}"
    )


def check_live(
    kv_live: int, running: Iterable[Member], leaving: Iterable[Member], token_bytes: int
) -> None:
    """Tokens that sequences share count once or more, those leaving perhaps."""
    members = list(running)
    live = sum(member.tokens for member in members)
    most = live + sum(member.tokens for member in leaving)
    shared = sum(member.matched for member in members)
    demand(
        (live - shared) * token_bytes <= kv_live <= most * token_bytes,
        "live-is-live",
        f"kv_live is {kv_live} bytes; sequences hold {live} tokens, {shared} of them matched, "
        f"those leaving {most - live}, {token_bytes} bytes each",
        "usage",
    )


def check_victim(policy: Any, batch: Batch) -> None:
    before = fingerprint(policy)
    victim = policy.select_victim(batch)
    demand(
        fingerprint(policy) == before,
        "victim-pure",
        "select_victim changed something",
        "select_victim",
    )
    if victim is None:
        demand(
            not batch.running,
            "victim-runs",
            f"there is no victim, and {len(batch.running)} sequences run",
            "select_victim",
        )
        return
    demand(isinstance(victim, Sequence), "answer-type", f"victim is {victim!r}", "select_victim")
    demand(
        batch.running.get(victim.index) is victim,
        "victim-runs",
        "the victim does not run",
        "select_victim",
    )


def learn_slot(member: Member, plan: Plan) -> None:
    """Where a sequence's own plan maps is where it lies."""
    slots = {op.slot for op in plan.operations if op.kind is OpKind.MAP}
    demand(
        len(slots) <= 1,
        "one-slot-each",
        f"memory for one sequence is mapped in slots {sorted(slots)}",
    )
    for slot in slots:
        demand(
            member.slot in (-1, slot),
            "one-slot-each",
            f"slot {slot} for a sequence in slot {member.slot}",
        )
        member.slot = slot


def check_tables(
    device: Mapping[tuple[int, int, int], int],
    running: Iterable[Member],
    leaving: Iterable[Member],
    kv: KVLayout,
) -> None:
    """As the device has it: tokens are mapped, what kernels may read stays, and what they
    write has one owner."""
    owners: dict[int, int] = {}
    slots: dict[int, dict[tuple[int, int], int]] = {}
    for (arena, slot, index), chunk in device.items():
        owners[chunk] = owners.get(chunk, 0) + 1
        slots.setdefault(slot, {})[arena, index] = chunk
    taken: set[int] = set()
    for member in (*running, *leaving):
        if member.slot < 0:
            continue
        name = f"sequence {member.seq.index}"
        demand(member.slot not in taken, "one-slot-each", f"{name} shares slot {member.slot}")
        taken.add(member.slot)
        table = slots.get(member.slot, {})
        for place, chunk in member.table.items():
            demand(
                table.get(place) == chunk,
                "held-while-read",
                f"{name}: chunk {chunk} at {place} was taken while a kernel may read it",
            )
        member.table = table
        written = kv.full_units(member.matched)
        for index in kv.chunk_starts(0, kv.units(member.tokens)):
            for arena in range(kv.arenas):
                chunk = table.get((arena, index), -1)
                demand(
                    chunk >= 0,
                    "tokens-are-mapped",
                    f"{name}: {member.tokens} tokens, index {index} not mapped",
                )
                demand(
                    index < written or owners[chunk] == 1 or member.last_step >= 0,
                    "written-has-one-owner",
                    f"{name}: chunk {chunk} at {index} is written and shared",
                )
