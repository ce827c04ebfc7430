"""Cases that invite a policy to go round in circles: nearly everything fits, and never at once.

Each kind is a small story with random lengths; one number is one case, the same everywhere.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from vtsim.engine.state import Limits
from vtsim.testing.cases import TICKS_PER_MS, TOKENS_AND_CHUNKS, Case
from vtsim.testing.contracts import demand
from vtsim.testing.driver import MakePolicy
from vtsim.testing.runs import check_answers, play
from vtsim.testing.toys import Ask, make_trace


def adversary(number: int) -> Case:
    """The case of that number; kinds take turns."""
    kinds = (
        _plenty, _two_that_grow, _one_too_many, _exact_fit, _one_that_never_fits, _pinned_prefixes,
        _urgent_ones, _conversation, _few_slots, _small_chunks,
    )  # fmt: skip
    return kinds[number % len(kinds)](Random(number))


def check_progress(make: MakePolicy, case: Case) -> None:
    """The run ends, everybody is answered; where memory abounds, without a rejection."""
    run = play(case, make(False))
    check_answers(run)
    if has_plenty(case):
        demand(
            not run.rejections and not run.preemptions,
            "plenty-is-served",
            f"{run.rejections} rejections and {run.preemptions} preemptions with memory for all",
            "create",
        )


def has_plenty(case: Case) -> bool:
    """Memory for everybody at full length, several times over, under any rounding."""
    requests = len(case.trace)
    return (
        case.limit_tokens >= 4 * requests * case.max_model_len
        and case.limit_units >= 64 + 8 * requests
        and case.slots >= 4 * requests
    )


def _case(random: Random, asks: list[Ask], limit_tokens: int, block: int = 0) -> Case:
    longest = max(ask.prompt + ask.output for ask in asks)
    return Case(
        make_trace(asks, block),
        tokens_in_chunks=random.choice(TOKENS_AND_CHUNKS),
        max_model_len=longest + 1,
        limit_tokens=limit_tokens,
        limit_units=random.randint(1, 3),
        limits=Limits(admit=random.choice(("prompt", "chunk"))),
    )


def _lengths(random: Random) -> tuple[int, int]:
    return random.randint(4, 60), random.randint(10, 60)


def _plenty(random: Random) -> Case:
    asks = [Ask(0, *_lengths(random)) for _ in range(random.randint(1, 5))]
    longest = max(ask.prompt + ask.output for ask in asks)
    return Case(
        make_trace(asks),
        random.choice(TOKENS_AND_CHUNKS),
        longest,
        limit_tokens=4 * len(asks) * longest,
        limit_units=64 + 8 * len(asks),
    )


def _two_that_grow(random: Random) -> Case:
    """Each fits alone; both are admitted and outgrow memory together."""
    prompt, output = _lengths(random)
    asks = [Ask(0, prompt, output), Ask(random.choice((0, TICKS_PER_MS)), prompt, output)]
    return _case(random, asks, (prompt + output) * 3 // 2)


def _one_too_many(random: Random) -> Case:
    """Many of one length, and memory for one of them."""
    prompt, output = _lengths(random)
    return _case(random, [Ask(0, prompt, output)] * random.randint(5, 20), prompt + output)


def _exact_fit(random: Random) -> Case:
    """A length that fills whole chunks, and memory for just that."""
    case = _case(random, [Ask(0, 64, 64), Ask(0, 1, 127), Ask(0, 127, 1)], 128)
    return Case(case.trace, random.choice(((32, 1), (64, 3), (4, 1), (1, 1))), 128, 128)


def _one_that_never_fits(random: Random) -> Case:
    """Between requests that do: it must not stop them."""
    prompt, output = _lengths(random)
    large = Ask(0, 3 * (prompt + output), output)
    return _case(random, [Ask(0, prompt, output), large, Ask(0, prompt, output)], prompt + output)


def _pinned_prefixes(random: Random) -> Case:
    """A common prefix that nearly fills memory, and different ends."""
    block, blocks = 8, random.randint(4, 10)
    shared = tuple(range(blocks))
    asks = [
        Ask(k * random.choice((0, 30 * TICKS_PER_MS)), block * (blocks + 1), 20,
            ids=(*shared, blocks + k))
        for k in range(8)
    ]  # fmt: skip
    return _case(random, sorted(asks, key=lambda ask: ask.arrival), block * (blocks + 4), block)


def _urgent_ones(random: Random) -> Case:
    """A patient request that more urgent ones push aside again and again."""
    prompt, output = _lengths(random)
    urgent = [Ask(k * 40 * TICKS_PER_MS, prompt, output, 0) for k in range(1, 10)]
    return _case(random, [Ask(0, prompt, output, 1), *urgent], (prompt + output) * 3 // 2)


def _conversation(random: Random) -> Case:
    """Turns that hold all that was said before, until memory is full of one of two sessions."""
    asks: list[Ask] = []
    for turn in range(6):
        for session in (0, 1):
            after = (len(asks) - 2,) if turn else ()
            asks.append(Ask(0, 12 * (turn + 1), 8, 0, (), session, turn, after, TICKS_PER_MS))
    return _case(random, asks, random.choice((85, 100, 130)))


def _few_slots(random: Random) -> Case:
    """Memory enough, addresses for one or two sequences."""
    prompt, output = _lengths(random)
    case = _case(random, [Ask(0, prompt, output)] * 6, 6 * (prompt + output))
    return replace(case, slots=random.randint(1, 2))


def _small_chunks(random: Random) -> Case:
    """Prompts of many chunks, of which all are begun and none can be completed at first."""
    case = _case(random, [Ask(0, random.randint(40, 80), 20) for _ in range(6)], 130)
    return replace(case, limits=Limits(max_num_seqs=4, max_batched_tokens=5, admit="chunk"))
