"""Walk: calls of a policy one after another, in words that can be kept and said again.

A call is a name and a few whole numbers; one that makes no sense at the moment does nothing, so any
part of a walk is a walk. Whoever draws the numbers (`vtsim.testing.strategies`, a random walk here)
does not judge: `PolicyDriver` does, after every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from vtsim.plan import Keep
from vtsim.testing.cases import Case
from vtsim.testing.driver import MakePolicy, PolicyDriver
from vtsim.testing.toys import Ask, make_trace
from vtsim.testing.watch import CALL_SECONDS, at_most

Call = tuple[str, dict[str, int]]
Setup = Mapping[str, Any]
"""tokens_in_chunks, max_model_len, limit_tokens, limit_units, slots: as in `Case`."""


def case_of(setup: Setup) -> Case:
    """The case whose device and limits a walk has; its trace is not used."""
    numbers = {**setup, "tokens_in_chunks": tuple(setup["tokens_in_chunks"])}
    return Case(make_trace([Ask(0, 1, 1)]), **numbers)


def setup_of(case: Case) -> dict[str, Any]:
    """The other way round."""
    names = ("max_model_len", "limit_tokens", "limit_units", "slots")
    return {
        "tokens_in_chunks": list(case.tokens_in_chunks),
        **{name: getattr(case, name) for name in names},
    }


class Walk:
    """`calls` are those made so far; what is wrong is raised, by the call that shows it."""

    NAMES = frozenset(
        ("create", "come_back", "extend_prompt", "extend", "release", "preempt", "retire")
        + ("set_limit",)
    )

    def __init__(self, make: MakePolicy, setup: Setup) -> None:
        self.setup = dict(setup)
        self.calls: list[Call] = []
        self.broken = False
        with at_most(CALL_SECONDS, "setup"):
            self.driver = PolicyDriver(make, case_of(setup))
            self.driver.check()

    def do(self, name: str, **numbers: int) -> None:
        """One call, and everything that must hold behind it."""
        self.calls.append((name, numbers))
        self.broken = True
        with at_most(CALL_SECONDS, name):
            getattr(self, f"_{name}")(**numbers)
            self.driver.check()
        self.broken = False

    def finish(self) -> None:
        """Tear down, unless something was wrong before: what was said of that stands."""
        if self.broken:
            return
        with at_most(CALL_SECONDS, "teardown"):
            self.driver.finish()

    # -- calls ------------------------------------------------------------------------------------

    def _create(
        self, prompt: int, like: int, alike: int, known: int, output: int, tokens: int, whole: int,
        matching: int, undo: int,
    ) -> None:  # fmt: skip
        """`whole`: tokens asked to fit behind the prompt; 0: the chunk alone."""
        driver = self.driver
        prompt = max(1, min(prompt, driver.max_model_len - 1))
        seq = driver.new_sequence(prompt, like, alike, bool(known), bool(output))
        whole = prompt + whole if whole else 0
        # What needs no plan cannot be undone: it is granted at once.
        if not (undo and driver.create(seq, tokens, whole, matching=bool(matching), undo=True)):
            driver.create(seq, tokens, whole, matching=bool(matching))

    def _come_back(self, which: int, tokens: int) -> None:
        gone = self.driver.gone
        if gone:
            seq = gone[which % len(gone)]
            if self.driver.create(seq, tokens, seq.prompt_tokens + 2):
                gone.remove(seq)

    def _extend_prompt(self, which: int, tokens: int, undo: int) -> None:
        unfinished = self.unfinished
        if unfinished:
            index = unfinished[which % len(unfinished)]
            if not (undo and self.driver.extend_prompt(index, tokens, undo=True)):
                self.driver.extend_prompt(index, tokens)

    def _extend(self, steps: int, undo: int) -> None:
        if not (undo and self.driver.extend(steps, undo=True)):
            self.driver.extend(steps)

    def _release(self, which: int, keep: int, comes_back: int) -> None:
        running = list(self.driver.running)
        if running:
            index = running[which % len(running)]
            kept = Keep.RECORD if keep else Keep.NONE
            self.driver.release(index, kept, comes_back=bool(comes_back))

    def _preempt(self, comes_back: int) -> None:
        victim = self.driver.placed.policy.select_victim(self.driver.batch)
        if victim is not None:
            self.driver.release(victim.index, Keep.RECORD, comes_back=bool(comes_back))

    def _retire(self, running: int) -> None:
        self.driver.retire(bool(running))

    def _set_limit(self, percent: int) -> None:
        self.driver.set_limit(self.driver.placed.limit_bytes * percent // 100)

    @property
    def unfinished(self) -> list[int]:
        """Running sequences whose prompt is not complete."""
        decoding = self.driver.batch.decoding
        return [index for index in self.driver.running if index not in decoding]


def walk_again(make: MakePolicy, setup: Setup, calls: Iterable[Call]) -> None:
    """Make `calls` on a fresh policy, and tear it down."""
    walk = Walk(make, setup)
    for name, numbers in calls:
        walk.do(name, **numbers)
    walk.finish()


def random_call(walk: Walk, random: Random, undo: bool | None = None) -> Call:
    """Something that makes sense now. `undo`: whether decisions are undone first; None: some."""
    undone = int(random.randint(0, 9) == 0 if undo is None else undo)
    driver = walk.driver
    draw = random.randint(0, 99)
    if draw < 30:
        if driver.gone and random.randint(0, 1):
            which = random.randint(0, 20)
            return "come_back", {"which": which, "tokens": random.choice((1000, 16))}
        prompt = random.randint(1, max(1, driver.max_model_len - 2))
        return "create", {
            "prompt": prompt,
            "like": random.randint(-1, 30),
            "alike": random.randint(1, driver.max_model_len),
            "known": int(random.randint(0, 4) > 0),
            "output": random.randint(0, 1),
            "tokens": random.choice((prompt, random.randint(1, 64))),
            "whole": random.choice((0, 2, 10)),
            "matching": int(random.randint(0, 9) > 0),
            "undo": undone,
        }
    if draw < 55:
        steps = random.choice((1, 1, 2, random.randint(1, 80)))
        return "extend", {"steps": steps, "undo": undone}
    if draw < 65 and walk.unfinished:
        which, tokens = random.randint(0, 20), random.randint(1, 100)
        return "extend_prompt", {"which": which, "tokens": tokens, "undo": undone}
    if draw < 78 and driver.running:
        keep, comes_back = int(random.randint(0, 3) > 0), int(random.randint(0, 3) == 0)
        return "release", {"which": random.randint(0, 20), "keep": keep, "comes_back": comes_back}
    if draw < 80:
        return "preempt", {"comes_back": random.randint(0, 1)}
    if draw < 95:
        return "retire", {"running": int(random.randint(0, 3) > 0)}
    return "set_limit", {"percent": random.choice((0, 10, 50, 80, 100, 100))}
