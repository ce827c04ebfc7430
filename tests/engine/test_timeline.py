"""Tiny traces whose timelines are worked out by hand: who runs when, and who waits for what."""

from __future__ import annotations

from typing import Any

import pytest

from vtsim.engine import scheduler
from vtsim.engine.loop import Engine
from vtsim.engine.state import Limits
from vtsim.errors import CapacityError, VtsimError
from vtsim.plan import Phase, Shortage
from vtsim.policies.native import NativePolicy
from vtsim.policies.paged import PagedParameters, PagedPolicy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.testing import Ask, Case, Ran, ToyExecutor, ToyTimes, make_trace, run_case
from vtsim.testing.conformance import assert_equal_runs

FREE = ToyTimes(
    reserve=0,
    free=0,
    create=0,
    destroy=0,
    map=0,
    unmap=0,
    allocate=0,
    deallocate=0,
    copied_byte=0,
)
"""Memory work that takes no time."""

BY_TOKENS = ToyExecutor(100, 10, 0, 1, 0)
"""A step takes 100 ticks, 10 a decoding sequence and 1 a prompt token."""

BY_STEPS = ToyExecutor(100, 0, 0, 0, 0)
"""Every step takes 100 ticks."""


def native(placement: bool = False) -> NativePolicy:
    return NativePolicy(placement=placement)


def paged(placement: bool = False, **parameters: Any) -> PagedPolicy:
    return PagedPolicy(PagedParameters(**{"block": 1, **parameters}), placement=placement)


def vtensor(placement: bool = False, **parameters: Any) -> VTensorPolicy:
    return VTensorPolicy(VTensorParameters(**parameters), placement=placement)


def play(policy: Any, *asks: Ask, **fields: Any) -> Ran:
    """One run of the given requests; the same must come out when it is stepped."""
    block = fields.pop("block", 0)
    limited = {"max_num_seqs", "max_batched_tokens", "admit"} & fields.keys()
    limits = Limits(**{name: fields.pop(name) for name in limited})
    case = Case(
        make_trace(asks, block), limits=limits, **{"executor": BY_STEPS, "times": FREE, **fields}
    )
    run = run_case(case, policy())
    assert_equal_runs(run, run_case(case, policy(), leap=False), "leap on and off")
    return run


def times(run: Ran) -> list[tuple[int, int, int]]:
    """(admitted, first token, last token) of each request."""
    recorder = run.recorder
    columns = recorder.admitted_at, recorder.first_token_at, recorder.finished_at
    return list(zip(*columns, strict=True))


def decisions(run: Ran, *kinds: str) -> list[tuple[int, int, int, str, str, int]]:
    return [row for row in run.recorder.decision_rows if row[3] in kinds]


# -- steps -----------------------------------------------------------------------------------------


def test_one_request() -> None:
    run = play(native, Ask(50, 7, 3), executor=BY_TOKENS)
    # Prefill 50 - 157, then two decode steps of 110.
    assert times(run) == [(50, 157, 377)]
    assert (run.recorder.steps, run.recorder.compute_ticks, run.recorder.end) == (3, 327, 377)


def test_one_token_needs_no_decode_step() -> None:
    run = play(native, Ask(0, 5, 1), executor=BY_TOKENS)
    assert times(run) == [(0, 105, 105)] and run.recorder.steps == 1


def test_who_arrives_during_a_step_is_admitted_at_the_next_launch_for_the_step_after() -> None:
    run = play(native, Ask(50, 7, 3), Ask(60, 5, 2), executor=BY_TOKENS)
    # Step 2 was decided at 50, before B came. B is seen at 157, prefills in step 3 (267 - 382)
    # beside A's last token, and decodes once (382 - 492).
    assert times(run) == [(50, 157, 382), (157, 382, 492)]


def test_who_arrives_at_a_launch_is_in_time_for_the_decision_made_then() -> None:
    run = play(native, Ask(0, 1, 4), Ask(100, 1, 1))
    # Launches at 0, 100, 200, ...: at 100 step 3 is decided, with B.
    assert times(run) == [(0, 100, 400), (100, 300, 300)]


def test_idle_time_costs_no_steps() -> None:
    run = play(native, Ask(0, 1, 2), Ask(10_000, 1, 2))
    assert times(run) == [(0, 100, 200), (10_000, 10_100, 10_200)]
    assert run.recorder.steps == 4


