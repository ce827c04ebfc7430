"""Promises of a policy, tried out on copies of it: headroom, many steps at once, what will clear.

Nothing here changes the policy that is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

from vtsim.memory.radix import clip
from vtsim.plan import KINDS, NOTHING, Match, Operation, OpKind, Plan, Shortage
from vtsim.ports import Batch, Headroom
from vtsim.request import Run, Sequence
from vtsim.testing.contracts import ContractError, demand
from vtsim.testing.state import fingerprint


def check_match(match: object, seq: Sequence, contents: list[tuple[Run, ...]], grain: int) -> None:
    """`contents`: what has been computed so far. At least one token of a prompt is left."""
    if not isinstance(match, Match):
        raise ContractError("answer-type", f"match returned {match!r}", "match")
    most, tokens = seq.prompt_tokens - 1, match.tokens
    bounded = f"match of {tokens} tokens, prompt - 1 is {most}"
    demand(0 <= tokens <= most, "match-bounded", bounded, "match")
    if tokens:
        begin = clip(seq.content, 0, tokens)
        named = sum(length for _, length in begin)
        known = f"match of {tokens} tokens, {named} are named"
        demand(named == tokens, "match-named", known, "match")
        computed = any(clip(c, 0, tokens) == begin for c in contents)
        nobody = f"match of {tokens} tokens that nobody has computed"
        demand(computed, "match-computed", nobody, "match")
        multiple = f"match of {tokens} tokens, grain_tokens is {grain}"
        demand(tokens % grain == 0, "match-grain", multiple, "match")


def check_shortage(
    what: str, shortage: Shortage, policy: Any, ask: Callable[[Any], Any], step: int
) -> None:
    """`will_clear`: after a retire the same request is granted (unless a match pins memory)."""
    if what not in ("extend", "extend_prompt") or not shortage.will_clear:
        return
    later = deepcopy(policy)
    later.retire(step)
    helped = isinstance(ask(later), Plan)
    demand(helped, "shortage-clears", f"{what}: the retire that it waits for did not help", what)


def check_whole(policy: Any, seq: Sequence, held: int, whole_tokens: int) -> None:
    """`create` has granted `held` tokens because `whole_tokens` fit: the prompt's rest must, if
    they are as many as the engine asks for, with what is mapped ahead."""
    rest = seq.prompt_tokens - held
    if rest > 0 and whole_tokens > seq.prompt_tokens + policy.lookahead:
        answer = deepcopy(policy).extend_prompt(copy(seq), rest)
        demand(
            isinstance(answer, Plan),
            "whole-fits",
            f"create granted {held} of {whole_tokens} tokens; the next {rest} get {answer}",
            "create",
        )


def check_headroom(
    policy: Any, batch: Batch, at_most: int, step: int
) -> tuple[int, list[int] | None]:
    """What `headroom` promises is accepted, moves nothing away, and is no dearer than said.

    Returns the steps promised, and what is said to be due in the last of them.
    """
    before = fingerprint(policy)
    promise = policy.headroom(batch, at_most)
    demand(fingerprint(policy) == before, "headroom-pure", "headroom changed something", "headroom")
    if not isinstance(promise, Headroom):
        raise ContractError("answer-type", f"headroom returned {promise!r}", "headroom")
    steps = promise.steps
    demand(
        type(steps) is int and 0 <= steps <= at_most,
        "headroom-at-most",
        f"headroom of {steps} in {at_most} steps",
        "headroom",
    )
    last = None if promise.last is None else promise.last.counts
    if not steps:
        return steps, last
    plan = _answered(deepcopy(policy).extend(batch, steps))
    if not isinstance(plan, Plan):
        raise ContractError(
            "headroom-granted", f"headroom promised {steps} steps: {plan}", "headroom"
        )
    evicted = plan.counts[OpKind.UNMAP] + plan.counts[OpKind.DESTROY]
    demand(
        not evicted,
        "headroom-without-eviction",
        f"headroom promised {steps} steps that evict",
        "headroom",
    )
    by_step = _counts_by_step(plan, steps)
    _check_peak(by_step, NOTHING if promise.peak is None else promise.peak)
    if promise.last is not None and (plan.operations or plan is NOTHING):
        _check_last("headroom", promise.last, by_step[-1])
    if promise.retire_later:
        _check_retire_later(policy, batch, steps, step)
    return steps, last


def _check_peak(by_step: list[list[int]], peak: Plan) -> None:
    for due, counts in enumerate(by_step):
        over = [OpKind(k).name for k in range(KINDS) if counts[k] > peak.counts[k]]
        demand(
            not over,
            "peak-is-a-bound",
            f"more {over} due in step {due} than headroom's peak says",
            "headroom",
        )


def _check_last(what: str, said: Plan, last: list[int]) -> None:
    """`what`: headroom, or extend's plan, said it."""
    demand(
        said.counts == last,
        "last-is-true",
        f"{what}: {said.counts} said to be due in the last step, which has {last}",
        what,
    )


