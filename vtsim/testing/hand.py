"""Hand: one policy, call by call, for tests whose numbers are worked out by hand.

It keeps the batch and the step number, executes every plan on a strict simulated driver, and shows
operations as short text. It checks nothing beyond what the driver refuses: the test does.
"""

from __future__ import annotations

from typing import Any

from vtsim.backends.sim import SimBackend
from vtsim.plan import NO_MATCH, Keep, Match, Operation, OpKind, Plan, Shortage
from vtsim.ports import Batch, DeviceInfo
from vtsim.request import Run, Sequence
from vtsim.spec import KVLayout


class Hand:
    """`policy` must be fresh. With placement, `log` collects the operations since it was read."""

    def __init__(self, policy: Any, kv: KVLayout, limit_bytes: int, slots: int = 100) -> None:
        self.policy = policy
        self.kv = kv
        self.batch = Batch()
        self.step = 1
        device = DeviceInfo("toy", limit_bytes, 1, kv.slot_bytes * slots)
        self.backend = SimBackend(device, kv, placement=policy.placement)
        self._indices = 0
        self._logged = 0
        self.execute(policy.setup(device, kv, limit_bytes))

    def execute(self, answer: Plan | Shortage) -> Plan | Shortage:
        if isinstance(answer, Plan):
            receipt = self.backend.settle(self.backend.submit(answer, self.step + 1))
            assert receipt.done, f"{answer} is {receipt.short_bytes} bytes short"
            self.policy.check_integrity()
            assert sum(self.policy.usage()) == self.backend.bytes_in_use()
        return answer

    def ask(self, prompt: int, *content: Run, output: tuple[Run, ...] = ()) -> Sequence:
        """A new sequence; `content` in runs of token addresses."""
        self._indices += 1
        return Sequence(self._indices - 1, prompt, content, output, order=self._indices - 1)

    def create(
        self, seq: Sequence, tokens: int = 0, whole: int = 0, match: Match | None = None
    ) -> Plan | Shortage:
        """Match (unless `match` is given) and admit: the whole prompt, or `tokens` new ones."""
        found = self.policy.match(seq) if match is None else match
        new = tokens or seq.prompt_tokens - found.tokens
        answer = self.policy.create(seq, found, new, max(whole, found.tokens + new))
        if isinstance(answer, Plan):
            self.batch.running[seq.index] = seq
            if found.tokens + new == seq.prompt_tokens:
                self.batch.decoding[seq.index] = seq
        return self.execute(answer)

    def admit(self, prompt: int, *content: Run, output: tuple[Run, ...] = ()) -> Sequence:
        """A sequence whose whole prompt has been granted."""
        seq = self.ask(prompt, *content, output=output)
        answer = self.create(seq)
        assert isinstance(answer, Plan), answer
        return seq

    def admit_fresh(self, prompt: int, *content: Run) -> Sequence:
        """The same without asking for a match."""
        seq = self.ask(prompt, *content)
        answer = self.create(seq, match=NO_MATCH)
        assert isinstance(answer, Plan), answer
        return seq

    def extend_prompt(self, seq: Sequence, tokens: int, last: bool = False) -> Plan | Shortage:
        answer = self.policy.extend_prompt(seq, tokens)
        if last and isinstance(answer, Plan):
            self.batch.decoding[seq.index] = seq
        return self.execute(answer)

    def grow(self, steps: int = 1) -> Plan | Shortage:
        return self.execute(self.policy.extend(self.batch, steps))

    def release(self, seq: Sequence, keep: Keep = Keep.RECORD) -> Plan | Shortage:
        """`seq` leaves; the running step is its last."""
        del self.batch.running[seq.index]
        self.batch.decoding.pop(seq.index, None)
        return self.execute(self.policy.release(seq, keep, self.step))

    def retire(self) -> Plan | Shortage:
        """The running step has ended."""
        self.step += 1
        return self.execute(self.policy.retire(self.step - 1))

    def end(self, seq: Sequence, keep: Keep = Keep.RECORD) -> Plan | Shortage:
        """Release and retire."""
        self.release(seq, keep)
        return self.retire()

    def finish(self) -> None:
        """Tear down; nothing may be left."""
        self.execute(self.policy.teardown())
        self.backend.close()

    @property
    def log(self) -> list[str]:
        """Operations executed since this was read last: `map 4 -> 2[0].1` is chunk 4 in slot 2 at
        arena 0, index 1."""
        calls = list(self.backend.calls())
        new, self._logged = calls[self._logged :], len(calls)
        return [_show(call.operation) for call in new]


def counts(answer: Plan | Shortage) -> dict[str, int]:
    """A plan's counts that are not 0, by kind; the test's mistake if it was refused."""
    assert isinstance(answer, Plan), answer
    return {OpKind(kind).name.lower(): n for kind, n in enumerate(answer.counts) if n}


def _show(op: Operation) -> str:
    name = op.kind.name.lower()
    if op.kind in (OpKind.RESERVE, OpKind.FREE):
        return f"{name} [{op.arena}] {op.nbytes} B"
    if op.kind in (OpKind.ALLOCATE, OpKind.DEALLOCATE):
        return f"{name} {op.chunk} {op.nbytes} B"
    if op.kind is OpKind.COPY:
        return f"{name} {op.nbytes} B at {op.offset}: {op.source} -> {op.slot}[{op.arena}]"
    place = f" -> {op.slot}[{op.arena}].{op.index}" if op.slot >= 0 else ""
    return f"{name} {op.chunk}{place}"