def test_prompts_are_prefilled_in_chunks() -> None:
    run = play(native, Ask(0, 10, 2), executor=BY_TOKENS, max_batched_tokens=4)
    # 4 + 4 + 2 prompt tokens: 104 + 104 + 102, then one decode step.
    assert times(run) == [(0, 310, 420)]


def test_decoding_takes_its_share_of_the_token_budget_first() -> None:
    run = play(
        native, Ask(0, 2, 9), Ask(0, 6, 1), Ask(0, 1, 1), executor=BY_TOKENS, max_batched_tokens=4
    )
    # Step 1: A whole, 2 of B (104). Step 2: A decodes, 3 of B (113). Step 3: A, the last of B and
    # C, which had no budget before (112).
    assert times(run)[1] == (0, 329, 329)
    assert times(run)[2] == (104, 329, 329)
    assert decisions(run, "wait") == [(2, 1, 0, "wait", "max_batched_tokens", 0)]


def test_no_more_than_max_num_seqs_run() -> None:
    run = play(native, Ask(0, 1, 3), Ask(0, 1, 1), max_num_seqs=1)
    # A leaves the batch when its last step is launched (200): B is admitted for the step after.
    assert times(run) == [(0, 100, 300), (200, 400, 400)]
    assert decisions(run, "wait") == [(1, 1, 0, "wait", "max_num_seqs", 0)]


def test_smaller_priorities_go_first_then_arrival_then_row() -> None:
    asks = Ask(0, 1, 1, priority=1), Ask(0, 1, 1), Ask(0, 1, 1), Ask(0, 1, 1, priority=-5)
    run = play(native, *asks, max_num_seqs=1)
    assert run.recorder.finished_at.tolist() == [400, 200, 300, 100]


# -- closed loop -----------------------------------------------------------------------------------


def test_a_follower_comes_a_wait_after_the_answer() -> None:
    run = play(native, Ask(0, 1, 2), Ask(0, 1, 1, after=(0,), wait=70), Ask(0, 1, 1, after=(1,)))
    # A ends at 200, B comes at 270; it ends at 370, when C comes.
    assert times(run) == [(0, 100, 200), (270, 370, 370), (370, 470, 470)]


def test_a_rejection_is_an_answer_too() -> None:
    run = play(
        native, Ask(5, 9, 9), Ask(0, 1, 1, after=(0,)), Ask(0, 1, 1, after=(1,), wait=3),
        max_model_len=10,
    )  # fmt: skip
    assert run.recorder.reasons == {0: "max_model_len"}
    assert times(run) == [(-1, -1, 5), (5, 105, 105), (108, 208, 208)]


def test_requests_that_wait_for_each_other_are_an_error() -> None:
    with pytest.raises(VtsimError, match="2 requests wait for each other .* the first: 1"):
        play(native, Ask(0, 1, 1), Ask(0, 1, 1, after=(2,)), Ask(0, 1, 1, after=(1,)))


# -- memory work -----------------------------------------------------------------------------------


def one_token_chunks(limit_tokens: int, **fields: Any) -> dict[str, Any]:
    return dict(tokens_in_chunks=(1, 1), limit_tokens=limit_tokens, **fields)


def test_memory_work_at_an_idle_start_is_exposed() -> None:
    run = play(vtensor, Ask(0, 4, 1), tokens_in_chunks=(4, 1), times=ToyTimes(create=7, map=5))
    assert run.recorder.exposed[Phase.CREATE] == 12
    assert times(run) == [(0, 112, 112)]


@pytest.mark.parametrize(("lookahead", "exposed", "end"), [(1, 0, 917), (0, 2 * 17, 951)])
def test_one_step_ahead_hides_what_on_time_exposes(lookahead: int, exposed: int, end: int) -> None:
    run = play(
        lambda: vtensor(lookahead=lookahead), Ask(0, 4, 9), tokens_in_chunks=(4, 1),
        times=ToyTimes(create=12, map=5), max_model_len=20,
    )  # fmt: skip
    # Launched at 17. Tokens 5 and 9 need a chunk each: with L = 1 while the step before computes,
    # with L = 0 at the launch that needs it. Nine steps of 100.
    assert run.recorder.exposed[Phase.CREATE] == 17
    assert run.recorder.exposed[Phase.EXTEND] == exposed
    assert run.recorder.finished_at[0] == end == 17 + 900 + exposed


