"""Chunks that grow beside chunks of one size: calls, waste, exposed time, hits and speed.

`vtensor` on the Azure and the Mooncake conversations and on a made-up mix of short and very long
prompts, with the card's own memory and at shares of what each load needs. Prints Markdown. Traces
are read from ../shared/traces and skipped, saying so, where that folder is absent.

    python bench/growth.py --layouts token_major per_layer --shares card 1/2
    python bench/growth.py --schedules       # calls and slack by the lengths of the requests alone
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from engine import (  # type: ignore[import-not-found]
    AZURE,
    AZURE_OPTIONS,
    MOONCAKE,
    MOONCAKE_OPTIONS,
    Stopwatch,
    bare_loop,
)

from vtsim.api import replay
from vtsim.metrics.result import PolicyRun
from vtsim.request import TICKS_PER_S, Trace
from vtsim.testing.toys import Ask, make_trace
from vtsim.traces import load

M = 1 << 20
TRACES: dict[str, tuple[Path | None, dict[str, Any]]] = {
    "azure": (AZURE, AZURE_OPTIONS),
    "mooncake": (MOONCAKE, MOONCAKE_OPTIONS),
    "mixed": (None, {}),
}
SIZES: dict[str, dict[str, Any]] = {
    "2 MiB": {},
    "2 to 64 MiB": {"max_chunk": 64 * M},
    "2 to 64 MiB, growth 2": {"max_chunk": 64 * M, "growth": 2},
    "2 to 64 MiB, growth 4": {"max_chunk": 64 * M, "growth": 4},
    "2 to 64 MiB, growth 16": {"max_chunk": 64 * M, "growth": 16},
    "2 to 16 MiB, growth 4": {"max_chunk": 16 * M, "growth": 4},
    "4 MiB": {"chunk": 4 * M},
    "8 MiB": {"chunk": 8 * M},
    "16 MiB": {"chunk": 16 * M},
    "64 MiB": {"chunk": 64 * M},
}
HEAD = (
    "chunk", "create", "destroy", "map", "unmap", "busy s", "exposed s", "kv_slack GiB",
    "free GiB", "hit %", "preempted", "tokens/s", "req/CPU-s",
)  # fmt: skip


def needed_bytes(trace: Trace, options: dict[str, Any]) -> int:
    """The memory the load needs: peak live tokens with memory for everything."""
    run = replay(trace, ["vtensor"], kv_memory="unlimited", **options).runs[0]
    return int(run.summary["memory"]["peak_bytes"]["kv_live"])


def line(name: str, run: PolicyRun, rate: float) -> str:
    summary = run.summary
    vmm, mean = summary["vmm"], summary["memory"]["mean_bytes"]
    calls = vmm["calls"]
    cells = [name]
    cells += [f"{calls.get(kind, 0):,}" for kind in ("create", "destroy", "map", "unmap")]
    cells += [f"{vmm['busy_s']:.1f}", f"{vmm['exposed_s']:.2f}"]
    cells += [f"{mean[kind] / 2**30:.2f}" for kind in ("kv_slack", "free")]
    cells += [
        f"{100 * summary['prefix']['hit_rate']:.2f}",
        str(summary["requests"]["preemptions"]),
        f"{summary['throughput']['output_tokens_per_s']:.0f}",
        f"{rate:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def mixed(requests: int = 8000, per_s: float = 5.0) -> Trace:
    """Made up: 95 % short questions, 5 % on documents of 20,000 to 60,000 tokens."""
    random = np.random.default_rng(7)
    long = random.uniform(size=requests) < 0.05
    prompt = np.where(
        long, random.integers(20_000, 60_000, requests), random.integers(10, 200, requests)
    )
    output = random.integers(10, 300, requests)
    arrival = np.cumsum(random.exponential(TICKS_PER_S / per_s, requests)).astype(np.int64)
    rows = zip(arrival.tolist(), prompt.tolist(), output.tolist(), strict=True)
    return make_trace([Ask(*row) for row in rows], name="mixed")


def read(name: str, limit: int | None) -> Trace | None:
    path = TRACES[name][0]
    if path is None:
        return mixed() if limit is None else mixed(limit)
    return load(path, limit=limit) if path.exists() else None


RULES: dict[str, Callable[[int, int], bool]] = {
    "2 MiB": lambda size, before: False,
    "4 MiB": lambda size, before: size <= 2,
    "8 MiB": lambda size, before: size <= 4,
    "16 MiB": lambda size, before: size <= 8,
    "1/16 of what is before": lambda size, before: 16 * size <= before,
    "1/8 of it": lambda size, before: 8 * size <= before,
    "1/4 of it": lambda size, before: 4 * size <= before,
    "its root (growth 1)": lambda size, before: size**2 <= before,
    "growth 2": lambda size, before: size**2 <= 2 * before,
    "growth 4": lambda size, before: size**2 <= 4 * before,
}
"""May a chunk have `size` units of 2 MiB with so many before it?"""


def schedules(trace: Trace, unit_tokens: int = 32) -> None:
    """What rules for the size would do for whole requests of a model of 64 KiB a token."""
    units = -(-(trace.prompt_tokens + trace.output_tokens) // unit_tokens)
    print("\n| chunk | calls a request | slack a request, MiB |\n|---|---:|---:|")
    for name, may in RULES.items():
        ends = [0]
        while ends[-1] < units.max():
            size = 1
            while size < 32 and may(2 * size, ends[-1]):
                size *= 2
            ends.append(ends[-1] + size)
        calls = np.searchsorted(ends, units)
        slack = 2 * (np.array(ends)[calls] - units).mean() + 1
        print(f"| {name} | {calls.mean():.1f} | {slack:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", nargs="+", choices=list(TRACES), default=list(TRACES))
    parser.add_argument("--layouts", nargs="+", default=["token_major"])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--shares", nargs="+", default=["card", "1/2"], help="card, or 1/2, ...")
    parser.add_argument("--retain", default="all")
    parser.add_argument("--schedules", action="store_true", help="by lengths alone, and no more")
    parser.add_argument("--limit", type=int, help="keep the first requests only")
    asked = parser.parse_args()
    print(f"bare loop: {bare_loop() / 1e6:.2f} M/s (see engine.py)")
    for name in asked.traces:
        path, options = TRACES[name]
        trace = read(name, asked.limit)
        if trace is None:
            print(f"\n{name}: skipped, {path} is not there")
            continue
        if asked.schedules:
            print(f"\n{name}: {len(trace):,} requests")
            schedules(trace)
            continue
        need = needed_bytes(trace, options)
        print(f"\n{name}: {len(trace):,} requests, they need {need / 2**30:.1f} GiB")
        for layout in asked.layouts:
            for share in asked.shares:
                memory: dict[str, Any] = {}
                if share != "card":
                    memory["kv_memory"] = int(need * Fraction(share))
                print(f"\n{layout}, memory {share}, retain {asked.retain}:\n")
                print(f"| {' | '.join(HEAD)} |\n|---{'|---:' * (len(HEAD) - 1)}|")
                for size in asked.sizes:
                    settings = {**SIZES[size], "layout": layout, "retain": asked.retain}
                    with Stopwatch() as watch:
                        run = replay(
                            trace, ["vtensor"], settings={"vtensor": settings}, **memory, **options
                        ).runs[0]
                    print(line(size, run, len(trace) / watch.cpu_s), flush=True)


if __name__ == "__main__":
    main()
