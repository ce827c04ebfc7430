"""The FlexInfer scheduler as one SimPy process: Algorithm 1, from launch to launch.

At the launch of step t the engine decides step t + 1 (DESIGN 4), submits its memory plans and
sleeps until t has ended and the plans are done. `advance` does that for one step, or for a whole
run of decode steps in which nothing can happen: a leap is the same decisions, made at once.

It must not look into a policy, a backend or a cost model, nor at a wall clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import simpy

from vtsim.engine.arrivals import NEVER, Arrivals
from vtsim.engine.pace import span, steps_until
from vtsim.engine.worker import MemoryWorker
from vtsim.errors import BackendError, CapacityError, VtsimError
from vtsim.metrics.recorder import Recorder
from vtsim.plan import NO_MATCH, NOTHING, Keep, Match, Phase, Plan, Shortage
from vtsim.ports import (
    Affine,
    Batch,
    Executor,
    MemoryBackend,
    MemoryPolicy,
    MemoryTimes,
    StepShape,
)
from vtsim.request import Sequence, Tick, Trace

PATIENCE = 10_000
"""Decisions in a row without a token before a run is given up as stuck."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step and a sequence."""

    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    max_model_len: int = 1 << 60
    admit: Literal["prompt", "chunk"] = "prompt"
    """prompt: a sequence is admitted when its whole prompt would fit now; chunk: its first chunk."""
    leap: bool = True
    check: bool = False
    """Check every policy invariant after every decision."""


class Live:
    """A request from arrival to answer, as the engine knows it."""

    __slots__ = ("chunk", "done", "finish_step", "generated", "prefilled", "rank", "seq", "since")

    def __init__(self, seq: Sequence, rank: tuple[int, Tick, int]) -> None:
        self.seq = seq
        self.rank = rank
        """(priority, arrival, row): the total order of waiting."""
        self.prefilled = 0
        """Prompt tokens computed, or matched, once the step being decided has run."""
        self.chunk = 0
        """Prompt tokens that the step being decided computes."""
        self.generated = 0
        """Output tokens before it last began to decode."""
        self.since = -1
        """First step that decodes it; -1 while its prompt is incomplete."""
        self.finish_step = -1
        self.done = False


class Work(list[Live]):
    """A decided step: the sequences whose prompt chunks it computes, and its shape."""

    __slots__ = ("shape",)

    shape: StepShape


