"""Experiments on a card: speed, faults, fence, guards, kernels, memory. Results in one JSON file.

    python bench/gpu/experiments.py all --out DIR --traces DIR
    python bench/gpu/experiments.py speed fence --out DIR --traces DIR

Each experiment runs in a process of its own, because some break their CUDA context on purpose. The
traces are those of `bench/gpu/replays.py`. `docs/validation` says what was seen, and where.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from accounts import command, doctor, memory, passes
from attention import guards, kernels
from common import Report
from faults import fence, fill, interrupt, lowered, thief
from generate import generate
from speed import launches, scaling, speed

EXPERIMENTS = {
    function.__name__: function
    for function in (
        doctor, speed, launches, scaling, memory, fill, thief, lowered, interrupt, fence, passes,
        command, kernels, guards, generate,
    )
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", help=f"all, or some of: {', '.join(EXPERIMENTS)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--here", action="store_true", help="in this process: one experiment")
    args = parser.parse_args()
    names = list(EXPERIMENTS) if args.names == ["all"] else args.names
    if args.here:
        report = EXPERIMENTS[names[0]](args.traces)
        (args.out / f"{names[0]}.json").write_text(json.dumps(report, indent=1) + "\n")
        return 0
    gathered: Report = {}
    for name in names:
        begin = time.perf_counter()
        child = subprocess.run(
            [sys.executable, __file__, name, "--here", "--out", str(args.out), "--traces",
             str(args.traces)],
            capture_output=True, text=True,
        )  # fmt: skip
        seconds = round(time.perf_counter() - begin, 1)
        path = args.out / f"{name}.json"
        if child.returncode == 0:
            gathered[name] = json.loads(path.read_text()) | {"seconds": seconds}
            path.unlink()
        else:
            gathered[name] = {"failed": child.stderr[-1500:], "seconds": seconds}
        print(f"== {name} ({seconds} s)", flush=True)
        shown = json.dumps(gathered[name])
        print(shown if len(shown) < 1800 else shown[:1800] + " ...", flush=True)
        (args.out / "experiments.json").write_text(json.dumps(gathered, indent=1) + "\n")
    bad = [
        name for name, report in gathered.items() if report.get("ok") is False or "failed" in report
    ]
    print(f"{len(gathered)} experiments, not as they must be: {bad or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
