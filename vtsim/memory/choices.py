"""Choices that go with any policy: who gives its memory up, and whether that goes to host memory.

`Chosen` wraps a policy and is one itself, so neither the engine nor the policy knows of the choice.
A swapped sequence comes back as a match: all its tokens but the last are there, and one more step
goes on. It must not decide where KV lies; the wrapped policy does.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

from vtsim.errors import ConfigError
from vtsim.options import Victim
from vtsim.plan import NO_MATCH, NOTHING, Keep, Match, Operation, OpKind, Phase, Plan, Shortage
from vtsim.ports import Batch, DeviceInfo, MemoryPolicy
from vtsim.request import Sequence, Trace
from vtsim.spec import KVLayout

ORACLE_VICTIMS = frozenset({"longest-remaining"})

SWAP_OUT, SWAP_IN = int(OpKind.SWAP_OUT), int(OpKind.SWAP_IN)


@dataclass(frozen=True, slots=True)
class Swapped:
    """A sequence's KV in host memory."""

    name: int
    """Under which its bytes are found again."""
    tokens: int


class HostMemory:
    """What lies there, under a limit."""

    __slots__ = ("_names", "held", "limit_tokens", "most", "refused", "tokens")

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.tokens = 0
        self.most = 0
        """The most tokens that ever lay there."""
        self.refused = 0
        """Sequences for which there was no room."""
        self.held: dict[int, Swapped] = {}
        self._names = 0

    def put(self, index: int, tokens: int) -> Swapped | None:
        """Take the KV of a sequence in; None if it does not fit."""
        if self.tokens + tokens > self.limit_tokens:
            self.refused += 1
            return None
        self.tokens += tokens
        self.most = max(self.most, self.tokens)
        swapped = self.held[index] = Swapped(self._names, tokens)
        self._names += 1
        return swapped

    def drop(self, index: int) -> None:
        """It is back, or computed again."""
        swapped = self.held.pop(index, None)
        if swapped is not None:
            self.tokens -= swapped.tokens


