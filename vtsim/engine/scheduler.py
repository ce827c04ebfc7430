"""The FlexInfer scheduler: Algorithm 1 without its clock.

`decide` makes the next step: it extends what decodes, continues prompts, admits who fits, and
preempts when memory runs short. `Engine` (vtsim.engine.loop) launches the steps in time. Neither
may look into a policy, a backend or a cost model.
"""

from __future__ import annotations

from heapq import heappop, heappush

from vtsim.engine.arrivals import Arrivals
from vtsim.engine.history import PrefixHistory
from vtsim.engine.state import Limits, Live, Step
from vtsim.engine.worker import MemoryWorker
from vtsim.errors import BackendError, CapacityError
from vtsim.memory.radix import join
from vtsim.metrics.recorder import Recorder
from vtsim.plan import NO_MATCH, NOTHING, Keep, Match, Phase, Plan, Shortage
from vtsim.ports import Batch, MemoryBackend, MemoryPolicy, MemoryTimes, StepShape
from vtsim.request import Sequence, Tick, Trace

# Looked up once: in Python 3.11 each look-up of an enum's member costs a Python call.
_RETIRE = Phase.RETIRE
_RECORD = Keep.RECORD
_new = tuple.__new__  # a NamedTuple's own is a Python function

PATIENCE = 10_000
"""Decisions in a row without a token before a run is given up as stuck."""


