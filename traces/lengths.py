"""Length distributions by name, for generated traces: `lognormal:median=900,sigma=0.75`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vtsim.errors import ConfigError
from vtsim.request import IntArray
from vtsim.traces.draw import Draw
from vtsim.traces.number import MAX_TOKENS

KINDS = {
    "lognormal": ("median", "sigma", "min", "max"),
    "uniform": ("min", "max"),
    "fixed": ("value",),
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts; draws are rounded and clipped to [min, max]."""

    kind: str
    values: tuple[tuple[str, float], ...] = ()
    empirical: IntArray | None = None
    """Counts to draw from, with `kind` naming where they are from."""

    @classmethod
    def of(cls, text: str) -> Lengths:
        """From `fixed:value=8`, `uniform:min=1,max=9`, `lognormal:median=900,sigma=0.75[,min=N]
        [,max=N]`. ConfigError names what is wrong."""
        kind, _, rest = text.partition(":")
        if kind not in KINDS:
            raise ConfigError(f"lengths {text!r}: {kind!r} is not one of {', '.join(KINDS)}")
        values: dict[str, float] = {}
        for part in filter(None, rest.split(",")):
            name, equals, number = part.partition("=")
            if not equals or name not in KINDS[kind]:
                raise ConfigError(f"lengths {text!r}: {kind} takes {', '.join(KINDS[kind])}")
            if name in values:
                raise ConfigError(f"lengths {text!r}: {name} is given twice")
            try:
                values[name] = float(number)
            except ValueError:
                raise ConfigError(f"lengths {text!r}: {number!r} is not a number") from None
            if not (math.isfinite(values[name]) and 0 <= values[name] <= MAX_TOKENS):
                raise ConfigError(f"lengths {text!r}: {name} is out of range")
            if name in _WHOLE and values[name] != int(values[name]):
                raise ConfigError(f"lengths {text!r}: {name} is not a whole number of tokens")
        missing = [n for n in KINDS[kind] if n not in values and (kind, n) not in _OPTIONAL]
        if missing:
            raise ConfigError(f"lengths {text!r}: {missing[0]} is missing")
        low, high = values.get("min", 1), values.get("max", MAX_TOKENS)
        if low < 1 or high < low or values.get("value", 1) < 1:
            raise ConfigError(f"lengths {text!r}: wanted is 1 <= min <= max")
        if not low <= values.get("median", low) <= high:
            raise ConfigError(
                f"lengths {text!r}: the median is not between min and max (1 where none is given)"
            )
        return cls(kind, tuple(values.items()))

    @classmethod
    def of_trace(cls, path: str | Path) -> tuple[Lengths, Lengths]:
        """(prompt, output) lengths as they occur in a trace file, drawn independently."""
        from vtsim.traces.loading import load

        trace = load(path)
        said = f"as in {trace.name} ({trace.sha256[:16]})"
        return cls(said, (), trace.prompt_tokens), cls(said, (), trace.output_tokens)

    @property
    def least(self) -> int:
        """The shortest that can be drawn."""
        if self.empirical is not None:
            return int(self.empirical.min())
        values = dict(self.values)
        return int(values.get("value", values.get("min", 1)))

    def draw(self, draw: Draw, count: int) -> IntArray:
        """`count` lengths."""
        if self.empirical is not None:
            at = np.floor(draw.uniform(count) * len(self.empirical)).astype(np.int64)
            return np.asarray(self.empirical[at])
        v = dict(self.values)
        if self.kind == "fixed":
            return np.full(count, round(v["value"]), dtype=np.int64)
        low, high = v.get("min", 1), v.get("max", MAX_TOKENS)
        if self.kind == "uniform":
            drawn = np.floor(low + draw.uniform(count) * (math.floor(high) - low + 1))
        else:
            drawn = np.rint(v["median"] * np.exp(v["sigma"] * draw.normal(count)))
        return np.clip(drawn, math.ceil(low), math.floor(high)).astype(np.int64)

    def __str__(self) -> str:
        inner = ",".join(f"{name}={value:g}" for name, value in self.values)
        return f"{self.kind}:{inner}" if inner else self.kind


_WHOLE = frozenset(("value", "min", "max"))
_OPTIONAL = {("lognormal", "min"), ("lognormal", "max")}
