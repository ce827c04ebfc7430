"""exact: a static pool in which every token takes its own bytes and nothing more.

No allocator can hold less for the same tokens, so it shows what the others add. It shares nothing.
Run it with `vtsim replay TRACE --policy docs/examples/exact.py:Exact --policy paged`.
"""

from __future__ import annotations

from vtsim.plan import NOTHING, Keep, Match, MemoryUsage, Operation, OpKind, Phase, Plan, Shortage
from vtsim.policies.base import Policy
from vtsim.ports import Batch, DeviceInfo, Headroom
from vtsim.request import Sequence
from vtsim.spec import KVLayout


class Exact(Policy):
    """Lengths of sequences, and how many tokens the pool still has."""

    name = "exact"
    summary = "a static pool cut into single tokens"
    fenced = False  # memory is reused in stream order: nothing waits for kernels to end

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        self.kv, self.limit_bytes = kv, limit_bytes
        self.free = self.pool = limit_bytes // kv.token_bytes
        self.lengths: dict[int, int] = {}
        return self._pool(Phase.SETUP, OpKind.ALLOCATE)

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        if whole_tokens > self.free:
            return self._short(whole_tokens)
        self.lengths[seq.index] = 0
        return self._grow(seq.index, tokens)

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        return self._short(tokens) if tokens > self.free else self._grow(seq.index, tokens)

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        need = len(batch.decoding) * steps
        if need > self.free:
            return self._short(need)
        for index in batch.decoding:
            self._grow(index, steps)
        return NOTHING

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        return Headroom(min(at_most, self.free // max(1, len(batch.decoding))))

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        self.free += self.lengths.pop(seq.index)
        return NOTHING

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        missing = self.pool * self.kv.token_bytes - limit_bytes
        return Shortage(missing) if missing > 0 else NOTHING

    def usage(self) -> MemoryUsage:
        live = self.pool - self.free
        return MemoryUsage(
            kv_live=live * self.kv.token_bytes, pool_unused=self.free * self.kv.token_bytes
        )

    def teardown(self) -> Plan:
        plan = self._pool(Phase.TEARDOWN, OpKind.DEALLOCATE)
        self.pool = self.free = 0
        return plan

    def _grow(self, index: int, tokens: int) -> Plan:
        self.lengths[index] += tokens
        self.free -= tokens
        return NOTHING

    def _short(self, tokens: int) -> Shortage:
        return Shortage((tokens - self.free) * self.kv.token_bytes)

    def _pool(self, phase: Phase, kind: OpKind) -> Plan:
        """Take the whole pool, or give it back."""
        nbytes = self.pool * self.kv.token_bytes
        if not nbytes:
            return NOTHING
        plan = Plan(phase, allocation_bytes=nbytes)
        plan.counts[kind] = 1
        if self.placement:  # operations by name, for logs, checks and real memory
            plan.operations = (Operation(kind, chunk=0, nbytes=nbytes),)
        return plan