class Engine:
    """Replays one trace against one policy. Everything it learns goes to the recorder."""

    def __init__(
        self,
        trace: Trace,
        policy: MemoryPolicy,
        backend: MemoryBackend,
        executor: Executor,
        times: MemoryTimes,
        recorder: Recorder,
        limits: Limits,
    ) -> None:
        self.trace = trace
        self.policy = policy
        self.backend = backend
        self.executor = executor
        self.recorder = recorder
        self.limits = limits
        self.worker = MemoryWorker(times, recorder)
        self.arrivals = Arrivals(trace)
        self.leaps = limits.leap and not times.random and policy.lookahead >= 1
        self.batch = Batch()
        self.step = 0
        """Number of the step that runs, or ran last."""
        self.answered = 0
        self._live: dict[int, Live] = {}
        self._waiting: list[tuple[tuple[int, Tick, int], Live]] = []
        self._prefilling: dict[int, Live] = {}
        self._finishing: list[tuple[int, int, Live]] = []  # (step, order, who) decoding
        self._kv_tokens = 0  # of decoding sequences, after the step decided last
        self._orders = 0
        self._released: list[int] = []  # last steps of released sequences not yet retired
        self._late: list[Plan] = []  # with lookahead 0: plans for the launch they serve
        self._now: Tick = 0
        self._running = False  # a step's kernels are
        self._granted = False  # the decoding sequences have been extended for the next step
        self._preempted = False  # somebody was, in this decision
        self._retired = False  # memory became reusable in it
        self._event = False  # something happened that the timeline must show
        self._fruitless = 0
        self._prompts = trace.prompt_tokens.tolist()
        self._outputs = trace.output_tokens.tolist()
        self._priorities = trace.priority.tolist()
        self._ahead = 1 + policy.lookahead if limits.admit == "prompt" else 0

    # -- the process ------------------------------------------------------------------------------

    def run(self) -> Tick:
        """Replay to the end; returns the time of it."""
        env = simpy.Environment(initial_time=0)
        process = env.process(self.process(env))
        env.run(until=process)
        return int(env.now)

    def process(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """The engine's life: launch, or start from idle, or sleep until something arrives."""
        work: Work | None = None
        while True:
            now: Tick = env.now  # type: ignore[assignment]
            self._now = now
            if self.arrivals.next_at <= now:
                self._receive(now)
            usage, free_bytes = self.policy.usage(), self.backend.free_bytes()
            self._event = work is None
            if work is not None:
                work, wake = self._advance(work, now)
            else:
                self._running = False
                self._retire(self.step)
                work = self._decide()
                if work is not None:
                    wake = self.worker.wait(now)
                else:
                    wake = self._sleep(now)
            if self._event:
                self.recorder.sample(now, usage, free_bytes)
            if wake < 0:
                break
            if wake > now:
                yield env.timeout(wake - now)
        stranded = self.arrivals.stranded()
        if stranded:
            raise VtsimError(
                f"{len(stranded)} requests wait for each other and never arrive, the first: "
                f"{self.trace.id_of(stranded[0])}"
            )
        self._submit(self.policy.teardown())
        self.recorder.finish_run(int(env.now))

    def _sleep(self, now: Tick) -> Tick:
        """Nothing can run now: when to look again; -1 for never."""
        if self._waiting or self.batch.running:
            self._stall()
            return now
        coming = self.arrivals.next_at
        return -1 if coming == NEVER else coming

    def _receive(self, now: Tick) -> None:
        """Arrivals up to now join `waiting`."""
        for arrival, row in self.arrivals.take(now):
            content = self.trace.content(row)
            seq = Sequence(row, self._prompts[row], content, (), self._priorities[row])
            if content:
                seq.output_content = self.trace.output_content(row)
            live = Live(seq, (self._priorities[row], arrival, row))
            self._live[row] = live
            longest = self._prompts[row] + self._outputs[row]
            if longest > self.limits.max_model_len:
                self.recorder.reject(row, now, "max_model_len", self.step + 1)
                self._answer(row, now)
                continue
            heapq.heappush(self._waiting, (live.rank, live))

    # -- Algorithm 1 ------------------------------------------------------------------------------

    def _advance(self, work: Work, now: Tick) -> tuple[Work | None, Tick]:
        """Launch `work` now, decide what follows; returns that and when it can be launched."""
        self.step += 1
        self._running = True
        cost = self.executor.step(work.shape)
        end = now + cost
        self._progress(work, end)
        if self.leaps and self.batch.decoding and not self._waiting and not self._prefilling:
            return self._leap(now, end, cost)
        following = self._decide()
        self.recorder.step(1, cost)
        if following is None:
            return None, end
        for plan in self._late:
            self.worker.submit(plan, end)
        self._late.clear()
        launch = self.worker.wait(end)
        if (
            self.leaps
            and launch == end
            and not (following or self._prefilling or self._released)
            and not (self._preempted or self._retired)
            and self.batch.decoding
        ):
            return self._leap_on(following, launch)
        return following, launch

    def _progress(self, work: Work, end: Tick) -> None:
        """What the step now running does: prompts completed, answers finished."""
        step = self.step
        self._granted = False
        for live in work:
            seq = live.seq
            if live.prefilled < seq.prompt_tokens:
                continue
            self._event = True
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
            heapq.heappush(self._finishing, (live.finish_step, seq.order, live))
        finishing = self._finishing
        while finishing and finishing[0][0] <= step:
            _, order, live = heapq.heappop(finishing)
            if live.finish_step == step and order == live.seq.order:  # not preempted since
                self._finish(live, end)

    def _decide(self) -> Work | None:
        """The next step: decoding, then prompts in progress, then admissions. None: nothing runs.

        A shortage waits for memory on its way, if that helps, else preempts; after a preemption
        nobody is admitted.
        """
        batch = self.batch
        self._granted = self._preempted = self._retired = False
        while batch.decoding:
            plan = self.policy.extend(batch)
            if isinstance(plan, Plan) and (plan := self._submit(plan)) is None:
                self._kv_tokens += len(batch.decoding)
                self._granted = True
                break
            if not self._make_room(plan):
                return self._stall()
        work = Work()
        budget = self.limits.max_batched_tokens - len(batch.decoding)
        for live in list(self._prefilling.values()):
            budget -= self._continue_prompt(live, work, budget)
        if not self._preempted:
            self._admit(work, budget)
        self._retire(self._ended)
        if self.limits.check:
            self.policy.check_integrity()
        decoding = len(batch.decoding)
        if not work and not decoding:
            return self._stall() if batch.running else None
        chunks = tuple([(live.chunk, live.prefilled - live.chunk) for live in work])
        work.shape = StepShape(decoding, self._kv_tokens, chunks)
        if decoding:
            self._fruitless = 0
        return work

    def _continue_prompt(self, live: Live, work: Work, budget: int) -> int:
        """Grant the next chunk of a prompt in progress; returns its tokens."""
        seq = live.seq
        tokens = min(budget, seq.prompt_tokens - live.prefilled)
        while tokens > 0 and seq.index in self._prefilling:
            plan = self.policy.extend_prompt(seq, tokens)
            if isinstance(plan, Plan) and (plan := self._submit(plan)) is None:
                work.append(live)
                live.chunk = tokens
                live.prefilled += tokens
                return tokens
            if not self._make_room(plan, work):
                break  # it sits this step out
        return 0

    def _admit(self, work: Work, budget: int) -> None:
        """Admissions in order of waiting, until the first that is refused."""
        batch, waiting = self.batch, self._waiting
        while waiting:
            live = waiting[0][1]
            seq = live.seq
            if budget <= 0:
                return self._explain_wait(live, "max_batched_tokens", 0)
            if len(batch.running) >= self.limits.max_num_seqs:
                return self._explain_wait(live, "max_num_seqs", 0)
            seq.order = self._orders
            match = self.policy.match(seq)
            refusal = self._create(live, match, budget)
            if refusal is not None and match.tokens and not (batch.running or self._running):
                match = NO_MATCH  # alone and still refused: what the match pins may be in the way
                refusal = self._create(live, match, budget)
            if refusal is not None:
                if batch.running or self._running:
                    reason = "slots" if refusal.slots else "memory"
                    return self._explain_wait(live, reason, refusal.nbytes)
                heapq.heappop(waiting)
                self._reject(live, "capacity", refusal.nbytes)
                continue
            heapq.heappop(waiting)
            self._orders += 1
            self._event = True
            batch.running[seq.index] = seq
            self._prefilling[seq.index] = live
            work.append(live)
            budget -= live.chunk
            self.recorder.admit(
                seq.index, self._now, self.step + 1, match.tokens, seq.preemptions > 0
            )
        return None

    def _create(self, live: Live, match: Match, budget: int) -> Shortage | None:
        """Ask the policy for the match and the first chunk; None if it was granted."""
        seq = live.seq
        tokens = min(budget, seq.prompt_tokens - match.tokens)
        held = whole = match.tokens + tokens
        if self._ahead:
            whole = max(held, min(seq.prompt_tokens + self._ahead, self.limits.max_model_len))
        while True:
            plan = self.policy.create(seq, match, tokens, whole)
            if isinstance(plan, Shortage):
                return plan
            if self._submit(plan) is None:
                break
            match = self.policy.match(seq)  # the limit is lower now: what was evicted is gone
            tokens = min(budget, seq.prompt_tokens - match.tokens)
        live.prefilled = match.tokens + tokens
        live.chunk = tokens
        return None

    # -- leaps ------------------------------------------------------------------------------------

    def _leap(self, now: Tick, end: Tick, cost: Tick) -> tuple[Work | None, Tick]:
        """`_decide` where nobody waits and no prompt is in progress: for as many steps as it can.

        The running step was launched at `now` and ends at `end`. Steps can then only extend and
        retire; they go singly while something is to be retired or compute does not hide memory
        work, and all the others in one call.
        """
        while True:
            members = len(self.batch.decoding)
            affine = self.executor.affine(members, self._kv_tokens + members)
            if affine is not None and not self._released:
                steps = self._quiet_steps(now, end, cost, affine)
                if steps:
                    return self._grant(steps, now, end, cost, affine)
            plan = self.policy.extend(self.batch)
            if isinstance(plan, Shortage) or self._submit(plan, now) is not None:
                self._now = now
                following = self._decide()
            else:
                self._kv_tokens += members
                self._retire(self._ended, now)
                following = self._decoding_work()
            self.recorder.step(1, cost)
            if following is None:
                return None, end
            launch = self.worker.wait(end)
            if affine is None or launch > end or following or self._waiting:
                return following, launch
            if self._finishes_next() or not self._undisturbed(launch):
                return following, launch
            if not self.policy.headroom(self.batch, 1).steps:
                return following, launch
            self.step += 1
            now, cost = launch, affine.first
            end = now + cost

    def _leap_on(self, following: Work, launch: Tick) -> tuple[Work, Tick]:
        """The same after a `_decide` that admitted nobody: who was refused stays so, as long as
        memory is only taken."""
        affine = self.executor.affine(len(self.batch.decoding), self._kv_tokens)
        if affine is None or self._finishes_next() or not self._undisturbed(launch):
            return following, launch
        self.step += 1
        cost = affine.first
        after = Affine(cost + affine.slope, affine.slope, affine.until - 1)
        steps = self._quiet_steps(launch, launch + cost, cost, after)
        if steps:
            return self._grant(steps, launch, launch + cost, cost, after)
        self.step -= 1
        return following, launch

    def _grant(
        self, steps: int, now: Tick, end: Tick, cost: Tick, affine: Affine
    ) -> tuple[Work, Tick]:
        """Decide the next `steps` steps at once; returns the last and the time of its launch."""
        plan = self.policy.extend(self.batch, steps)
        assert isinstance(plan, Plan), "headroom promised what extend refused"
        compute = cost + span(affine.first, affine.slope, 0, steps - 1)
        if plan is not NOTHING:
            self._execute(plan)
            before_last = end + span(affine.first, affine.slope, 0, steps - 2)
            self.worker.leap(plan, now if steps == 1 else before_last)
        self._kv_tokens += len(self.batch.decoding) * steps
        self.step += steps - 1
        self.recorder.step(steps, compute)
        if self.limits.check:
            self.policy.check_integrity()
        return self._decoding_work(), now + compute

    def _quiet_steps(self, now: Tick, end: Tick, cost: Tick, affine: Affine) -> int:
        """How many steps can be decided at once, at the launch of the running one: until somebody
        finishes, arrives or runs short, and if compute hides all memory work. 0 if fewer than 2."""
        steps = min(self._next_finish() - self.step, affine.until + 1)
        if steps <= 1:
            return 0
        coming = self.arrivals.next_at
        if coming != NEVER:
            # Step s + i is decided at the launch of s + i - 1, which must lie before the arrival.
            if end >= coming:
                return 0
            steps = 2 + steps_until(coming - end, affine.first, affine.slope, steps - 2)
        headroom = self.policy.headroom(self.batch, steps)
        if headroom.steps <= 1:
            return 0
        if headroom.peak is not None:
            backlog = max(0, self.worker.free_at - now)
            if backlog + self.worker.cost(headroom.peak) > min(cost, affine.first):
                return 0
        return headroom.steps

    def _next_finish(self) -> int:
        """The next step in which a decoding sequence finishes."""
        finishing = self._finishing
        while finishing[0][2].finish_step != finishing[0][0]:
            heapq.heappop(finishing)  # preempted since
        return finishing[0][0]

    def _finishes_next(self) -> bool:
        return self._next_finish() == self.step + 1

    def _undisturbed(self, launch: Tick) -> bool:
        """Nobody will have arrived by then."""
        return self.arrivals.next_at > launch

    def _decoding_work(self) -> Work:
        work = Work()
        work.shape = StepShape(len(self.batch.decoding), self._kv_tokens, ())
        return work

    # -- shortage ---------------------------------------------------------------------------------

    def _make_room(self, shortage: Shortage, work: Work | None = None) -> bool:
        """After a refusal: True to try again, False to wait until what runs has ended."""
        if self._retire(self._ended):
            return True
        if self._running and shortage.will_clear and self._released:
            return False
        self._preempt(shortage, work)
        return True

    def _preempt(self, shortage: Shortage, work: Work | None) -> None:
        """Take memory from the policy's victim, which waits again; alone, it is answered."""
        victim = self.policy.select_victim(self.batch)
        if victim is None:
            raise CapacityError(
                f"the {self.policy.name} policy is {shortage.nbytes} bytes short and names no victim"
            )
        live = self._live[victim.index]
        alone = len(self.batch.running) == 1
        keep = Keep.NONE if alone else Keep.RECORD
        if work is not None and live in work:
            work.remove(live)
            keep = Keep.NONE  # the chunk granted will not be computed
        if self._granted and victim.index in self.batch.decoding and victim.output_content:
            keep = Keep.NONE  # nor will the token
        self._leave(live, keep)
        self._event = self._preempted = True
        if not self._running:
            self._retire(self.step)
        if alone:
            self._reject(live, "capacity", shortage.nbytes)
            return
        victim.preemptions += 1
        victim.prompt_tokens = self._prompts[victim.index] + live.generated
        live.prefilled = live.chunk = 0
        self.recorder.preempt(
            victim.index, self._now, self.step + 1, "shortage", shortage.nbytes
        )
        heapq.heappush(self._waiting, (live.rank, live))

    def _stall(self) -> None:
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
        self._prefilling.pop(seq.index, None)
        if self.batch.decoding.pop(seq.index, None) is not None:
            decoded = self.step - live.since + 1
            self._kv_tokens -= seq.prompt_tokens + decoded + self._granted
            live.generated += decoded
            live.finish_step = -1
        self._submit(self.policy.release(seq, keep if seq.content else Keep.NONE, self.step))
        if self.policy.fenced:
            self._released.append(self.step)

    def _retire(self, step: int, now: Tick | None = None) -> bool:
        """Tell the policy that the kernels of `step` have ended; True if somebody had left by then."""
        released = self._released
        if not released or released[0] > step:
            return False
        self._released = [last for last in released if last > step]
        self._submit(self.policy.retire(step), now)
        self._retired = True
        return True

    def _finish(self, live: Live, end: Tick) -> None:
        row = live.seq.index
        self._leave(live, Keep.RECORD)
        self._event = True
        self._fruitless = 0
        self.recorder.finish(row, end)
        if self.recorder.decisions:
            self.recorder.decide(self.step, end, row, "finish", "", 0)
        self._answer(row, end)

    def _reject(self, live: Live, reason: str, bytes_short: int) -> None:
        row = live.seq.index
        self._event = True
        self.recorder.decide(self.step + 1, self._now, row, "short", reason, bytes_short)
        self.recorder.reject(row, self._now, reason, self.step + 1)
        self._answer(row, self._now)

    def _answer(self, row: int, at: Tick) -> None:
        del self._live[row]
        self.answered += 1
        self.arrivals.answered(row, at)

    def _explain_wait(self, live: Live, reason: str, bytes_short: int) -> None:
        if self.recorder.decisions:
            self.recorder.decide(
                self.step + 1, self._now, live.seq.index, "wait", reason, bytes_short
            )

    # -- plans ------------------------------------------------------------------------------------

    @property
    def _ended(self) -> int:
        """The last step whose kernels have ended for certain."""
        return self.step - 1 if self._running else self.step

    def _submit(self, plan: Plan, now: Tick | None = None) -> Shortage | None:
        """Have the backend execute `plan` and the worker spend its time; None when it is done.

        If the device refuses (out of memory under the limit), the decision is undone, the limit
        lowered to what is held, and the refusal returned like a policy's own.
        """
        if plan is NOTHING:
            return None
        receipt = self._execute(plan)
        if receipt is not None:
            return receipt
        retired = plan.phase is Phase.RETIRE
        if self.policy.lookahead == 0 and self._running and not retired:
            self._late.append(plan)
        else:
            self.worker.submit(plan, self._now if now is None else now, needed=not retired)
        return None

    def _execute(self, plan: Plan) -> Shortage | None:
        receipt = self.backend.settle(self.backend.submit(plan, self.step + 1))
        if receipt.done:
            return None
        if plan.phase not in (Phase.CREATE, Phase.PREFILL, Phase.EXTEND):
            raise BackendError(
                f"the backend could not execute a {plan.phase.name} plan of the "
                f"{self.policy.name} policy (call {receipt.failed_call})"
            )
        self.policy.rollback(plan)
        self.policy.set_limit(sum(self.policy.usage()))
        return Shortage(receipt.short_bytes)
