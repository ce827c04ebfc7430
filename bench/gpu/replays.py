"""Replays the first rows of two public traces in both worlds and compares them plan by plan.

    python bench/gpu/replays.py --world cuda --traces DIR --out replays.json [--only TEXT]

`DIR` holds azure.csv (Azure 2023 conversations) and mooncake.jsonl (Mooncake conversations). The
simulated runs go to a pool of processes while this one drives the card; `--world fake` puts the
fake driver in its place, `--world sim` runs the simulation alone. Yi-6B on an h200 profile with the
card's capacity, virtual clock. Every number in docs/validation comes from a file this wrote.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from vtsim.api import replay
from vtsim.backends.cuda.compare import Trail, Witness
from vtsim.backends.gpus import load_gpu
from vtsim.backends.sim import SimBackend
from vtsim.plan import OpKind, Phase

M = 1 << 20
ROWS = 2000
TRACES: dict[str, dict[str, Any]] = {
    "azure": {"file": "azure.csv", "max_model_len": 16_384, "speed": 4},
    "mooncake": {"file": "mooncake.jsonl", "max_model_len": 131_072, "speed": "0.2"},
}
POLICIES: dict[str, tuple[str, dict[str, Any]]] = (
    {
        "native": ("native", {}),
        "paged": ("paged", {}),
    }
    | {
        f"vtensor {layout} {chunk} MiB": ("vtensor", {"layout": layout, "chunk": chunk * M})
        for layout in ("token_major", "kv_split", "per_layer")
        for chunk in (2, 16)
    }
    | {
        f"vtensor {layout} 2 to 64 MiB": ("vtensor", {"layout": layout, "max_chunk": 64 * M, **how})
        for layout, how in (("token_major", {}), ("kv_split", {}), ("per_layer", {"growth": 4}))
    }
)
GROWING = "vtensor token_major 2 to 64 MiB"


def needed_bytes(folder: Path, trace: str) -> int:
    """Peak kv_live of the load with unlimited memory."""
    result = replay(**_request(folder, trace, "vtensor", {}), kv_memory="unlimited")
    (run,) = result.as_json()["runs"]
    return int(run["memory"]["peak_bytes"]["kv_live"])


def _request(folder: Path, trace: str, policy: str, parameters: dict[str, Any]) -> dict[str, Any]:
    about = TRACES[trace]
    return {
        "trace": folder / about["file"],
        "policies": [policy],
        "model": "yi-6b",
        "gpu": "h200",
        "settings": {policy: parameters} if parameters else {},
        "max_model_len": about["max_model_len"],
        "speed": about["speed"],
        "limit": ROWS,
    }


def run_one(world: str, folder: Path, task: dict[str, Any]) -> tuple[Trail, dict[str, Any]]:
    """One policy through one trace: what its backend was seen to do, and what it reports."""
    seen: list[Witness] = []

    def make(info: Any, kv: Any, **how: Any) -> Witness:
        how["keep_log"] = True
        if world == "sim":
            backend: Any = SimBackend(info, kv, **how)
        else:
            from vtsim.backends.cuda.backend import CudaBackend

            backend = CudaBackend(info, kv, driver=open_world(world), **how)
        seen.append(Witness(backend))
        return seen[0]

    policy, parameters = POLICIES[task["policy"]]
    request = _request(folder, task["trace"], policy, parameters)
    begin = time.perf_counter()
    result = replay(
        **request, kv_memory=task["limit_bytes"], fail_at=task["fail_at"], log=True,
        make_backend=make,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    (run,) = result.as_json()["runs"]
    trail = seen[0].trail
    return trail, {
        "limit_bytes": run["limit_bytes"],
        "plans": len(trail.hashes),
        "steps": trail.steps[-1],
        "calls": trail.counts(),
        "refused": trail.refused,
        "peak_bytes": trail.peak_bytes,
        "digest": trail.digest(),
        "completed": run["requests"]["completed"],
        "rejected": run["requests"]["rejected"],
        "preemptions": run["requests"]["preemptions"],
        "seconds": round(seconds, 2),
        "driver_seconds": round(trail.wall_s, 2),
        "device": run["details"].get("device"),
    }


def calls_to_fail(folder: Path, task: dict[str, Any]) -> list[int]:
    """The middle map of an admission and the middle one of an extend, in a stepped run."""
    policy, parameters = POLICIES[task["policy"]]
    request = _request(folder, task["trace"], policy, parameters)
    result = replay(**request, kv_memory=task["limit_bytes"], step=True, log=True)
    calls = result.runs[0].driver_calls or ()
    middles: list[int] = []
    for phase in (Phase.CREATE, Phase.EXTEND):
        found = [
            number
            for number, call in enumerate(calls)
            if call.phase == phase and call.operation.kind is OpKind.MAP
        ]
        middles.append(found[len(found) // 2])
    return middles


_drivers: dict[str, Any] = {}


def open_world(world: str) -> Any:
    """The process's one driver."""
    from vtsim.backends.cuda.driver import open_driver
    from vtsim.backends.cuda.fake import FakeCuda

    if world not in _drivers:
        api = None
        if world == "fake":
            api = FakeCuda(total_bytes=load_gpu("h200").capacity_bytes, va_bytes=65 << 40)
        _drivers[world] = open_driver(0, api)
    return _drivers[world]


