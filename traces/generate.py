"""Generated traces from stated distributions: benchmark inputs and the bundled samples.

Reproducible from the seed, and honest: `source` says that the trace is synthetic and from what.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtsim.errors import ConfigError
from vtsim.request import IntArray, ReadReport, Trace
from vtsim.traces.draw import Draw
from vtsim.traces.ids import MAX_BLOCK
from vtsim.traces.lengths import Lengths
from vtsim.traces.number import MAX_TICK, MAX_TOKENS
from vtsim.traces.pace import MOST_REQUESTS
from vtsim.traces.schedule import PROCESSES, Schedule
from vtsim.traces.transform import reorder

AZURE_LIKE_PROMPT = Lengths.of("lognormal:median=900,sigma=0.75,max=14050")
AZURE_LIKE_OUTPUT = Lengths.of("lognormal:median=130,sigma=1,max=1000")
"""Roughly the Azure 2023 conversation trace (median 1,020 and 129, mean 1,155 and 211)."""

_MICROSECOND = 10**6
_CALLED = {"period_s": "period", "think_s": "think"}
"""Options that the command line calls otherwise."""


@dataclass(frozen=True, slots=True)
class Synth:
    """What to generate. Conversations start by `arrival` at `rate` a second; one has a geometric
    number of turns. A turn's prompt is the system prompt, all turns and outputs before, and what is
    new (`prompt`); it arrives `think_s` on average (exponential) plus a reading time of
    `seconds_per_token` an output token behind the turn before. Conversations share one of
    `system_prompts` system prompts, drawn evenly."""

    requests: int
    seed: int = 0
    rate: float = 1.0
    arrival: str = "poisson"
    cv: float = 2.0
    period_s: float = 86400.0
    """Of `diurnal`: the rate swings by `depth` x its mean around it, beginning at its lowest."""
    depth: float = 0.8
    prompt: Lengths = field(default=AZURE_LIKE_PROMPT)
    output: Lengths = field(default=AZURE_LIKE_OUTPUT)
    turns: float = 1.0
    """Mean turns of a conversation; 1: single requests, no sessions."""
    max_context: int | None = None
    """A conversation ends before a turn that would exceed it; a turn that alone would is cut to it,
    which a warning and `source.cut` count."""
    think_s: float = 30.0
    seconds_per_token: float = 0.05
    system_prompts: int = 0
    system_tokens: int = 0
    block_size: int = 0
    """Tokens a hash id; 0: no hash ids, so that nothing but sessions is known to be shared."""

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ConfigError(f"requests {self.requests}: must be at least 1")
        if self.requests > MOST_REQUESTS:
            raise ConfigError(f"requests {self.requests}: more than {MOST_REQUESTS:,}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed {self.seed}: must be 0 or more")
        for name in ("rate", "cv", "period_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name} {getattr(self, name)}: not a positive number")
        for name in ("think_s", "seconds_per_token", "system_prompts", "system_tokens"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} {getattr(self, name)}: must be 0 or more")
        if not (math.isfinite(self.turns) and self.turns >= 1):
            raise ConfigError(f"turns {self.turns}: must be at least 1")
        if self.turns > MOST_REQUESTS:
            raise ConfigError(f"turns {self.turns:g}: more than {MOST_REQUESTS:,}")
        if not 1e-3 <= self.period_s <= 1e9:
            raise ConfigError(f"period {self.period_s:g}: not between 0.001 and 1e9 s")
        for name in ("system_prompts", "system_tokens", "max_context"):
            if (getattr(self, name) or 0) > MAX_TOKENS:
                raise ConfigError(f"{name} {getattr(self, name)}: more than {MAX_TOKENS}")
        if not 0 <= self.depth <= 1:
            raise ConfigError(f"depth {self.depth}: must be between 0 and 1")
        if not 0 <= self.block_size <= MAX_BLOCK:
            raise ConfigError(f"block size {self.block_size} is not between 0 and {MAX_BLOCK}")
        if (self.system_prompts > 0) != (self.system_tokens > 0):
            raise ConfigError("system prompts need a number and a length, both above 0")
        if self.max_context is not None and self.max_context - self.system_tokens < 2:
            raise ConfigError(f"max context {self.max_context}: no room behind the system prompt")
        if self.arrival not in (*PROCESSES, "diurnal"):
            known = ", ".join((*PROCESSES, "diurnal"))
            raise ConfigError(f"arrival {self.arrival!r} is not one of {known}")
        if self.max_context is not None:
            room = self.max_context - self.system_tokens
            if self.prompt.least + self.output.least > room:
                raise ConfigError(
                    f"max context {self.max_context}: the shortest prompt, {self.prompt.least} "
                    f"tokens, with the shortest output, {self.output.least}, does not fit"
                    + (
                        f" behind a system prompt of {self.system_tokens}"
                        * (room != self.max_context)
                    )
                )
        self._check_used()
        process = "poisson" if self.arrival == "diurnal" else self.arrival
        Schedule(self.rate, process, self.cv, self.seed)

    def _check_used(self) -> None:
        """Refuses what the rest leaves without effect."""
        needs = {
            "cv": (self.arrival == "gamma", "arrival gamma"),
            "period_s": (self.arrival == "diurnal", "arrival diurnal"),
            "depth": (self.arrival == "diurnal", "arrival diurnal"),
            "think_s": (self.turns > 1, "more than 1 turn"),
            "seconds_per_token": (self.turns > 1, "more than 1 turn"),
        }
        for name, (used, needed) in needs.items():
            value = getattr(self, name)
            if not used and value != type(self).__dataclass_fields__[name].default:
                said = f"{_CALLED.get(name, name)} {value:g} needs {needed}"
                raise ConfigError(f"{said}: without it it does nothing")

    def about(self) -> dict[str, object]:
        """For `source` in the trace."""
        said: dict[str, object] = {
            "synthetic": True,
            "generator": "vtsim trace synth",
            "version": 1,
        }
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            said[name] = str(value) if isinstance(value, Lengths) else value
        return said


def synth(requests: int, seed: int = 0, **options: object) -> Trace:
    """A generated trace; `options` are the fields of `Synth`. A million requests take seconds."""
    return generate(Synth(requests, seed, **options))  # type: ignore[arg-type]


def generate(spec: Synth) -> Trace:
    """The trace that `spec` describes: exactly `spec.requests` requests, in time order."""
    draw = Draw(spec.seed)
    count = spec.requests
    sizes = draw.geometric(count, spec.turns)
    new, output = spec.prompt.draw(draw, count), spec.output.draw(draw, count)
    cut = 0
    if spec.max_context is not None:
        room = spec.max_context - spec.system_tokens
        cut = int((new + output > room).sum())
        output = np.minimum(output, room - 1)
        new = np.minimum(new, room - output)
    starts = _conversations(spec, sizes, new + output)
    conversation = np.zeros(count, dtype=np.int64)
    conversation[starts[1:]] = 1
    conversation = np.cumsum(conversation)
    first = starts[conversation]
    before = np.cumsum(new + output) - new - output
    prompt = spec.system_tokens + before - before[first] + new
    if int(prompt.max()) > MAX_TOKENS:
        longest = int(prompt.max())
        raise ConfigError(f"a prompt has {longest} tokens: --max-context bounds conversations")

    gap = _microseconds(draw.exponential(count) * spec.think_s)
    gap[1:] += _microseconds(output[:-1] * spec.seconds_per_token)
    behind = np.cumsum(gap)
    arrival = _starts(spec, draw, len(starts))[conversation] + behind - behind[first]
    which = np.floor(draw.uniform(len(starts)) * max(spec.system_prompts, 1)).astype(np.int64)
    offsets, run_first, run_count = _runs(spec, starts, conversation, which, prompt)
    sessions = spec.turns > 1
    none = np.full(count, -1, dtype=np.int64)
    about = spec.about()
    warnings = []
    if cut:
        about["cut"] = cut
        warnings.append(
            f"{cut} of {count} requests had more tokens than max_context {spec.max_context} leaves "
            "room for and were cut: lengths are not those asked for"
        )
    text = json.dumps(about, sort_keys=True)
    trace = reorder(
        Trace(
            name="synthetic",
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            arrival=arrival * _MICROSECOND,
            prompt_tokens=prompt,
            output_tokens=output,
            priority=np.zeros(count, dtype=np.int64),
            session=conversation if sessions else none,
            turn=np.arange(count, dtype=np.int64) - first if sessions else none,
            run_offsets=offsets,
            run_first=run_first,
            run_count=run_count,
            block_size=spec.block_size if len(run_first) else 0,
            tail_rule="prefix_only" if len(run_first) else "exact",
            session_names=tuple(f"s{i}" for i in range(len(starts))) if sessions else (),
            source=about,
            report=ReadReport(
                rows_read=count,
                rows_kept=count,
                format="synth",
                warnings=warnings,
                arrivals_made=f"{spec.arrival} at {spec.rate:g}/s, seed {spec.seed}",
            ),
        )
    )
    return dataclasses.replace(trace, ids=())  # rows are named in time order


def _conversations(spec: Synth, sizes: IntArray, tokens: IntArray) -> IntArray:
    """First request of each conversation: after the drawn number of turns, or where another turn
    of `tokens` would exceed `max_context`."""
    count = spec.requests
    if spec.turns == 1:
        return np.arange(count, dtype=np.int64)
    if spec.max_context is None:
        ends = np.cumsum(sizes)
        return np.concatenate(([0], ends[ends < count])).astype(np.int64)
    room = spec.max_context - spec.system_tokens
    starts: list[int] = []
    left = held = 0
    turns = iter(sizes.tolist())
    for row, size in enumerate(tokens.tolist()):
        if left == 0 or held + size > room:
            starts.append(row)
            left, held = next(turns), 0
        left -= 1
        held += size
    return np.array(starts, dtype=np.int64)


def _starts(spec: Synth, draw: Draw, count: int) -> IntArray:
    """Arrivals of the first turns, in microseconds, from 0."""
    if spec.arrival != "diurnal":
        seed = int(draw.uniform(1)[0] * 2**53)
        return Schedule(spec.rate, spec.arrival, spec.cv, seed).times(count) // _MICROSECOND
    expected = np.concatenate(([0.0], np.cumsum(draw.exponential(count - 1)))) / spec.rate
    end = float(expected[-1]) + spec.period_s
    points = max(1000, math.ceil(end / spec.period_s) * 256)
    if points > 10**7:
        raise ConfigError(f"period {spec.period_s}: too short for a trace of {end:g} s")
    grid = np.linspace(0.0, end, points)
    turned = 2 * math.pi / spec.period_s
    mass = grid - spec.depth / turned * np.sin(turned * grid)
    return _microseconds(np.interp(expected, mass, grid))


def _microseconds(seconds: NDArray[np.floating[Any]]) -> IntArray:
    """Whole microseconds, so that the last bits of a logarithm cannot show."""
    if len(seconds) and float(seconds.max()) * 1e12 > MAX_TICK:
        raise ConfigError("the trace is longer than 64-bit picoseconds hold")
    whole: IntArray = np.rint(seconds * 1e6).astype(np.int64)
    return whole


def _runs(
    spec: Synth, starts: IntArray, conversation: IntArray, which: IntArray, prompt: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """(offsets, first ids, counts): the whole blocks of the system prompt, shared by all that have
    it, then the conversation's own."""
    count = len(prompt)
    nothing = np.zeros(0, dtype=np.int64)
    if spec.block_size == 0:
        return np.zeros(count + 1, dtype=np.int64), nothing, nothing
    shared = spec.system_tokens // spec.block_size
    own = prompt // spec.block_size - shared
    longest = np.maximum.reduceat(own, starts)
    own_first = shared * max(spec.system_prompts, 1) + np.cumsum(longest) - longest
    firsts = np.stack((which[conversation] * shared, own_first[conversation]), axis=1)
    counts = np.stack((np.full(count, shared, dtype=np.int64), own), axis=1)
    there = counts > 0
    offsets = np.concatenate(([0], np.cumsum(there.sum(axis=1)))).astype(np.int64)
    return offsets, firsts[there], counts[there]
