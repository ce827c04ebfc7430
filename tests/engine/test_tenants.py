"""Tenants: alone they are single replays; together they take turns, and give memory back."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import simpy

import vtsim
from vtsim.backends.gpus import load_gpu
from vtsim.backends.sim import SimBackend
from vtsim.engine.compute import Compute
from vtsim.engine.grants import Grants
from vtsim.metrics.recorder import Recorder
from vtsim.metrics.tenants import GpuRun, TenantRun
from vtsim.plan import Phase
from vtsim.registry import POLICIES
from vtsim.request import TICKS_PER_S, Trace
from vtsim.spec import CallCost, GpuSpec
from vtsim.tenants import Tenant, replay_tenants
from vtsim.testing.cases import random_trace
from vtsim.testing.toys import Ask, make_trace, toy_model

MIB = 1 << 20
MODEL = toy_model()
"""64 KiB a token: 32 tokens fill a chunk of 2 MiB."""
ALL = tuple(POLICIES.built_in)
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


def far_away() -> Trace:
    return make_trace([Ask(10**6 * S, 1, 1)])


# -- alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_a_tenant_that_nobody_disturbs_is_a_single_replay(policy: str, seed: int) -> None:
    trace = random_trace(Random(seed), 40)
    options: dict[str, Any] = {"max_model_len": 480, "decisions": True}
    (both,) = share(trace, far_away(), (policy,), **options)
    mine = both.runs[0]
    (alone,) = vtsim.replay(
        trace, [policy], model=MODEL, kv_memory=mine.limit_bytes, **options
    ).runs
    ours, single = account(mine.recorder), account(alone.recorder)
    # What is free on the GPU is not what is free of a GPU for one: all others' is missing.
    width = len(single["samples"]) // len(alone.timeline)
    others = list(mine.recorder.others)  # type: ignore[attr-defined]
    for row, extra in enumerate(others):
        ours["samples"][width * row + width - 1] += extra
    assert ours == single
    assert mine.requests.equals(alone.requests)
    assert mine.summary["latency"] == alone.summary["latency"]
    assert mine.memory_waits == mine.gave_bytes == 0


# -- compute --------------------------------------------------------------------------------------


def test_steps_never_overlap_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[int, int]] = []
    orders: list[int] = []
    hold, turn = Compute.hold, Compute.turn

    def asked(self: Compute, order: int) -> simpy.Event:
        event = turn(self, order)
        event.callbacks.append(lambda _: orders.append(order))
        return event

    def seen(self: Compute, until: int) -> None:
        held.append((int(self._env.now), until))
        hold(self, until)

    monkeypatch.setattr(Compute, "hold", seen)
    monkeypatch.setattr(Compute, "turn", asked)
    trace = make_trace([Ask(0, 40, 100), Ask(3 * 10**9, 40, 100)])
    (run,) = share(trace, trace, step=True)
    assert all(end <= begin for (_, end), (begin, _) in zip(held, held[1:], strict=False))
    computed = sum(own.recorder.compute_ticks for own in run.runs)
    assert sum(end - begin for begin, end in held) == computed
    # Both decode all the time and neither waits for two steps of the other: nothing is lost.
    assert run.summary["compute_share"] > 0.99
    assert abs(run.runs[0].recorder.end - run.runs[1].recorder.end) < computed // 50
    # Each one's next step is ready when its last ends, so that the other's has been waiting.
    both = [order for order, _ in zip(orders, held, strict=True)]
    assert both.count(0) > 90 and both.count(1) > 90
    assert sum(a != b for a, b in zip(both, both[1:], strict=False)) > 150


# -- memory ---------------------------------------------------------------------------------------


def watch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Everything that backends hold after every plan, summed; more than there is fails."""
    backends: list[Any] = []
    sums: list[int] = []

    class Watched(SimBackend):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            if backends and backends[0].closed:
                backends.clear()
            backends.append(self)

        closed = False

        def execute(self, *given: Any) -> Any:
            receipt = super().execute(*given)
            sums.append(sum(backend.bytes_in_use() for backend in backends))
            return receipt

        def close(self) -> None:
            self.closed = True
            super().close()

    monkeypatch.setattr("vtsim.tenants.run.SimBackend", Watched)
    return sums


