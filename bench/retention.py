"""What release, retain and adoption rules cost in driver calls: Azure's first 2,000 rows, twice.

    python bench/retention.py ../shared/traces/azure2023/AzureLLMInferenceTrace_conv.csv

The second pass arrives ten minutes after the first. Prints a table and, with --json FILE, writes
its numbers. With --memory cuda each setting runs on the card too, and its log, which the backend
writes after each call has returned, is counted beside the simulation's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from vtsim.api import replay
from vtsim.backends.gpus import load_gpu
from vtsim.plan import OpKind, Phase
from vtsim.registry import BACKENDS
from vtsim.request import TICKS_PER_S, Trace
from vtsim.spec import GpuSpec
from vtsim.traces import load

ROWS = 2000
ADOPT = ("best", "newest", "lowest")
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"park, retain all, adopt {rule}": {"release": "park", "adopt": rule} for rule in ADOPT},
    "park, retain watermark": {"release": "park", "retain": "watermark"},
    "unmap, retain all": {},
    "unmap, retain watermark": {"retain": "watermark"},
    "retain none": {"retain": "none"},
}


def twice(trace: Trace, pause: int) -> Trace:
    """The trace, and all of it again `pause` ticks after its last arrival."""
    count = len(trace)
    shift = int(trace.arrival[-1]) + pause
    return dataclasses.replace(
        trace,
        arrival=np.concatenate((trace.arrival, trace.arrival + shift)),
        prompt_tokens=np.tile(trace.prompt_tokens, 2),
        output_tokens=np.tile(trace.output_tokens, 2),
        priority=np.tile(trace.priority, 2),
        session=np.tile(trace.session, 2),
        turn=np.tile(trace.turn, 2),
        run_offsets=np.zeros(2 * count + 1, dtype=np.int64),
        run_first=np.zeros(0, dtype=np.int64),
        run_count=np.zeros(0, dtype=np.int64),
        ids=(),
        recorded={},
        extra={},
    )


def calls(
    trace: Trace, settings: dict[str, Any], memory: str, gpu: GpuSpec
) -> tuple[Counter[str], dict[str, int]]:
    """Calls by kind, set-up and teardown apart; peak bytes by category."""
    result = replay(
        trace, ["vtensor"], gpu=gpu, max_model_len=16_384, log=True, memory=memory,
        settings={"vtensor": settings},
    )  # fmt: skip
    run = result.runs[0]
    counted = Counter(
        OpKind(call.operation.kind).name.lower()
        for call in run.driver_calls or ()
        if call.phase not in (Phase.SETUP, Phase.TEARDOWN)
    )
    return counted, dict(run.as_json()["memory"]["peak_bytes"])


def measure(trace: Trace, settings: dict[str, Any], memory: str, gpu: GpuSpec) -> dict[str, Any]:
    """Calls of each pass; the second's are those of both less those of one."""
    one, _ = calls(trace, settings, memory, gpu)
    both, peak = calls(twice(trace, 600 * TICKS_PER_S), settings, memory, gpu)
    passes = [one, both - one]
    tokens = int(trace.output_tokens.sum())
    return {
        "passes": passes,
        "calls_per_1000_output_tokens": [p.total() * 1000 / tokens for p in passes],
        "peak_bytes": peak,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--memory", choices=["sim", "cuda"], default="sim")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    trace = load(args.trace, limit=ROWS)
    gpu = load_gpu("h200")
    if args.memory == "cuda":  # both worlds get the memory that the card has
        gpu = BACKENDS.load("cuda").fit_profile(gpu)
    report: dict[str, Any] = {}
    different = []
    heads = ("maps 1/2", "all calls 1/2", "a 1,000 output tokens")
    print(f"{'setting':34s} {heads[0]:>16s} {heads[1]:>18s} {heads[2]:>22s}")
    for name, settings in SETTINGS.items():
        begin = time.perf_counter()
        found = report[name] = measure(trace, settings, args.memory, gpu)
        found["seconds"] = round(time.perf_counter() - begin, 1)
        equal = ""
        if args.memory == "cuda":
            found["simulated"] = measure(trace, settings, "sim", gpu)
            same = all(found[key] == value for key, value in found["simulated"].items())
            different += [] if same else [name]
            equal = "as simulated" if same else "NOT as simulated"
        maps = "/".join(str(p.get("map", 0)) for p in found["passes"])
        total = "/".join(str(p.total()) for p in found["passes"])
        rates = "/".join(f"{rate:.1f}" for rate in found["calls_per_1000_output_tokens"])
        print(f"{name:34s} {maps:>16s} {total:>18s} {rates:>22s} {equal}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