class Chosen:
    """A `MemoryPolicy` with another choice of victim, and preemption by swap if there is host
    memory.

    `host_bytes` None: no swap. Everything it does not define is the wrapped policy's.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        victim: Victim = "policy",
        host_bytes: int | None = None,
        trace: Trace | None = None,
    ) -> None:
        if victim in ORACLE_VICTIMS and trace is None:
            raise ConfigError(f"victim {victim!r} is an oracle: it must be given the trace")
        self.inner: Any = policy
        self._victim = victim
        self._host_bytes = host_bytes
        self._ends: list[int] | None = None  # tokens of each row when it is done
        if victim in ORACLE_VICTIMS and trace is not None:
            self._ends = (trace.prompt_tokens + trace.output_tokens).tolist()
        self._host = HostMemory(0)
        self._lengths: dict[int, int] = {}  # tokens granted; less the clock while it decodes
        self._decoding: dict[int, None] = {}
        self._clock = 0

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def oracle(self) -> str:
        """How the choices know the future."""
        known = [str(getattr(self.inner, "oracle", ""))]
        if self._victim in ORACLE_VICTIMS:
            known.append(f"victim={self._victim}")
        return ", ".join(filter(None, known))

    def details(self) -> dict[str, object]:
        """The wrapped policy's, and what host memory held."""
        details: dict[str, object] = dict(getattr(self.inner, "details", dict)())
        if self._host_bytes is not None:
            details["swap_peak_bytes"] = self._host.most * self.kv.token_bytes
            details["swap_refused"] = self._host.refused
        return details

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        self.kv = kv
        self._host = HostMemory((self._host_bytes or 0) // kv.token_bytes)
        plan: Plan = self.inner.setup(device, kv, limit_bytes)
        return plan

    # -- lengths ----------------------------------------------------------------------------------

    def _tokens(self, index: int) -> int:
        return self._lengths[index] + (self._clock if index in self._decoding else 0)

    def _granted(self, seq: Sequence, tokens: int) -> None:
        """A complete prompt decodes from the next step on."""
        if tokens >= seq.prompt_tokens:
            self._decoding[seq.index] = None
            tokens -= self._clock
        self._lengths[seq.index] = tokens

    def _left(self, index: int) -> int:
        """Forget a sequence that leaves; returns its tokens."""
        tokens = self._tokens(index)
        del self._lengths[index]
        self._decoding.pop(index, None)
        return tokens

    # -- instructions -----------------------------------------------------------------------------

    def match(self, seq: Sequence) -> Match:
        match: Match = self.inner.match(seq)
        swapped = self._host.held.get(seq.index)
        if swapped is not None:
            tokens = min(swapped.tokens, seq.prompt_tokens - 1)
            if tokens > match.tokens:
                return Match(tokens, swapped)
        return match

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        held = match.tokens + tokens
        swapped = match.handle if isinstance(match.handle, Swapped) else None
        plan: Plan | Shortage
        if swapped is None:
            plan = self.inner.create(seq, match, tokens, whole_tokens)
        else:
            plan = self.inner.create(seq, NO_MATCH, held, whole_tokens)
        if isinstance(plan, Shortage):
            return plan
        if swapped is not None:
            plan = Plan(Phase.CREATE) if plan is NOTHING else plan.copy()
            plan.operations += self._move(plan, SWAP_IN, seq, swapped)
        self._host.drop(seq.index)
        self._granted(seq, held)
        return plan

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        plan: Plan | Shortage = self.inner.extend_prompt(seq, tokens)
        if isinstance(plan, Plan):
            self._granted(seq, self._lengths[seq.index] + tokens)
        return plan

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        plan: Plan | Shortage = self.inner.extend(batch, steps)
        if isinstance(plan, Plan):
            self._clock += steps
        return plan

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        tokens = self._left(seq.index)
        if keep is not Keep.SWAP:
            plan: Plan = self.inner.release(seq, keep, step)
            return plan
        out = Plan(Phase.PREEMPT)
        swapped = self._host.put(seq.index, tokens)
        if swapped is not None:
            out.operations = self._move(out, SWAP_OUT, seq, swapped)
        # Its last token may have been granted in vain, so that only the prompt is sure.
        known = copy(seq)
        known.output_content = ()
        plan = self.inner.release(known, Keep.RECORD if seq.content else Keep.NONE, step)
        if swapped is None or plan is NOTHING:
            return out if swapped is not None else plan
        plan = plan.copy()
        plan.counts = [a + b for a, b in zip(out.counts, plan.counts, strict=True)]
        plan.swapped_bytes += out.swapped_bytes
        plan.operations = out.operations + plan.operations
        plan.phase = Phase.PREEMPT
        return plan

    def _move(
        self, plan: Plan, kind: int, seq: Sequence, swapped: Swapped
    ) -> tuple[Operation, ...]:
        """Count moving a sequence between host and device; the operations, if they are wanted."""
        kv = self.kv
        slotted: bool = self.inner.contiguous
        arenas = kv.arenas if slotted else 1
        plan.counts[kind] += arenas
        plan.swapped_bytes += swapped.tokens * kv.token_bytes
        if not self.inner.placement:
            return ()
        slot = self.inner.slot_of(seq) if slotted else -1
        return tuple(
            Operation(
                OpKind(kind),
                chunk=swapped.name,
                slot=slot,
                arena=arena if slotted else -1,
                nbytes=swapped.tokens * kv.token_bytes // arenas,
            )
            for arena in range(arenas)
        )

    # -- victims ----------------------------------------------------------------------------------

    def select_victim(self, batch: Batch) -> Sequence | None:
        if self._victim == "policy":
            victim: Sequence | None = self.inner.select_victim(batch)
            return victim
        return max(batch.running.values(), key=self._rank(), default=None)

    def _rank(self) -> Callable[[Sequence], tuple[int, ...]]:
        """The larger, the sooner a sequence is the victim; no two are alike."""
        if self._victim == "newest":
            return lambda seq: (seq.order,)
        if self._victim == "smallest-loss":
            return lambda seq: (-self._tokens(seq.index), seq.priority, seq.order)
        ends = self._ends
        if ends is not None:
            return lambda seq: (
                ends[seq.index] - self._tokens(seq.index),
                seq.priority,
                seq.order,
            )
        return lambda seq: (seq.priority, seq.order)

    def teardown(self) -> Plan:
        plan: Plan = self.inner.teardown()
        return plan
