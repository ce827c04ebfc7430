"""Arrival times drawn from a stated process, for files that state none or when asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vtsim.errors import ConfigError
from vtsim.request import TICKS_PER_S, IntArray
from vtsim.traces.number import MAX_TICK

PROCESSES = ("poisson", "gamma", "uniform")


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
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed {self.seed}: must be 0 or more")

    def times(self, count: int) -> IntArray:
        """`count` arrivals in ticks, ascending from 0; the same for the same values."""
        if self.process == "uniform":
            gaps = np.full(max(count - 1, 0), 1.0)
        else:
            random = np.random.Generator(np.random.PCG64(self.seed))
            shape = 1.0 if self.process == "poisson" else self.cv**-2
            gaps = random.standard_gamma(shape, max(count - 1, 0)) / shape
        seconds = np.concatenate(([0.0], np.cumsum(gaps))) / self.rate
        if seconds[-1] * TICKS_PER_S >= MAX_TICK:
            raise ConfigError(f"rate {self.rate}: the trace is longer than 64-bit picoseconds hold")
        return np.rint(seconds[:count] * TICKS_PER_S).astype(np.int64)

    def __str__(self) -> str:
        cv = f", cv {self.cv:g}" if self.process == "gamma" else ""
        seed = "" if self.process == "uniform" else f", seed {self.seed}"
        return f"{self.process} at {self.rate:g}/s{cv}{seed}"
