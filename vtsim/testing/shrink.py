"""Makes examples smaller for as long as they still fail, under a time limit.

`fails` says whether an example still does, in the way that matters. Nothing here knows why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from vtsim.engine.state import Limits
from vtsim.testing.cases import Case
from vtsim.testing.example import Example, asks_of, text_of
from vtsim.testing.toys import Ask, ToyExecutor, make_trace
from vtsim.testing.walk import Call

T = TypeVar("T")
Fails = Callable[[Example], bool]


def shrink(example: Example, fails: Fails, seconds: float) -> Example:
    """A smaller example that `fails`, or the one that was given; done after about `seconds`."""
    until = monotonic() + seconds

    def still(tried: Example) -> bool:
        return monotonic() < until and fails(tried)

    while monotonic() < until:
        smaller = _smaller_walk(example, still) if example.calls else _smaller_case(example, still)
        if text_of(smaller) == text_of(example):
            break
        example = smaller
    return example


def without(items: list[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """`items` without those that failing does not need: halves first, then ever smaller parts."""
    size = len(items)
    while size:
        at = 0
        while at < len(items):
            fewer = items[:at] + items[at + size :]
            if fails(fewer):
                items = fewer
            else:
                at += size
        size //= 2
    return items


# -- walks -----------------------------------------------------------------------------------------


def _smaller_walk(example: Example, fails: Fails) -> Example:
    def with_calls(calls: list[Call]) -> Example:
        return replace(example, calls=tuple(calls))

    calls = without(list(example.calls or ()), lambda calls: fails(with_calls(calls)))
    for at, (name, numbers) in enumerate(calls):
        for key, value in numbers.items():
            for less in _less(value):
                tried = [*calls[:at], (name, {**numbers, key: less}), *calls[at + 1 :]]
                if fails(with_calls(tried)):
                    calls, numbers = tried, tried[at][1]
                    break
    return with_calls(calls)


# -- cases -----------------------------------------------------------------------------------------


def _smaller_case(example: Example, fails: Fails) -> Example:
    case = example.case
    for simpler in _SIMPLER:
        if fails(Example(simpler(case))):
            case = simpler(case)
    asks, block = asks_of(case.trace), case.trace.block_size

    def of(rows: list[tuple[int, Ask]]) -> Example:
        return Example(replace(case, trace=make_trace(_renumbered(rows), block)))

    rows = list(enumerate(asks))
    if len(rows) > 1:
        rows = without(rows, lambda rows: bool(rows) and fails(of(rows)))
    for at in range(len(rows)):
        for changes in (_shorter_answers, _shorter_prompts, _plainer):
            for change in changes(rows[at][1]):
                tried = [*rows[:at], (rows[at][0], change), *rows[at + 1 :]]
                if fails(of(tried)):
                    rows = tried
                    break
    smaller = of(rows)
    return smaller if fails(smaller) else Example(case)


def _at_once(case: Case) -> Case:
    asks = [ask if ask.after else ask._replace(arrival=0) for ask in asks_of(case.trace)]
    return replace(case, trace=make_trace(asks, case.trace.block_size))


def _unhashed(case: Case) -> Case:
    return replace(case, trace=make_trace(ask._replace(ids=()) for ask in asks_of(case.trace)))


_SIMPLER: tuple[Callable[[Case], Case], ...] = (
    _at_once,
    _unhashed,
    lambda case: replace(case, executor=ToyExecutor()),
    lambda case: replace(case, slots=1000),
    lambda case: replace(case, limits=Limits()),
    lambda case: replace(case, limits=replace(case.limits, admit="prompt")),
    lambda case: replace(case, tokens_in_chunks=(1, 1)),
    lambda case: replace(case, limit_units=1),
)


def _shorter_answers(ask: Ask) -> Iterator[Ask]:
    for output in _less(ask.output, 1):
        yield ask._replace(output=output)


def _shorter_prompts(ask: Ask) -> Iterator[Ask]:
    if not ask.ids:  # they name blocks of the prompt
        for prompt in _less(ask.prompt, 1):
            yield ask._replace(prompt=prompt)


def _plainer(ask: Ask) -> Iterator[Ask]:
    plain = Ask(0 if ask.after else ask.arrival, ask.prompt, ask.output, ids=ask.ids)
    if plain != ask:
        yield plain
        yield ask._replace(priority=0)


def _renumbered(rows: list[tuple[int, Ask]]) -> list[Ask]:
    """Rows of a larger trace, those that are waited for by their new numbers."""
    number = {old: new for new, (old, _) in enumerate(rows)}
    asks = []
    for _, ask in rows:
        after = tuple(number[old] for old in ask.after if old in number)
        asks.append(ask._replace(after=after, wait=ask.wait if after else 0))
    return sorted(asks, key=lambda ask: ask.arrival) if not any(a.after for a in asks) else asks


def _less(value: int, least: int = 0) -> Iterator[int]:
    """Smaller numbers, the smallest first."""
    tried = {least, value // 2, value - 1}
    yield from sorted(number for number in tried if least <= number < value)
