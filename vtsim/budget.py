"""Where the bytes of one GPU go: weights, workspace, context, and the limit of every policy.

Arithmetic and its error messages only; what weighs how much is `vtsim.spec`'s and the cost model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from vtsim.errors import CapacityError
from vtsim.options import ReplayOptions
from vtsim.quantities import format_bytes
from vtsim.request import Trace
from vtsim.spec import GpuSpec, ModelSpec

_ROUNDING_BYTES = 256 << 20
"""What an unlimited card holds for each request beside its tokens: a chunk in every arena."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the bytes of one GPU go before any KV is held."""

    capacity_bytes: int
    weights_bytes: int
    workspace_bytes: int
    context_bytes: int
    limit_bytes: int
    """What a policy may take."""

    def constants(self, *others: Budget) -> dict[str, Any]:
        """The categories that no policy changes, of this and `others` on one GPU together."""
        names = ("weights_bytes", "workspace_bytes", "context_bytes")
        whole = {name: sum(getattr(each, name) for each in (self, *others)) for name in names}
        return {"capacity_bytes": self.capacity_bytes, **whole}

    @property
    def fixed_bytes(self) -> int:
        """What is never KV: weights, workspace, context."""
        return self.weights_bytes + self.workspace_bytes + self.context_bytes


def plan_budget(
    trace: Trace,
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int,
    max_model_len: int,
    workspace_bytes: int,
    opts: ReplayOptions,
) -> tuple[Budget, GpuSpec]:
    """Divide one GPU: weights, workspace, and the limit that every policy gets.

    Also the card that is simulated: with `kv_memory="unlimited"` one that is large enough for
    anything the trace can ask for. Raises `CapacityError`, saying how much is missing.
    """
    if opts.gpu_memory is not None:
        gpu = gpu.with_capacity(opts.gpu_memory)
    weights, context = model.weight_bytes(tp), gpu.context_bytes
    fixed = weights + workspace_bytes
    if opts.kv_memory == "unlimited":
        limit = _unlimited_bytes(trace, model.token_bytes(tp), max_model_len, opts)
        gpu = gpu.with_capacity(max(gpu.capacity_bytes, fixed + context + limit))
    elif opts.kv_memory is not None:
        limit = opts.kv_memory
    else:
        # The decimal number as written: 0.9 is nine tenths, not the float beside it.
        share = Fraction(str(opts.gpu_memory_utilization))
        usable = int(share * gpu.capacity_bytes)
        limit = min(usable - fixed, gpu.capacity_bytes - fixed - context)
        if limit <= 0:
            raise CapacityError(
                f"{model.name} does not fit {gpu.name} (tp {tp}): "
                f"{opts.gpu_memory_utilization} x {format_bytes(gpu.capacity_bytes)} is "
                f"{format_bytes(1 - limit)} less than weights {format_bytes(weights)} + workspace "
                f"{format_bytes(workspace_bytes)} and any KV cache need"
            )
    missing = fixed + context + limit - gpu.capacity_bytes
    if missing > 0:
        raise CapacityError(
            f"{gpu.name} has {format_bytes(gpu.capacity_bytes)}; weights {format_bytes(weights)} + "
            f"workspace {format_bytes(workspace_bytes)} + KV memory {format_bytes(limit)} are "
            f"{format_bytes(missing)} more"
        )
    return Budget(gpu.capacity_bytes, weights, workspace_bytes, context, limit), gpu


def _unlimited_bytes(
    trace: Trace, token_bytes: int, max_model_len: int, opts: ReplayOptions
) -> int:
    """More than any policy can use: every token kept for good, each request rounded up
    generously, and the largest reservation for all that run at once."""
    tokens = int(trace.prompt_tokens.sum()) + int(trace.output_tokens.sum())
    rounding = len(trace) * _ROUNDING_BYTES
    return tokens * token_bytes + rounding + opts.max_num_seqs * max_model_len * token_bytes
