"""A replay that is ready to run, and the running of it: policy, backend and engine put together.

`vtsim.api` reads and checks what it is made of. It holds no logic of any of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from vtsim.backends.sim import CostModel, VmmTimes, device_info
from vtsim.budget import Budget
from vtsim.engine.loop import Engine, Limits
from vtsim.errors import CapacityError, ConfigError
from vtsim.guard import guarded, place_of
from vtsim.memory.choices import Chosen
from vtsim.memory.foresight import Foresight
from vtsim.memory.journal import Journal
from vtsim.metrics.progress import Progress, ReportingRecorder
from vtsim.metrics.recorder import Recorder
from vtsim.metrics.result import PolicyRun, RunResult
from vtsim.metrics.shown import shown_options
from vtsim.options import ReplayOptions
from vtsim.plan import KINDS, OpKind
from vtsim.ports import DeviceInfo, MemoryBackend, StepShape
from vtsim.quantities import format_bytes
from vtsim.registry import PolicyChoice
from vtsim.request import IntArray, Trace
from vtsim.spec import GpuSpec, KVLayout, ModelSpec

R = TypeVar("R", bound=PolicyRun)
W = TypeVar("W", bound=RunResult)

MakeBackend = Callable[..., MemoryBackend]
"""Opens the memory that plans are executed on; called as `SimBackend` is."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that is ready to run: everything is read, checked and divided."""

    trace: Trace
    model: ModelSpec
    gpu: GpuSpec
    tp: int
    max_model_len: int
    budget: Budget
    choices: tuple[PolicyChoice, ...]
    kernels: Mapping[str, str]
    """Label -> attention kernel."""
    ideal_hits: IntArray | None
    """As `PolicyRun.ideal_hits`."""
    options: ReplayOptions
    make_backend: MakeBackend
    version: str
    """vtsim's."""

    def run(self, progress: Progress | None = None) -> RunResult:
        """Replay the trace through each policy in turn."""
        runs = tuple(_run_guarded(self, choice, progress) for choice in self.choices)
        return self.result(runs, RunResult)

    def result(self, runs: tuple[PolicyRun, ...], kind: Callable[..., W]) -> W:
        """What `runs`, one of each policy, give together: a `kind` of result."""
        return kind(
            trace=self.trace,
            model=self.model.name,
            gpu=self.gpu.name,
            profile_sha256=self.gpu.sha256,
            tp=self.tp,
            seed=self.options.seed,
            max_model_len=self.max_model_len,
            options=shown_options(self.options, self.budget),
            runs=runs,
            version=self.version,
            ideal_hits=self.ideal_hits,
        )


def _run_guarded(replay: Replay, choice: PolicyChoice, progress: Progress | None) -> PolicyRun:
    with no_exit(choice):
        return _run_one(replay, choice, progress)


@contextmanager
def no_exit(choice: PolicyChoice) -> Iterator[None]:
    """A plug-in that ends the process is an error, not a success."""
    try:
        yield
    except SystemExit as error:
        where = place_of(choice.policy, "...")[:-4]
        raise ConfigError(
            f"policy {choice.label!r} ({where}) called sys.exit({error.code})"
        ) from error


@dataclass(frozen=True, slots=True)
class Parts:
    """What one run is put together from, but for its backend and its recorder."""

    policy: Any
    oracle: str
    """How the policy knows the future; "" if it does not."""
    kv: KVLayout
    info: DeviceInfo
    executor: CostModel
    times: VmmTimes
    limits: Limits


def assemble(replay: Replay, choice: PolicyChoice) -> Parts:
    """A policy of its own, before its set-up, and what it runs with. Raises `ConfigError`."""
    gpu, opts = replay.gpu, replay.options
    policy = guarded(choice.policy(choice.parameters, placement=opts.placement))
    if hasattr(policy, "learn"):
        foresight = Foresight.of(replay.trace) if policy.oracle else None
        policy.learn(replay.model, replay.tp, foresight)
    real = opts.memory != "sim"
    policy = _with_choices(replay, choice, policy)
    oracle = str(getattr(policy, "oracle", ""))
    if real or opts.fail_at is not None:  # a plan may be refused, and must then be undone
        policy = Journal(policy)
    kv = policy.kv_layout(replay.model, replay.tp, replay.max_model_len)
    if kv.chunk_bytes > gpu.capacity_bytes:
        raise ConfigError(
            f"{choice.label}: a chunk of {format_bytes(kv.chunk_bytes)} is more than the "
            f"{format_bytes(gpu.capacity_bytes)} of {gpu.name}"
        )
    # Handles under the card's own granularity are vAttention's: only the simulator has its driver.
    patched = not real and kv.chunk_bytes < gpu.granularity_bytes
    info = device_info(gpu, patched_pages=patched)
    times = VmmTimes(gpu, kv.chunk_bytes, opts.seed if opts.vmm_tail else None, kv.chunk_sizes[-1])
    limits = Limits(
        max_num_seqs=opts.max_num_seqs,
        max_batched_tokens=opts.max_batched_tokens,
        max_model_len=replay.max_model_len,
        admit=opts.admit,
        preemption=opts.preemption,
        leap=not opts.step and opts.fail_at is None,
        check=opts.check,
    )
    executor = CostModel(replay.model, gpu, replay.tp, replay.kernels[choice.label])
    if hasattr(policy, "learn_costs"):
        policy.learn_costs(_hidden_units(executor, gpu, kv))
    return Parts(policy, oracle, kv, info, executor, times, limits)