def test_work_longer_than_the_step_that_should_hide_it_is_exposed_in_part() -> None:
    run = play(
        vtensor, Ask(0, 4, 3), tokens_in_chunks=(4, 1), times=ToyTimes(create=100, map=30)
    )  # fmt: skip
    # Launched at 130; the chunk for token 5 is asked for then and ready at 260, 30 after step 1.
    assert run.recorder.exposed[Phase.CREATE] == 130
    assert run.recorder.exposed[Phase.EXTEND] == 30
    assert times(run) == [(0, 230, 460)]


def test_memory_on_its_way_is_waited_for() -> None:
    run = play(
        vtensor, Ask(0, 3, 2), Ask(0, 3, 4), admit="chunk",
        times=ToyTimes(create=0, map=5, unmap=3), **one_token_chunks(8),
    )  # fmt: skip
    # Step 1 (6 maps exposed, 30 - 130) and step 2 (130 - 230) fill the 8 chunks. A's last token is
    # in step 2, so B's next chunk is on its way: nobody is preempted, and step 3 waits for the end
    # of step 2, four unmaps and a map.
    assert run.preemptions == 0
    assert run.recorder.exposed[Phase.CREATE] == 30
    assert run.recorder.exposed[Phase.RETIRE] == 12
    assert run.recorder.exposed[Phase.EXTEND] == 5
    assert times(run) == [(0, 130, 230), (0, 130, 230 + 17 + 200)]


def test_nobody_waits_for_memory_that_would_not_be_enough() -> None:
    run = play(
        vtensor, Ask(0, 1, 2), Ask(0, 3, 4), Ask(0, 3, 4), Ask(0, 3, 4), admit="chunk",
        **one_token_chunks(14),
    )  # fmt: skip
    # After step 2 all 14 are taken. A gives back 2, the others want 3: the newest is preempted,
    # and what it had is on its way too, so that step 3 waits for it.
    assert run.recorder.preemptions.tolist() == [0, 0, 0, 1]
    assert decisions(run, "preempt")[0][:5] == (3, 3, 100, "preempt", "shortage")


# -- shortage --------------------------------------------------------------------------------------


def test_the_newest_is_preempted_and_returns_when_it_fits() -> None:
    run = play(
        paged, Ask(0, 4, 6), Ask(0, 3, 5), admit="chunk", tokens_in_chunks=(1, 1), limit_tokens=10
    )
    # Blocks of one token, ten of them. Steps 1 and 2 take 7 + 2; step 3 wants two and finds one,
    # so at 100 B gives its four back. It wants 3 + 2 again, and A holds 6, 7, 8, 9 until its last
    # step is launched at 500. Step 7 (600 - 700) prefills 5 and gives B's third token.
    assert times(run) == [(0, 100, 600), (0, 100, 900)]
    assert run.recorder.preemptions.tolist() == [0, 1]
    token = 2 << 20
    assert decisions(run, "admit", "wait", "preempt", "readmit", "finish") == [
        (0, 1, 0, "admit", "no prefix in memory", 0),
        (1, 1, 0, "admit", "no prefix in memory", 0),
        (1, 3, 100, "preempt", "shortage", token),
        (1, 4, 200, "wait", "memory", 2 * token),
        (0, 6, 600, "finish", "", 0),
        (1, 7, 500, "readmit", "no prefix in memory", 0),
        (1, 9, 900, "finish", "", 0),
    ]


def test_the_least_urgent_is_preempted_first() -> None:
    asks = Ask(0, 4, 6, priority=3), Ask(0, 3, 5)
    run = play(paged, *asks, admit="chunk", tokens_in_chunks=(1, 1), limit_tokens=10)
    assert run.recorder.preemptions.tolist() == [1, 0]
    # The urgent one has 3 + 4 tokens and is done after five steps.
    assert run.recorder.finished_at[1] == 500


def test_a_preempted_sequence_finds_what_it_had() -> None:
    asks = Ask(0, 4, 6, ids=(0, 1, 2, 3)), Ask(0, 3, 5, ids=(7, 8, 9))
    run = play(
        paged, *asks, block=1, admit="chunk", tokens_in_chunks=(1, 1), limit_tokens=10
    )  # fmt: skip
    # As above, but B's prompt stays cached until A takes it: A ends with 9 of the 10 blocks.
    assert times(run) == [(0, 100, 600), (0, 100, 900)]
    assert run.recorder.hit_tokens.tolist() == [0, 0]
    assert run.recorder.rehit_tokens.tolist() == [0, 1]


def test_what_can_never_fit_is_answered() -> None:
    run = play(paged, Ask(0, 11, 1), Ask(0, 2, 2), tokens_in_chunks=(1, 1), limit_tokens=10)
    assert run.recorder.reasons == {0: "capacity"}
    assert times(run) == [(-1, -1, 0), (0, 100, 200)]
    assert decisions(run, "short") == [(0, 1, 0, "short", "capacity", 3 * (2 << 20))]


