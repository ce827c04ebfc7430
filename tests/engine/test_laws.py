"""Laws that relate whole runs: more memory, no memory limit, faster clocks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.engine.loop import Limits
from vtsim.policies.paged import PagedParameters, PagedPolicy
from vtsim.testing import Case, MakePolicy, ToyExecutor, ToyTimes, random_case, run_case
from vtsim.testing.strategies import cases


def test_unlimited_memory_means_no_preemption_and_no_rejection(
    make_policy: MakePolicy, budget: int
) -> None:
    for seed in range(6 * budget):
        case = random_case(Random(seed))
        plenty = replace(case, limit_tokens=10**6, slots=10**4)
        run = run_case(plenty, make_policy(False))
        assert run.preemptions == 0 and run.rejections == 0
        waits = {row[4] for row in run.recorder.decision_rows if row[3] == "wait"}
        assert waits <= {"max_num_seqs", "max_batched_tokens"}


def test_what_is_not_memory_s_fault_is_the_same_for_every_policy(
    make_policy: MakePolicy, budget: int
) -> None:
    """With plenty of memory, no names for content and free memory work, policies do not differ."""
    free = ToyTimes(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    for seed in range(6 * budget):
        case = random_case(Random(seed))
        bare = replace(
            case.trace,
            run_offsets=case.trace.run_offsets * 0,
            run_first=case.trace.run_first[:0],
            run_count=case.trace.run_count[:0],
            session=case.trace.session * 0 - 1,
        )
        plenty = replace(case, trace=bare, limit_tokens=10**6, slots=10**4, times=free)
        run = run_case(plenty, make_policy(False))
        other = run_case(plenty, PagedPolicy(PagedParameters()))
        for column in ("admitted_at", "first_token_at", "finished_at", "steps", "compute_ticks"):
            assert getattr(run.recorder, column) == getattr(other.recorder, column)


@pytest.mark.parametrize("factor", [2, 3])
def test_a_clock_that_ticks_faster_changes_no_decision(
    make_policy: MakePolicy, factor: int
) -> None:
    """All durations and arrivals times a number: the same run, later."""
    for seed in range(4):
        case = random_case(Random(seed))
        executor, times = ToyExecutor(), ToyTimes()
        slow = Case(
            replace(
                case.trace,
                arrival=case.trace.arrival * factor - (case.trace.arrival < 0) * (1 - factor),
                wait={row: ticks * factor for row, ticks in case.trace.wait.items()},
            ),
            case.tokens_in_chunks, case.max_model_len, case.limit_tokens, case.limit_units,
            case.slots, case.limits,
            ToyExecutor(*(factor * getattr(executor, name) for name in (
                "step_ticks", "sequence_ticks", "kv_token_ticks", "prompt_token_ticks",
                "attended_ticks"))),
            ToyTimes(*(factor * getattr(times, name) for name in (
                "reserve", "free", "create", "destroy", "map", "unmap", "allocate", "deallocate",
                "copied_byte", "larger_mib"))),
        )  # fmt: skip
        quick = replace(case, executor=executor, times=times)
        one = run_case(quick, make_policy(False)).account()
        other = run_case(slow, make_policy(False)).account()
        for name in ("counts", "hit_tokens", "rehit_tokens", "preemptions", "reasons", "steps"):
            assert one[name] == other[name], name
        for name in ("busy", "exposed", "finished_at"):
            scaled = [ticks * factor for ticks in one[name]]  # type: ignore[attr-defined]
            assert scaled == other[name], name
        assert one["end"] * factor == other["end"]  # type: ignore[operator]


@given(case=cases(requests=15), more=st.integers(1, 300))
def test_one_by_one_more_memory_never_loses_a_hit(case: Case, more: int) -> None:
    """Least recently used blocks go first, so what a smaller pool keeps a larger one does.

    No law of vtensor: a record goes whole, and where a sequence fits only without the record that
    it matches (the source of its tail copy), it forgoes the whole match.
    """
    small = replace(case, limits=Limits(max_num_seqs=1))
    large = replace(small, limit_tokens=small.limit_tokens + more)
    runs = [run_case(sized, PagedPolicy(PagedParameters(block=4))) for sized in (small, large)]
    if not runs[0].rejections:  # what is rejected leaves nothing behind
        assert sum(runs[1].recorder.hit_tokens) >= sum(runs[0].recorder.hit_tokens)
