"""`ReplayOptions`: everything a replay can be told, with its default and its checks.

Values only: what they do is the engine's and the policies' affair. The command line shows these
defaults, so that both entrances are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

from vtsim.errors import ConfigError
from vtsim.quantities import MOST_BYTES

Overflow = Literal["reject", "drop", "error"]
Admit = Literal["prompt", "chunk"]
Clock = Literal["virtual"]
Victim = Literal["policy", "newest", "lowest-priority", "smallest-loss", "longest-remaining"]
"""Who is preempted. policy: whom the policy names (the shipped ones: lowest-priority).
newest: the one admitted last, whatever its priority. lowest-priority: of the least urgent, the one
admitted last. smallest-loss: the one with the fewest tokens to compute again. longest-remaining:
the one with the most output to come (an oracle). Ties go to lowest-priority."""
Preemption = Literal["recompute", "swap"]
"""recompute: a victim's tokens are computed again. swap: they wait in host memory, while there is
room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of a replay. Sizes are bytes on one GPU. Raises `ConfigError` for bad values."""

    max_num_seqs: int = 256
    """Sequences that run at once."""
    max_batched_tokens: int = 8192
    """Tokens one step computes; longer prompts are prefilled in chunks."""
    max_model_len: int | None = None
    """Most tokens of a sequence; None: the model's positions."""
    kv_memory: int | Literal["unlimited"] | None = None
    """The byte limit of every policy; None: utilization x capacity - weights - workspace."""
    gpu_memory: int | None = None
    """Another capacity than the profile's."""
    gpu_memory_utilization: float = 0.9
    """Share of the capacity that vtsim may use, weights included."""
    kv_dtype: str = "auto"
    kernel: str | Mapping[str, str] | None = None
    """An attention kernel family for the policies that can use it, or one a policy (by label)."""
    speed: float | str | Decimal | Fraction = 1.0
    """Arrivals come this many times as fast."""
    limit: int | None = None
    """Keep the first requests only, in whole sessions."""
    from_format: str | None = None
    """The trace's format; None: detect it."""
    on_overflow: Overflow = "reject"
    """What becomes of a request whose prompt + output exceed `max_model_len`."""
    admit: Admit = "prompt"
    """A request is admitted when its whole `prompt` would fit now, or its first `chunk` does."""
    victim: Victim = "policy"
    """Who gives its memory up when it runs short; `longest-remaining` is an oracle."""
    preemption: Preemption = "recompute"
    """What becomes of a victim's KV: computed again, or swapped to host memory and back."""
    swap_memory: int = 4 << 30
    """Bytes of host memory for swapped KV, for each GPU; beyond it a victim is recomputed."""
    seed: int = 0
    """Of the VMM tail times, and of the arrivals that `reader={"arrival": ...}` draws; else
    nothing is random."""
    vmm_tail: bool = False
    """Draw VMM call times from the profile's median and p99 instead of taking the median."""
    step: bool = False
    """Never leap over decode steps. Changes no result."""
    log: bool = False
    """Place every chunk and keep every memory operation. Changes no result."""
    check: bool = False
    """Check every invariant after every step. Changes no result."""
    decisions: bool = False
    """Keep the decisions about each request, for `vtsim explain`. Changes no result."""
    memory: str = "sim"
    """What executes the plans: `sim`, `cuda` (a real card), or a plug-in's name."""
    clock: Clock = "virtual"
    """`virtual`: modelled times rule, whatever the real ones are."""
    fail_at: int | None = None
    """The simulated driver refuses this memory operation (counted from 0), once."""
    num_gpu_blocks: int | None = None
    """A measured size of the paged pool."""
    block_size: int | None = None
    """Tokens a hash id of the trace stands for, where the file does not say."""
    reader: Mapping[str, object] = field(default_factory=dict)
    """What else `vtsim.traces.load` is told, by its names: the reader's options, `rate`,
    `arrival`, `window_s`, ... For a trace that is a path."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_batched_tokens"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_model_len", "kv_memory", "gpu_memory", "limit", "num_gpu_blocks"):
            value = getattr(self, name)
            if value is not None and not (name == "kv_memory" and value == "unlimited"):
                _at_least(name, value, 1)
        _at_least("swap_memory", self.swap_memory, 0)
        if self.block_size is not None:
            _at_least("block_size", self.block_size, 1)
        for name in ("vmm_tail", "step", "log", "check", "decisions"):
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name}: {getattr(self, name)!r} is not True or False")
        for name, kinds in (
            ("kernel", str | Mapping | None),
            ("from_format", str | None),
            ("reader", Mapping),
            ("memory", str),
        ):
            if not isinstance(getattr(self, name), kinds):
                raise ConfigError(f"{name}: {getattr(self, name)!r} is of the wrong type")
        _check_speed(self.speed)
        for name in ("seed", "fail_at"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 0)
        share = self.gpu_memory_utilization
        number = isinstance(share, float | int) and type(share) is not bool
        if not (number and math.isfinite(share) and 0 < share <= 1):
            raise ConfigError(f"gpu_memory_utilization: {share!r} is not above 0 and at most 1")
        for name, allowed in (
            ("on_overflow", Overflow),
            ("admit", Admit),
            ("clock", Clock),
            ("victim", Victim),
            ("preemption", Preemption),
        ):
            value = getattr(self, name)
            if value not in get_args(allowed):
                known = ", ".join(get_args(allowed))
                raise ConfigError(f"{name}: {value!r} is not one of {known}")

    @property
    def placement(self) -> bool:
        """True if chunks must have names and operations must be carried out one by one."""
        named = self.log or self.check or self.fail_at is not None
        return named or self.memory != "sim"

    @classmethod
    def names(cls) -> list[str]:
        """The options' names, in their order."""
        return [option.name for option in fields(cls)]


def _check_speed(speed: object) -> None:
    """A number that floats hold too: results show it as one."""
    try:
        if isinstance(speed, bool) or not isinstance(speed, int | float | str | Decimal | Fraction):
            raise ValueError
        rough = float(Fraction(speed)) if isinstance(speed, str) and "/" in speed else float(speed)
        if not (math.isfinite(rough) and rough > 0):
            raise ValueError
    except (ValueError, ArithmeticError):
        raise ConfigError(f"speed {speed}: not a positive number that can be used") from None


def _at_least(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name}: {value!r} is not a whole number of at least {least}")
    if value > MOST_BYTES:
        raise ConfigError(f"{name}: {value} does not fit 62 bits")
