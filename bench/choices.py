"""Policies, evictions, victims and preemption side by side, at shares of the memory a load needs.

One table a share: hit rate, its distance from the best that any of the caches reaches under the
clairvoyant `belady`, preemptions, output tokens/s, waste (memory held beyond live tokens and kept
prefixes), and the requests that an engine's CPU-second replays. Prints Markdown. The trace is in
../shared/traces.

    python bench/choices.py --limit 3000 --shares 1/4 1
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from engine import MOONCAKE, Stopwatch, bare_loop  # type: ignore[import-not-found]

from vtsim.api import replay
from vtsim.metrics.result import PolicyRun
from vtsim.request import Trace
from vtsim.traces import load

EVICTIONS = ("lru", "lfu", "cost", "belady")
CACHES = ("paged", "radix", "vtensor", "elastic-paged")
PLAIN = ("native", "vattention")
VICTIMS = ("newest", "lowest-priority", "smallest-loss", "longest-remaining")


@dataclass(frozen=True)
class Choice:
    """One row: a policy and what it chooses."""

    policy: str
    evict: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        said = [self.policy, self.evict, *map(str, self.options.values())]
        return " ".join(word for word in said if word)


def choices() -> list[Choice]:
    """Every policy, every eviction, every victim, both preemptions; not every product of them."""
    rows = [Choice(policy) for policy in PLAIN]
    rows += [Choice(policy, evict) for policy in CACHES for evict in EVICTIONS]
    rows += [Choice("vtensor", "lru", {"victim": victim}) for victim in VICTIMS]
    rows += [Choice(policy, "", {"preemption": "swap"}) for policy in ("paged", "vtensor")]
    return rows


def run_one(trace: Trace, choice: Choice, options: dict[str, Any]) -> tuple[PolicyRun, float]:
    """A replay and the engine's requests a CPU-second."""
    settings = {choice.policy: {"evict": choice.evict}} if choice.evict else {}
    with Stopwatch() as watch:
        result = replay(trace, [choice.policy], settings=settings, **options, **choice.options)
    return result.runs[0], len(trace) / watch.cpu_s


def needed_bytes(trace: Trace, options: dict[str, Any]) -> int:
    """The memory the load needs: peak live tokens with memory for everything."""
    run = replay(trace, ["vtensor"], kv_memory="unlimited", **options).runs[0]
    return int(run.summary["memory"]["peak_bytes"]["kv_live"])


def line(choice: Choice, run: PolicyRun, rate: float, best: float) -> str:
    summary = run.summary
    mean = summary["memory"]["mean_bytes"]
    waste = sum(mean[name] for name in ("kv_slack", "kv_pooled", "kv_parked", "pool_unused"))
    hit = summary["prefix"]["hit_rate"]
    far = best - hit if choice.policy in CACHES else None
    cells = [
        choice.name,
        f"{100 * hit:.2f}",
        "" if far is None else f"{100 * far:.2f}",
        str(summary["requests"]["preemptions"]),
        str(summary["requests"]["rejected"]),
        f"{summary['throughput']['output_tokens_per_s']:.0f}",
        f"{waste / 2**30:.2f}",
        f"{rate:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = "| choice | hit % | under belady | preempted | rejected | tokens/s | waste GiB | req/CPU-s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=MOONCAKE)
    parser.add_argument("--limit", type=int, help="keep the first requests only")
    parser.add_argument("--speed", default="0.2")
    parser.add_argument("--shares", nargs="+", type=Fraction, default=["1/4", "1/2", "1", "2"])
    asked = parser.parse_args()
    options: dict[str, Any] = {"speed": asked.speed}
    trace = load(asked.trace, limit=asked.limit)
    need = needed_bytes(trace, options)
    print(f"{trace.name}: {len(trace):,} requests, speed {asked.speed}; they need ", end="")
    print(f"{need / 2**30:.2f} GiB\n")
    # A card with room for all of it and the weights, of the same speed.
    options["gpu_memory"] = int(need * max(map(Fraction, asked.shares))) + (64 << 30)
    for share in map(Fraction, asked.shares):
        limit = int(need * share)
        print(f"{share} of it, {limit / 2**30:.2f} GiB:\n\n{HEAD}\n|---{'|---:' * 7}|")
        runs = [
            (choice, *run_one(trace, choice, {**options, "kv_memory": limit}))
            for choice in choices()
        ]
        best = max(
            run.summary["prefix"]["hit_rate"] for choice, run, _ in runs if choice.evict == "belady"
        )
        for choice, run, rate in runs:
            print(line(choice, run, rate, best), flush=True)
        print(f"\nbare loop: {bare_loop() / 1e6:.2f} M/s (see engine.py)\n")


if __name__ == "__main__":
    main()
