"""Requests as traces state them, in columns, and sequences as policies see them.

A `Trace` is read once and never changed; one row is one request. Token content is named by *token
addresses*: hash id `i` of a trace with blocks of `b` tokens names the addresses `[i*b, (i+1)*b)`.
A prompt is then a few runs of addresses, and a common prefix is plain arithmetic on runs, whatever
block size a policy uses. A policy never sees a time nor how long an output will become.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Tick: TypeAlias = int
"""Time: an integer count of picoseconds."""

TICKS_PER_S = 10**12
TICKS_PER_US = 10**6

IntArray: TypeAlias = NDArray[np.int64]
Run: TypeAlias = tuple[int, int]
"""(first token address, number of tokens)."""

NO_ARRIVAL = -1
"""Arrival of a request that waits for others (`after` + `wait_s`)."""


@dataclass(slots=True)
class ReadReport:
    """What a reader did with the file: rows read = kept + dropped by reason."""

    rows_read: int = 0
    rows_kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    rows_moved: int = 0
    """Rows that stood out of time order and were moved by the stable sort."""
    removed_offset_s: float = 0.0
    """Time stamp of the first kept request, subtracted from all."""
    format: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A request trace in columns, sorted by arrival (stable); row order is the tie break.

    Shapes: every column has one entry a request; hash ids are kept as runs of consecutive ids,
    request i owning runs `run_offsets[i]:run_offsets[i+1]` of `run_first`, `run_count`.
    Ids are dense (0, 1, 2, ... in order of first appearance), so runs are few and long.
    """

    name: str
    """Base name of the file, or what made the trace."""
    sha256: str
    arrival: IntArray
    """Ticks, relative to the first kept request; NO_ARRIVAL where `after` rules."""
    prompt_tokens: IntArray
    output_tokens: IntArray
    priority: IntArray
    """Larger is less urgent."""
    session: IntArray
    """Index into `session_names`, -1 for none."""
    turn: IntArray
    """-1 for none."""
    run_offsets: IntArray
    run_first: IntArray
    run_count: IntArray
    block_size: int = 0
    """Tokens a hash id; 0 when the trace has no hash ids."""
    tail_rule: str = "exact"
    """exact: prompt is block x ids; partial_tail: the last id covers the rest; prefix_only: the
    rest is unhashed."""
    hash_scope: str = "global"
    ids: tuple[object, ...] = ()
    """The requests' own names (int or str); empty means the row number."""
    session_names: tuple[str, ...] = ()
    after: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Row -> rows that must finish before it arrives (closed loop)."""
    wait: Mapping[int, Tick] = field(default_factory=dict)
    """Row -> ticks between the last of `after` and the arrival."""
    recorded: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    extra: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    source: Mapping[str, object] = field(default_factory=dict)
    report: ReadReport = field(default_factory=ReadReport)

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def id_of(self, row: int) -> object:
        return self.ids[row] if self.ids else row

    @property
    def has_hashes(self) -> bool:
        return len(self.run_first) > 0

    def hash_ids(self, row: int) -> list[int]:
        """The dense hash ids of one request, written out."""
        ids: list[int] = []
        for k in range(int(self.run_offsets[row]), int(self.run_offsets[row + 1])):
            first, count = int(self.run_first[k]), int(self.run_count[k])
            ids.extend(range(first, first + count))
        return ids

    def content(self, row: int) -> tuple[Run, ...]:
        """Token-address runs of the prompt's known content: at most `prompt_tokens` tokens."""
        block = self.block_size
        left = int(self.prompt_tokens[row])
        low, high = int(self.run_offsets[row]), int(self.run_offsets[row + 1])
        runs: list[Run] = []
        for k in range(low, high):
            length = min(int(self.run_count[k]) * block, left)
            if length <= 0:
                break
            runs.append((int(self.run_first[k]) * block, length))
            left -= length
        return tuple(runs)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request while it is served, as a policy may see it. Identity is `index`.

    A policy keeps its own lengths; it must not write to a sequence, nor keep one after `release`
    and `retire`. `prompt_tokens` is what the next prefill has to cover: after a preemption by
    recompute it includes the tokens generated so far.
    """

    index: int
    """Row in the trace."""
    prompt_tokens: int
    content: tuple[Run, ...] = ()
    """Known content of the prompt, as runs of token addresses."""
    output_content: tuple[Run, ...] = ()
    """Names of the tokens behind `content` that this sequence will hold when it is done, where the
    trace's sessions tell: bounded by what it has generated when it is recorded."""
    priority: int = 0
    order: int = 0
    """Admission number: the batch order."""
    preemptions: int = 0
