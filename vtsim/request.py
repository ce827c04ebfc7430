"""Requests as traces state them, in columns, and sequences as policies see them.

A `Trace` is read once and never changed; one row is one request. Token content is named by *token
addresses*: hash id `i` of a trace with blocks of `b` tokens names the addresses `[i*b, (i+1)*b)`.
A prompt is then a few runs of addresses, and a common prefix is plain arithmetic on runs, whatever
block size a policy uses. Where sessions tell what follows a prompt, they name it too. A policy
never sees a time nor how long an output will become.
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
    arrivals_made: str = ""
    """What drew the arrivals, where the file states none or others were asked for."""
    warnings: list[str] = field(default_factory=list)
    path: str = ""
    """The file or folder, as errors name it."""
    fields: tuple[str, str] = ("prompt_tokens", "output_tokens")
    """What the file calls the two lengths."""


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
    lines: NDArray[np.uint32] | None = None
    """Physical line of each request in its file, 0 where unknown; None: of none."""
    files: Mapping[int, str] = field(default_factory=dict)
    """Row -> its file, where a folder was read."""
    report: ReadReport = field(default_factory=ReadReport)
    _names: list[SessionNames] = field(default_factory=list, init=False, repr=False)

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
        """Token-address runs of the prompt's known content: at most `prompt_tokens` tokens.

        From hash ids where the request has some; from the session's stream (see `SessionNames`)
        where it has a session and a turn but no request of that session has hash ids; else ().
        """
        low, high = int(self.run_offsets[row]), int(self.run_offsets[row + 1])
        if low == high:
            base = self.naming.stream_of(row)
            return () if base < 0 else ((base, int(self.prompt_tokens[row])),)
        block = self.block_size
        left = int(self.prompt_tokens[row])
        runs: list[Run] = []
        for k in range(low, high):
            length = min(int(self.run_count[k]) * block, left)
            if length <= 0:
                break
            runs.append((int(self.run_first[k]) * block, length))
            left -= length
        return tuple(runs)

    def output_content(self, row: int) -> tuple[Run, ...]:
        """Names of the tokens that stand behind `content(row)` once the request has finished: the
        unhashed rest of its prompt, then its output.

        Known where the session tells: from its stream, or because the next turn's content starts
        with this one's and so names what follows; () elsewhere. A name only, never a forecast: no
        decision may depend on it before the tokens it names have been computed.
        """
        names = self.naming
        base = names.stream_of(row)
        prompt, output = int(self.prompt_tokens[row]), int(self.output_tokens[row])
        if base >= 0:
            return ((base + prompt, output),) if output else ()
        following = names.next_of(row)
        if following < 0:
            return ()
        mine, theirs = self.content(row), self.content(following)
        known = sum(length for _, length in mine)
        if known == 0 or clip_runs(theirs, 0, known) != clip_runs(mine, 0, known):
            return ()
        return clip_runs(theirs, known, prompt + output)

    @property
    def naming(self) -> SessionNames:
        """What sessions and turns say about content; worked out once."""
        if not self._names:
            self._names.append(SessionNames(self))
        return self._names[0]


def clip_runs(runs: tuple[Run, ...], start: int, end: int) -> tuple[Run, ...]:
    """The part of `runs` between the token offsets `start` and `end`; neighbours are joined."""
    clipped: list[Run] = []
    offset = 0
    for first, length in runs:
        low, high = max(start - offset, 0), min(end - offset, length)
        offset += length
        if low >= high:
            continue
        if clipped and sum(clipped[-1]) == first + low:
            clipped[-1] = (clipped[-1][0], clipped[-1][1] + high - low)
        else:
            clipped.append((first + low, high - low))
    return tuple(clipped)


class SessionNames:
    """Content that follows from session and turn.

    Turn n + 1 continues turn n if its prompt is at least as long as turn n's prompt and output
    together; otherwise the history was edited, and nothing is taken as shared. A session none of
    whose requests has hash ids gets a range of token addresses of its own, behind those of all hash
    ids, and a new one wherever a turn does not continue the one before: all turns in a range are
    prefixes of one stream. A turn number that occurs twice in a session continues nothing.
    """

    __slots__ = ("_next", "_stream")

    def __init__(self, trace: Trace) -> None:
        self._next: IntArray | None = None
        self._stream: IntArray | None = None
        rows = np.flatnonzero((trace.session >= 0) & (trace.turn >= 0))
        if len(rows) == 0:
            return
        order = rows[np.lexsort((rows, trace.turn[rows], trace.session[rows]))]
        session, turn = trace.session[order], trace.turn[order]
        prompt, total = (
            trace.prompt_tokens[order],
            (trace.prompt_tokens + trace.output_tokens)[order],
        )
        same = session[1:] == session[:-1]
        twice = same & (turn[1:] == turn[:-1])
        twice = np.concatenate((twice, [False])) | np.concatenate(([False], twice))
        continues = same & (turn[1:] == turn[:-1] + 1) & (prompt[1:] >= total[:-1])
        continues &= ~(twice[1:] | twice[:-1])
        self._next = np.full(len(trace), -1, dtype=np.int64)
        self._next[order[:-1][continues]] = order[1:][continues]

        hashed = np.flatnonzero(np.diff(trace.run_offsets) > 0)
        with_hashes = np.zeros(len(trace.session_names) + 1, dtype=bool)
        with_hashes[trace.session[hashed]] = True  # -1, no session, is the last place
        with_hashes[-1] = False
        starts = np.concatenate(([True], ~continues))
        ends = np.append(np.flatnonzero(starts[1:]), len(order) - 1)
        size = total[ends]
        ids = trace.run_first + trace.run_count
        behind_ids = int(ids.max()) * trace.block_size if len(ids) else 0
        base = behind_ids + np.cumsum(size) - size
        self._stream = np.full(len(trace), -1, dtype=np.int64)
        self._stream[order] = np.where(with_hashes[session], -1, base[np.cumsum(starts) - 1])

    def next_of(self, row: int) -> int:
        """Row of the turn that continues this one, -1 for none."""
        return -1 if self._next is None else int(self._next[row])

    def stream_of(self, row: int) -> int:
        """First token address of the stream that the request is a prefix of, -1 for none."""
        return -1 if self._stream is None else int(self._stream[row])


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
