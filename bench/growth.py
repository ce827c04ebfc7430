"""Chunks that grow beside chunks of one size: calls, waste, exposed time, hits and speed.

`vtensor` on the Azure and the Mooncake conversations, at shares of the memory that each load needs
(and with the card's own limit). Prints Markdown. Traces are read from ../shared/traces and skipped,
saying so, where that folder is absent.

    python bench/growth.py --layouts token_major per_layer --shares card 1 1/2
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from typing import Any

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
from vtsim.request import Trace
from vtsim.traces import load

M = 1 << 20
TRACES = {"azure": (AZURE, AZURE_OPTIONS), "mooncake": (MOONCAKE, MOONCAKE_OPTIONS)}
SIZES: dict[str, dict[str, Any]] = {
    "2 MiB": {},
    "2 to 64 MiB": {"max_chunk": 64 * M},
    "2 to 64 MiB, growth 2": {"max_chunk": 64 * M, "growth": 2},
    "2 to 64 MiB, growth 4": {"max_chunk": 64 * M, "growth": 4},
    "2 to 16 MiB, growth 4": {"max_chunk": 16 * M, "growth": 4},
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", nargs="+", choices=list(TRACES), default=list(TRACES))
    parser.add_argument("--layouts", nargs="+", default=["token_major"])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--shares", nargs="+", default=["card", "1/2"], help="card, or 1/2, ...")
    parser.add_argument("--retain", default="all")
    parser.add_argument("--limit", type=int, help="keep the first requests only")
    asked = parser.parse_args()
    print(f"bare loop: {bare_loop() / 1e6:.2f} M/s (see engine.py)")
    for name in asked.traces:
        path, options = TRACES[name]
        if not path.exists():
            print(f"\n{name}: skipped, {path} is not there")
            continue
        trace = load(path, limit=asked.limit)
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
