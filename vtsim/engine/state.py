"""What the engine knows of requests and steps. Values and small records; no decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from vtsim.options import Preemption
from vtsim.ports import StepShape
from vtsim.request import Sequence, Tick


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step and a sequence."""

    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    max_model_len: int = 1 << 60
    admit: Literal["prompt", "chunk"] = "prompt"
    """prompt: who waits is admitted when all its prompt would fit now; chunk: its first chunk."""
    preemption: Preemption = "recompute"
    """What becomes of a victim's KV; swap: the policy is asked to keep it in host memory."""
    leap: bool = True
    check: bool = False
    """Check every policy invariant after every decision."""


class Live:
    """A request from arrival to answer."""

    __slots__ = ("chunk", "finish_step", "generated", "prefilled", "rank", "seq", "since")

    def __init__(self, seq: Sequence, rank: tuple[int, Tick, int]) -> None:
        self.seq = seq
        self.rank = rank
        """(priority, arrival, row): the total order of waiting."""
        self.prefilled = 0
        """Prompt tokens computed, or matched, once the step being decided has run."""
        self.chunk = 0
        """Prompt tokens that the step being decided computes."""
        self.generated = 0
        """Output tokens before it last began to decode."""
        self.since = -1
        """First step that decodes it."""
        self.finish_step = -1
        """The step that produces its last token; -1 unless it decodes."""


class Step(NamedTuple):
    """A decided step. Its shape, or its compute time where the decision had to know that."""

    prompts: list[Live]
    """Whose prompt chunks it computes."""
    shape: StepShape | None
    cost: Tick = -1
    """-1: ask the executor."""
