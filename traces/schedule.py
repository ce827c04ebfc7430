"""Arrival times drawn from a stated process, for files that state none or when asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vtsim.errors import ConfigError
from vtsim.request import TICKS_PER_S, IntArray
from vtsim.traces.draw import Draw
from vtsim.traces.number import MAX_TICK

PROCESSES = ("poisson", "gamma", "uniform")
MOST_RATE = 1e9
"""Starts are whole nanoseconds: more a second would all be at 0."""
LEAST_CV, MOST_CV = 1e-3, 1e3


@dataclass(frozen=True, slots=True)
class Schedule:
    """`rate` starts a second on average: `poisson`; `gamma` with coefficient of variation `cv`
    (1 is Poisson, more is burstier); `uniform`, evenly spaced. The first is at 0."""

    rate: float
    process: str = "poisson"
    cv: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.process not in PROCESSES:
            raise ConfigError(f"arrival {self.process!r} is not one of {', '.join(PROCESSES)}")
        for name, value in (("rate", self.rate), ("cv", self.cv)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} {value}: not a positive number")
        if self.rate > MOST_RATE:
            raise ConfigError(f"rate {self.rate:g}: more than {MOST_RATE:g} a second")
        if not LEAST_CV <= self.cv <= MOST_CV:
            raise ConfigError(f"cv {self.cv:g}: not between {LEAST_CV:g} and {MOST_CV:g}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed {self.seed}: must be 0 or more")

    def times(self, count: int) -> IntArray:
        """`count` arrivals in ticks, ascending from 0; the same for the same values."""
        gaps_wanted = max(count - 1, 0)
        draw = Draw(self.seed)
        if self.process == "uniform":
            gaps = np.ones(gaps_wanted)
        elif self.process == "poisson":
            gaps = draw.exponential(gaps_wanted)
        else:
            gaps = draw.gamma(gaps_wanted, self.cv**-2) * self.cv**2
        if float(gaps.sum()) / self.rate * TICKS_PER_S >= MAX_TICK:
            raise ConfigError(
                f"rate {self.rate:g}: the trace is longer than 64-bit picoseconds hold"
            )
        # whole nanoseconds, so that the last bits of a logarithm cannot show
        steps = np.rint(gaps / self.rate * 1e9).astype(np.int64) * 1000
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(steps)))[:count]

    def __str__(self) -> str:
        cv = f", cv {self.cv:g}" if self.process == "gamma" else ""
        seed = "" if self.process == "uniform" else f", seed {self.seed}"
        return f"{self.process} at {self.rate:g}/s{cv}{seed}"
