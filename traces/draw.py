"""Random numbers that are the same on every machine and numpy version for the same seed.

Only the bit stream of PCG64 is used, which numpy keeps stable; the transforms are written out.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Draw:
    """A stream of draws. Every method moves the stream on by what it needs."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, count: int) -> FloatArray:
        """In [0, 1)."""
        raw = self._bits.random_raw(count)
        return np.asarray(raw >> np.uint64(11), dtype=np.float64) * 2.0**-53

    def exponential(self, count: int) -> FloatArray:
        """Of mean 1."""
        return -np.log1p(-self.uniform(count))

    def normal(self, count: int) -> FloatArray:
        """Standard normal (Box-Muller)."""
        half = (count + 1) // 2
        radius = np.sqrt(2 * self.exponential(half))
        angle = 2 * math.pi * self.uniform(half)
        return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]

    def gamma(self, count: int, shape: float) -> FloatArray:
        """Of mean `shape` (Marsaglia and Tsang 2000; for shape < 1 with a uniform's power)."""
        boosted = shape if shape >= 1 else shape + 1
        d = boosted - 1 / 3
        c = 1 / math.sqrt(9 * d)
        parts: list[FloatArray] = []
        missing = count
        while missing > 0:
            x = self.normal(missing)
            v = (1 + c * x) ** 3
            good = v > 0
            safe = np.where(good, v, 1.0)
            u = 1 - self.uniform(missing)
            good &= np.log(u) < 0.5 * x * x + d - d * safe + d * np.log(safe)
            parts.append(d * safe[good])
            missing -= int(good.sum())
        values = np.concatenate(parts) if parts else np.zeros(0)
        if shape < 1:
            values = values * (1 - self.uniform(count)) ** (1 / shape)
        return values

    def geometric(self, count: int, mean: float) -> NDArray[np.int64]:
        """1, 2, 3, ... of that mean (>= 1)."""
        if mean <= 1:
            return np.ones(count, dtype=np.int64)
        steps = np.floor(self.exponential(count) / -math.log1p(-1 / mean))
        return np.asarray(steps, dtype=np.int64) + 1
