"""Undo for any policy: a checkpoint and the calls since, replayed without the one that failed.

A device may refuse a plan that the policy counted on (another process took the memory). The
decision behind it must then be as if it had never been made. Policies are deterministic in their
calls, so restoring a copy and repeating the calls is exact, and no policy has to write an inverse.
Only runs whose backend may refuse pay for it.
"""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

from vtsim.errors import BackendError
from vtsim.plan import NO_MATCH, NOTHING, Keep, Match, Plan, Shortage
from vtsim.ports import Batch, DeviceInfo, MemoryPolicy
from vtsim.request import Sequence
from vtsim.spec import KVLayout

CHECKPOINT_EVERY = 256
"""Calls between two copies of the policy's state."""


class Journal:
    """A `MemoryPolicy` that behaves as the one it wraps, and can take its last plan back.

    Everything it does not define (usage, headroom, parameters, ...) is the wrapped policy's.
    """

    def __init__(self, policy: MemoryPolicy) -> None:
        self.policy: Any = policy
        self._checkpoint: Any = None
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._last: Plan | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "policy":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.policy, name)

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        plan: Plan = self.policy.setup(device, kv, limit_bytes)
        self._checkpoint = deepcopy(self.policy)
        return plan

    def create(self, seq: Sequence, match: Match, tokens: int, whole: int) -> Plan | Shortage:
        return self._call("create", copy(seq), match, tokens, whole)

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        return self._call("extend_prompt", copy(seq), tokens)

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        seen = Batch()
        seen.running, seen.decoding = dict(batch.running), dict(batch.decoding)
        return self._call("extend", seen, steps)

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        return self._call("release", copy(seq), keep, step)  # type: ignore[return-value]

    def retire(self, step: int) -> Plan:
        return self._call("retire", step)  # type: ignore[return-value]

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        return self._call("set_limit", limit_bytes)

    def rollback(self, plan: Plan) -> None:
        """Undo the newest decision, which made `plan`. Raises BackendError for any other."""
        if plan is not self._last or plan is NOTHING:
            raise BackendError("only the newest plan can be rolled back")
        self._calls.pop()
        self._last = None
        self.policy = deepcopy(self._checkpoint)
        for name, arguments in self._calls:
            self._repeat(name, arguments)

    def _call(self, name: str, *arguments: Any) -> Plan | Shortage:
        if len(self._calls) >= CHECKPOINT_EVERY:
            self._checkpoint = deepcopy(self.policy)
            self._calls.clear()
        answer: Plan | Shortage = getattr(self.policy, name)(*arguments)
        if isinstance(answer, Plan):  # a refusal changed nothing
            self._calls.append((name, arguments))
            self._last = answer
        return answer

    def _repeat(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "create":
            # The handle points into the state that was given up: ask for it again.
            seq, match, *rest = arguments
            match = self.policy.match(seq) if match.tokens else NO_MATCH
            arguments = (seq, match, *rest)
        getattr(self.policy, name)(*arguments)
