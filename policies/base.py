"""What every policy starts from: sane defaults for all that most policies do alike.

A policy overrides `setup`, `create`, `extend_prompt`, `extend`, `release`, `retire` and `usage`,
and `headroom` once its growth is regular enough to be leapt over. It must not know times, devices
or final lengths, and must not import a backend.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from vtsim.errors import BackendError
from vtsim.memory.eviction import ORACLES, Knowledge, Work
from vtsim.memory.foresight import Foresight
from vtsim.plan import NO_MATCH, NOTHING, Keep, Match, MemoryUsage, Plan, Shortage
from vtsim.ports import Batch, DeviceInfo, Headroom
from vtsim.request import Sequence
from vtsim.spec import KVLayout, ModelSpec


@dataclass(frozen=True, slots=True)
class NoParameters:
    """For policies that have none."""


class Policy:
    """Base class of the shipped policies and of plug-ins."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    parameters_type: ClassVar[type] = NoParameters
    kernels: ClassVar[tuple[str, ...]] = ("flash",)
    """Kernel families the policy can use; the first is its default."""
    lookahead: int = 1
    grain_tokens: int = 1
    fenced: ClassVar[bool] = True
    """False: memory is reused in stream order only, so nothing waits for `retire`."""
    contiguous: ClassVar[bool] = True
    """False: a sequence's KV is not in a slot of an arena, and `slot_of` not to be asked."""
    refusals_last: ClassVar[bool] = True
    """False: a first chunk that is refused may be granted after steps that `headroom` promised."""

    hidden_units: int = 1
    """Units that compute hides in a step, as the cost model states it."""

    def __init__(self, parameters: Any = None, *, placement: bool = False) -> None:
        self.options = self.parameters_type() if parameters is None else parameters
        self.placement = placement
        self.kv: KVLayout
        self.limit_bytes = 0
        self.known = Knowledge()
        """What eviction orders other than lru ask for (`vtsim.memory.eviction`)."""

    # -- what it is -------------------------------------------------------------------------------

    def parameters(self) -> dict[str, object]:
        return asdict(self.options)

    def learn(self, model: ModelSpec, tp: int, foresight: Foresight | None) -> None:
        """Before `setup`: what recomputing costs, and, for oracles only, what the trace will ask
        for (None: that is not known)."""
        known = self.known.foresight if foresight is None else foresight
        self.known = Knowledge(Work.of(model, tp), known)

    def learn_costs(self, hidden_units: int) -> None:
        """Before `setup`: how many units the cost model creates and maps within its shortest decode
        step, for policies that spread their work by it. Stated costs, never measured ones."""
        self.hidden_units = hidden_units

    @property
    def oracle(self) -> str:
        """How the policy knows the future, for results to say; "" if it does not."""
        rule = getattr(self.options, "evict", "")
        return f"evict={rule}" if rule in ORACLES else ""

    def kv_layout(self, model: ModelSpec, tp: int, max_model_len: int) -> KVLayout:
        """How this policy lays a sequence's KV cache out; `setup` is given the result."""
        return KVLayout.build(model, tp, "token_major", 2 << 20, max_model_len)

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        raise NotImplementedError

    # -- the five instructions --------------------------------------------------------------------

    def match(self, seq: Sequence) -> Match:
        return NO_MATCH

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        raise NotImplementedError

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        raise NotImplementedError

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        raise NotImplementedError

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        return Headroom(0)

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        raise NotImplementedError

    def retire(self, step: int) -> Plan:
        return NOTHING

    # -- the rest ---------------------------------------------------------------------------------

    def rollback(self, plan: Plan) -> None:
        """`vtsim.memory.journal.Journal` does this for any policy; alone, none needs to."""
        raise BackendError(
            f"the device refused a plan of the {self.name} policy: it takes more than its limit "
            "leaves, and runs without a journal to undo that"
        )

    def slot_of(self, seq: Sequence) -> int:
        """Where in the arenas a running sequence lies: for what moves its bytes."""
        raise NotImplementedError

    def select_victim(self, batch: Batch) -> Sequence | None:
        """The newest of the least urgent."""
        victim: Sequence | None = None
        for seq in batch.running.values():
            if victim is None or (seq.priority, seq.order) >= (victim.priority, victim.order):
                victim = seq
        return victim

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        raise NotImplementedError

    def usage(self) -> MemoryUsage:
        raise NotImplementedError

    def check_integrity(self) -> None:
        """Raise `InvariantError` if the policy's own books do not agree."""

    def teardown(self) -> Plan:
        raise NotImplementedError
