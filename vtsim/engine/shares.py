"""How the memory of one GPU is divided between tenants: the budget, floors, ceilings, shares.

Arithmetic and its error messages only. A floor is what nobody takes from a tenant, a ceiling the
most it may ever hold; both are known before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from vtsim.budget import Budget
from vtsim.errors import CapacityError
from vtsim.options import ReplayOptions
from vtsim.quantities import format_bytes


@dataclass(frozen=True, slots=True)
class Claimant:
    """What the division depends on, of one tenant."""

    name: str
    need_bytes: int
    """KV memory of one sequence of `max_model_len`, as its policy lays it out."""
    limit_bytes: int | None
    """As it was asked for."""
    unit_bytes: int = 1
    """What its policy takes and gives is a multiple of this."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a tenant is sure of, and the most it may hold."""

    floor_bytes: int
    ceiling_bytes: int
    part_bytes: int = 0
    """Its equal part: beyond it, it borrows from those who do not need theirs."""


def shared_bytes(budgets: Sequence[Budget], opts: ReplayOptions) -> int:
    """KV memory for all tenants together: what a single replay's limit is, less the weights, the
    workspaces and the contexts of all. Raises `CapacityError`, saying how much is missing."""
    capacity = budgets[0].capacity_bytes
    fixed = sum(budget.weights_bytes + budget.workspace_bytes for budget in budgets)
    context = sum(budget.context_bytes for budget in budgets)
    if opts.kv_memory is not None and opts.kv_memory != "unlimited":
        shared = opts.kv_memory
    else:
        usable = int(Fraction(str(opts.gpu_memory_utilization)) * capacity)
        shared = min(usable - fixed, capacity - fixed - context)
    missing = max(fixed + context + shared - capacity, 1 - shared)
    if missing > 0:
        raise CapacityError(
            f"{len(budgets)} tenants do not fit {format_bytes(capacity)}: weights and workspaces "
            f"{format_bytes(fixed)} and {format_bytes(max(shared, 1))} of KV memory are "
            f"{format_bytes(missing)} too much"
        )
    return shared


def split(shared: int, claimants: Sequence[Claimant]) -> list[Share]:
    """For policies that keep what they took: each has its limit, the others equal parts of the
    rest. Raises `CapacityError` if the limits are more than there is."""
    given = [c.limit_bytes for c in claimants if c.limit_bytes is not None]
    others = len(claimants) - len(given)
    rest = shared - sum(given)
    if rest < 0 or (others and not rest):
        raise CapacityError(
            f"the tenants' limits are {format_bytes(sum(given))}, and there are "
            f"{format_bytes(shared)} of KV memory for all"
        )
    sizes = [rest // others if c.limit_bytes is None else c.limit_bytes for c in claimants]
    return [Share(size, size) for size in sizes]


def elastic(shared: int, claimants: Sequence[Claimant]) -> list[Share]:
    """For policies that give back: a floor is what one sequence of `max_model_len` needs, or the
    limit if that is less. Where that is too much together, floors shrink in proportion until
    everyone's need fits beside the others' floors. A ceiling is the limit, and leaves those. A
    part is an equal one; what ceilings leave of theirs goes to the others."""
    for claimant in claimants:
        if claimant.limit_bytes is not None and claimant.limit_bytes > shared:
            raise CapacityError(
                f"tenant {claimant.name}: its limit of {format_bytes(claimant.limit_bytes)} is "
                f"more than the {format_bytes(shared)} of KV memory for all"
            )
    limits = [shared if c.limit_bytes is None else c.limit_bytes for c in claimants]
    needs = [min(c.need_bytes, limit) for c, limit in zip(claimants, limits, strict=True)]
    total = sum(needs)
    part = Fraction(1)
    for need in needs:
        if total > need:
            part = min(part, Fraction(shared - need, total - need))
    floors = [
        int(part * need) // c.unit_bytes * c.unit_bytes
        for need, c in zip(needs, claimants, strict=True)
    ]
    ceilings = [
        min(limit, shared - (sum(floors) - floor))
        for floor, limit in zip(floors, limits, strict=True)
    ]
    parts = [0] * len(claimants)
    rest = shared
    for left, order in enumerate(sorted(range(len(parts)), key=lambda o: (ceilings[o], o))):
        parts[order] = min(ceilings[order], rest // (len(parts) - left))
        rest -= parts[order]
    return [Share(*each) for each in zip(floors, ceilings, parts, strict=True)]