def set_up(
    parts: Parts, choice: PolicyChoice, backend: MemoryBackend, recorder: Recorder, limit: int
) -> None:
    """Give the policy its limit and execute its set-up. Raises `CapacityError` if it does not
    fit."""
    setup = parts.policy.setup(parts.info, parts.kv, limit)
    receipt = backend.execute(setup, 0)
    if not receipt.done:
        measured = getattr(choice.parameters, "num_gpu_blocks", 0)
        raise CapacityError(
            f"{choice.label} cannot be set up: {format_bytes(receipt.short_bytes)} are missing"
            + (f" for num_gpu_blocks {measured:,}" if measured else "")
        )
    busy = parts.times.counts(
        setup.counts, setup.allocation_bytes, setup.copied_bytes, setup.swapped_bytes
    )
    recorder.work(setup.phase, setup.counts, busy)


def finished(
    replay: Replay,
    choice: PolicyChoice,
    parts: Parts,
    backend: MemoryBackend,
    recorder: Recorder,
    limit: int,
    kind: Callable[..., R],
    **more: Any,
) -> R:
    """What a run that is over gives back: a `kind`, with `more` of its fields."""
    details = dict(getattr(parts.policy, "details", dict)())
    if parts.oracle:
        details["oracle"] = parts.oracle
    if parts.info.granularity_bytes < replay.gpu.granularity_bytes:
        chunk = format_bytes(parts.kv.chunk_bytes)
        details["driver"] = f"patched as vAttention's, for chunks of {chunk}"
    if hasattr(backend, "report"):
        details["device"] = backend.report()
    return kind(
        label=choice.label,
        policy=parts.policy.name,
        parameters=parts.policy.parameters(),
        trace=replay.trace,
        recorder=recorder,
        limit_bytes=limit,
        kernel=replay.kernels[choice.label],
        layout=parts.kv.name,
        chunk_bytes=parts.kv.chunk_bytes,
        memory_backend=replay.options.memory,
        clock=replay.options.clock,
        ideal_hits=replay.ideal_hits,
        details=details,
        driver_calls=tuple(backend.calls()) if replay.options.log else None,
        **more,
    )


def _run_one(replay: Replay, choice: PolicyChoice, progress: Progress | None) -> PolicyRun:
    """One policy through the trace, on a device of its own."""
    budget, opts = replay.budget, replay.options
    parts = assemble(replay, choice)
    recorder = _recorder(replay, choice.label, progress)
    backend = replay.make_backend(
        parts.info,
        parts.kv,
        placement=opts.placement,
        fail_at=opts.fail_at,
        reserved_bytes=budget.fixed_bytes,
        keep_log=opts.log,
    )
    with _given_back(backend):
        if hasattr(backend, "check_limit"):
            backend.check_limit(budget.limit_bytes)
        set_up(parts, choice, backend, recorder, budget.limit_bytes)
        Engine(
            replay.trace,
            parts.policy,
            backend,
            parts.executor,
            parts.times,
            recorder,
            parts.limits,
        ).run()
    return finished(replay, choice, parts, backend, recorder, budget.limit_bytes, PolicyRun)


def _hidden_units(executor: CostModel, gpu: GpuSpec, kv: KVLayout) -> int:
    """Units of new memory that the shortest decode step hides, by median costs; at least 1."""
    counts = [0] * KINDS
    counts[OpKind.CREATE] = counts[OpKind.MAP] = kv.arenas
    times = VmmTimes(gpu, kv.chunk_bytes, max_chunk_bytes=kv.chunk_sizes[-1])
    each = times.counts(counts, 0, 0, 0)
    return max(1, executor.step(StepShape(1, 1)) // each) if each else 1 << 60


def _with_choices(replay: Replay, choice: PolicyChoice, policy: Any) -> Any:
    """The policy, with the victims and the preemption that are asked for."""
    opts = replay.options
    swaps = opts.preemption == "swap"
    if opts.victim == "policy" and not swaps:
        return policy
    if swaps and opts.memory != "sim" and not getattr(policy, "contiguous", False):
        raise ConfigError(
            f"preemption: {choice.label} has no slots to swap on memory={opts.memory!r}: only the "
            "simulator swaps blocks that lie anywhere"
        )
    return Chosen(policy, opts.victim, opts.swap_memory if swaps else None, replay.trace)


@contextmanager
def _given_back(backend: MemoryBackend) -> Iterator[None]:
    """Close the backend; after an error or an interrupt, have a real one give all memory back."""
    try:
        yield
    except BaseException:
        if hasattr(backend, "abandon"):
            backend.abandon()
        raise
    backend.close()


def _recorder(replay: Replay, label: str, progress: Progress | None) -> Recorder:
    recorder = Recorder if progress is None else partial(ReportingRecorder, label, progress)
    return recorder(
        requests=len(replay.trace),
        decisions=replay.options.decisions,
        **replay.budget.constants(),
    )
