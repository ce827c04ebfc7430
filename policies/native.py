"""native: one contiguous ordinary allocation of `max_model_len` tokens a request.

What serving systems did before PagedAttention: a request reserves the longest it may ever become.
"""

from __future__ import annotations

from vtsim.errors import InvariantError
from vtsim.plan import NOTHING, Keep, Match, MemoryUsage, Operation, OpKind, Phase, Plan, Shortage
from vtsim.policies.base import Policy
from vtsim.ports import Batch, DeviceInfo, Headroom
from vtsim.request import Sequence
from vtsim.spec import KVLayout

ALIGNMENT_BYTES = 2 << 20
"""cudaMalloc hands out whole 2 MiB pages for large allocations."""


class NativePolicy(Policy):
    """Reserves everything at create, gives it back when the last kernel has ended."""

    name = "native"
    summary = "one cudaMalloc of max_model_len tokens a request"
    contiguous = False

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        self.kv = kv
        self.limit_bytes = limit_bytes
        self._token_bytes = kv.token_bytes
        self._each_bytes = -(-kv.max_tokens * kv.token_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._held: dict[int, int] = {}  # sequence -> allocation
        self._lengths: dict[int, int] = {}  # sequence -> tokens - clock while decoding, else tokens
        self._decoding: dict[int, bool] = {}
        self._clock = 0
        self._tokens = 0
        self._retiring: list[tuple[int, int, int]] = []  # (last step, allocation, tokens)
        self._next_allocation = 0
        return NOTHING

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        taken = (len(self._held) + len(self._retiring) + 1) * self._each_bytes
        if taken > self.limit_bytes:
            return Shortage(
                taken - self.limit_bytes, pending_bytes=len(self._retiring) * self._each_bytes
            )
        number = self._next_allocation
        self._next_allocation += 1
        self._held[seq.index] = number
        self._lengths[seq.index] = tokens
        self._tokens += tokens
        self._settle(seq)
        return self._plan(Phase.CREATE, OpKind.ALLOCATE, [number])

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        self._lengths[seq.index] += tokens
        self._tokens += tokens
        self._settle(seq)
        return NOTHING

    def _settle(self, seq: Sequence) -> None:
        """A complete prompt decodes from the next step on; its length is kept less the clock."""
        if self._lengths[seq.index] >= seq.prompt_tokens:
            self._lengths[seq.index] -= self._clock
            self._decoding[seq.index] = True

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        self._clock += steps
        self._tokens += steps * len(self._decoding)
        return NOTHING

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        return Headroom(at_most)

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        tokens = self._lengths.pop(seq.index)
        if self._decoding.pop(seq.index, False):
            tokens += self._clock
        self._retiring.append((step, self._held.pop(seq.index), tokens))
        return NOTHING

    def retire(self, step: int) -> Plan:
        ended = [entry for entry in self._retiring if entry[0] <= step]
        if not ended:
            return NOTHING
        self._retiring = [entry for entry in self._retiring if entry[0] > step]
        self._tokens -= sum(tokens for _, _, tokens in ended)
        return self._plan(Phase.RETIRE, OpKind.DEALLOCATE, [number for _, number, _ in ended])

    def _plan(self, phase: Phase, kind: OpKind, numbers: list[int]) -> Plan:
        plan = Plan(phase, allocation_bytes=self._each_bytes)
        plan.counts[kind] = len(numbers)
        if self.placement:
            plan.operations = tuple(
                Operation(kind, chunk=number, nbytes=self._each_bytes) for number in numbers
            )
        return plan

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        """Reservations cannot shrink: the limit holds for later requests, and must cover these."""
        taken = (len(self._held) + len(self._retiring)) * self._each_bytes
        if taken > limit_bytes:
            pending = len(self._retiring) * self._each_bytes
            return Shortage(taken - limit_bytes, pending_bytes=pending)
        self.limit_bytes = limit_bytes
        return NOTHING

    def usage(self) -> MemoryUsage:
        live = self._tokens * self._token_bytes
        reserved = (len(self._held) + len(self._retiring)) * self._each_bytes
        return MemoryUsage(kv_live=live, kv_slack=reserved - live)

    def check_integrity(self) -> None:
        tokens = sum(t for _, _, t in self._retiring)
        for index, length in self._lengths.items():
            length += self._clock if index in self._decoding else 0
            tokens += length
            if length > self.kv.max_tokens:
                raise InvariantError("mapped-covers-used", f"sequence {index} has {length} tokens")
        if tokens != self._tokens:
            raise InvariantError("token-count", f"{self._tokens} counted, {tokens} held")
        if self._held.keys() != self._lengths.keys():
            raise InvariantError("one-allocation-a-sequence", "held and lengths differ")

    def teardown(self) -> Plan:
        numbers = sorted([*self._held.values(), *(number for _, number, _ in self._retiring)])
        self._held.clear()
        self._lengths.clear()
        self._decoding.clear()
        self._retiring.clear()
        self._tokens = 0
        return self._plan(Phase.TEARDOWN, OpKind.DEALLOCATE, numbers) if numbers else NOTHING
