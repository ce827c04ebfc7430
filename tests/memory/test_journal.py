"""The journal takes back the newest plan, and nothing else."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

import pytest

from vtsim.errors import BackendError
from vtsim.memory import journal
from vtsim.memory.journal import Journal
from vtsim.plan import NOTHING, Keep, Plan, Shortage
from vtsim.policies.base import Policy
from vtsim.policies.vtensor import VTensorParameters, VTensorPolicy
from vtsim.ports import Batch, DeviceInfo
from vtsim.request import Sequence
from vtsim.spec import KVLayout
from vtsim.testing import fingerprint

KV = KVLayout("token_major", 1, row_bytes=1, chunk_bytes=4, max_tokens=64)


def begun(limit: int = 80) -> Any:
    policy: Any = VTensorPolicy(VTensorParameters(), placement=True)
    served: Any = Journal(policy)
    served.setup(DeviceInfo("toy", limit, 1, 10_000), KV, limit)
    return served


def admit(served: Any, index: int, prompt: int, *content: tuple[int, int]) -> Plan:
    seq = Sequence(index, prompt, content, order=index)
    match = served.match(seq)
    plan = served.create(seq, match, prompt - match.tokens, prompt)
    assert isinstance(plan, Plan)
    return plan


def test_it_behaves_as_the_policy_it_wraps() -> None:
    served = begun()
    assert served.name == "vtensor" and served.lookahead == 1 and served.kv is KV
    admit(served, 0, 6)
    assert served.usage() == served.policy.usage() and served.usage().kv_live == 6
    assert copy(served).policy is served.policy
    assert fingerprint(deepcopy(served).policy) == fingerprint(served.policy)
    with pytest.raises(AttributeError):
        served.nothing_of_that_name  # noqa: B018


@pytest.mark.parametrize("every", [1, 3, 256])
def test_undoing_is_exact_wherever_the_checkpoint_lies(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "CHECKPOINT_EVERY", every)
    served = begun()
    batch = Batch()
    admit(served, 0, 9, (0, 9))
    served.release(Sequence(0, 9, ((0, 9),)), Keep.RECORD, 1)
    served.retire(1)
    for index in range(1, 5):
        before = fingerprint(served.policy)
        undone = admit(served, index, 12, (0, 9), (100 * index, 3))
        served.rollback(undone)
        assert fingerprint(served.policy) == before
        again = admit(served, index, 12, (0, 9), (100 * index, 3))
        assert again.counts == undone.counts and again.operations == undone.operations
        batch.running[index] = batch.decoding[index] = Sequence(index, 12, order=index)
        before = fingerprint(served.policy)
        grown = served.extend(batch, 5)
        batch.decoding.pop(index)  # the journal keeps the batch as it was
        served.rollback(grown)
        assert fingerprint(served.policy) == before
        served.policy.check_integrity()


def test_only_the_newest_plan_can_be_taken_back() -> None:
    served = begun()
    first, second = admit(served, 0, 6), admit(served, 1, 6)
    with pytest.raises(BackendError, match="only the newest plan"):
        served.rollback(first)
    served.rollback(second)
    with pytest.raises(BackendError, match="only the newest plan"):
        served.rollback(second)
    assert served.retire(1) is NOTHING
    with pytest.raises(BackendError, match="only the newest plan"):
        served.rollback(NOTHING)


def test_a_refusal_is_not_a_call_to_repeat() -> None:
    served = begun(limit=8)
    plan = admit(served, 0, 6)
    assert isinstance(served.create(Sequence(1, 6), served.match(Sequence(1, 6)), 6, 6), Shortage)
    served.rollback(plan)
    assert sum(served.usage()) == 0
    assert admit(served, 1, 6).counts == plan.counts


def test_a_policy_without_a_journal_cannot_undo() -> None:
    with pytest.raises(BackendError, match="runs without a journal"):
        VTensorPolicy().rollback(Plan(NOTHING.phase))


def test_a_policy_must_say_what_it_does() -> None:
    policy = Policy()
    seq, batch = Sequence(0, 1), Batch()
    assert policy.match(seq).tokens == 0 and policy.headroom(batch, 9).steps == 0
    assert policy.retire(1) is NOTHING and policy.parameters() == {}
    assert policy.select_victim(batch) is None and policy.oracle == ""
    policy.check_integrity()
    for unsaid in (
        lambda: policy.setup(DeviceInfo("toy", 1, 1, 1), KV, 1),
        lambda: policy.create(seq, policy.match(seq), 1, 1),
        lambda: policy.extend_prompt(seq, 1),
        lambda: policy.extend(batch),
        lambda: policy.release(seq, Keep.NONE, 1),
        lambda: policy.set_limit(1),
        policy.usage,
        policy.teardown,
    ):
        with pytest.raises(NotImplementedError):
            unsaid()
