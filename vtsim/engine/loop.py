"""The replay loop: one SimPy process that launches steps, one by one or in leaps.

At the launch of step t the scheduler decides step t + 1 (DESIGN 4), its memory plans are submitted,
and the process sleeps until t has ended and the plans are done. A leap is the same decisions, made
at once for a run of decode steps in which nothing can happen: it changes no result.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop
from typing import Any

import simpy

from vtsim.engine.arrivals import NEVER
from vtsim.engine.pace import steps_until
from vtsim.engine.scheduler import Scheduler
from vtsim.engine.state import Limits, Step
from vtsim.errors import InvariantError, VtsimError
from vtsim.metrics.recorder import Recorder
from vtsim.plan import NOTHING, Plan
from vtsim.ports import (
    Affine,
    Executor,
    Headroom,
    MemoryBackend,
    MemoryPolicy,
    MemoryTimes,
    StepShape,
)
from vtsim.request import Tick, Trace

__all__ = ["Engine", "Limits"]

_new = tuple.__new__  # a NamedTuple's own is a Python function: a step is made in every decision

LATEST: Tick = (1 << 63) - 1
"""Times are recorded in 64 bits: 106 days."""


class Engine(Scheduler):
    """Replays one trace against one policy. Everything it learns goes to the recorder."""

    __slots__ = ("executor", "leaps")

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
        super().__init__(trace, policy, backend, times, recorder, limits)
        self.executor = executor
        self.leaps = limits.leap and not times.random and policy.lookahead >= 1

    def run(self) -> Tick:
        """Replay to the end; returns the time of it."""
        env = simpy.Environment(initial_time=0)
        env.run(until=env.process(self.process(env)))
        return int(env.now)

    def process(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """The engine's life: launch, or start from idle, or sleep until something arrives."""
        work: Step | None = None
        policy, backend, arrivals, recorder = (
            self.policy,
            self.backend,
            self.arrivals,
            self.recorder,
        )
        timeout = env.timeout
        now: Tick = 0
        while True:
            self.now = now
            usage, free_bytes = policy.usage(), backend.free_bytes()
            self.eventful = work is None
            while arrivals.next_at <= now:  # an answer may set free who arrives at once
                self.receive()
            if work is not None:
                work, wake = self.advance(work)
            else:
                self.running = False
                self.retire(self.step)
                work = self.decide()
                wake = self._sleep() if work is None else self.worker.wait(now)
            if self.eventful:
                recorder.sample(now, usage, free_bytes)
            if wake < 0:
                break
            if wake > LATEST:
                raise VtsimError(
                    f"the run would pass {LATEST / 1e12:,.0f} s, the end of 64-bit picoseconds, "
                    f"with {len(self.trace) - self.answered} requests to go: "
                    "arrivals or waits lie too far apart"
                )
            if wake > now:
                yield timeout(wake - now)
                now = wake
        stranded = self.arrivals.stranded()
        if stranded:
            raise VtsimError(
                f"{len(stranded)} requests wait for each other and never arrive, the first: "
                f"{self.trace.id_of(stranded[0])}"
            )
        self.conclude(self.now)

    def _sleep(self) -> Tick:
        """Nothing can run now: when to look again; -1 for never."""
        if self._waiting or self.batch.running:
            self.stall()
            return self.now
        coming = self.arrivals.next_at
        return -1 if coming == NEVER else max(coming, self.now)

    def advance(self, work: Step) -> tuple[Step | None, Tick]:
        """Launch `work` now, decide what follows; returns that and when it can be launched."""
        self.step += 1
        self.running = True
        prompts, shape, cost = work
        if cost < 0 and shape is not None:
            cost = self.executor.step(shape)
        end = self.now + cost
        if self._released:
            self.retire(self.step - 1)
        self._granted = False
        finishing = self._finishing
        if prompts or finishing and finishing[0][0] <= self.step:
            self.progress(prompts, end)
        if (
            self.leaps
            and self.arrivals.next_at > end
            and self.batch.decoding
            and not (self._waiting or self._prefilling)
        ):
            return self._leap(end, cost)
        following = self.decide()
        recorder = self.recorder
        recorder.steps += 1
        recorder.compute_ticks += cost
        if following is None:
            return None, end
        if self.late:
            for plan in self.late:
                self.worker.submit(plan, end)
            self.late.clear()
        worker = self.worker
        launch = end if worker.needed_at <= end else worker.wait(end)
        if self.leaps and launch == end and not following[0] and self._refusals_last():
            return self._leap_on(following, launch)
        return following, launch

    # -- leaps ------------------------------------------------------------------------------------

    def _leap(self, end: Tick, cost: Tick) -> tuple[Step | None, Tick]:
        """`decide` where nobody waits and no prompt is in progress: for as many steps as it can.

        The running step was launched now and ends at `end`. Steps go singly while released memory
        is to be retired first or compute does not hide memory work, and all others in one call.
        """
        recorder, worker, decoding = self.recorder, self.worker, self.batch.decoding
        while True:
            members = len(decoding)
            affine = self.executor.affine(members, self._kv_tokens + members)
            if affine is not None:
                quiet = self._quiet_steps(end, cost, affine)
                granted = self._grant(quiet, cost, affine) if quiet else None
                if granted is not None:
                    if self._released:
                        self._retire_hidden()
                    return granted
            following = self.decide()
            recorder.steps += 1
            recorder.compute_ticks += cost
            if following is None:
                return None, end
            launch = end if worker.needed_at <= end else worker.wait(end)
            if (
                affine is None
                or launch > end
                or not self._released
                or self._preempted
                or not self._quiet_at(launch)
                or not self.policy.headroom(self.batch, 1).steps
            ):
                return following, launch
            self.step += 1
            self.now, cost = launch, affine.first
            end = launch + cost
            self.retire(self.step - 1)

    def _refusals_last(self) -> bool:
        """Nobody will be admitted before something is released or arrives: memory is only taken
        meanwhile."""
        if self._waiting and not (self._ahead or self.policy.refusals_last):
            return False
        return not (self._prefilling or self._released or self._preempted) and bool(
            self.batch.decoding
        )

    def _leap_on(self, following: Step, launch: Tick) -> tuple[Step, Tick]:
        """Leap from the step just decided, whose launch is at `launch`, if it pays."""
        affine = self.executor.affine(len(self.batch.decoding), self._kv_tokens)
        if affine is None or not self._quiet_at(launch):
            return following, launch
        (cost, slope, until), now = affine, self.now
        after = Affine(cost + slope, slope, until - 1)
        self.step += 1
        self.now = launch
        quiet = self._quiet_steps(launch + cost, cost, after)
        granted = self._grant(quiet, cost, after) if quiet else None
        if granted is not None:
            return granted
        self.step -= 1
        self.now = now
        return following, launch

    def _grant(self, quiet: Headroom, cost: Tick, affine: Affine) -> tuple[Step, Tick] | None:
        """Decide the next `quiet.steps` steps at once; returns the last and the time of its launch,
        or None if the device refuses: then nothing is decided, and steps go singly."""
        steps, _, _, last = quiet
        plan = self.policy.extend(self.batch, steps)
        if not isinstance(plan, Plan):
            raise InvariantError(
                "headroom-is-kept",
                f"the {self.policy.name} policy promised {steps} steps and refused them",
            )
        first, slope, until = affine
        # The running step and all but the last of the run, whose launch ends this decision.
        others = steps - 1
        compute = cost + others * first + slope * (others * (others - 1) // 2)
        launch = self.now + compute
        if plan is not NOTHING:
            if not self._execute(plan, self.step + 1).done:
                self._refused(plan)
                return None
            if last is None:
                last = plan if plan.last is None else plan.last
            self.worker.leap(plan, last, launch - first - (others - 1) * slope)
        members = len(self.batch.decoding)
        self._kv_tokens += members * steps
        self.step += others
        recorder = self.recorder
        recorder.steps += steps
        recorder.leaps += 1
        recorder.compute_ticks += compute
        if self._check:
            self.policy.check_integrity()
        if steps <= until:
            return _new(Step, ([], None, first + others * slope)), launch
        return Step([], StepShape(members, self._kv_tokens)), launch

    def _retire_hidden(self) -> None:
        """Retire, inside a leap, what the running step is the last to read: policy and compute do
        not notice when."""
        plan = self.policy.retire(self._released[-1])
        self._released.clear()
        if plan is not NOTHING:
            self.execute(plan)
            self.worker.hide(plan)

    def _quiet_steps(self, end: Tick, cost: Tick, affine: Affine) -> Headroom | None:
        """The steps that can be decided at once, at the launch of the running one: until somebody
        finishes, arrives or runs short, and if compute hides all memory work. None: not even 2."""
        first, slope, until = affine
        next_finish, _, live = self._finishing[0]
        if live.finish_step != next_finish:
            next_finish = self._next_finish()
        steps = next_finish - self.step
        if steps > until:
            steps = until + 1
        if steps <= 1:
            return None
        coming = self.arrivals.next_at
        if coming != NEVER:
            # Step s + i is decided at the launch of s + i - 1, which must lie before the arrival.
            if end >= coming:
                return None
            steps = 2 + steps_until(coming - end, first, slope, steps - 2)
        at_most = steps
        headroom = self.policy.headroom(self.batch, at_most)
        steps, peak, retire_later, _ = headroom
        if steps > at_most:
            raise InvariantError(
                "headroom-is-bounded",
                f"the {self.policy.name} policy answered {steps} steps to at most {at_most}",
            )
        if steps <= 1:
            return None
        if self._released and (steps == 2 or not retire_later):
            return None  # the second step's launch would submit the retired, too
        if peak is not None:
            busy = peak.busy
            if busy < 0:
                busy = self.worker.cost(peak)
            if self.worker.free_at > self.now:
                busy += self.worker.free_at - self.now
            if busy > cost or busy > first:
                return None
        return headroom

    def _next_finish(self) -> int:
        """The next step in which a decoding sequence finishes."""
        finishing = self._finishing
        while finishing[0][2].finish_step != finishing[0][0]:
            heappop(finishing)  # preempted since
        return finishing[0][0]

    def _quiet_at(self, launch: Tick) -> bool:
        """At the launch of the step just decided nobody will have arrived; it finishes nobody."""
        return self.arrivals.next_at > launch and self._next_finish() != self.step + 1
