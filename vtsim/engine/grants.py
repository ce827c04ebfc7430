"""Who may hold how much of the memory that tenants share: grants, and what is taken back for them.

A tenant's policy may hold what it holds and what nobody else has, never more than its ceiling and
never of another's floor. What it is refused may be idle elsewhere (pooled, parked, kept prefixes):
then others give it back, all that is missing or nothing, and it comes when their drivers have
done so. Nobody gives what a sequence uses. It knows bytes, not sequences or steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vtsim.engine.account import Account
from vtsim.engine.arrivals import NEVER
from vtsim.errors import BackendError, CapacityError, InvariantError
from vtsim.metrics.recorder import Recorder
from vtsim.plan import MemoryUsage, Plan, Shortage
from vtsim.quantities import format_bytes
from vtsim.request import Tick

if TYPE_CHECKING:
    from vtsim.engine.tenants import TenantEngine

REFUSED: Tick = -1
"""Nobody can give it."""


class Grants:
    """The shared memory. Tenants enter an instant one after another, and ask inside it."""

    def __init__(self, shared_bytes: int, capacity_bytes: int, recorder: Recorder) -> None:
        self.shared_bytes = shared_bytes
        self.capacity_bytes = capacity_bytes
        self.recorder = recorder
        """Of the whole GPU."""
        self.fixed_bytes = 0
        """What is never KV, of all tenants."""
        self.tenants: list[TenantEngine] = []
        self.reclaimed: dict[tuple[int, int], list[int]] = {}
        """(who gave, who got) -> [bytes, times]."""
        self._first: TenantEngine | None = None
        """Who has waited longest, with nothing running, for others to give up what they use."""
        self._wanted = 0
        self._entry: tuple[TenantEngine, MemoryUsage, int] | None = None
        self._seen: list[tuple[MemoryUsage, int]] | None = None
        """Each tenant's usage and bytes held when the instant was entered."""

    def open(self, tenants: Sequence[TenantEngine]) -> None:
        """All are set up. Raises `CapacityError` if that took what is another's."""
        self.tenants = list(tenants)
        self.fixed_bytes = sum(tenant.account.fixed_bytes for tenant in tenants)
        for tenant in tenants:
            tenant.account.held = tenant.backend.bytes_in_use()
        over = sum(tenant.account.kept(0) for tenant in tenants) - self.shared_bytes
        if over > 0:
            raise CapacityError(
                f"{tenants[0].policy.name}: what tenants take at set-up and what each is sure of "
                f"are {format_bytes(over)} more than {format_bytes(self.shared_bytes)}"
            )

    def enter(self, tenant: TenantEngine, now: Tick) -> MemoryUsage:
        """`tenant` decides now: set its policy's limit; returns its usage before that."""
        account = tenant.account
        if self._first is tenant:
            self._first = None
        account.claim, account.short = 0, False
        for other in self.tenants:
            leaving = other.account.leaving
            if leaving and leaving[0][0] <= now:
                other.account.leaving = [entry for entry in leaving if entry[0] > now]
        usage = tenant.policy.usage()
        self._entry, self._seen = (tenant, usage, account.held), None
        others = sum(other.account.held for other in self.tenants if other is not tenant)
        tenant.backend.set_reserved(self.fixed_bytes + others)
        if account.gives:
            self._set_limit(tenant, self._left_for(tenant, now))
        return usage

    def _left_for(self, tenant: TenantEngine, at: Tick) -> int:
        """What the others leave to `tenant` at `at`."""
        others = (other.account for other in self.tenants if other is not tenant)
        return self.shared_bytes - sum(max(account.kept(at), account.claim) for account in others)

    def _set_limit(self, tenant: TenantEngine, limit: int) -> None:
        """The policy may hold `limit`, what it holds already, and no more than its ceiling."""
        account = tenant.account
        limit = min(account.share.ceiling_bytes, limit)
        limit = max(account.held, limit // account.unit_bytes * account.unit_bytes)
        if limit == account.granted:
            return
        plan = tenant.policy.set_limit(limit)
        if not isinstance(plan, Plan) or not plan.empty:
            raise BackendError(
                f"the {tenant.policy.name} policy holds {account.held} B and does not "
                f"accept a limit of {limit} B"
            )
        account.granted = limit

    def admission_limit(self, tenant: TenantEngine, now: Tick, alone: bool) -> int | None:
        """The most that `tenant` may use when it admits somebody new; None: as much as it can.

        - its part, while something of it runs and somebody else is short who holds less than
          theirs;
        - what the first of those does not wait for who have nothing running."""
        if not tenant.account.gives:
            return None
        limits = []
        others = [other.account for other in self.tenants if other is not tenant]
        if not alone and any(o.short and o.held < o.share.part_bytes for o in others):
            limits.append(tenant.account.share.part_bytes)
        first = self._first
        if first is not None and first is not tenant:
            own = max(first.account.kept(now), first.account.claim)
            limits.append(self._left_for(tenant, now) - max(0, self._wanted - own))
        return min(limits, default=None)

    def admit_within(self, tenant: TenantEngine, limit: int | None, now: Tick) -> None:
        """Until it is called with None, the policy has no more than `limit`, and what it holds."""
        left = self._left_for(tenant, now)
        self._set_limit(tenant, left if limit is None else min(limit, left))

    # -- asking -----------------------------------------------------------------------------------

    def fits_later(self, tenant: TenantEngine, shortage: Shortage) -> bool:
        """What was refused is within what `tenant` may ever hold, and other tenants have it."""
        account = tenant.account
        wanted = account.granted + self._missing(account, shortage)
        return account.gives and account.granted < wanted <= account.share.ceiling_bytes

    def ask(self, tenant: TenantEngine, shortage: Shortage, now: Tick, alone: bool) -> Tick:
        """`tenant` was refused: when it will have what is missing. NEVER: when others give up what
        they use, which only who has nothing running (`alone`) waits for. Else REFUSED."""
        if shortage.slots or not self.fits_later(tenant, shortage):
            return REFUSED
        account = tenant.account
        wanted = account.granted + self._missing(account, shortage)
        if not self._take_back(tenant, wanted - self._left_for(tenant, NEVER), now):
            if not alone:
                return REFUSED
            if self._first is None:
                self._first, self._wanted = tenant, wanted
            return NEVER
        account.claim = wanted
        times = {when for other in self.tenants for when, _ in other.account.leaving}
        for when in sorted(times | {now}):
            if when >= now and self._left_for(tenant, when) >= wanted:
                return when
        raise InvariantError("grants-are-whole", f"{wanted} B were given and do not come")

    def _missing(self, account: Account, shortage: Shortage) -> int:
        return -(-shortage.nbytes // account.unit_bytes) * account.unit_bytes

    def _take_back(self, tenant: TenantEngine, missing: int, now: Tick) -> bool:
        """Have others give `missing` bytes of what is idle: all of it or nothing."""
        if missing <= 0:
            return True
        givers = [other for other in self.tenants if other is not tenant and other.account.gives]
        idle = {giver.order: self._idle(giver) for giver in givers}
        if sum(idle.values()) < missing:
            return False
        givers = [giver for giver in givers if idle[giver.order]]
        if len(givers) > 1:  # else who is asked refuses by itself
            idle = {giver.order: self._offer(giver) for giver in givers}
        offers = sorted((-idle[giver.order], giver.order, giver) for giver in givers)
        if -sum(offer for offer, _, _ in offers) < missing:
            return False
        for offer, order, giver in offers:
            if missing <= 0:
                break
            unit = giver.account.unit_bytes
            given = self._give(giver, min(-offer, -(-missing // unit) * unit), now)
            missing -= given
            if given:
                record = self.reclaimed.setdefault((order, tenant.order), [0, 0])
                record[0] += given
                record[1] += 1
        return missing <= 0

    def _idle(self, giver: TenantEngine) -> int:
        """What `giver` does not use, above its floor and its claim: it can give no more than so
        much, and less if that lies in pieces between what it uses."""
        account = giver.account
        over = account.held - max(account.share.floor_bytes, account.claim)
        if over <= 0:
            return 0
        usage = giver.policy.usage()
        idle = min(over, account.held - usage.kv_live - usage.kv_slack)
        return idle // account.unit_bytes * account.unit_bytes

    def _offer(self, giver: TenantEngine) -> int:
        """What `giver` could give now. Changes nothing."""
        account = giver.account
        idle = self._idle(giver)
        usage = giver.policy.usage()
        if not (idle and usage.kv_live + usage.kv_slack):
            return idle
        answer = giver.policy.set_limit(0)  # refused, as it must be: it says what is in use
        if isinstance(answer, Plan):
            raise BackendError(f"the {giver.policy.name} policy gives up what is in use")
        free = account.held - answer.nbytes
        return min(idle, free // account.unit_bytes * account.unit_bytes)

    def _give(self, giver: TenantEngine, nbytes: int, now: Tick) -> int:
        """`giver` gives up at least so much; its worker does it when it gets to it."""
        self.snapshot()
        account = giver.account
        before = account.held
        answer = giver.policy.set_limit(before - nbytes)
        if not isinstance(answer, Plan):
            return 0
        giver.observe(now)
        account.granted = before - nbytes
        giver.carry_out(answer, now)
        return before - account.held

    # -- samples ----------------------------------------------------------------------------------

    def snapshot(self) -> list[tuple[MemoryUsage, int]]:
        """How everybody stood when this instant was entered. To be called before it changes
        anything of another's."""
        seen = self._seen
        if seen is None:
            assert self._entry is not None
            entered, usage, held = self._entry
            seen = self._seen = [
                (usage, held) if t is entered else (t.policy.usage(), t.account.held)
                for t in self.tenants
            ]
        return seen

    def sample(self, tenant: TenantEngine | None, now: Tick) -> None:
        """Record what held until now, of the GPU and of `tenant`, and check that it adds up."""
        seen = self.snapshot()
        total = MemoryUsage(*map(sum, zip(*(usage for usage, _ in seen), strict=True)))
        free = self.capacity_bytes - self.fixed_bytes - sum(held for _, held in seen)
        self.recorder.sample(now, total, free)
        if tenant is not None:
            usage, held = seen[tenant.order]
            others = self.capacity_bytes - tenant.account.fixed_bytes - held - free
            tenant.recorder.sample_beside(others, now, usage, free)
        self.check(now)

    def check(self, now: Tick) -> None:
        """Raises `InvariantError` unless what backends say is in use, with all floors, fits."""
        in_use = 0
        for tenant in self.tenants:
            account, said = tenant.account, tenant.backend.bytes_in_use()
            in_use += said
            if said != account.held:
                raise InvariantError(
                    "tenant-is-accounted", f"{tenant.name}: {said} B in use, {account.held} booked"
                )
            if account.gives and account.held > account.share.ceiling_bytes:
                raise InvariantError(
                    "tenant-under-its-ceiling",
                    f"{tenant.name} holds {account.held} B of {account.share.ceiling_bytes}",
                )
        if in_use + self.fixed_bytes > self.capacity_bytes:
            raise InvariantError(
                "tenants-within-capacity",
                f"at {now} ps {in_use} + {self.fixed_bytes} B of {self.capacity_bytes} are used",
            )
        kept = sum(tenant.account.kept(now) for tenant in self.tenants)
        if kept > self.shared_bytes:
            raise InvariantError(
                "floors-are-kept", f"at {now} ps {kept} B of {self.shared_bytes} are spoken for"
            )
