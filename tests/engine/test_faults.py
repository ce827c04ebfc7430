"""The device refuses the k-th operation, for every k of a small run, in both placement modes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from vtsim.backends.sim import SimBackend
from vtsim.engine.loop import Engine, Limits
from vtsim.errors import BackendError, CapacityError
from vtsim.memory.journal import Journal
from vtsim.metrics.recorder import Recorder
from vtsim.plan import Keep, OpKind, Phase, Plan
from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.testing import (
    Ask,
    Case,
    MakePolicy,
    Ran,
    ToyExecutor,
    ToyTimes,
    make_trace,
    run_case,
    toy_device,
    toy_model,
)
from vtsim.testing.conformance import assert_equal_runs, refuse_call

SMALL = Case(
    make_trace(
        [
            Ask(0, 9, 6, ids=(0, 1)),
            Ask(0, 12, 5, ids=(0, 1, 2)),
            Ask(20 * 10**9, 10, 7, ids=(0, 5)),
            Ask(600 * 10**9, 13, 4, priority=1, ids=(0, 1, 2)),
        ],
        block=4,
    ),
    tokens_in_chunks=(4, 1),
    max_model_len=40,
    limit_tokens=20,
    limit_units=1,
    limits=Limits(max_batched_tokens=16, admit="chunk"),
)
"""Pressure enough for evictions and a preemption; see `small_case` for policies that need more."""


def small_case(make: MakePolicy) -> Case:
    """`SMALL` with the least memory in which most of it completes."""
    for limit_tokens in (20, 60, 93, 130):
        case = replace(SMALL, limit_tokens=limit_tokens)
        if run_case(case, make(False)).rejections <= 1:
            return case
    raise AssertionError("no memory is enough")


def test_every_call_can_be_refused(make_policy: MakePolicy) -> None:
    case = small_case(make_policy)
    clean = run_case(case, make_policy(True), placement=True)
    ended: Counter[str] = Counter()
    for call, executed in enumerate(clean.calls):
        placed = refuse_call(make_policy, case, call, placement=True)
        counted = refuse_call(make_policy, case, call, placement=False)
        assert type(placed) is type(counted)
        ended[type(placed).__name__] += 1
        phase = Phase(executed.phase)
        if isinstance(placed, Ran) and isinstance(counted, Ran):
            # It ended, with everything answered and nothing left (both are checked there).
            assert_equal_runs(placed, counted, f"call {call} refused")
            assert phase in (Phase.CREATE, Phase.PREFILL, Phase.EXTEND)
        elif phase is Phase.SETUP:
            assert isinstance(placed, CapacityError), f"call {call}: {placed!r}"
        else:
            # What gives memory back must not fail: it is no shortage.
            assert isinstance(placed, BackendError) and phase.name in str(placed)
            assert phase in (Phase.RETIRE, Phase.TEARDOWN)
    phases = Counter(Phase(call.phase) for call in clean.calls)
    assert ended["CapacityError"] == phases[Phase.SETUP]
    assert ended["BackendError"] == phases[Phase.RETIRE] + phases[Phase.TEARDOWN]
    if clean.policy.name in ("native", "vtensor"):  # the others call no driver between in this case
        assert ended["Ran"] >= 3


def test_no_call_refused_is_the_plain_run(make_policy: MakePolicy) -> None:
    case = small_case(make_policy)
    clean = run_case(case, make_policy(True), placement=True)
    late = run_case(case, make_policy(True), placement=True, fail_at=len(clean.calls))
    assert_equal_runs(clean, late, "nothing refused, and a journal around the policy")


class Counted(VTensorPolicy):
    """Notes how many tokens a sequence had when it left."""

    def release(self, seq: Any, keep: Keep, step: int) -> Plan:
        self.left: dict[int, int] = {**getattr(self, "left", {}), seq.index: self.tokens_of(seq)}
        return super().release(seq, keep, step)

    def tokens_of(self, seq: Any) -> int:
        return self._growth.tokens(seq.index)


def test_a_leap_that_the_device_refuses_is_not_taken() -> None:
    """A real device may refuse any plan, also one for many steps: it is undone, and stepping
    finds out what now fits."""
    trace = make_trace([Ask(0, 4, 40), Ask(0, 4, 12)])
    refused_leaps = 0
    for call in range(4, 24):
        policy: Any = Counted(VTensorParameters())
        journal: Any = Journal(policy)
        token_bytes = (2 << 20) // 4
        model = toy_model(token_bytes)
        kv = journal.kv_layout(model, 1, 64)
        device = toy_device(80 * token_bytes, kv.slot_bytes * 100)
        backend = SimBackend(device, kv, fail_at=call)
        recorder = Recorder(2, device.capacity_bytes, 0, 0)
        assert backend.execute(journal.setup(device, kv, device.capacity_bytes), 0).done
        limits = Limits(max_model_len=64, check=True)
        engine = Engine(trace, journal, backend, ToyExecutor(), ToyTimes(), recorder, limits)
        assert engine.leaps
        try:
            engine.run()
        except BackendError as error:
            assert "RETIRE" in str(error) or "TEARDOWN" in str(error)
            continue
        backend.close()
        refused_leaps += journal.limit_bytes < device.capacity_bytes
        for row, (prompt, output) in enumerate(((4, 40), (4, 12))):
            if row not in recorder.reasons:
                assert journal.left[row] == prompt + output - 1, f"call {call}, request {row}"
    assert refused_leaps >= 5


def test_the_limit_is_lowered_to_what_is_held() -> None:
    """Six requests where memory for all is promised: after the refusal the rest wait for it."""
    case = Case(
        make_trace([Ask(0, 4, 3)] * 4), (4, 1), 10, limit_tokens=40, limits=Limits(admit="chunk")
    )
    plain = run_case(case, vtensor(), placement=True)
    assert plain.recorder.admitted_at.tolist() == [0] * 4
    maps = [i for i, call in enumerate(plain.calls) if call.operation.kind is OpKind.CREATE]
    refused = run_case(case, vtensor(), placement=True, fail_at=maps[2])
    admitted = refused.recorder.admitted_at.tolist()
    # Two got their chunk. Neither can grow while the other holds all there is.
    assert admitted[:2] == [0, 0] and min(admitted[2:]) > 0
    assert refused.preemptions >= 1
    assert refused.policy.limit_bytes < plain.policy.limit_bytes
    assert [o for o in refused.recorder.outcome] == [1] * 4


def vtensor() -> VTensorPolicy:
    return VTensorPolicy(VTensorParameters(), placement=True)


def test_a_refusal_when_nothing_is_held_answers_with_capacity() -> None:
    case = Case(make_trace([Ask(0, 4, 3)]), (4, 1), 10, limit_tokens=40)
    run = run_case(case, NativePolicy(), fail_at=0)
    assert run.recorder.reasons == {0: "capacity"}


def test_a_set_up_that_is_refused_says_what_is_missing() -> None:
    with pytest.raises(CapacityError, match="the set-up is 83886080 bytes short"):
        run_case(Case(make_trace([Ask(0, 4, 3)]), (4, 1), 10, 160), PagedPolicy(), fail_at=0)
