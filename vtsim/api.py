"""The Python API: `replay(trace, ...)` runs a trace through policies and gives a `RunResult`.

It puts the parts together - trace, model, GPU, memory budget, policy, backend, engine - and holds
no logic of any of them. The command line calls it and only prints.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import vtsim
from vtsim.backends.gpus import load_gpu
from vtsim.backends.sim import CostModel, VmmTimes, device_info
from vtsim.budget import Budget, plan_budget
from vtsim.engine.loop import Engine, Limits
from vtsim.errors import CapacityError, ConfigError
from vtsim.guard import check_policy, guarded, place_of
from vtsim.memory.choices import Chosen
from vtsim.memory.foresight import Foresight
from vtsim.memory.journal import Journal
from vtsim.metrics.progress import Progress, ReportingRecorder
from vtsim.metrics.recorder import Recorder
from vtsim.metrics.result import PolicyRun, RunResult
from vtsim.options import ReplayOptions
from vtsim.plan import KINDS, OpKind
from vtsim.ports import MemoryBackend, StepShape
from vtsim.quantities import format_bytes
from vtsim.registry import BACKENDS, PolicyChoice, choose_kernels, choose_policies
from vtsim.request import IntArray, Trace
from vtsim.spec import GpuSpec, KVLayout, ModelSpec, load_model
from vtsim.traces import load
from vtsim.traces.pace import scale_speed
from vtsim.traces.stats import ideal_prefix_hits
from vtsim.traces.transform import apply_max_context, limit_requests

__all__ = [
    "DEFAULT_GPU",
    "DEFAULT_MODEL",
    "DEFAULT_POLICIES",
    "Progress",
    "Replay",
    "ReplayOptions",
    "prepare",
    "replay",
]

DEFAULT_POLICIES = ("native", "paged", "vtensor")
DEFAULT_MODEL = "yi-6b"
DEFAULT_GPU = "a100-80g"


_NOT_READERS = ("path", "from_format", "speed", "limit", "block_size") + (
    "max_context",
    "on_overflow",
    "seed",
)
"""What `vtsim.traces.load` is told by options of their own."""

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
    """Tokens of each prompt that an infinite prefix cache would hold; None where
    the trace tells nothing of sharing."""
    options: ReplayOptions
    make_backend: MakeBackend

    def run(self, progress: Progress | None = None) -> RunResult:
        """Replay the trace through each policy in turn."""
        return RunResult(
            trace=self.trace,
            model=self.model.name,
            gpu=self.gpu.name,
            profile_sha256=self.gpu.sha256,
            tp=self.tp,
            seed=self.options.seed,
            max_model_len=self.max_model_len,
            options=_shown_options(self.options, self.budget),
            runs=tuple(_run_guarded(self, choice, progress) for choice in self.choices),
            version=vtsim.__version__,
            ideal_hits=self.ideal_hits,
        )


def replay(
    trace: str | Path | Trace,
    policies: Iterable[str | PolicyChoice] = DEFAULT_POLICIES,
    *,
    model: str | Path | ModelSpec = DEFAULT_MODEL,
    gpu: str | Path | GpuSpec = DEFAULT_GPU,
    tp: int = 1,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    progress: Progress | None = None,
    make_backend: MakeBackend | None = None,
    **options: Any,
) -> RunResult:
    """Replay `trace` through each of `policies` under the same byte limit.

    `trace` is a path or a Trace; `policies` are names, `FILE.py:Class`, or `LABEL=NAME`;
    `settings` are their parameters, `{"vtensor": {"retain": "none"}}`; `options` are those of
    `ReplayOptions`. Sizes are bytes on one GPU, times in the result's frames are seconds.
    `make_backend` opens the memory to run on, as `SimBackend` is made; None: what the option
    `memory` names.

    Raises `VtsimError`: `ConfigError` for options, `TraceFormatError` for the trace,
    `CapacityError` where the GPU is too small for the weights.
    """
    return prepare(
        trace,
        policies,
        model=model,
        gpu=gpu,
        tp=tp,
        settings=settings,
        make_backend=make_backend,
        **options,
    ).run(progress)


def prepare(
    trace: str | Path | Trace,
    policies: Iterable[str | PolicyChoice] = DEFAULT_POLICIES,
    *,
    model: str | Path | ModelSpec = DEFAULT_MODEL,
    gpu: str | Path | GpuSpec = DEFAULT_GPU,
    tp: int = 1,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    make_backend: MakeBackend | None = None,
    **options: Any,
) -> Replay:
    """Everything that `replay` does before the first step; takes and raises the same."""
    opts = _options(options)
    for what, value, kinds in (("model", model, ModelSpec), ("gpu", gpu, GpuSpec)):
        if not isinstance(value, kinds | str | Path):
            raise ConfigError(f"{what}: {value!r} is not a name, a path or a {kinds.__name__}")
    if type(tp) is not int:
        raise ConfigError(f"tp: {tp!r} is not a whole number")
    choices = _choices(policies, {} if settings is None else settings, opts)
    kernels = choose_kernels(choices, opts.kernel)
    spec = model if isinstance(model, ModelSpec) else load_model(model, opts.kv_dtype)
    card = gpu if isinstance(gpu, GpuSpec) else load_gpu(gpu)
    if opts.memory != "sim" and opts.kv_memory == "unlimited":
        raise ConfigError(f"kv_memory: unlimited is not to be had with memory={opts.memory!r}")
    if make_backend is None:
        make_backend = BACKENDS.load(opts.memory)
        if hasattr(make_backend, "fit_profile"):  # a real card says what it has
            card = make_backend.fit_profile(card)
    spec.check_tp(tp)
    max_model_len = _max_model_len(spec, opts)
    for choice in choices:
        block = getattr(choice.parameters, "block", 1)
        if type(block) is int and block > max_model_len:
            raise ConfigError(
                f"{choice.label}.block: {block:,} tokens are more than the {max_model_len:,} of "
                "max_model_len"
            )
    loaded = _prepare_trace(trace, max_model_len, opts)
    costs = CostModel(spec, card, tp)
    workspace = costs.workspace_bytes(opts.max_batched_tokens, opts.max_num_seqs)
    known = any(loaded.content(row) for row in range(len(loaded)))
    ideal = ideal_prefix_hits(loaded) if known else None
    budget, card = plan_budget(loaded, spec, card, tp, max_model_len, workspace, opts)
    return Replay(
        trace=loaded,
        model=spec,
        gpu=card,
        tp=tp,
        max_model_len=max_model_len,
        budget=budget,
        choices=tuple(choices),
        kernels=kernels,
        ideal_hits=ideal,
        options=opts,
        make_backend=make_backend,
    )


def _options(options: Mapping[str, Any]) -> ReplayOptions:
    unknown = sorted(set(options) - set(ReplayOptions.names()))
    if unknown:
        known = ", ".join(ReplayOptions.names())
        raise ConfigError(f"replay has no option {unknown[0]!r} (known: {known})")
    return ReplayOptions(**options)


def _choices(
    policies: Iterable[str | PolicyChoice],
    settings: Mapping[str, Mapping[str, object]],
    opts: ReplayOptions,
) -> list[PolicyChoice]:
    if not isinstance(policies, Iterable):
        raise ConfigError(f"policies: {policies!r} is not a list of names")
    given = [policies] if isinstance(policies, str) else list(policies)
    choices = choose_policies(given, settings)
    for choice in choices:
        check_policy(choice.label, choice.policy)
    if opts.num_gpu_blocks is None:
        return choices
    sized = [c for c in choices if hasattr(c.parameters, "num_gpu_blocks")]
    if not sized:
        raise ConfigError("num_gpu_blocks: no policy here has a pool of blocks")
    blocks = {"num_gpu_blocks": opts.num_gpu_blocks}
    return [
        dataclasses.replace(c, parameters=dataclasses.replace(c.parameters, **blocks))
        if c in sized
        else c
        for c in choices
    ]


def _max_model_len(model: ModelSpec, opts: ReplayOptions) -> int:
    asked = opts.max_model_len
    if asked is None:
        return model.max_positions
    if asked > model.max_positions:
        raise ConfigError(
            f"max_model_len: {asked} is more than the {model.max_positions} positions "
            f"of {model.name}"
        )
    return asked


def _prepare_trace(trace: str | Path | Trace, max_model_len: int, opts: ReplayOptions) -> Trace:
    """Read the trace, cut and speed it as the options say, and see to requests that are too long.

    Raises `ConfigError` if no request is left.
    """
    if isinstance(trace, Trace):
        if opts.reader:
            raise ConfigError(f"reader: {next(iter(opts.reader))} but the trace is read already")
        if opts.limit is not None:
            trace = limit_requests(trace, opts.limit)
        trace = apply_max_context(trace, max_model_len, opts.on_overflow)
        trace = scale_speed(trace, opts.speed)
    else:
        named: dict[str, Any] = dict(opts.reader)
        for name in _NOT_READERS:
            if name in named:
                raise ConfigError(f"reader: {name} is an option of its own, or none of a reader")
        trace = load(
            trace,
            from_format=opts.from_format,
            speed=opts.speed,
            limit=opts.limit,
            block_size=opts.block_size,
            max_context=max_model_len,
            on_overflow=opts.on_overflow,
            seed=opts.seed,
            **named,
        )
    if not len(trace):
        raise ConfigError(f"{trace.name}: no requests left")
    return trace


def _run_guarded(replay: Replay, choice: PolicyChoice, progress: Progress | None) -> PolicyRun:
    """`_run_one`; a plug-in that ends the process is an error, not a success."""
    try:
        return _run_one(replay, choice, progress)
    except SystemExit as error:
        where = place_of(choice.policy, "...")[:-4]
        raise ConfigError(
            f"policy {choice.label!r} ({where}) called sys.exit({error.code})"
        ) from error


def _run_one(replay: Replay, choice: PolicyChoice, progress: Progress | None) -> PolicyRun:
    """One policy through the trace, on a device of its own."""
    trace, gpu, budget, opts = replay.trace, replay.gpu, replay.budget, replay.options
    policy = guarded(choice.policy(choice.parameters, placement=opts.placement))
    if hasattr(policy, "learn"):
        foresight = Foresight.of(trace) if policy.oracle else None
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
    kernel = replay.kernels[choice.label]
    times = VmmTimes(gpu, kv.chunk_bytes, opts.seed if opts.vmm_tail else None)
    recorder = _recorder(replay, choice.label, progress)
    limits = Limits(
        max_num_seqs=opts.max_num_seqs,
        max_batched_tokens=opts.max_batched_tokens,
        max_model_len=replay.max_model_len,
        admit=opts.admit,
        preemption=opts.preemption,
        leap=not opts.step and opts.fail_at is None,
        check=opts.check,
    )
    executor = CostModel(replay.model, gpu, replay.tp, kernel)
    if hasattr(policy, "learn_costs"):
        policy.learn_costs(_hidden_units(executor, gpu, kv))
    backend = replay.make_backend(
        info,
        kv,
        placement=opts.placement,
        fail_at=opts.fail_at,
        reserved_bytes=budget.fixed_bytes,
        keep_log=opts.log,
    )
    with _given_back(backend):
        if hasattr(backend, "check_limit"):
            backend.check_limit(budget.limit_bytes)
        setup = policy.setup(info, kv, budget.limit_bytes)
        receipt = backend.execute(setup, 0)
        if not receipt.done:
            measured = getattr(choice.parameters, "num_gpu_blocks", 0)
            raise CapacityError(
                f"{choice.label} cannot be set up: {format_bytes(receipt.short_bytes)} are missing"
                + (f" for num_gpu_blocks {measured:,}" if measured else "")
            )
        busy = times.counts(
            setup.counts, setup.allocation_bytes, setup.copied_bytes, setup.swapped_bytes
        )
        recorder.work(setup.phase, setup.counts, busy)
        Engine(trace, policy, backend, executor, times, recorder, limits).run()
    details = dict(getattr(policy, "details", dict)())
    if oracle:
        details["oracle"] = oracle
    if hasattr(backend, "report"):
        details["device"] = backend.report()
    return PolicyRun(
        label=choice.label,
        policy=policy.name,
        parameters=policy.parameters(),
        trace=trace,
        recorder=recorder,
        limit_bytes=budget.limit_bytes,
        kernel=kernel,
        layout=kv.name,
        chunk_bytes=kv.chunk_bytes,
        memory_backend=opts.memory,
        clock=opts.clock,
        ideal_hits=replay.ideal_hits,
        details=details,
        driver_calls=tuple(backend.calls()) if opts.log else None,
    )


def _hidden_units(executor: CostModel, gpu: GpuSpec, kv: KVLayout) -> int:
    """Units of new memory that the shortest decode step hides, by median costs; at least 1."""
    counts = [0] * KINDS
    counts[OpKind.CREATE] = counts[OpKind.MAP] = kv.arenas
    each = VmmTimes(gpu, kv.chunk_bytes).counts(counts, 0, 0, 0)
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
    budget = replay.budget
    recorder = Recorder if progress is None else partial(ReportingRecorder, label, progress)
    return recorder(
        requests=len(replay.trace),
        capacity_bytes=budget.capacity_bytes,
        weights_bytes=budget.weights_bytes,
        workspace_bytes=budget.workspace_bytes,
        context_bytes=budget.context_bytes,
        decisions=replay.options.decisions,
    )


def _shown_options(opts: ReplayOptions, budget: Budget) -> dict[str, object]:
    """The options that change results, as JSON values."""
    return {
        "max_num_seqs": opts.max_num_seqs,
        "max_batched_tokens": opts.max_batched_tokens,
        "kv_memory": opts.kv_memory,
        "gpu_memory_bytes": budget.capacity_bytes,
        "gpu_memory_utilization": opts.gpu_memory_utilization,
        "kv_dtype": opts.kv_dtype,
        "speed": float(Fraction(str(opts.speed))),
        "limit": opts.limit,
        "on_overflow": opts.on_overflow,
        "admit": opts.admit,
        "victim": opts.victim,
        "preemption": opts.preemption,
        "swap_memory": opts.swap_memory if opts.preemption == "swap" else None,
        "vmm_tail": opts.vmm_tail,
        "fail_at": opts.fail_at,
        **({"reader": _shown_reader(opts)} if _shown_reader(opts) else {}),
    }


def _shown_reader(opts: ReplayOptions) -> dict[str, object]:
    """How the file was read, where it was said: JSON values."""
    given = dict(opts.reader)
    if opts.block_size is not None:
        given["block_size"] = opts.block_size
    return {name: _as_json(given[name]) for name in sorted(given)}


def _as_json(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_as_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # an open end
    return value if isinstance(value, bool | int | float | None) else str(value)