@pytest.mark.parametrize("policy", ALL)
def test_random_tenants_finish_under_every_check(
    policy: str, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    sums = watch(monkeypatch)
    pressed = moved = 0
    for seed in range(6 * budget):
        random = Random(seed)
        first, second = random_trace(random, 30), random_trace(random, 30)
        memory = random.choice((40, 60, 100, 160)) * MIB
        if policy == "vattention":
            memory += 32 * MIB  # its eager slots
        options: dict[str, Any] = {
            "max_model_len": random.choice((300, 480)),
            "kv_memory": memory,
            "max_num_seqs": random.choice((4, 256)),
            "max_batched_tokens": random.choice((32, 8192)),
            "admit": random.choice(("prompt", "chunk")),
            "settings": {"vtensor": {"release": random.choice(("park", "unmap"))}}
            if policy == "vtensor"
            else None,
        }
        sums.clear()
        (checked,) = share(first, second, (policy,), check=True, **options)
        assert max(sums) <= memory
        (leapt,) = share(first, second, (policy,), **options)
        (stepped,) = share(first, second, (policy,), step=True, **options)
        for runs in zip(checked.runs, leapt.runs, stepped.runs, strict=True):
            accounts = [account(run.recorder) for run in runs]
            assert accounts[0] == accounts[1] == accounts[2]
            assert runs[0].memory_waits == runs[1].memory_waits == runs[2].memory_waits
        gpus = [account(run.recorder) for run in (checked, leapt, stepped)]
        assert gpus[0] == gpus[1] == gpus[2]
        pressed += checked.summary["requests"]["preemptions"]
        moved += sum(each.nbytes for each in checked.reclaimed)
    assert pressed or policy == "native"
    assert bool(moved) == checked.elastic or policy == "native"


def hogs(count: int, at: int = 0, output: int = 60) -> Trace:
    return make_trace([Ask(at, 200, output) for _ in range(count)])


@pytest.mark.parametrize("policy", ("vtensor", "vattention", "elastic-paged", "native"))
def test_a_floor_is_there_when_it_is_asked_for(policy: str) -> None:
    """One tenant has asked for all there is; the other's first request has its floor at once."""
    (run,) = share(hogs(40), make_trace([Ask(S // 25, 280, 5)]), (policy,), kv_memory=200 * MIB)
    hog, late = run.runs
    assert hog.recorder.end > S // 20  # it was at work when the other came
    assert hog.summary["requests"]["preemptions"] or hog.requests["queue_s"].max() > 0.04
    assert late.recorder.admitted_at[0] == S // 25
    assert run.summary["requests"]["rejected"] == 0


def slow_release(ticks: int) -> GpuSpec:
    gpu = load_gpu("a100-80g")
    return replace(gpu, vmm=tuple(replace(v, release=CallCost(ticks)) for v in gpu.vmm))


@pytest.mark.parametrize("ticks", (10**6, S // 1000))
def test_memory_given_back_comes_when_the_drivers_have_done_it(ticks: int) -> None:
    """Both of b's requests come when a is done and holds idle chunks. The first has b's floor; the
    second has to wait for what a gives back, which takes a's driver its time."""
    second = make_trace([Ask(20 * S, 100, 200), Ask(20 * S, 280, 5)])
    (run,) = share(hogs(8), second, kv_memory=100 * MIB, gpu=slow_release(ticks))
    giver, taker = run.runs
    assert giver.recorder.end < 20 * S
    released = giver.recorder.counts[Phase.LIMIT][3]
    assert released and giver.gave_bytes == released * 2 * MIB == taker.got_bytes
    assert giver.recorder.busy[Phase.LIMIT] == released * ticks
    first, waited = taker.recorder.admitted_at
    assert first == 20 * S
    assert waited >= 20 * S + released * ticks
    assert waited < 20 * S + released * ticks + S // 1000  # at the next launch behind it
    if ticks > 10**6:  # and the first went on meanwhile
        assert taker.recorder.first_token_at[0] < waited < taker.recorder.finished_at[0]


def test_all_that_is_missing_is_given_or_nothing() -> None:
    """42 chunks, ten of them each one's floor; a is done and holds 30. Of b's requests, ten chunks
    each, the first has what is free, the second misses 8 and the third 10: a gives them. The fourth
    misses ten, of which a has two above its floor: they stay, until the first has ended."""
    first = make_trace([Ask(0, 310, 10)] * 3)
    second = make_trace([Ask(5 * S, 310, 10)] * 4)
    (run,) = share(first, second, max_model_len=320, kv_memory=84 * MIB)
    giver, taker = run.runs
    assert giver.recorder.end < 5 * S and taker.floor_bytes == 20 * MIB
    assert giver.gave_bytes == 18 * 2 * MIB
    assert run.reclaimed == (("a", "b", 18 * 2 * MIB, 2),)
    *_, third, fourth = taker.recorder.admitted_at
    assert third < taker.recorder.finished_at[0] <= fourth
    assert run.summary["requests"]["completed"] == 7


def test_who_is_short_of_an_equal_part_is_let_in_before_who_is_beyond_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small requests come all the time and would take whatever is freed; large ones come later."""
    small = make_trace([Ask(n * S // 2000, 60, 60) for n in range(600)])
    large = make_trace([Ask(S // 20, 260, 30) for _ in range(12)])

    def waited() -> list[float]:
        (run,) = share(small, large)
        assert run.summary["requests"]["completed"] == 612
        return [float(own.requests["queue_s"].mean()) for own in run.runs]

    fair = waited()
    monkeypatch.setattr(Grants, "admission_limit", lambda self, tenant, now, alone: None)
    first_come = waited()
    assert fair[1] < first_come[1] / 2


@pytest.mark.parametrize("policy", ("paged", "radix"))
def test_static_pools_keep_what_they_took(policy: str) -> None:
    (run,) = share(hogs(20), hogs(2, at=S), (policy,), settings=None)
    assert not run.elastic and not run.reclaimed
    for own in run.runs:
        pool = own.timeline[["kv_live", "kv_slack", "kv_prefix", "pool_unused"]].sum(axis=1)
        assert set(pool) == {80 * MIB} and own.limit_bytes == 80 * MIB


def test_elastic_ones_hold_more_than_an_equal_part() -> None:
    (run,) = share(hogs(20), make_trace([Ask(10 * S, 10, 10)]))
    most = run.runs[0].summary["memory"]["peak_bytes"]
    assert most["kv_live"] + most["kv_slack"] > 120 * MIB


def test_categories_of_each_tenant_and_of_the_gpu_make_the_capacity() -> None:
    for run in share(hogs(20), hogs(20, at=S // 3), ("paged", "vtensor", "native")):
        capacity = run.recorder.capacity_bytes
        timelines = [run.timeline, *(own.timeline for own in run.runs)]
        for timeline in timelines:
            assert (timeline.drop(columns="time_s").sum(axis=1) == capacity).all()
        mean = run.runs[0].summary["memory"]["mean_bytes"]
        assert sum(mean.values()) == pytest.approx(capacity)


def test_runs_are_of_their_kinds() -> None:
    (run,) = share(hogs(2), hogs(2))
    assert all(type(own) is TenantRun for own in run.runs) and repr(run.runs[0])
