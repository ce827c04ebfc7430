"""The Python API: `replay(trace, ...)` runs a trace through policies and gives a `RunResult`.

It puts the parts together - trace, model, GPU, memory budget, policy, backend, engine - and holds
no logic of any of them. The command line calls it and only prints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import vtsim
from vtsim.backends.gpus import load_gpu
from vtsim.backends.sim import CostModel
from vtsim.budget import plan_budget
from vtsim.errors import ConfigError
from vtsim.guard import check_policy
from vtsim.metrics.progress import Progress
from vtsim.metrics.result import RunResult
from vtsim.options import ReplayOptions
from vtsim.registry import BACKENDS, PolicyChoice, choose_kernels, choose_policies
from vtsim.request import Trace
from vtsim.runs import MakeBackend, Replay
from vtsim.spec import GpuSpec, ModelSpec, load_model
from vtsim.traces import load
from vtsim.traces.pace import scale_speed
from vtsim.traces.stats import ideal_prefix_hits, sharing_is_known
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
    ideal = ideal_prefix_hits(loaded) if sharing_is_known(loaded) else None
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
        version=vtsim.__version__,
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
