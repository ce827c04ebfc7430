"""Two tenants on one GPU, static against elastic: a chat on Yi-6B, bursts on Llama-3-8B.

The chat is the first ten minutes of Azure's conversations as they came. The bursts are Mooncake's
conversations of at most 8,192 tokens, which fall in at minutes 2, 4.5 and 7, each within seconds.
Each policy runs with halves of the memory, with parts in the proportion of what each tenant needs
at its peak when it is alone, with a quarter for the chat, and, where it gives memory back, with all
of it shared, and shared with limits for the bursts. Prints Markdown, one table a memory size. The
traces are in ../shared/traces.

    python bench/tenants.py --gpu-memory 80GiB 40GiB
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from engine import AZURE, MOONCAKE  # type: ignore[import-not-found]

from vtsim.api import replay
from vtsim.metrics.tenants import GpuRun, TenantRun
from vtsim.quantities import format_bytes, parse_bytes
from vtsim.request import TICKS_PER_S, Trace
from vtsim.tenants import Tenant, TenantsReplay, prepare_tenants
from vtsim.traces import load
from vtsim.traces.transform import select

MODELS = {"chat": "yi-6b", "burst": "llama-3-8b"}
STATIC = ("paged", "radix")
POLICIES = ("paged", "elastic-paged", "vtensor")
BURSTS_S = (120, 270, 420)


def chat(seconds: float) -> Trace:
    """What came in the first `seconds`."""
    return load(AZURE, window_s=(0.0, seconds))


def bursts(requests: int) -> Trace:
    """`requests` in each burst, in Mooncake's order, eight times as fast as they came."""
    trace = load(
        MOONCAKE, max_context=8192, on_overflow="drop", limit=5 * len(BURSTS_S) * requests, speed=8
    )
    if len(trace) < len(BURSTS_S) * requests:
        raise SystemExit(f"{MOONCAKE.name} has no {len(BURSTS_S) * requests} such requests")
    trace = select(trace, np.arange(len(BURSTS_S) * requests), "later bursts")
    group = np.arange(len(trace)) // requests
    first = trace.arrival[group * requests]
    starts = np.array(BURSTS_S, dtype=np.int64)[group] * TICKS_PER_S
    return replace(trace, arrival=trace.arrival - first + starts)


def peak_bytes(trace: Trace, model: str, options: dict[str, Any]) -> int:
    """What a tenant's live tokens take at most when it is alone and memory is no matter."""
    alone = {name: value for name, value in options.items() if name != "gpu_memory"}
    alone["max_model_len"] = 8192 if model == MODELS["burst"] else alone["max_model_len"]
    run = replay(trace, ["vtensor"], model=model, kv_memory="unlimited", **alone).runs[0]
    return int(run.summary["memory"]["peak_bytes"]["kv_live"])


def divisions(shared: int, needs: list[int]) -> Iterator[tuple[str, list[int | None]]]:
    """How the memory may be cut, or shared: (name, limits)."""
    yield "halves", [shared // 2] * 2
    part = shared * needs[0] // sum(needs)
    yield "by need", [part, shared - part]
    yield "1/4 : 3/4", [shared // 4, shared - shared // 4]
    yield "shared", [None, None]
    yield "shared, burst <= 3/4", [None, shared - shared // 4]
    yield "shared, burst <= 1/4", [None, shared // 4]


HEAD = (
    "| policy, memory | chat: out tok/s | rejected | preempted | TTFT p50 | p99 "
    "| burst: out tok/s | rejected | preempted | TTFT p50 | p99 | both: out tok/s | moved GiB |"
)


def line(name: str, run: GpuRun) -> str:
    cells = [name]
    for own in run.runs:
        summary = own.summary
        ttft = summary["latency"]["ttft_s"]
        cells += [
            f"{busy_rate(own):.0f}",
            str(summary["requests"]["rejected"]),
            str(summary["requests"]["preemptions"]),
            *("-" if ttft[part] is None else f"{ttft[part]:.2f} s" for part in ("p50", "p99")),
        ]
    cells.append(f"{run.summary['throughput']['output_tokens_per_s']:.0f}")
    moved = sum(each.nbytes for each in run.reclaimed)
    cells.append(f"{moved / 2**30:.1f}" if run.elastic else "-")
    return f"| {' | '.join(cells)} |"


def busy_rate(run: TenantRun) -> float:
    """Output tokens of completed requests a second in which one of the tenant's requests was
    there: a tenant that bursts has nothing to do in between."""
    requests = run.requests
    spans = requests[["arrival_s", "finished_s"]].sort_values("arrival_s").to_numpy()
    busy, until = 0.0, 0.0
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    done = requests["outcome"] == "completed"
    return float(requests.loc[done, "output_tokens"].sum() / busy)


def tenants(traces: dict[str, Trace], limits: list[int | None]) -> list[Tenant]:
    return [
        Tenant(name, trace, MODELS[name], limit)
        for (name, trace), limit in zip(traces.items(), limits, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu-memory", nargs="+", default=["80GiB", "48GiB", "36GiB", "32GiB"])
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--burst", type=int, default=120, help="requests in each burst")
    parser.add_argument("--seconds", type=float, default=600.0, help="of chat")
    parser.add_argument("--gpu", default="a100-80g")
    asked = parser.parse_args()
    missing = [str(path) for path in (AZURE, MOONCAKE) if not path.exists()]
    if missing:
        print(f"skipped: {', '.join(missing)} is not there")
        return
    options: dict[str, Any] = {"max_model_len": 16384, "max_batched_tokens": 2048}
    traces = {"chat": chat(asked.seconds), "burst": bursts(asked.burst)}
    needs = [peak_bytes(trace, MODELS[name], options) for name, trace in traces.items()]
    for (name, trace), need in zip(traces.items(), needs, strict=True):
        print(
            f"{name}: {len(trace):,} requests, {int(trace.prompt_tokens.sum()):,} prompt + "
            f"{int(trace.output_tokens.sum()):,} output tokens on {MODELS[name]}; alone it needs "
            f"{format_bytes(need)} at its peak"
        )
    for size in asked.gpu_memory:
        options["gpu_memory"] = parse_bytes(size, "--gpu-memory")

        def prepared(
            policy: str, limits: list[int | None], options: dict[str, Any] = options
        ) -> TenantsReplay:
            return prepare_tenants(tenants(traces, limits), [policy], gpu=asked.gpu, **options)

        shared = prepared("paged", [None, None]).shared_bytes
        print(f"\n{size}, {format_bytes(shared)} of KV memory:\n\n{HEAD}\n|---{'|---:' * 12}|")
        for policy in asked.policies:
            for division, limits in divisions(shared, needs):
                if policy not in STATIC or limits[0] is not None:
                    run = prepared(policy, limits).run().runs[0]
                    print(line(f"{policy}, {division}", run), flush=True)


if __name__ == "__main__":
    main()
