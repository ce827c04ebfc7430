"""The options of a replay that change results, as JSON values."""

from __future__ import annotations

import math
from fractions import Fraction

from vtsim.budget import Budget
from vtsim.options import ReplayOptions


def shown_options(opts: ReplayOptions, budget: Budget) -> dict[str, object]:
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
