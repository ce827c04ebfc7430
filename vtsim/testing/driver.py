"""PolicyDriver: one policy under test, call by call, against a model of what it must hold.

The policy runs twice, with placement on a strict simulated driver and without; each call goes to
both and must be answered alike. A model in plain dictionaries knows tokens, steps and contents, and
`check` compares books, backends and page tables with it. Whoever drives (a Hypothesis machine, a
random walk) draws the calls; the driver says what is wrong, as ContractError or InvariantError.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any

from vtsim.memory.radix import clip, join
from vtsim.plan import NO_MATCH, NOTHING, Keep, Match, Plan, Shortage
from vtsim.ports import Batch
from vtsim.request import Run, Sequence
from vtsim.testing import books, promises
from vtsim.testing.books import Member
from vtsim.testing.cases import Case
from vtsim.testing.contracts import demand
from vtsim.testing.form import check_form, said_of
from vtsim.testing.sides import MakePolicy, Side
from vtsim.testing.state import fingerprint
from vtsim.testing.written import Written

__all__ = ["MakePolicy", "PolicyDriver"]

Decide = Callable[[Any], Any]
"""A decision of the policy that it is given."""


class PolicyDriver:
    """See the module. `running` and `leaving` are the model; `step` is the one that runs now."""

    def __init__(self, make: MakePolicy, case: Case) -> None:
        self.placed, self.counted = Side(make, case, True), Side(make, case, False)
        self.sides = (self.placed, self.counted)
        self.kv = self.placed.kv
        self.max_model_len = case.max_model_len
        self.limit_bytes = self.placed.limit_bytes
        backend = self.placed.backend
        self.written = Written(self.kv, lambda slot, index: backend.chunk_at((0, slot, index)))
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
        device, kv, limit = self.placed.device, self.kv, self.limit_bytes
        self._decide("setup", lambda policy: policy.setup(device, kv, limit))
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
        demand(
            len(found) == 1,
            "placement-decides-nothing",
            f"match with placement on and off: {sorted(found)} tokens",
            "match",
        )
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
        if member.slot >= 0:
            self.written.begin(member)
        promises.check_whole(self.counted.policy, seq, member.tokens, whole_tokens)
        self._grown(member)
        return True

    def extend_prompt(self, index: int, tokens: int, *, undo: bool = False) -> bool:
        """The next `tokens` (at most) of an unfinished prompt."""
        member = self.running[index]
        tokens = max(1, min(tokens, member.seq.prompt_tokens - member.tokens))
        seq = member.seq
        plan = self._decide("extend_prompt", lambda p: p.extend_prompt(copy(seq), tokens), undo)
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
        said = []
        for side in self.sides:
            said.append(promises.check_headroom(side.policy, self.batch, steps, self.step))
            promises.check_repetition(side.policy, self.batch, steps)
        demand(
            said[0] == said[1],
            "placement-decides-nothing",
            f"headroom with placement on and off: {said}",
            "headroom",
        )
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
        plan = self._decide("retire", lambda policy: policy.retire(ended))
        idle = self.fenced or plan is None or plan.empty
        demand(
            idle, "unfenced-retires-nothing", f"not fenced, and retire returned {plan}", "retire"
        )

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

    def check(self) -> None:
        """Books, backends, page table and model agree."""
        for side in self.sides:
            books.check_usage(side.policy, side.backend.bytes_in_use(), self.limit_bytes)
        placed, counted = (side.policy.usage() for side in self.sides)
        demand(
            placed == counted,
            "placement-decides-nothing",
            f"usage with placement on and off: {placed}, {counted}",
            "usage",
        )
        running = self.running.values()
        books.check_live(placed.kv_live, running, self.leaving, self.kv.token_bytes)
        books.check_victim(self.placed.policy, self.batch)
        books.check_tables(self.placed.backend.page_table(), running, self.leaving, self.kv)

    # -- deciding ----------------------------------------------------------------------------------

    def _decide(self, what: str, ask: Decide, undo: bool = False) -> Plan | None:
        """Ask both sides, compare, execute; the placed plan, or None if refused or undone."""
        before = [None if what == "setup" else side.state() for side in self.sides]
        answers = [ask(side.served) for side in self.sides]
        for answer in answers:
            check_form(what, answer)
        placed, counted = answers
        alike = f"{what} with placement on and off: "
        if isinstance(placed, Shortage):
            demand(placed == counted, "placement-decides-nothing", f"{alike}{answers}", what)
            for side, state in zip(self.sides, before, strict=True):
                demand(
                    side.state() == state,
                    "refusal-changes-nothing",
                    f"{what} was refused and changed something",
                    what,
                )
            promises.check_shortage(what, placed, self.counted.policy, ask, self.step)
            return None
        said, bare = said_of(placed), said_of(counted)
        demand(said == bare, "placement-decides-nothing", f"{alike}{said}, {bare}", what)
        if undo and placed is not NOTHING:
            for side, plan, state in zip(self.sides, answers, before, strict=True):
                side.served.rollback(plan)
                same = side.state() == state
                demand(same, "undo-exact", f"{what} was undone and left something changed", what)
            return None
        for side, plan in zip(self.sides, answers, strict=True):
            receipt = side.backend.settle(side.backend.submit(plan, self.step + 1))
            demand(
                receipt.done,
                "plan-within-limit",
                f"{what} took {receipt.short_bytes} bytes more than the limit",
                what,
            )
        return placed  # type: ignore[no-any-return]

    def _match(self, side: Side, seq: Sequence) -> Match:
        before, given = side.state(), fingerprint(seq)
        match = side.served.match(seq)
        demand(side.state() == before, "match-pure", "match changed something", "match")
        unread = fingerprint(seq) == given
        demand(unread, "arguments-unchanged", "match changed what it was given", "match")
        promises.check_match(match, seq, self.contents, side.policy.grain_tokens)
        return match  # type: ignore[no-any-return]

    def _learn_slot(self, member: Member, plan: Plan) -> None:
        """By what the plan maps; one that maps nothing was given a slot with memory in it."""
        policy = self.placed.policy
        if not getattr(policy, "contiguous", True):  # in blocks anywhere
            return
        books.learn_slot(member, plan)
        if member.slot < 0:
            with suppress(NotImplementedError):
                member.slot = policy.slot_of(member.seq)

    def _grown(self, member: Member) -> None:
        if member.tokens >= member.seq.prompt_tokens:
            self.batch.decoding[member.seq.index] = member.seq
        self._note_content(member)

    def _note_content(self, member: Member) -> None:
        if member.slot >= 0:
            self.written.grow(member)
        content = join(member.seq.content, member.seq.output_content)
        known = clip(content, 0, member.tokens)
        if known and known not in self.contents:
            self.contents.append(known)