class Scheduler:
    """Waiting, running and finishing sequences, and the decisions about them."""

    # An object of more than 30 attributes is slow to look into without.
    __slots__ = (
        "_ahead",
        "_check",
        "_execute",
        "_fenced",
        "_finishing",
        "_fruitless",
        "_granted",
        "_history",
        "_keep_victims",
        "_kv_tokens",
        "_late_plans",
        "_live",
        "_max_batched_tokens",
        "_max_model_len",
        "_max_num_seqs",
        "_named",
        "_orders",
        "_outputs",
        "_preempted",
        "_prefilling",
        "_priorities",
        "_prompts",
        "_released",
        "_swaps",
        "_waiting",
        "answered",
        "arrivals",
        "backend",
        "batch",
        "eventful",
        "late",
        "limits",
        "now",
        "policy",
        "recorder",
        "running",
        "step",
        "trace",
        "worker",
    )

    def __init__(
        self,
        trace: Trace,
        policy: MemoryPolicy,
        backend: MemoryBackend,
        times: MemoryTimes,
        recorder: Recorder,
        limits: Limits,
    ) -> None:
        self.trace = trace
        self.policy = policy
        self.backend = backend
        self._execute = backend.execute
        self.recorder = recorder
        self.limits = limits
        self._max_num_seqs = limits.max_num_seqs
        self._max_model_len = limits.max_model_len
        self._max_batched_tokens = limits.max_batched_tokens
        self._check = limits.check
        self.worker = MemoryWorker(times, recorder)
        self.arrivals = Arrivals(trace)
        self.batch = Batch()
        self.step = 0
        """Number of the step that runs, or ran last."""
        self.now: Tick = 0
        """Of the decision."""
        self.running = False
        """A step's kernels are."""
        self.late: list[Plan] = []
        """With lookahead 0: plans to submit at the launch they serve."""
        self.eventful = False
        """Something has happened that the memory timeline must show."""
        self.answered = 0
        self._live: dict[int, Live] = {}
        self._waiting: list[tuple[tuple[int, Tick, int], Live]] = []
        self._prefilling: dict[int, Live] = {}
        self._finishing: list[tuple[int, int, Live]] = []  # (step, order, who decodes)
        self._kv_tokens = 0  # of decoding sequences, after the step decided last
        self._orders = 0
        self._released: list[int] = []  # last steps of released sequences not yet retired
        self._granted = False  # the decoding sequences have been extended for the next step
        self._preempted = False  # somebody was, in this decision
        self._fruitless = 0
        self._history = PrefixHistory(policy.grain_tokens) if recorder.decisions else None
        self._fenced = policy.fenced
        self._swaps = limits.preemption == "swap"
        self._keep_victims = Keep.SWAP if self._swaps else Keep.RECORD
        self._late_plans = policy.lookahead == 0
        self._ahead = 1 + policy.lookahead if limits.admit == "prompt" else 0
        self._named = trace.has_hashes or len(trace.session_names) > 0
        self._prompts: list[int] = trace.prompt_tokens.tolist()
        self._outputs: list[int] = trace.output_tokens.tolist()
        self._priorities: list[int] = trace.priority.tolist()

    # -- arrivals ---------------------------------------------------------------------------------

    def receive(self) -> None:
        """Arrivals up to now join `waiting`; those that can never fit are answered."""
        trace, waiting, live_by_row = self.trace, self._waiting, self._live
        for arrival, row in self.arrivals.take(self.now):
            prompt, priority = self._prompts[row], self._priorities[row]
            seq = Sequence(row, prompt, (), (), priority)
            if self._named:
                seq.content = trace.content(row)
                seq.output_content = trace.output_content(row)
            live = live_by_row[row] = Live(seq, (priority, arrival, row))
            if prompt + self._outputs[row] > self._max_model_len:
                self._reject(live, "max_model_len", 0)
            else:
                heappush(waiting, (live.rank, live))

    # -- Algorithm 1 ------------------------------------------------------------------------------

    def progress(self, prompts: list[Live], end: Tick) -> None:
        """What the running step will have done at `end`: prompts completed, answers finished."""
        step = self.step
        for live in prompts:
            seq = live.seq
            if live.prefilled < seq.prompt_tokens:
                continue
            self.eventful = True
            self._fruitless = 0
            self.recorder.first_token(seq.index, end)
            live.generated += 1
            left = self._outputs[seq.index] - live.generated
            if left <= 0:
                self._finish(live, end)
                continue
            del self._prefilling[seq.index]
            live.since = step + 1
            live.finish_step = step + left
            self.batch.decoding[seq.index] = seq
            self._kv_tokens += seq.prompt_tokens
            heappush(self._finishing, (live.finish_step, seq.order, live))
        finishing = self._finishing
        while finishing and finishing[0][0] <= step:
            _, order, live = heappop(finishing)
            if live.finish_step == step and order == live.seq.order:  # not preempted since
                self._finish(live, end)

    def decide(self) -> Step | None:
        """The next step: decoding, then prompts in progress, then admissions. None: nothing runs.

        A shortage waits for memory on its way, if that helps, else preempts; after a preemption
        nobody is admitted.
        """
        batch = self.batch
        decoding = batch.decoding
        self._granted = self._preempted = False
        while decoding:
            answer = self.policy.extend(batch)
            refusal = None if answer is NOTHING else self._ask(answer)
            if refusal is None:
                self._kv_tokens += len(decoding)
                self._granted = True
                break
            if not self._make_room(refusal, None):
                self.stall()
                return None
        prompts: list[Live] = []
        members = len(decoding)
        budget = self._max_batched_tokens - members
        if self._prefilling:
            for live in list(self._prefilling.values()):
                budget -= self._continue_prompt(live, prompts, budget)
        if self._waiting and not self._preempted:
            self._admit(prompts, budget)
        if self._check:
            self.policy.check_integrity()
        members = len(decoding)
        if members:
            self._fruitless = 0
        elif not prompts:
            if batch.running:
                self.stall()
            return None
        chunks: tuple[tuple[int, int], ...] = ()
        if len(prompts) == 1:  # most often; no comprehension then
            live = prompts[0]
            chunks = ((live.chunk, live.prefilled - live.chunk),)
        elif prompts:
            chunks = tuple([(live.chunk, live.prefilled - live.chunk) for live in prompts])
        return _new(Step, (prompts, _new(StepShape, (members, self._kv_tokens, chunks)), -1))

    def _continue_prompt(self, live: Live, prompts: list[Live], budget: int) -> int:
        """Grant the next chunk of a prompt in progress; returns its tokens."""
        seq = live.seq
        tokens = min(budget, seq.prompt_tokens - live.prefilled)
        while tokens > 0 and seq.index in self._prefilling:
            refusal = self._ask(self.policy.extend_prompt(seq, tokens))
            if refusal is None:
                prompts.append(live)
                live.chunk = tokens
                live.prefilled += tokens
                return tokens
            if not self._make_room(refusal, prompts):
                break  # it sits this step out
        return 0

    def _admit(self, prompts: list[Live], budget: int) -> None:
        """Admissions in order of waiting, until the first that is refused."""
        batch, waiting = self.batch, self._waiting
        running = batch.running
        while waiting:
            live = waiting[0][1]
            seq = live.seq
            if budget <= 0:
                return self._explain_wait(live, "max_batched_tokens", 0)
            if len(running) >= self._max_num_seqs:
                return self._explain_wait(live, "max_num_seqs", 0)
            seq.order = self._orders
            known = seq.content or self._swaps  # swapped: whatever its name
            match = self.policy.match(seq) if known else NO_MATCH
            refusal = self._create(live, match, budget)
            if refusal is not None and match.tokens and not (running or self.running):
                match = NO_MATCH  # alone and still refused: what the match pins may be in the way
                refusal = self._create(live, match, budget)
            if refusal is not None:
                if self._comes(refusal) or running or self.running:
                    reason = "slots" if refusal.slots else "memory"
                    return self._explain_wait(live, reason, refusal.nbytes)
                heappop(waiting)
                self._reject(live, "capacity", refusal.nbytes)
                continue
            heappop(waiting)
            self._orders += 1
            self.eventful = True
            running[seq.index] = seq
            self._prefilling[seq.index] = live
            prompts.append(live)
            budget -= live.chunk
            hit = live.prefilled - live.chunk
            self.recorder.admit(seq.index, self.now, self.step + 1, hit, seq.preemptions > 0)
            if self._history is not None and seq.content:
                self._explain_hit(self._history, seq, hit)
        return None

    def _create(self, live: Live, match: Match, budget: int) -> Shortage | None:
        """Ask the policy for the match and the first chunk; None if it was granted."""
        seq = live.seq
        while True:
            tokens = seq.prompt_tokens - match.tokens
            if tokens > budget:
                tokens = budget
            held = whole = match.tokens + tokens
            if self._ahead:
                whole = seq.prompt_tokens + self._ahead
                if whole > self._max_model_len:
                    whole = max(held, self._max_model_len)
            plan = self.policy.create(seq, match, tokens, whole)
            if isinstance(plan, Shortage):
                return plan
            if self.submit(plan) is None:
                live.prefilled = held
                live.chunk = tokens
                return None
            match = self.policy.match(seq)  # the limit is lower now, and the old match undone

    # -- shortage ---------------------------------------------------------------------------------

    def _make_room(self, shortage: Shortage, prompts: list[Live] | None) -> bool:
        """After a refusal: True to try again, False to wait until what runs has ended."""
        if self.running and self._released and shortage.will_clear or self._comes(shortage):
            return False
        self._preempt(shortage, prompts)
        return True

    def _comes(self, shortage: Shortage) -> bool:
        """Somebody else gives what is missing: wait for it. Nobody does, but among tenants."""
        return False

    def _fits_later(self, shortage: Shortage) -> bool:
        """What does not fit alone now may fit when others have given memory back."""
        return False

    def _preempt(self, shortage: Shortage, prompts: list[Live] | None) -> None:
        """Take memory from the policy's victim, which waits again; alone, it is answered.

        `prompts`: who has been granted a chunk in this decision, if that is being done.
        """
        victim = self.policy.select_victim(self.batch)
        if victim is None:
            raise CapacityError(
                f"the {self.policy.name} policy is {shortage.nbytes} bytes short, with no victim"
            )
        live = self._live[victim.index]
        alone = len(self.batch.running) == 1 and not self._fits_later(shortage)
        keep = Keep.NONE if alone else self._keep_victims
        if prompts is not None and live in prompts:
            prompts.remove(live)
            keep = Keep.NONE  # the chunk granted will not be computed
        granted = self._granted and victim.index in self.batch.decoding
        if keep is Keep.RECORD and granted and victim.output_content:
            keep = Keep.NONE  # nor will the token
        self._leave(live, keep)
        self.eventful = self._preempted = True
        if not self.running:
            self.retire(self.step)
        if alone:
            self._reject(live, "capacity", shortage.nbytes)
            return
        victim.preemptions += 1
        victim.prompt_tokens = self._prompts[victim.index] + live.generated
        live.prefilled = live.chunk = 0
        self.recorder.preempt(victim.index, self.now, self.step + 1, "shortage", shortage.nbytes)
        heappush(self._waiting, (live.rank, live))

    def stall(self) -> None:
        """No step can be decided before what runs has ended. A run that stays so is stuck."""
        self._fruitless += 1
        if self._fruitless > PATIENCE:
            raise CapacityError(
                f"no progress in {PATIENCE} decisions: {len(self.batch.running)} sequences run, "
                f"{len(self._waiting)} wait, and the {self.policy.name} policy grants no memory"
            )

    # -- what happens to a sequence ---------------------------------------------------------------

    def _leave(self, live: Live, keep: Keep) -> None:
        """Take a sequence out of the batch; its last reader is the step now running."""
        seq = live.seq
        del self.batch.running[seq.index]
        decoded = 0
        if self.batch.decoding.pop(seq.index, None) is None:
            del self._prefilling[seq.index]
        else:
            decoded = self.step - live.since + 1
            self._kv_tokens -= seq.prompt_tokens + decoded + self._granted
            live.generated += decoded
            live.finish_step = -1
        if keep is _RECORD:
            if not seq.content:
                keep = Keep.NONE
            elif self._history is not None:
                held = live.prefilled + decoded
                self._history.keep(join(seq.content, seq.output_content), held)
        plan = self.policy.release(seq, keep, self.step)
        if plan is not NOTHING:
            self.submit(plan)
        if self._fenced:
            self._released.append(self.step)

    def retire(self, step: int) -> None:
        """The kernels of `step` have ended: memory that only they read is reusable."""
        released = self._released
        if released and released[0] <= step:
            self._released = [last for last in released if last > step]
            self.submit(self.policy.retire(step))

    def _finish(self, live: Live, end: Tick) -> None:
        row = live.seq.index
        self._leave(live, _RECORD)
        self.eventful = True
        self._fruitless = 0
        self.recorder.finish(row, end)
        if self.recorder.decisions:
            self.recorder.decide(self.step, end, row, "finish", "", 0)
        self._answer(row, end)

    def _reject(self, live: Live, reason: str, bytes_short: int) -> None:
        row = live.seq.index
        if bytes_short:
            self.recorder.decide(self.step + 1, self.now, row, "short", reason, bytes_short)
        self.recorder.reject(row, self.now, reason, self.step + 1)
        self._answer(row, self.now)

    def _answer(self, row: int, at: Tick) -> None:
        del self._live[row]
        self.answered += 1
        if self.arrivals.chained:
            self.arrivals.answered(row, at)

    def _explain_hit(self, history: PrefixHistory, seq: Sequence, hit: int) -> None:
        missed = history.why_missed(seq.content, seq.prompt_tokens, hit)
        if missed is not None:
            reason, tokens = missed
            self.recorder.decide(
                self.step + 1, self.now, seq.index, "miss", f"{reason} {tokens}", 0
            )
        history.admit(seq.content)

    def _explain_wait(self, live: Live, reason: str, bytes_short: int) -> None:
        if self.recorder.decisions:
            self.recorder.decide(
                self.step + 1, self.now, live.seq.index, "wait", reason, bytes_short
            )

    # -- plans ------------------------------------------------------------------------------------

    def _ask(self, answer: Plan | Shortage) -> Shortage | None:
        """What a policy answered: submit its plan, pass its refusal on."""
        return self.submit(answer) if isinstance(answer, Plan) else answer

    def submit(self, plan: Plan) -> Shortage | None:
        """Have the backend execute `plan` and the worker spend its time; None when it is done.

        If the device refuses (out of memory under the limit), the decision is undone, the limit
        lowered to what is held, and the refusal returned like a policy's own.
        """
        if plan is NOTHING:
            return None
        if not self._execute(plan, self.step + 1).done:
            return self._refused(plan)
        needed = plan.phase is not _RETIRE
        if self._late_plans and self.running and needed:
            self.late.append(plan)
        else:
            self.worker.submit(plan, self.now, needed)
        return None

    def conclude(self, now: Tick) -> None:
        """Everybody is answered: give everything back; the record ends at `now`."""
        self.submit(self.policy.teardown())
        self.worker.close()
        self.recorder.finish_run(now)

    def execute(self, plan: Plan) -> None:
        """Have the backend execute a plan that it must not refuse; the worker is told apart."""
        receipt = self._execute(plan, self.step + 1)
        if not receipt.done:
            raise BackendError(
                f"the backend could not execute a {plan.phase.name} plan of the "
                f"{self.policy.name} policy (call {receipt.failed_call})"
            )

    def _refused(self, plan: Plan) -> Shortage:
        """Undo the decision behind `plan`; from now on the policy does with what it holds."""
        if plan.phase not in (Phase.CREATE, Phase.PREFILL, Phase.EXTEND):
            raise BackendError(
                f"the backend could not execute a {plan.phase.name} plan of the "
                f"{self.policy.name} policy, and what gives memory back cannot be refused "
                "(fail_at is for calls that take some)"
            )
        wanted = plan.bytes_taken
        self.policy.rollback(plan)
        self.policy.set_limit(sum(self.policy.usage()))
        return Shortage(wanted)
