"""Tenants that do not fit side by side, that swap, and faults of who shares: all are told."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from vtsim.engine.grants import Grants
from vtsim.engine.tenants import TenantEngine
from vtsim.errors import BackendError, CapacityError, InvariantError, VtsimError
from vtsim.metrics.recorder import Recorder
from vtsim.metrics.tenants import GpuRun
from vtsim.plan import Phase, Plan, Shortage
from vtsim.policies.vtensor import VTensorPolicy
from vtsim.request import TICKS_PER_S, Trace
from vtsim.tenants import Tenant, replay_tenants
from vtsim.testing.toys import Ask, make_trace, toy_model

MIB = 1 << 20
MODEL = toy_model()
"""64 KiB a token: 32 tokens fill a chunk of 2 MiB."""
S = TICKS_PER_S


def share(
    first: Trace, second: Trace, policies: tuple[str, ...] = ("vtensor",), **options: Any
) -> list[GpuRun]:
    """Both on one GPU. A sequence has at most 300 tokens unless `options` say otherwise."""
    options = {"max_model_len": 300, "kv_memory": 160 * MIB, **options}
    tenants = [Tenant("a", first, MODEL), Tenant("b", second, MODEL)]
    return list(replay_tenants(tenants, policies, **options).runs)


def account(recorder: Recorder) -> dict[str, Any]:
    """All that a run decided, held and took, but whether it leapt."""
    names = [name for name in Recorder.__slots__ if name != "leaps" and name[0] != "_"]
    return {name: getattr(recorder, name) for name in names} | {"samples": list(recorder.samples)}


def hogs(count: int, at: int = 0, output: int = 60) -> Trace:
    return make_trace([Ask(at, 200, output) for _ in range(count)])


# -- what does not fit side by side ---------------------------------------------------------------


@pytest.mark.parametrize("policy", ("vtensor", "vattention", "elastic-paged", "native"))
def test_long_requests_of_two_tenants_are_all_answered(policy: str) -> None:
    """Two sequences of max_model_len do not fit together, so floors are less than one: tenants
    with nothing running wait until others have given up what they use, and come to their turn."""
    random = Random(5)
    asks = [Ask(random.randrange(S), random.randint(300, 900), 60) for _ in range(12)]
    memory = 70 * MIB if policy != "vattention" else 110 * MIB
    options: dict[str, Any] = {"max_model_len": 1000, "kv_memory": memory, "check": True}
    runs = {}
    for step in (False, True):
        (runs[step],) = share(
            make_trace(asks[:6]), make_trace(asks[6:]), (policy,), step=step, **options
        )
    run = runs[False]
    for leapt, stepped in zip(run.runs, runs[True].runs, strict=True):
        assert account(leapt.recorder) == account(stepped.recorder)
    ceilings = [own.limit_bytes for own in run.runs]
    for own, ceiling in zip(run.runs, ceilings, strict=True):
        needs = own.trace.prompt_tokens + own.trace.output_tokens
        for row, need in enumerate(needs.tolist()):
            if need * 65_536 > ceiling:
                assert own.recorder.reasons[row] == "capacity"
        rejected = own.requests["outcome"] == "rejected"
        assert (needs[rejected] * 65_536 > ceiling - 16 * MIB).all()


# -- swap and victims -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ("paged", "vtensor", "vattention", "elastic-paged"))
def test_tenants_swap_too(policy: str) -> None:
    memory = 100 * MIB if policy != "vattention" else 140 * MIB
    options: dict[str, Any] = {"preemption": "swap", "kv_memory": memory, "check": True}
    (run,) = share(hogs(12, output=99), hogs(12, at=S // 9, output=99), (policy,), **options)
    assert run.summary["requests"]["preemptions"] > 0
    assert run.summary["requests"]["completed"] == 24
    swapped = sum(own.summary["vmm"]["calls"]["swap_out"] for own in run.runs)
    back = sum(own.summary["vmm"]["calls"]["swap_in"] for own in run.runs)
    assert swapped > 0 and back > 0


# -- faults are found -----------------------------------------------------------------------------


def test_granting_what_others_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grants, "_left_for", lambda self, tenant, at: 10 * self.shared_bytes)
    with pytest.raises(VtsimError, match="floors-are-kept|takes more than its limit leaves"):
        share(hogs(40), hogs(40))


def test_set_ups_that_do_not_fit_together_are_told() -> None:
    with pytest.raises(CapacityError, match="what tenants take at set-up .* more than 18.0 MiB"):
        share(hogs(1), hogs(1), ("elastic-paged",), kv_memory=18 * MIB)


def test_a_policy_that_refuses_what_it_holds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit = VTensorPolicy.set_limit

    def grudging(self: VTensorPolicy, limit_bytes: int) -> Any:
        return Shortage(1) if self._own_units else set_limit(self, limit_bytes)

    monkeypatch.setattr(VTensorPolicy, "set_limit", grudging)
    with pytest.raises(BackendError, match="the vtensor policy holds .* not accept a limit of"):
        share(hogs(20), hogs(20, at=S // 40))


def test_giving_up_what_is_in_use_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit = VTensorPolicy.set_limit

    def lavish(self: VTensorPolicy, limit_bytes: int) -> Any:
        return Plan(Phase.LIMIT) if self._own_units else set_limit(self, limit_bytes)

    monkeypatch.setattr(VTensorPolicy, "set_limit", lavish)
    # Of three: where two can give, each is asked what it uses.
    monkeypatch.setattr(Grants, "_idle", lambda self, giver: 100 * MIB)
    traces = (hogs(20), hogs(20), hogs(20, at=S // 40))
    tenants = [Tenant(name, trace, MODEL) for name, trace in zip("abc", traces, strict=True)]
    with pytest.raises(BackendError, match="the vtensor policy gives up what is in use"):
        replay_tenants(tenants, ["vtensor"], max_model_len=300, kv_memory=160 * MIB)


def test_tenants_that_wait_for_ever_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sequences that do not fit side by side, and nobody says that one of them has ended."""
    monkeypatch.setattr(TenantEngine, "_stir_others", lambda self: None)
    long = make_trace([Ask(0, 900, 60)])
    with pytest.raises(InvariantError, match="tenants-progress broken: b wait for memory"):
        share(long, long, max_model_len=1000, kv_memory=70 * MIB)


def test_a_tenant_that_waits_has_its_turn() -> None:
    """The same, where they are told: the second is answered when the first is."""
    long = make_trace([Ask(0, 900, 60)])
    (run,) = share(long, long, max_model_len=1000, kv_memory=70 * MIB, check=True)
    first, second = run.runs
    assert run.summary["requests"]["completed"] == 2 and run.summary["requests"]["preemptions"] == 0
    assert second.recorder.admitted_at[0] >= first.recorder.finished_at[0]
    assert second.memory_waits > 0


@pytest.mark.parametrize(
    ("asks", "said"),
    (
        (
            [Ask(0, 9, 9, after=(1,)), Ask(0, 9, 9, after=(0,))],
            "b: 2 requests wait for each",
        ),
        (
            [Ask(1 << 62, 9, 9), Ask(0, 9, 9, after=(0,), wait=1 << 62)],
            "b: the run would pass",
        ),
    ),
)
def test_what_never_comes_is_told(asks: list[Ask], said: str) -> None:
    with pytest.raises(VtsimError, match=said):
        share(hogs(1), make_trace(asks))


def test_memory_that_nobody_booked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtsim.engine.account.Account.book", lambda self, taken, done: None)
    with pytest.raises(InvariantError, match="tenant-is-accounted"):
        share(hogs(4), hogs(4))
