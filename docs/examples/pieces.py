"""pieces: a sequence grows by one cudaMalloc of `piece` tokens at a time, and frees them when done.

What a naive dynamic allocator would do: it shows a parameter, growth, placement and `retire`.
Run it with `vtsim replay TRACE --policy docs/examples/pieces.py:Pieces --set pieces.piece=512`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vtsim.errors import ConfigError
from vtsim.plan import NOTHING, Keep, Match, MemoryUsage, Operation, OpKind, Phase, Plan, Shortage
from vtsim.policies.base import Policy
from vtsim.ports import Batch, DeviceInfo
from vtsim.request import Sequence
from vtsim.spec import KVLayout


@dataclass(frozen=True, slots=True)
class PiecesParameters:
    """`piece`: tokens an allocation."""

    piece: int = 256

    def __post_init__(self) -> None:
        if self.piece < 1:
            raise ConfigError(f"pieces.piece: must be >= 1, got {self.piece}")


class Pieces(Policy):
    """A list of allocations a sequence. It has no `headroom`, so the engine steps it."""

    name = "pieces"
    summary = "one cudaMalloc a piece, as sequences grow"
    parameters_type = PiecesParameters
    kernels = ("flash_paged",)  # a sequence is scattered, so its kernel must follow a table
    options: PiecesParameters

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan:
        self.kv, self.limit_bytes = kv, limit_bytes
        self.piece_bytes = self.options.piece * kv.token_bytes
        self.lengths: dict[int, int] = {}  # running sequences, in tokens
        self.pieces: dict[int, list[int]] = {}  # their allocations, by number
        self.leaving: list[tuple[int, int, list[int]]] = []  # (last step, tokens, allocations)
        self.made = 0
        self.held = 0
        return NOTHING

    # -- growing ----------------------------------------------------------------------------------

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        if self._pieces(whole_tokens) > self._left():
            return self._short(self._pieces(whole_tokens))
        self.lengths[seq.index] = 0
        self.pieces[seq.index] = []
        return self._grow(Phase.CREATE, {seq.index: tokens})

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        return self._grow(Phase.PREFILL, {seq.index: tokens})

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        return self._grow(Phase.EXTEND, dict.fromkeys(batch.decoding, 1), steps)

    def _grow(self, phase: Phase, tokens: dict[int, int], steps: int = 1) -> Plan | Shortage:
        """Sequence -> tokens it gains a step: all of it, or a shortage and nothing changed."""
        need = sum(
            self._pieces(self.lengths[index] + more * steps) - len(self.pieces[index])
            for index, more in tokens.items()
        )
        if need > self._left():
            return self._short(need)
        due = []  # of each allocation, the step that needs it
        for step in range(steps):
            for index, more in tokens.items():
                self.lengths[index] += more
                while len(self.pieces[index]) < self._pieces(self.lengths[index]):
                    self.pieces[index].append(self.made + len(due))
                    due.append(step)
        numbers = list(range(self.made, self.made + need))
        self.made += need
        self.held += need
        return self._plan(phase, OpKind.ALLOCATE, numbers, due)

    # -- leaving ----------------------------------------------------------------------------------

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        """Kernels of `step` still read it: nothing is freed yet."""
        self.leaving.append((step, self.lengths.pop(seq.index), self.pieces.pop(seq.index)))
        return NOTHING

    def retire(self, step: int) -> Plan:
        """Kernels of `step` have ended: free what they were the last to read."""
        ended = [numbers for last, _, numbers in self.leaving if last <= step]
        self.leaving = [entry for entry in self.leaving if entry[0] > step]
        numbers = [number for some in ended for number in some]
        self.held -= len(numbers)
        return self._plan(Phase.RETIRE, OpKind.DEALLOCATE, numbers)

    def teardown(self) -> Plan:
        numbers = [number for some in self.pieces.values() for number in some]
        numbers += [number for _, _, some in self.leaving for number in some]
        self.lengths.clear()
        self.pieces.clear()
        self.leaving.clear()
        self.held = 0
        return self._plan(Phase.TEARDOWN, OpKind.DEALLOCATE, numbers)

    # -- books ------------------------------------------------------------------------------------

    def set_limit(self, limit_bytes: int) -> Plan | Shortage:
        excess = self.held * self.piece_bytes - limit_bytes
        if excess > 0:
            return Shortage(excess, pending_bytes=self._pending() * self.piece_bytes)
        self.limit_bytes = limit_bytes
        return NOTHING

    def usage(self) -> MemoryUsage:
        tokens = sum(self.lengths.values()) + sum(tokens for _, tokens, _ in self.leaving)
        live = tokens * self.kv.token_bytes
        return MemoryUsage(kv_live=live, kv_slack=self.held * self.piece_bytes - live)

    def _pieces(self, tokens: int) -> int:
        return -(-tokens // self.options.piece)

    def _left(self) -> int:
        """Pieces that the limit still has room for."""
        return self.limit_bytes // self.piece_bytes - self.held

    def _pending(self) -> int:
        """Pieces that `retire` will free: an engine waits for them before it preempts."""
        return sum(len(numbers) for _, _, numbers in self.leaving)

    def _short(self, pieces: int) -> Shortage:
        missing = (pieces - self._left()) * self.piece_bytes
        return Shortage(missing, pending_bytes=self._pending() * self.piece_bytes)

    def _plan(
        self, phase: Phase, kind: OpKind, numbers: list[int], due: list[int] | None = None
    ) -> Plan:
        """`allocation_bytes` is the size of each; `counts` says how many; with placement on, the
        operations name them, one for each that is counted."""
        if not numbers:
            return NOTHING
        plan = Plan(phase, allocation_bytes=self.piece_bytes)
        plan.counts[kind] = len(numbers)
        if self.placement:
            plan.operations = tuple(
                Operation(kind, chunk=number, nbytes=self.piece_bytes, due=step)
                for number, step in zip(numbers, due or [0] * len(numbers), strict=True)
            )
        return plan
