"""The seams: what a policy, a memory backend and an executor are to the engine.

Contracts live in the docstrings; `vtsim.testing` holds implementations to them. Policies are
sans-IO: they see steps and tokens, never a time, a device or a request's final length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from vtsim.plan import Keep, Match, MemoryUsage, Operation, Plan, Shortage
from vtsim.request import Sequence, Tick
from vtsim.spec import KVLayout, ModelSpec


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a policy may know of a device: sizes, never speeds."""

    name: str
    capacity_bytes: int
    granularity_bytes: int
    va_bytes: int


class Batch:
    """The running sequences, in admission order. The engine owns it; policies only read.

    `running` maps index -> Sequence, oldest admission first; `decoding` is the part whose prompt is
    complete. `extend` grows every decoding sequence by one token a step.
    """

    __slots__ = ("decoding", "running")

    def __init__(self) -> None:
        self.running: dict[int, Sequence] = {}
        self.decoding: dict[int, Sequence] = {}


class Headroom(NamedTuple):
    """How far the decoding sequences may be grown at once."""

    steps: int
    """Decode steps that `extend` is sure to accept with no eviction through the driver."""
    peak: Plan | None = None
    """A bound, by kind, of the operations due in any one of them, and of those that the next
    `retire` will ask for; None: none at all."""
    retire_later: bool = False
    """Whether `retire` comes before, between or after these steps changes no count of anything."""
    last: Plan | None = None
    """The operations due in the last of them; None: `extend` will say (`Plan.last`)."""


@runtime_checkable
class MemoryPolicy(Protocol):
    """Decides where KV caches live. Every call is deterministic in the calls before it.

    A call that returns `Shortage` has changed nothing. Memory given up by `release` is not reused
    before `retire` says that the kernels which may still read it have ended; a policy whose memory
    is reused only in stream order (a static pool) may reuse it at once.
    """

    name: str
    kernels: tuple[str, ...]
    """Kernel families the policy can use, its default first."""
    lookahead: int
    """L of DESIGN 1: 0 submits a step's plans when it is launched, >= 1 one step ahead."""
    grain_tokens: int
    """Prefixes are served in multiples of so many tokens."""
    fenced: bool
    """False: what `release` gives up is reused in stream order only, and `retire` has no work."""
    refusals_last: bool
    """False: steps that `headroom` promises may let a match go whole, whose first chunk alone then
    fits where both did not: nothing is leapt over while a first chunk waits (admit=chunk)."""

    def kv_layout(self, model: ModelSpec, tp: int, max_model_len: int) -> KVLayout: ...

    def setup(self, device: DeviceInfo, kv: KVLayout, limit_bytes: int) -> Plan: ...

    def match(self, seq: Sequence) -> Match:
        """Longest usable prefix, at most `prompt_tokens - 1`. Pure."""
        ...

    def create(
        self, seq: Sequence, match: Match, tokens: int, whole_tokens: int
    ) -> Plan | Shortage:
        """Give `seq` memory for the match and `tokens` more. `whole_tokens` (>= match + tokens, the
        prompt and what must fit behind it) have to fit now, but only `tokens` are taken. Never
        evicts `match`. When the prompt is complete the sequence decodes from the next step on."""
        ...

    def extend_prompt(self, seq: Sequence, tokens: int) -> Plan | Shortage:
        """The next prefill chunk of `seq`: `tokens` more."""
        ...

    def extend(self, batch: Batch, steps: int = 1) -> Plan | Shortage:
        """Every decoding sequence gains one token in each of `steps` steps: all of it or none.
        Equal to `steps` calls with 1, in state and (by due step, then batch order) operations."""
        ...

    def headroom(self, batch: Batch, at_most: int) -> Headroom:
        """Decode steps, up to `at_most`, that may be granted in one `extend`; 0 = step me. Pure."""
        ...

    def release(self, seq: Sequence, keep: Keep, step: int) -> Plan:
        """`seq` has left the batch; `step` is the last whose kernels read it."""
        ...

    def retire(self, step: int) -> Plan:
        """Kernels of steps <= `step` have ended: what was released before is reusable. Unmaps and
        destroys of it are in the plan."""
        ...

    def rollback(self, plan: Plan) -> None:
        """`plan`, the newest, was not executed: exact inverse of the decision that made it."""
        ...

    def select_victim(self, batch: Batch) -> Sequence | None: ...

    def set_limit(self, limit_bytes: int) -> Plan | Shortage: ...

    def usage(self) -> MemoryUsage: ...

    def check_integrity(self) -> None:
        """Raises `InvariantError`."""
        ...

    def teardown(self) -> Plan: ...

    def parameters(self) -> Mapping[str, object]:
        """Name -> value of every parameter, as in `--set` and the JSON."""
        ...


class DriverCall(NamedTuple):
    """One driver call that returned; `bytes_in_use` is the backend's count after it."""

    step: int
    phase: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a plan. `short_bytes` > 0: refused, and everything done was undone."""

    done: bool
    short_bytes: int = 0
    calls: int = 0
    failed_call: int = -1
    wall_s: float | None = None


class MemoryBackend(Protocol):
    """Executes plans, strictly in order, transactionally."""

    info: DeviceInfo

    def submit(self, plan: Plan, step: int) -> int:
        """Returns a ticket at once."""
        ...

    def settle(self, ticket: int) -> Receipt: ...

    def execute(self, plan: Plan, step: int) -> Receipt:
        """`submit` and `settle` in one."""
        ...

    def calls(self) -> Iterable[DriverCall]:
        """Written after each call returned; empty when placement is off."""
        ...

    def page_table(self) -> Mapping[tuple[int, int, int], int]:
        """(arena, slot, index) -> chunk, from the backend's own mappings."""
        ...

    def bytes_in_use(self) -> int:
        """Device bytes that executed plans hold."""
        ...

    def free_bytes(self) -> int:
        """Capacity less what is reserved beside the KV cache and `bytes_in_use`."""
        ...

    def close(self) -> None: ...


class StepShape(NamedTuple):
    """The shape of one step, all that its cost depends on."""

    decoding: int
    """Sequences that decode one token."""
    kv_tokens: int
    """KV tokens those read, the new ones included."""
    chunks: tuple[tuple[int, int], ...] = ()
    """(new tokens, tokens before them) of each prefill chunk."""


class Affine(NamedTuple):
    """Decode step j (0, 1, ...) costs `first + j * slope` ticks while j < `until`."""

    first: Tick
    slope: Tick
    until: int


class Executor(Protocol):
    """Says how long a step takes; a real one also computes it."""

    def step(self, shape: StepShape) -> Tick: ...

    def affine(self, decoding: int, kv_tokens: int) -> Affine | None:
        """Costs of the decode-only steps that follow one another from this shape on; the j-th reads
        `kv_tokens + j * decoding` tokens. None: no closed form, step."""
        ...


class MemoryTimes(Protocol):
    """The clock's view of memory work: how long the worker is busy with counted operations."""

    def counts(
        self, counts: list[int], allocation_bytes: int, copied_bytes: int, swapped_bytes: int
    ) -> Tick: ...

    def larger(self, nbytes: int) -> Tick:
        """What destroying handles costs beyond `counts`, where these are together `nbytes` larger
        than as many of the smallest size."""
        ...

    @property
    def random(self) -> bool:
        """True if two equal plans may differ in time (the tail option): no leaps then."""
        ...