def tasks(folder: Path, only: str, skip: str) -> list[dict[str, Any]]:
    """Every policy with plenty and at half of the need, and one with a failure injected."""
    made: list[dict[str, Any]] = []
    for trace in TRACES:
        if only and trace not in only and only.split()[0] in TRACES:
            continue
        need = needed_bytes(folder, trace)
        for policy in POLICIES:
            for memory, limit in (("plenty", None), ("half", need // 2)):
                made.append({"memory": memory, "limit_bytes": limit, "fail_at": None})
                made[-1] |= {"trace": trace, "policy": policy, "need_bytes": need}
        chunk = 16 if trace == "mooncake" else 2
        for policy in (f"vtensor token_major {chunk} MiB", GROWING):
            failing = dict(made[-1], policy=policy, fail_at=None)
            made += [dict(failing, fail_at=call) for call in calls_to_fail(folder, failing)]
    for task in made:
        fails = "" if task["fail_at"] is None else f" fail {task['fail_at']}"
        task["name"] = f"{task['trace']} {task['policy']} {task['memory']}{fails}"
    wanted = [t for t in made if only in t["name"]]
    return [t for t in wanted if not (skip and any(s in t["name"] for s in skip.split(",")))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=["cuda", "fake", "sim"], default="cuda")
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="tasks whose name contains this")
    parser.add_argument("--skip", default="", help="texts, comma-separated, that leave tasks out")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no task after this")
    args = parser.parse_args()
    begin = time.perf_counter()
    work = tasks(args.traces, args.only, args.skip)
    context = multiprocessing.get_context("spawn")
    report: dict[str, Any] = {"world": args.world, "rows": ROWS, "runs": []}
    wrong = 0
    with context.Pool(args.processes) as pool:
        simulated = [pool.apply_async(run_one, ("sim", args.traces, task)) for task in work]
        if args.world != "sim":
            driver = open_world(args.world)
            report |= {"card": driver.name, "cuda": driver.version}
            report["free_at_start"] = driver.memory()[0]
        for task, pending in zip(work, simulated, strict=True):
            if time.perf_counter() - begin > args.seconds:
                report["not_run"] = [*report.get("not_run", ()), task["name"]]
                continue
            entry: dict[str, Any] = dict(task)
            if args.world != "sim":
                trail, entry["real"] = run_one(args.world, args.traces, task)
                entry["free_after"] = driver.memory()[0]
            expected, entry["simulated"] = pending.get()
            if args.world != "sim":
                entry["first_difference"] = expected.first_difference(trail)
                entry["equal"] = not entry["first_difference"]
                wrong += not entry["equal"]
            report["runs"].append(entry)
            shown = entry.get("real", entry["simulated"])
            print(
                f"{task['name']:45s} {'equal' if entry.get('equal', True) else 'DIFFERENT'} "
                f"{shown['plans']:7d} plans {sum(shown['calls'].values()):8d} calls "
                f"{shown['peak_bytes'] / 2**30:6.1f} GiB {shown['preemptions']:5d} preempted "
                f"{shown['seconds']:6.1f} s ({shown['driver_seconds']:.1f} in the driver) "
                f"{shown['digest'][:12]} {entry.get('first_difference', '')}",
                flush=True,
            )
            args.out.write_text(json.dumps(report, indent=1) + "\n")
        pool.terminate()
    if args.world != "sim":
        report["free_at_end"] = driver.memory()[0]
        driver.close()
    report["seconds"] = round(time.perf_counter() - begin, 1)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{len(report['runs'])} runs, {wrong} different, {report['seconds']} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
