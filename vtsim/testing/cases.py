"""Cases: a small trace, a device and limits; drawn from a `random.Random`, run, and told apart.

One seed is one case, the same everywhere. `vtsim.testing.strategies` draws the same cases through
Hypothesis. Nothing here judges: see `vtsim.testing.conformance`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from vtsim.backends.sim import SimBackend
from vtsim.engine.loop import Engine, Limits
from vtsim.errors import CapacityError
from vtsim.memory.foresight import Foresight
from vtsim.memory.journal import Journal
from vtsim.metrics.recorder import Recorder
from vtsim.ports import DriverCall, Executor, MemoryPolicy, MemoryTimes
from vtsim.request import Trace
from vtsim.spec import KVLayout
from vtsim.testing.contracts import ContractError
from vtsim.testing.toys import Ask, ToyExecutor, ToyTimes, make_trace, toy_device, toy_model
from vtsim.testing.watch import RUN_SECONDS, at_most

TOKENS_AND_CHUNKS = ((32, 1), (128, 15), (64, 3), (4, 1), (1, 1), (2, 3))
"""So many tokens fill so many chunks exactly: Yi-6B, Yi-34B, Yi-9B, Llama-2-7B, and larger ones."""

TICKS_PER_MS = 10**9
DECISIONS_A_TOKEN = 20
"""A run may ask its policy so often for every token of its trace, recomputed ones included."""


@dataclass(frozen=True)
class Case:
    """Everything one run depends on, but the policy."""

    trace: Trace
    tokens_in_chunks: tuple[int, int] = (32, 1)
    """So many tokens fill so many of the policy's chunks, all arenas together."""
    max_model_len: int = 256
    limit_tokens: int = 1024
    """The byte limit is that of so many tokens, and of `limit_units` units."""
    limit_units: int = 0
    slots: int = 1000
    limits: Limits = Limits()
    executor: Executor = ToyExecutor()
    times: MemoryTimes = ToyTimes()

    def kv_layout(self, policy: MemoryPolicy) -> KVLayout:
        """What the policy makes of the toy model whose tokens have the size that is asked for."""
        tokens, chunks = self.tokens_in_chunks
        chunk_bytes = policy.kv_layout(toy_model(), 1, self.max_model_len).chunk_bytes
        model = toy_model(chunk_bytes * chunks // tokens)
        return policy.kv_layout(model, 1, self.max_model_len)

    def limit_bytes(self, kv: KVLayout) -> int:
        return self.limit_tokens * kv.token_bytes + self.limit_units * kv.unit_bytes

    @property
    def tokens(self) -> int:
        """All prompts and answers together."""
        return int(self.trace.prompt_tokens.sum() + self.trace.output_tokens.sum())

    def __repr__(self) -> str:
        rows = list(
            zip(
                self.trace.arrival.tolist(),
                self.trace.prompt_tokens.tolist(),
                self.trace.output_tokens.tolist(),
                self.trace.priority.tolist(),
                strict=True,
            )
        )
        tokens, chunks = self.tokens_in_chunks
        return (
            f"Case({len(rows)} requests (arrival, prompt, output, priority) {rows}, "
            f"{tokens} tokens in {chunks} chunks, max_model_len {self.max_model_len}, "
            f"limit {self.limit_tokens} tokens + {self.limit_units} units, {self.slots} slots, "
            f"{self.limits}, {self.executor})"
        )


class Patient:
    """A policy that is asked only so often: a run that needs more decisions goes in circles.

    Everything it does not define is the policy's.
    """

    def __init__(self, policy: Any, most: int) -> None:
        self.policy = policy
        self._left = self._most = most
        self.create = self._counted(policy.create)
        self.extend_prompt = self._counted(policy.extend_prompt)
        self.extend = self._counted(policy.extend)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def _counted(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise ContractError("progress", f"no end after {self._most:,} decisions")
            return ask(*arguments)

        return counted


@dataclass(frozen=True)
class Ran:
    """A finished run."""

    policy: Any
    """The policy itself, without a journal around it."""
    recorder: Recorder
    backend: SimBackend
    calls: tuple[DriverCall, ...]

    @property
    def preemptions(self) -> int:
        return sum(self.recorder.preemptions)

    @property
    def rejections(self) -> int:
        return len(self.recorder.reasons)

    def account(self) -> dict[str, object]:
        """All that a run decided, held and took, by name: equal for equal runs. Whether steps were
        taken singly is not in it, and calls only where there are some."""
        seen: dict[str, object] = {
            name: _plain(getattr(self.recorder, name))
            for name in (*Recorder.__slots__, "samples")
            if name != "leaps" and not name.startswith("_")
        }
        if self.calls:
            # `due` counts from a plan's first step: only the step itself can be compared.
            seen["calls"] = [
                (call.step, int(call.phase), replace(call.operation, due=0)) for call in self.calls
            ]
        return seen


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, array | bytearray) else value


def run_case(
    case: Case,
    policy: Any,
    *,
    leap: bool = True,
    placement: bool = False,
    check: bool = True,
    fail_at: int | None = None,
    journal: type[Journal] = Journal,
) -> Ran:
    """Replay `case` against `policy`, fresh and made with the same `placement`.

    `fail_at`: the backend refuses that operation, counted from 0 from the set-up on; the policy
    then runs in a `journal`, step by step. Closes the backend: a leak is an error. Raises
    CapacityError if the set-up itself is refused, ContractError where the run goes in circles.
    """
    kv = case.kv_layout(policy)
    limit = case.limit_bytes(kv)
    device = toy_device(limit, kv.slot_bytes * case.slots)
    backend = SimBackend(device, kv, placement=placement, fail_at=fail_at)
    if hasattr(policy, "learn"):  # an oracle is told the trace
        policy.learn(toy_model(), 1, Foresight.of(case.trace) if policy.oracle else None)
    served: MemoryPolicy = policy if fail_at is None else journal(policy)
    recorder = Recorder(len(case.trace), device.capacity_bytes, 0, 0, 0, True)
    setup = served.setup(device, kv, limit)
    receipt = backend.settle(backend.submit(setup, 0))
    if not receipt.done:
        raise CapacityError(f"the set-up is {receipt.short_bytes} bytes short")
    leap = leap and fail_at is None
    limits = replace(case.limits, leap=leap, check=check, max_model_len=case.max_model_len)
    patient: Any = Patient(served, 20_000 + DECISIONS_A_TOKEN * case.tokens)
    engine = Engine(case.trace, patient, backend, case.executor, case.times, recorder, limits)
    with at_most(RUN_SECONDS, "the run"):
        engine.run()
    backend.close()
    return Ran(getattr(served, "policy", served), recorder, backend, tuple(backend.calls()))


# -- drawing ---------------------------------------------------------------------------------------


def random_trace(random: Random, requests: int = 25) -> Trace:
    """Up to `requests` requests: equal or mixed lengths, bursts and gaps, two priorities; their
    content unknown, hashed with common prefixes, or told by sessions, perhaps in closed loop."""
    kind = random.choice(("unknown", "hashed", "hashed", "hashed", "sessions", "closed"))
    count = random.randint(1, requests)
    block = random.choice((1, 3, 8, 16)) if kind == "hashed" else 0
    equal = random.randint(0, 2) == 0
    lengths = random.randint(1, 120), random.randint(1, 80)
    now = 0
    fresh = 0
    asks: list[Ask] = []
    histories: list[tuple[int, ...]] = []
    turns: dict[int, list[int]] = {}
    for row in range(count):
        now += random.choice((0, 0, 9 * TICKS_PER_MS, 50 * TICKS_PER_MS, random.randint(0, 10**12)))
        prompt, output = lengths if equal else (random.randint(1, 160), random.randint(1, 80))
        ask = Ask(now, prompt, output, random.choice((0, 0, 0, 1)))
        if kind == "hashed":
            ids: tuple[int, ...] = ()
            if histories and random.randint(0, 9) < 7:
                history = random.choice(histories)
                ids = history[: random.randint(0, min(len(history), prompt // block))]
            missing = prompt // block - len(ids)
            ids += tuple(range(fresh, fresh + missing))
            fresh += missing
            histories.append(ids)
            ask = ask._replace(ids=ids)
        elif kind != "unknown":
            session = random.randint(0, max(1, count // 3))
            before = turns.setdefault(session, [])
            if before:
                last = asks[before[-1]]
                grown = last.prompt + last.output + random.randint(-2, 20)
                ask = ask._replace(prompt=min(400, max(1, grown)))
                if kind == "closed":
                    wait = random.choice((0, 5 * TICKS_PER_MS, random.randint(0, 10**11)))
                    ask = ask._replace(after=(before[-1],), wait=wait)
            ask = ask._replace(session=session, turn=len(before))
            before.append(row)
        asks.append(ask)
    return make_trace(asks, block)


def random_case(
    random: Random, pressure: Literal["any", "high"] = "any", requests: int = 25
) -> Case:
    """A case; under `high` pressure memory is for a few sequences at once."""
    trace = random_trace(random, requests)
    totals = (trace.prompt_tokens + trace.output_tokens).tolist()
    longest = max(totals)
    if pressure == "any":
        limit = longest * random.choice((8, 11, 15, 30, 100)) // 10
    else:
        limit = longest * random.choice((9, 11, 13, 16)) // 10
    sequences = random.choice((2, 8, 256))
    batched = random.choice((16, 64, 8192))
    if batched <= sequences:
        sequences = 8
    return Case(
        trace,
        tokens_in_chunks=random.choice(TOKENS_AND_CHUNKS),
        max_model_len=longest + random.choice((0, 1, 100)),
        limit_tokens=limit,
        limit_units=random.randint(1, 5),
        slots=random.choice((3, 10, 1000)),
        limits=Limits(
            max_num_seqs=sequences,
            max_batched_tokens=batched,
            admit="prompt" if random.randint(0, 1) else "chunk",
        ),
        executor=ToyExecutor(
            bend=random.choice((1 << 60, random.randint(1, 2000))),
            closed_form=random.randint(0, 9) < 9,
        ),
    )
