"""Each metric's name, unit and definition: part of every JSON output, and of docs/metrics.md.

Text only. What computes a metric is `vtsim.metrics.summary`; a test holds the names there to these.
"""

from __future__ import annotations

from typing import NamedTuple


class Definition(NamedTuple):
    """What a metric is. `unit` is one of bytes, s, tokens, tokens/s, requests/s, 1, or empty."""

    unit: str
    text: str


CATEGORIES = (
    "weights",
    "workspace",
    "context",
    "kv_live",
    "kv_slack",
    "kv_prefix",
    "kv_pooled",
    "kv_parked",
    "pool_unused",
    "free",
)
"""Where every byte of the device is, at every instant. Disjoint; they add up to the capacity."""

FREE_AMOUNTS = tuple(2**k * 2**30 for k in range(8))
"""1 GiB to 128 GiB: the amounts whose longest free time is reported."""

LATENCY_PERCENTILES = (50, 90, 99)

MEMORY_DEFINITIONS: dict[str, Definition] = {
    "weights": Definition("bytes", "model weights on this GPU"),
    "workspace": Definition(
        "bytes", "activations and graph pools for the largest step: reserved, not allocated"
    ),
    "context": Definition("bytes", "CUDA context and libraries; 0 unless the GPU profile says"),
    "kv_live": Definition("bytes", "KV of tokens that live sequences hold; shared chunks once"),
    "kv_slack": Definition("bytes", "mapped for live sequences and holding no token"),
    "kv_prefix": Definition("bytes", "kept only because a later prompt may match it"),
    "kv_pooled": Definition("bytes", "chunks kept by handle, mapped nowhere"),
    "kv_parked": Definition("bytes", "still mapped in an idle vTensor, to be adopted whole"),
    "pool_unused": Definition("bytes", "idle blocks of a static pool"),
    "free": Definition("bytes", "what the backend says is free on the device"),
}

DEFINITIONS: dict[str, Definition] = {
    **{f"memory.{name}": definition for name, definition in MEMORY_DEFINITIONS.items()},
    "memory.capacity_bytes": Definition("bytes", "device memory as cuMemGetInfo gives it"),
    "memory.peak_bytes": Definition("bytes", "largest value of each category at any sample"),
    "memory.peak_used_bytes": Definition("bytes", "capacity - the smallest free"),
    "memory.mean_bytes": Definition(
        "bytes", "mean of each category over time; a sample's value held since the one before"
    ),
    "memory.free_bytes": Definition(
        "bytes",
        "smallest free at any sample; pN: free was at most this for N % of the time",
    ),
    "memory.longest_free_s": Definition(
        "s", "longest time without a break during which at least this many bytes were free"
    ),
    "memory.samples": Definition(
        "", "samples: at admission, end of a prefill step, finish, retire, preemption, idle"
    ),
    "duration_s": Definition("s", "from the first kept arrival to the end of the last step"),
    "requests.completed": Definition("", "requests answered with all their tokens"),
    "requests.rejected": Definition(
        "",
        "requests answered without, each with a reason; `capacity`: cannot fit even alone",
    ),
    "requests.preemptions": Definition("", "times a sequence's memory was taken"),
    "throughput.output_tokens_per_s": Definition(
        "tokens/s", "output tokens of completed requests / duration; recomputation counts once"
    ),
    "throughput.total_tokens_per_s": Definition(
        "tokens/s", "prompt + output tokens of completed requests / duration, cached ones included"
    ),
    "throughput.requests_per_s": Definition("requests/s", "completed requests / duration"),
    "latency.ttft_s": Definition("s", "first token - arrival, of completed requests"),
    "latency.tpot_s": Definition(
        "s", "(last - first token) / (tokens - 1) of completed requests with more than one token"
    ),
    "latency.e2e_s": Definition("s", "last token - arrival, of completed requests"),
    "latency.queue_s": Definition("s", "first admission - arrival, of completed requests"),
    "latency.pN": Definition("", "N-th percentile, interpolated linearly between neighbours"),
    "prefix.hit_tokens": Definition(
        "tokens", "prompt tokens served from memory at first admission, over the whole trace"
    ),
    "prefix.prompt_tokens": Definition("tokens", "prompt tokens of the whole trace"),
    "prefix.hit_rate": Definition("1", "hit_tokens / prompt_tokens"),
    "trace.ideal_hit_tokens": Definition(
        "tokens",
        "prompt tokens that an infinite cache would hold, whole prompts included; null: unknown",
    ),
    "prefix.rehit_tokens": Definition(
        "tokens", "tokens served from memory when a preempted sequence returned; not in hit_tokens"
    ),
    "vmm.calls": Definition("", "memory operations by kind; a map grants access too"),
    "vmm.calls_by_phase": Definition("", "memory operations by phase"),
    "vmm.calls_per_1000_output_tokens": Definition(
        "1", "operations while serving / output tokens of completed requests x 1000"
    ),
    "vmm.busy_s": Definition("s", "time the memory worker was busy while serving"),
    "vmm.exposed_s": Definition("s", "memory-operation time that compute did not hide"),
    "steps.count": Definition("", "model steps"),
    "steps.compute_s": Definition("s", "time the GPU computed"),
}


def as_json() -> dict[str, dict[str, str]]:
    """`definitions` of the JSON output."""
    return {
        name: {"unit": definition.unit, "definition": definition.text}
        for name, definition in DEFINITIONS.items()
    }