def _check_retire_later(original: Any, batch: Batch, steps: int, step: int) -> None:
    """A retire before, between or after the promised steps: all the same in sum."""
    results = []
    for before in sorted({0, 1, steps}):
        policy = deepcopy(original)
        plans = [policy.extend(batch, before)] if before else []
        plans.append(policy.retire(step))
        if before < steps:
            plans.append(policy.extend(batch, steps - before))
        granted = all(isinstance(plan, Plan) for plan in plans)
        demand(granted, "retire-later", "retire_later: a step was refused", "headroom")
        counts = [sum(plan.counts[kind] for plan in plans) for kind in range(KINDS)]
        results.append((counts, policy.usage()))
    demand(
        results[1:] == results[:-1],
        "retire-later",
        f"retire_later, but it matters when: {results}",
        "headroom",
    )


def check_repetition(policy: Any, batch: Batch, steps: int) -> None:
    """`extend(n)` is `extend(1)` n times, in state and in operations; its last is true.

    `last` is compared where there are operations: with placement on and off plans say the same.
    """
    at_once, singly = deepcopy(policy), deepcopy(policy)
    whole = _answered(at_once.extend(batch, steps))
    parts = []
    for _ in range(steps):
        parts.append(_answered(singly.extend(batch)))
        if not isinstance(parts[-1], Plan):
            break
    refused = not isinstance(parts[-1], Plan)
    demand(
        isinstance(whole, Plan) != refused,
        "extend-repeats",
        f"extend by {steps} steps at once: {whole}, singly: {parts[-1]}",
        "extend",
    )
    if refused:
        return
    demand(
        fingerprint(at_once) == fingerprint(singly),
        "extend-repeats",
        f"extend by {steps} steps at once leaves another state than singly",
        "extend",
    )
    counts = [sum(part.counts[kind] for part in parts) for kind in range(KINDS)]
    demand(
        whole.counts == counts,
        "extend-repeats",
        f"extend by {steps}: {whole.counts}, singly {counts}",
        "extend",
    )
    operations = [replace(op, due=due) for due, part in enumerate(parts) for op in part.operations]
    demand(
        list(whole.operations) == operations,
        "extend-repeats",
        f"extend by {steps}: other operations than singly",
        "extend",
    )
    if whole is NOTHING or steps == 1:
        return
    _counts_by_step(whole, steps)
    if whole.last is not None and whole.operations:
        _check_last("extend", whole.last, parts[-1].counts)


def _answered(answer: Any) -> Any:
    """What `extend` has answered, if it is an answer."""
    if not isinstance(answer, Plan | Shortage):
        raise ContractError("answer-type", f"extend returned {answer!r}", "extend")
    return answer


def _counts_by_step(plan: Plan, steps: int) -> list[list[int]]:
    """What falls due in each step, if the operations tell."""
    by_step = [[0] * KINDS for _ in range(steps)]
    operation: Operation
    for operation in plan.operations:
        in_range = 0 <= operation.due < steps
        demand(in_range, "plan-form", f"an operation due in step {operation.due} of {steps}")
        by_step[operation.due][operation.kind] += 1
    return by_step