def test_what_outgrows_the_memory_alone_is_answered() -> None:
    run = play(
        paged, Ask(0, 4, 20), admit="chunk", tokens_in_chunks=(1, 1), limit_tokens=10
    )  # fmt: skip
    # Step 7 holds ten tokens; when it is launched (600) the eleventh is refused.
    assert run.recorder.reasons == {0: "capacity"}
    assert times(run) == [(0, 100, 600)]
    assert run.preemptions == 0


def test_admission_asks_for_the_whole_prompt_or_its_first_chunk() -> None:
    asks = Ask(0, 4, 2), Ask(0, 8, 1)
    fields = dict(tokens_in_chunks=(1, 1), limit_tokens=10, max_batched_tokens=6)
    whole = play(paged, *asks, admit="prompt", **fields)
    chunk = play(paged, *asks, admit="chunk", **fields)
    # B has eight tokens. With A's four and one to come there is no room for all of them until A is
    # gone (its last step is launched at 100), but for the two that are left of step 1's budget.
    assert whole.recorder.admitted_at.tolist() == [0, 100]
    assert chunk.recorder.admitted_at.tolist() == [0, 0]


def test_slots_can_be_what_is_short() -> None:
    run = play(vtensor, Ask(0, 1, 3), Ask(0, 1, 1), slots=1)
    # A's slot is free when its last kernels have ended: at 300, with nothing running.
    assert times(run) == [(0, 100, 300), (300, 400, 400)]
    assert decisions(run, "wait")[0] == (1, 1, 0, "wait", "slots", 0)


def test_a_policy_that_names_no_victim_is_told_so() -> None:
    class Stubborn(PagedPolicy):
        name = "stubborn"

        def select_victim(self, batch: Any) -> None:
            return None

    with pytest.raises(CapacityError, match="stubborn policy is 2097152 bytes short, with no"):
        play(
            lambda: Stubborn(PagedParameters(block=1)), Ask(0, 4, 20), admit="chunk",
            tokens_in_chunks=(1, 1), limit_tokens=10,
        )  # fmt: skip


def test_a_run_that_makes_no_progress_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "PATIENCE", 20)

    class Stuck(Engine):
        """Waits for ever for memory on its way."""

        def _make_room(self, shortage: Shortage, prompts: Any) -> bool:
            return False

    monkeypatch.setattr("vtsim.testing.cases.Engine", Stuck)
    with pytest.raises(CapacityError, match="no progress in 20 decisions: 1 sequences run, 0 wait"):
        play(paged, Ask(0, 4, 20), admit="chunk", tokens_in_chunks=(1, 1), limit_tokens=10)


# -- prefixes --------------------------------------------------------------------------------------


def test_a_prefix_computed_before_is_not_computed_again() -> None:
    asks = Ask(0, 8, 1, ids=(0, 1)), Ask(1000, 10, 1, ids=(0, 1, 2, 3, 4))
    for policy in (paged, vtensor):
        run = play(policy, *asks[:1], asks[1]._replace(ids=(0, 1)), block=4, executor=BY_TOKENS)
        # The second computes the two tokens that follow the common eight.
        assert run.recorder.hit_tokens.tolist() == [0, 8]
        assert times(run) == [(0, 108, 108), (1000, 1102, 1102)]


def test_a_prompt_known_whole_computes_its_last_token() -> None:
    asks = Ask(0, 8, 1, ids=(0, 1)), Ask(1000, 8, 1, ids=(0, 1))
    run = play(vtensor, *asks, block=4, executor=BY_TOKENS)
    assert run.recorder.hit_tokens.tolist() == [0, 7]
    run = play(lambda: paged(block=4), *asks, block=4, executor=BY_TOKENS)
    assert run.recorder.hit_tokens.tolist() == [0, 4]


def test_a_session_s_next_turn_finds_prompt_and_answer() -> None:
    asks = (
        Ask(0, 6, 4, session=0, turn=0),
        Ask(1000, 14, 1, session=0, turn=1),
        Ask(2000, 14, 1, session=1, turn=0),
    )
    run = play(vtensor, *asks, executor=BY_TOKENS)
    # The last of the four answer tokens is never written to the cache: 6 + 3 are there.
    assert run.recorder.hit_tokens.tolist() == [0, 9, 0]
