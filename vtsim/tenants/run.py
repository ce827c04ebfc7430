"""Runs tenants: divides the memory, opens each one's policy and backend, puts results together."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import simpy

from vtsim.backends.sim import SimBackend
from vtsim.engine.account import Account
from vtsim.engine.grants import Grants
from vtsim.engine.shares import Claimant, Share, elastic, split
from vtsim.engine.tenants import TenantEngine, run_tenants
from vtsim.metrics.beside import TenantRecorder
from vtsim.metrics.progress import Progress
from vtsim.metrics.recorder import Recorder
from vtsim.metrics.tenants import GpuRun, Reclaimed, TenantResult, TenantRun, TenantsResult
from vtsim.plan import Shortage
from vtsim.runs import Parts, Replay, assemble, finished, no_exit, set_up
from vtsim.tenants.asked import Tenant


@dataclass(frozen=True, slots=True)
class TenantsReplay:
    """Tenants that are ready to run."""

    tenants: tuple[Tenant, ...]
    replays: tuple[Replay, ...]
    """One a tenant, all with the same policies and options."""
    shared_bytes: int
    """KV memory for all together."""

    def run(self, progress: Progress | None = None) -> TenantsResult:
        """Replay all tenants together, under each policy in turn."""
        labels = [choice.label for choice in self.replays[0].choices]
        for number in range(len(labels)):  # before the first runs for an hour
            self.divide(number)
        runs = []
        for number, choice in enumerate(self.replays[0].choices):
            with no_exit(choice):
                runs.append(_run_one(self, number, progress))
        results: dict[str, TenantResult] = {}
        for tenant, replay in zip(self.tenants, self.replays, strict=True):
            own = tuple(run.runs[len(results)] for run in runs)
            results[tenant.name] = replay.result(own, TenantResult)
        limits = {tenant.name: tenant.limit_bytes for tenant in self.tenants}
        return TenantsResult(results, tuple(runs), limits)

    def divide(self, number: int) -> tuple[list[Share], bool]:
        """Each tenant's share under a policy, and whether the policy gives memory back."""
        parts = [assemble(r, r.choices[number]) for r in self.replays]
        claimants = [
            Claimant(
                tenant.name,
                kv.units(kv.max_tokens) * kv.unit_bytes,
                tenant.limit_bytes,
                kv.unit_bytes,
            )
            for tenant, kv in zip(self.tenants, (part.kv for part in parts), strict=True)
        ]
        elastic_shares = elastic(self.shared_bytes, claimants)
        if all(
            _gives_back(part, share.ceiling_bytes)
            for part, share in zip(parts, elastic_shares, strict=True)
        ):
            return elastic_shares, True
        return split(self.shared_bytes, claimants), False


def _gives_back(parts: Parts, limit: int) -> bool:
    """Whether what a policy takes at set-up can be had back from it."""
    policy = deepcopy(parts.policy)
    policy.setup(parts.info, parts.kv, limit)
    try:
        return not isinstance(policy.set_limit(0), Shortage)
    except NotImplementedError:
        return False


def _run_one(whole: TenantsReplay, number: int, progress: Progress | None) -> GpuRun:
    """All tenants under one policy, each with a policy, a backend and an engine of its own."""
    shares, gives = whole.divide(number)
    replays = whole.replays
    fixed = [replay.budget.fixed_bytes for replay in replays]
    capacity = replays[0].budget.capacity_bytes
    engines: list[TenantEngine] = []
    made: list[Parts] = []
    for order, (tenant, replay) in enumerate(zip(whole.tenants, replays, strict=True)):
        choice, share = replay.choices[number], shares[order]
        parts = assemble(replay, choice)
        recorder = TenantRecorder(
            f"{choice.label}, {tenant.name}",
            progress,
            requests=len(replay.trace),
            decisions=replay.options.decisions,
            **replay.budget.constants(),
        )
        taken = sum(engine.backend.bytes_in_use() for engine in engines)
        backend = SimBackend(
            parts.info,
            parts.kv,
            placement=replay.options.placement,
            reserved_bytes=sum(fixed) + taken,
            keep_log=replay.options.log,
        )
        set_up(parts, choice, backend, recorder, share.ceiling_bytes)
        unit = parts.kv.unit_bytes
        account = Account(share, unit, gives, fixed[order], parts.kv, granted=share.ceiling_bytes)
        engines.append(
            TenantEngine(
                tenant.name,
                order,
                replay.trace,
                parts.policy,
                backend,
                parts.executor,
                parts.times,
                recorder,
                parts.limits,
                account,
            )
        )
        made.append(parts)
    first, *others = (replay.budget for replay in replays)
    gpu = Recorder(requests=0, **first.constants(*others))
    grants = Grants(whole.shared_bytes, capacity, gpu)
    run_tenants(simpy.Environment(initial_time=0), engines, grants)
    for engine in engines:
        engine.backend.close()
    moved = grants.reclaimed
    runs = tuple(
        finished(
            replay,
            replay.choices[number],
            parts,
            engine.backend,
            engine.recorder,
            engine.account.share.ceiling_bytes,
            TenantRun,
            floor_bytes=engine.account.share.floor_bytes,
            gave_bytes=sum(n for (giver, _), (n, _) in moved.items() if giver == engine.order),
            got_bytes=sum(n for (_, taker), (n, _) in moved.items() if taker == engine.order),
            memory_waits=engine.waits,
        )
        for replay, parts, engine in zip(replays, made, engines, strict=True)
    )
    names = [tenant.name for tenant in whole.tenants]
    return GpuRun(
        label=runs[0].label,
        policy=runs[0].policy,
        elastic=gives,
        shared_bytes=whole.shared_bytes,
        recorder=gpu,
        runs=runs,
        reclaimed=tuple(
            Reclaimed(names[giver], names[taker], nbytes, times)
            for (giver, taker), (nbytes, times) in sorted(moved.items())
        ),
    )
