"""How fast traces are read, beside what a loop without any checks would take.

`python bench/traces.py [--rows N]`: writes N Azure rows to a temporary file and reads them with
`vtsim.traces.load` and `pandas.read_csv`, then the Mooncake file, if it is there, with `load` and a
`json.loads` loop. Each in a process of its own: CPU-seconds of the read and the process's peak RSS.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MOONCAKE = REPOSITORY.parent / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"
TARGETS = {"azure load": (10.0, 500.0), "mooncake load": (2.0, None)}
"""CPU-seconds and MB of the issue, for 1,000,000 Azure rows and the Mooncake file."""


def read_load(path: str) -> int:
    from vtsim.traces import load

    return len(load(path))


def read_pandas(path: str) -> int:
    import pandas

    return len(pandas.read_csv(path, parse_dates=["TIMESTAMP"]))


def read_json_loop(path: str) -> int:
    with open(path) as lines:
        return len([json.loads(line) for line in lines])


READS = {"load": read_load, "pandas": read_pandas, "json": read_json_loop}


def measure(kind: str, path: Path) -> dict[str, float]:
    """One read in a fresh process."""
    command = [sys.executable, __file__, "--child", kind, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def child(kind: str, path: str) -> None:
    read = READS[kind]
    begun = time.process_time()
    rows = read(path)
    spent = time.process_time() - begun
    print(json.dumps({"rows": rows, "cpu_s": round(spent, 3), "peak_mb": round(peak_mb(), 1)}))


def peak_mb() -> float:
    """This process's own peak: getrusage also counts what the parent had when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def write_azure(path: Path, rows: int) -> None:
    """Rows like those of the 2023 file: 100 ns stamps, CRLF, no newline behind the last."""
    from datetime import datetime, timedelta

    from vtsim.traces.generate import synth

    trace = synth(rows, 1, rate=5.5)
    start = datetime(2031, 5, 31)
    with open(path, "w", newline="") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens")
        columns = zip(
            trace.arrival.tolist(),
            trace.prompt_tokens.tolist(),
            trace.output_tokens.tolist(),
            strict=True,
        )
        for arrival, prompt, output in columns:
            seconds, part = divmod(arrival // 100_000, 10**7)
            out.write(f"\r\n{start + timedelta(seconds=seconds)}.{part:07d},{prompt},{output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "PATH"))
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        azure = Path(folder) / "azure.csv"
        write_azure(azure, arguments.rows)
        for kind in ("load", "pandas"):
            results[f"azure {kind}"] = measure(kind, azure)
    if MOONCAKE.exists():
        for kind in ("load", "json"):
            results[f"mooncake {kind}"] = measure(kind, MOONCAKE)
    for name, result in results.items():
        target = TARGETS.get(name)
        aim = (
            ""
            if target is None
            else f"  (target {target[0]:g} s" + (f", {target[1]:g} MB)" if target[1] else ")")
        )
        print(
            f"{name:15} {result['rows']:>9,.0f} rows  {result['cpu_s']:7.3f} CPU-s"
            f"  {result['peak_mb']:7.1f} MB{aim}"
        )


if __name__ == "__main__":
    main()
