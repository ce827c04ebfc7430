"""PolicyDriver: one policy under test, call by call, against a model of what it must hold.

The policy runs twice, with placement on a strict simulated driver and without; each call goes to
both and must be answered alike. A model in plain dictionaries knows tokens, steps and contents, and
`check` compares books, backends and page tables with it. Whoever drives (a Hypothesis machine, a
random walk) draws the calls; the driver says what is wrong, as AssertionError or InvariantError.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from vtsim.backends.sim import SimBackend
from vtsim.memory.journal import Journal
from vtsim.memory.radix import clip, join
from vtsim.plan import KINDS, NO_MATCH, NOTHING, Keep, Match, Operation, OpKind, Plan, Shortage
from vtsim.ports import Batch
from vtsim.request import Run, Sequence
from vtsim.testing.cases import Case
from vtsim.testing.state import fingerprint
from vtsim.testing.toys import toy_device

MakePolicy = Callable[[bool], Any]
"""A fresh policy, made with placement or without."""

Decide = Callable[[Any], Any]
"""A decision of the policy that it is given."""


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
    last_step: int = -1
    """The last step that reads it, once it has been released."""


class Side:
    """The policy and its backend, with placement or without."""

    def __init__(self, make: MakePolicy, case: Case, placement: bool) -> None:
        self.served = Journal(make(placement))
        self.kv = case.kv_layout(self.served)
        self.limit_bytes = case.limit_bytes(self.kv)
        self.device = toy_device(self.limit_bytes, self.kv.slot_bytes * case.slots)
        self.backend = SimBackend(self.device, self.kv, placement=placement, keep_log=False)

    @property
    def policy(self) -> Any:
        return self.served.policy

    def state(self) -> object:
        return fingerprint(self.policy)


class PolicyDriver:
    """See the module. `running` and `leaving` are the model; `step` is the one that runs now."""

    def __init__(self, make: MakePolicy, case: Case) -> None:
        self.placed, self.counted = Side(make, case, True), Side(make, case, False)
        self.sides = (self.placed, self.counted)
        self.kv = self.placed.kv
        self.max_model_len = case.max_model_len
        self.limit_bytes = self.placed.limit_bytes
        self.batch = Batch()
        self.step = 1
        self.running: dict[int, Member] = {}
        self.leaving: list[Member] = []
        self.gone: list[Sequence] = []
        """Released before they were done: they may come back."""
        self.contents: list[tuple[Run, ...]] = []
        """Known contents of all sequences so far, as far as they were computed."""
        self._indices = 0
        self._orders = 0
        self._addresses = 0
        self._decide("setup", lambda policy: policy.setup(
            self.placed.device, self.kv, self.limit_bytes
        ))  # fmt: skip
        self.fenced = bool(self.placed.policy.fenced)

    # -- calls -------------------------------------------------------------------------------------

    def new_sequence(
        self, prompt: int, like: int = -1, alike: int = 0, known: bool = True, output: bool = False
    ) -> Sequence:
        """A sequence of `prompt` tokens that begins with `alike` tokens of an older one's content.

        `like`: which older one. `known`: its content has names; `output`: what follows, too.
        """
        content: tuple[Run, ...] = ()
        named: tuple[Run, ...] = ()
        if known:
            if self.contents and like >= 0:
                older = self.contents[like % len(self.contents)]
                content = clip(older, 0, min(alike, prompt))
            have = sum(length for _, length in content)
            if have < prompt:
                content = join(content, ((self._addresses, prompt - have),))
                self._addresses += prompt - have
            if output:
                named = ((self._addresses, self.max_model_len),)
                self._addresses += self.max_model_len
        self._indices += 1
        return Sequence(self._indices - 1, prompt, content, named)

    def create(
        self, seq: Sequence, tokens: int, whole_tokens: int = 0, *, matching: bool = True,
        undo: bool = False,
    ) -> bool:  # fmt: skip
        """Admit `seq` with up to `tokens` new ones; False if that is refused (or undone)."""
        seq.order = self._orders
        handles = [self._match(side, seq) if matching else NO_MATCH for side in self.sides]
        found = {match.tokens for match in handles}
        assert len(found) == 1, f"match with placement on and off: {sorted(found)} tokens"
        matched = found.pop()
        tokens = max(1, min(tokens, seq.prompt_tokens - matched))
        whole_tokens = max(matched + tokens, min(whole_tokens, self.max_model_len))
        by_side = dict(zip(self.sides, handles, strict=True))

        def ask(policy: Any) -> Any:
            side = self.placed if policy is self.placed.served else self.counted
            return policy.create(copy(seq), by_side[side], tokens, whole_tokens)

        plan = self._decide("create", ask, undo=undo)
        if plan is None:
            return False
        self._orders += 1
        member = self.running[seq.index] = Member(seq, matched + tokens, matched)
        self.batch.running[seq.index] = seq
        self._learn_slot(member, plan)
        self._grown(member)
        return True

    def extend_prompt(self, index: int, tokens: int, *, undo: bool = False) -> bool:
        """The next `tokens` (at most) of an unfinished prompt."""
        member = self.running[index]
        tokens = max(1, min(tokens, member.seq.prompt_tokens - member.tokens))
        plan = self._decide(
            "extend_prompt", lambda policy: policy.extend_prompt(copy(member.seq), tokens),
            undo=undo,
        )  # fmt: skip
        if plan is None:
            return False
        member.tokens += tokens
        self._learn_slot(member, plan)
        self._grown(member)
        return True

    def extend(self, steps: int, *, undo: bool = False) -> bool:
        """Every decoding sequence grows by `steps`, or by as many as the longest can."""
        room = [self.max_model_len - self.running[i].tokens for i in self.batch.decoding]
        steps = min([steps, *room])
        if not room or steps < 1:
            return False
        self._check_headroom(steps)
        self._check_repetition(steps)
        plan = self._decide("extend", lambda policy: policy.extend(self.batch, steps), undo=undo)
        if plan is None:
            return False
        for index in self.batch.decoding:
            member = self.running[index]
            member.tokens += steps
            self._note_content(member)
        return True

    def release(self, index: int, keep: Keep, *, comes_back: bool = False) -> None:
        """`index` leaves; its last reader is the step that runs now."""
        member = self.running.pop(index)
        seq = member.seq
        del self.batch.running[index]
        self.batch.decoding.pop(index, None)
        self._decide("release", lambda policy: policy.release(copy(seq), keep, self.step))
        member.last_step = self.step
        if self.fenced:
            self.leaving.append(member)
        if comes_back and member.tokens + 1 < self.max_model_len:
            again = copy(seq)
            again.prompt_tokens = max(seq.prompt_tokens, member.tokens)
            again.preemptions += 1
            self.gone.append(again)

    def retire(self, running: bool) -> None:
        """The next step is launched (and runs, or has ended too): those before it have ended."""
        self.step += 1
        ended = self.step - running
        self.leaving = [member for member in self.leaving if member.last_step > ended]
        self._decide("retire", lambda policy: policy.retire(ended))

    def set_limit(self, limit_bytes: int) -> bool:
        """Another limit, at most the device's bytes."""
        limit_bytes = min(limit_bytes, self.placed.device.capacity_bytes)
        plan = self._decide("set_limit", lambda policy: policy.set_limit(limit_bytes))
        if plan is None:
            return False
        self.limit_bytes = limit_bytes
        return True

    def finish(self) -> None:
        """Tear down, with whatever runs; nothing may be left on either device."""
        self.running.clear()
        self.leaving.clear()
        self._decide("teardown", lambda policy: policy.teardown())
        for side in self.sides:
            side.backend.close()

    # -- deciding ----------------------------------------------------------------------------------

    def _decide(self, what: str, ask: Decide, undo: bool = False) -> Plan | None:
        """Ask both sides, compare, execute; the placed plan, or None if refused or undone."""
        before = [None if what == "setup" else side.state() for side in self.sides]
        answers = [ask(side.served) for side in self.sides]
        placed, counted = answers
        kinds = [type(answer).__name__ for answer in answers]
        assert kinds[0] == kinds[1], f"{what} with placement on and off: {kinds}"
        if isinstance(placed, Shortage):
            assert placed == counted, f"{what} with placement on and off: {placed}, {counted}"
            assert placed.nbytes > 0 or placed.slots > 0, f"{what} refused without a shortage"
            for side, state in zip(self.sides, before, strict=True):
                assert side.state() == state, f"{what} was refused and changed something"
            self._check_promise(what, placed, ask)
            return None
        assert isinstance(placed, Plan), f"{what} returned {placed!r}"
        said, bare = _said(placed), _said(counted)
        assert said == bare, f"{what} with placement on and off: {said}, {bare}"
        if undo and placed is not NOTHING:
            for side, plan, state in zip(self.sides, answers, before, strict=True):
                side.served.rollback(plan)
                assert side.state() == state, f"{what} was undone and left something changed"
            return None
        for side, plan in zip(self.sides, answers, strict=True):
            receipt = side.backend.settle(side.backend.submit(plan, self.step + 1))
            assert receipt.done, f"{what} took {receipt.short_bytes} bytes more than the limit"
        return placed

    def _match(self, side: Side, seq: Sequence) -> Match:
        before = side.state()
        match = side.served.match(seq)
        assert side.state() == before, "match changed something"
        assert isinstance(match, Match), f"match returned {match!r}"
        most = seq.prompt_tokens - 1
        assert 0 <= match.tokens <= most, f"match of {match.tokens} tokens, prompt - 1 is {most}"
        if match.tokens:
            begin = clip(seq.content, 0, match.tokens)
            named = sum(length for _, length in begin)
            assert named == match.tokens, f"match of {match.tokens} tokens, {named} are named"
            computed = any(clip(c, 0, match.tokens) == begin for c in self.contents)
            assert computed, f"match of {match.tokens} tokens that nobody has computed"
        return match

    def _grown(self, member: Member) -> None:
        if member.tokens >= member.seq.prompt_tokens:
            self.batch.decoding[member.seq.index] = member.seq
        self._note_content(member)

    def _note_content(self, member: Member) -> None:
        content = join(member.seq.content, member.seq.output_content)
        known = clip(content, 0, member.tokens)
        if known and known not in self.contents:
            self.contents.append(known)

    # -- promises ----------------------------------------------------------------------------------

    def _check_promise(self, what: str, shortage: Shortage, ask: Decide) -> None:
        """`will_clear`: after a retire the same request is granted (unless a match pins memory)."""
        if what not in ("extend", "extend_prompt") or not shortage.will_clear:
            return
        later = deepcopy(self.counted.policy)
        later.retire(self.step)
        assert isinstance(ask(later), Plan), f"{what}: the retire that it waits for did not help"

    def _check_headroom(self, at_most: int) -> None:
        """What `headroom` promises is accepted, moves nothing away, and is no dearer than said."""
        for side in self.sides:
            before = side.state()
            promise = side.policy.headroom(self.batch, at_most)
            assert side.state() == before, "headroom changed something"
            assert 0 <= promise.steps <= at_most, f"headroom of {promise.steps} in {at_most} steps"
            if not promise.steps:
                continue
            plan = deepcopy(side.policy).extend(self.batch, promise.steps)
            assert isinstance(plan, Plan), f"headroom promised {promise.steps} steps: {plan}"
            evicted = plan.counts[OpKind.UNMAP] + plan.counts[OpKind.DESTROY]
            assert not evicted, f"headroom promised {promise.steps} steps that evict"
            peak = [0] * KINDS if promise.peak is None else promise.peak
            self._check_peak("headroom", plan, peak)
            if promise.retire_later:
                self._check_retire_later(side, promise.steps)

    def _check_peak(self, whose: str, plan: Plan, peak: list[int]) -> None:
        for due, counts in enumerate(_counts_by_step(plan)):
            over = [OpKind(k).name for k in range(KINDS) if counts[k] > peak[k]]
            assert not over, f"{whose}: more {over} due in step {due} than its peak says"

    def _check_retire_later(self, side: Side, steps: int) -> None:
        """A retire before, between or after the promised steps: all the same in sum."""
        results = []
        for before in sorted({0, 1, steps}):
            policy = deepcopy(side.policy)
            plans = [policy.extend(self.batch, before)] if before else []
            plans.append(policy.retire(self.step))
            if before < steps:
                plans.append(policy.extend(self.batch, steps - before))
            assert all(isinstance(plan, Plan) for plan in plans), "retire_later: a step was refused"
            counts = [sum(plan.counts[kind] for plan in plans) for kind in range(KINDS)]
            results.append((counts, policy.usage()))
        assert results[1:] == results[:-1], f"retire_later, but it matters when: {results}"

    def _check_repetition(self, steps: int) -> None:
        """`extend(n)` is `extend(1)` n times, in state and in operations, and its peak and last
        counts are true."""
        for side in self.sides:
            at_once, singly = deepcopy(side.policy), deepcopy(side.policy)
            whole = at_once.extend(self.batch, steps)
            parts = []
            for _ in range(steps):
                parts.append(singly.extend(self.batch))
                if isinstance(parts[-1], Shortage):
                    break
            refused = isinstance(parts[-1], Shortage)
            assert isinstance(whole, Shortage) == refused, (
                f"extend by {steps} steps at once: {whole}, singly: {parts[-1]}"
            )
            if refused:
                continue
            assert fingerprint(at_once) == fingerprint(singly), (
                f"extend by {steps} steps at once leaves another state than singly"
            )
            counts = [sum(part.counts[kind] for part in parts) for kind in range(KINDS)]
            assert whole.counts == counts, f"extend by {steps}: {whole.counts}, singly {counts}"
            operations = [
                replace(op, due=due) for due, part in enumerate(parts) for op in part.operations
            ]
            assert list(whole.operations) == operations, f"extend by {steps}: other operations"
            if whole is NOTHING or steps == 1:
                continue
            if whole.peak is not None:
                self._check_peak("plan", whole, whole.peak)
            if whole.last is not None and side is self.placed:
                last = parts[-1].counts
                assert whole.last == last, f"plan.last {whole.last}, the last step has {last}"

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """Books, backends, page table and model agree."""
        for side in self.sides:
            side.policy.check_integrity()
            usage = side.policy.usage()
            assert min(usage) >= 0, f"a category is negative: {usage}"
            in_use = side.backend.bytes_in_use()
            assert sum(usage) == in_use, f"{usage} add up to {sum(usage)}, device has {in_use}"
            assert in_use <= self.limit_bytes, f"{in_use} bytes, the limit is {self.limit_bytes}"
        placed, counted = (side.policy.usage() for side in self.sides)
        assert placed == counted, f"usage with placement on and off: {placed}, {counted}"
        self._check_live(placed.kv_live)
        self._check_victim()
        self._check_tables()

    def _check_live(self, kv_live: int) -> None:
        token_bytes = self.kv.token_bytes
        live = sum(member.tokens for member in self.running.values())
        most = live + sum(member.tokens for member in self.leaving)
        shared = sum(member.matched for member in self.running.values())
        assert (live - shared) * token_bytes <= kv_live <= most * token_bytes, (
            f"kv_live is {kv_live} bytes; sequences hold {live} tokens, {shared} of them matched, "
            f"those leaving {most - live}, {token_bytes} bytes each"
        )

    def _check_victim(self) -> None:
        before = self.placed.state()
        victim = self.placed.policy.select_victim(self.batch)
        assert self.placed.state() == before, "select_victim changed something"
        running = self.batch.running
        assert victim is None or running.get(victim.index) is victim, "the victim does not run"

    def _learn_slot(self, member: Member, plan: Plan) -> None:
        """Where a sequence's own plan maps is where it lies, unless it is in blocks anywhere."""
        if not getattr(self.placed.policy, "contiguous", True):
            return
        slots = {op.slot for op in plan.operations if op.kind is OpKind.MAP}
        assert len(slots) <= 1, f"memory for one sequence is mapped in slots {sorted(slots)}"
        for slot in slots:
            assert member.slot in (-1, slot), f"slot {slot} for a sequence in slot {member.slot}"
            member.slot = slot

    def _check_tables(self) -> None:
        """As the device has it: tokens are mapped, what kernels may read stays, and what they
        write has one owner."""
        device = self.placed.backend.page_table()
        owners: dict[int, int] = {}
        slots: dict[int, dict[tuple[int, int], int]] = {}
        for (arena, slot, index), chunk in device.items():
            owners[chunk] = owners.get(chunk, 0) + 1
            slots.setdefault(slot, {})[arena, index] = chunk
        taken: set[int] = set()
        for member in (*self.running.values(), *self.leaving):
            if member.slot < 0:
                continue
            name = f"sequence {member.seq.index}"
            assert member.slot not in taken, f"{name} shares slot {member.slot}"
            taken.add(member.slot)
            table = slots.get(member.slot, {})
            for place, chunk in member.table.items():
                assert table.get(place) == chunk, (
                    f"{name}: chunk {chunk} at {place} was taken while a kernel may read it"
                )
            member.table = table
            written = member.matched * self.kv.row_bytes // self.kv.chunk_bytes
            for index in range(self.kv.units(member.tokens)):
                for arena in range(self.kv.arenas):
                    chunk = table.get((arena, index), -1)
                    assert chunk >= 0, f"{name}: {member.tokens} tokens, index {index} not mapped"
                    alone = index < written or owners[chunk] == 1 or member.last_step >= 0
                    assert alone, f"{name}: chunk {chunk} at {index} is written and shared"


def _said(plan: Plan) -> dict[str, object]:
    """What a plan says, but for its operations."""
    names = ("phase", "counts", "chunk_bytes", "allocation_bytes", "copied_bytes", "swapped_bytes")
    return {name: getattr(plan, name) for name in (*names, "steps", "peak", "last")}


def _counts_by_step(plan: Plan) -> list[list[int]]:
    """What falls due in each step, if the operations tell."""
    by_step = [[0] * KINDS for _ in range(plan.steps)]
    operation: Operation
    for operation in plan.operations:
        by_step[operation.due][operation.kind] += 1
    return by_step
