"""What a decision may look like at all: a plan with counts by kind, or a shortage of something."""

from __future__ import annotations

from vtsim.plan import KINDS, NOTHING, OpKind, Phase, Plan, Shortage
from vtsim.testing.contracts import ContractError, demand

_PHASES = {
    "setup": (Phase.SETUP,),
    "create": (Phase.CREATE,),
    "extend_prompt": (Phase.PREFILL,),
    "extend": (Phase.EXTEND,),
    "release": (Phase.RETIRE, Phase.PREEMPT),
    "retire": (Phase.RETIRE,),
    "set_limit": (Phase.LIMIT,),
    "teardown": (Phase.TEARDOWN,),
}
"""Under which phases a call's plan may book its operations."""
_MAY_REFUSE = frozenset(("create", "extend_prompt", "extend", "set_limit"))


def check_form(what: str, answer: object) -> None:
    """The answer is a plan or, where that may be, a shortage, and says things that can be."""
    if isinstance(answer, Shortage) and what in _MAY_REFUSE:
        lacking = answer.nbytes > 0 or answer.slots > 0
        demand(lacking, "shortage-positive", f"{what} refused without a shortage", what)
        return
    if not isinstance(answer, Plan):
        raise ContractError("answer-type", f"{what} returned {answer!r}", what)
    counts = answer.counts
    formed = (
        len(counts) == KINDS
        and all(type(count) is int and count >= 0 for count in counts)
        and min(answer.chunk_bytes, answer.allocation_bytes) >= 0
        and min(answer.created_bytes or 0, answer.destroyed_bytes) >= 0
        and min(answer.copied_bytes, answer.swapped_bytes) >= 0
        and not (answer.shared and _moves_bytes(answer))
        and (answer.empty or answer.phase in _PHASES[what])
    )
    unwritten = NOTHING.empty and not NOTHING.operations and NOTHING.phase is Phase.EXTEND
    if not unwritten:  # put it right, for whoever comes next
        NOTHING.__init__(Phase.EXTEND)  # type: ignore[misc]
        NOTHING.operations = ()
        raise ContractError("arguments-unchanged", f"{what} wrote to the plan NOTHING", what)
    demand(formed, "plan-form", f"{what} returned {answer} with counts {counts}", what)


def _moves_bytes(plan: Plan) -> bool:
    """It does more than map and unmap."""
    return any(n for k, n in enumerate(plan.counts) if k not in (OpKind.MAP, OpKind.UNMAP))


def said_of(plan: Plan) -> dict[str, object]:
    """What a plan says, but for its operations."""
    names = ("phase", "counts", "chunk_bytes", "allocation_bytes", "copied_bytes", "swapped_bytes")
    more = ("created_bytes", "destroyed_bytes")
    said = {name: getattr(plan, name) for name in (*names, *more)}
    return said | {"last": plan.last and plan.last.counts}
