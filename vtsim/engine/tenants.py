"""Several engines on one GPU: each replays its own trace through its own policy, in one time.

A tenant's step is launched when compute is its turn (`vtsim.engine.compute`), and decided under the
limit that the others leave it (`vtsim.engine.grants`). Steps, decisions and results are those of
`Engine`; a tenant that nobody disturbs is an `Engine` to the last bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from vtsim.engine.account import Account, SharedBackend
from vtsim.engine.arrivals import NEVER
from vtsim.engine.compute import Compute
from vtsim.engine.grants import REFUSED, Grants
from vtsim.engine.loop import LATEST, Engine
from vtsim.engine.state import Limits, Live, Step
from vtsim.errors import InvariantError, VtsimError
from vtsim.metrics.beside import TenantRecorder
from vtsim.plan import NOTHING, Match, Plan, Shortage
from vtsim.ports import Affine, Executor, Headroom, MemoryPolicy, MemoryTimes
from vtsim.request import Tick, Trace


class TenantEngine(Engine):
    """One tenant: an `Engine` that waits for its turn and asks others for memory."""

    recorder: TenantRecorder
    backend: SharedBackend

    def __init__(
        self,
        name: str,
        order: int,
        trace: Trace,
        policy: MemoryPolicy,
        backend: SharedBackend,
        executor: Executor,
        times: MemoryTimes,
        recorder: TenantRecorder,
        limits: Limits,
        account: Account,
    ) -> None:
        super().__init__(trace, policy, backend, executor, times, recorder, limits)
        self.name = name
        self.order = order
        self.account = account
        self.ended: Tick = -1
        """When its last request was answered; -1: not yet."""
        self.quiet_until: Tick = 0
        """It does nothing before that time, unless it is asked for memory."""
        self.waits = 0
        """Times it waited for memory of others with nothing else to do."""
        self._may_leap = self.leaps
        self._awaited: Tick = REFUSED
        self._held_back = False
        self._horizon: Tick = NEVER

    def join(self, env: simpy.Environment, compute: Compute, grants: Grants) -> None:
        """Take its place on the GPU."""
        self._compute, self._grants = compute, grants
        self._stirred = env.event()

    def process(self, env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """As `Engine.process`; a launch waits for its turn, a shortage for others."""
        grants, recorder = self._grants, self.recorder
        work: Step | None = None
        wake: Tick = 0
        while wake >= 0:
            if work is not None:
                yield self._compute.turn(self.order)
            now: Tick = env.now  # type: ignore[assignment]
            self.now = now
            waited, self._awaited, self._held_back = self._awaited, REFUSED, False
            grants.enter(self, now)
            self._look_round(now)
            self.eventful = work is None
            while self.arrivals.next_at <= now:
                self.receive()
            if work is not None:
                before = recorder.compute_ticks
                work, wake = self.advance(work)
                self._compute.hold(now + recorder.compute_ticks - before)
            else:
                self.running = False
                self.retire(self.step)
                work = self.decide()
                wake = self._sleep() if work is None else self.worker.wait(now)
            self._settle(now)
            if self.eventful:
                self.observe(now)
            if LATEST < wake < NEVER:
                raise VtsimError(
                    f"tenant {self.name}: the run would pass {LATEST / 1e12:,.0f} s, the end of "
                    "64-bit picoseconds: arrivals or waits lie too far apart"
                )
            idle = work is None and not (self.batch.running or self._waiting)
            self.quiet_until = (NEVER if wake < 0 else wake) if idle else now
            blocked = work is None and self._awaited == NEVER
            if not (blocked and waited == NEVER):
                self._stir_others()
            if blocked:
                self._stirred = env.event()
                yield self._stirred
            elif wake > now:
                yield env.timeout(wake - now)
        stranded = self.arrivals.stranded()
        if stranded:
            raise VtsimError(
                f"tenant {self.name}: {len(stranded)} requests wait for each other and never "
                f"arrive, the first: {self.trace.id_of(stranded[0])}"
            )
        self.ended = self.now

    def close(self) -> None:
        """All tenants have ended: give everything back, finish the record."""
        self.conclude(self.ended)

    # -- compute ----------------------------------------------------------------------------------

    def _look_round(self, now: Tick) -> None:
        """Leap only while nobody else does anything, and no further than that."""
        self._horizon = NEVER
        for other in self._grants.tenants:
            if other is not self:
                self._horizon = min(self._horizon, other.quiet_until)
                for when, _ in other.account.leaving:
                    self._horizon = min(self._horizon, when)
        self.leaps = self._may_leap and self._horizon > now

    def _quiet_steps(self, end: Tick, cost: Tick, affine: Affine) -> Headroom | None:
        arrivals = self.arrivals
        own = arrivals.next_at
        arrivals.next_at = min(own, self._horizon)  # what somebody else does ends a leap, too
        quiet = super()._quiet_steps(end, cost, affine)
        arrivals.next_at = own
        return quiet

    def _quiet_at(self, launch: Tick) -> bool:
        """Never: no decision is made at another instant than the one that all tenants are in."""
        return False

    # -- memory -----------------------------------------------------------------------------------

    def submit(self, plan: Plan) -> Shortage | None:
        refusal = super().submit(plan)
        if refusal is None and plan is not NOTHING:
            self.account.book(plan.bytes_taken, self.worker.free_at)
        return refusal

    def execute(self, plan: Plan) -> None:
        super().execute(plan)
        self.account.book(plan.bytes_taken, self.worker.free_at)

    def _settle(self, now: Tick) -> None:
        """What a leap took is booked here."""
        self.account.book(self.backend.bytes_in_use() - self.account.held, now)

    def carry_out(self, plan: Plan, now: Tick) -> None:
        """Give memory back for another tenant: no launch of its own waits for it."""
        super().execute(plan)
        self.worker.submit(plan, now, False)
        self.account.book(plan.bytes_taken, self.worker.free_at)

    def observe(self, now: Tick) -> None:
        """Record what held until now."""
        self._grants.sample(self if self.ended < 0 else None, now)

    @property
    def _alone(self) -> bool:
        """Nothing of it runs."""
        return not (self.batch.running or self.running)

    def _create(self, live: Live, match: Match, budget: int) -> Shortage | None:
        """As ever; but while others come first, what is idle here is theirs, too."""
        grants, account = self._grants, self.account
        most = grants.admission_limit(self, self.now, self._alone)
        if most is None:
            return super()._create(live, match, budget)
        usage = self.policy.usage()
        tokens = live.seq.prompt_tokens - match.tokens + self._ahead
        over = usage.kv_live + usage.kv_slack + account.bytes_of(tokens) - most
        refusal: Shortage | None = Shortage(over)
        if over <= 0:
            grants.admit_within(self, most, self.now)
            refusal = super()._create(live, match, budget)
            grants.admit_within(self, None, self.now)
        self._held_back = refusal is not None
        return refusal

    def _comes(self, shortage: Shortage) -> bool:
        self.account.short = shortage.nbytes > 0
        if self._released and shortage.will_clear:
            return False  # its own is on its way
        if self._held_back:  # others are before it
            at = NEVER if self._alone else REFUSED
        else:
            at = self._grants.ask(self, shortage, self.now, self._alone)
        self.account.short = self.account.short and at in (REFUSED, NEVER)
        if at == REFUSED:
            return False
        self._awaited = max(self._awaited, at)
        return True

    def _fits_later(self, shortage: Shortage) -> bool:
        return self._grants.fits_later(self, shortage)

    def _sleep(self) -> Tick:
        """Until the memory that was asked for comes; NEVER: until others have done something."""
        if self._awaited == REFUSED:
            return super()._sleep()
        self.waits += 1
        if self._awaited <= self.now:
            self.stall()
        return self._awaited

    def _stir_others(self) -> None:
        for other in self._grants.tenants:
            if other is not self and other._awaited == NEVER and not other._stirred.triggered:
                other._stirred.succeed()


def run_tenants(env: simpy.Environment, tenants: Sequence[TenantEngine], grants: Grants) -> Tick:
    """Replay all to their ends; returns the time of the last. Each has been set up."""
    compute = Compute(env)
    grants.open(tenants)
    for tenant in tenants:
        tenant.join(env, compute, grants)
    over = env.event()

    def live(tenant: TenantEngine) -> Generator[simpy.Event, Any, None]:
        try:
            yield from tenant.process(env)
        except BaseException as error:  # simpy makes another of it, and of some it cannot
            if not over.triggered:
                over.fail(error)  # type: ignore[arg-type]
            return
        if all(other.ended >= 0 for other in tenants):
            over.succeed()

    for tenant in tenants:
        env.process(live(tenant))
    try:
        env.run(until=over)
    except RuntimeError as error:  # nothing is left to happen, or a plug-in's own
        if over.triggered:
            raise
        stuck = ", ".join(tenant.name for tenant in tenants if tenant.ended < 0)
        raise InvariantError("tenants-progress", f"{stuck} wait for memory for ever") from error
    for tenant in tenants:
        tenant.close()
    end = max(tenant.ended for tenant in tenants)
    grants.recorder.finish_run(end)
    return end
