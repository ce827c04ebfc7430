"""How fast traces are read, beside what a loop without any checks would take.

`python bench/traces.py [--rows N]`: writes N Azure rows to a temporary file and reads them with
`vtsim.traces.load` and `pandas.read_csv`, then the Mooncake file, if it is there, with `load` and a
`json.loads` loop. Each in a process of its own: CPU-seconds of the read and the process's peak RSS.

`--ids N` instead writes N distinct hash ids in each of several forms, and shows the peak beside the
file's size.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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


def read_ids(path: str) -> int:
    """The options that the made-up files need."""
    from vtsim.traces import load

    return len(load(path, block_size=16))


READS = {"load": read_load, "pandas": read_pandas, "json": read_json_loop, "ids": read_ids}


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


def write_ids(kind: str, path: Path, ids: int) -> None:
    """A trace of `ids` distinct hash ids, 800 a request, in the form called `kind`."""
    draw = random.Random(1)
    names: dict[str, Callable[[int], object]] = {
        "in order": lambda n: n,
        "64-bit": lambda n: draw.getrandbits(64),
        "strings": lambda n: f"{draw.getrandbits(64):016x}",
        "native, local": lambda n: n % 800,
        "weka": lambda n: n,
        "token ids": lambda n: [draw.randrange(128_000) for _ in range(16)],
    }
    name = names[kind]
    local = kind == "native, local"
    with open(path, "w") as out:
        if local:
            head = {"format": "vtsim-trace", "version": 1, "block_size": 16, "tail_rule": "exact"}
            out.write(json.dumps({**head, "hash_scope": "local"})[:-1] + ', "requests": [\n')
        if kind == "weka":
            out.write('{"id": "x", "block_size": 16, "hash_id_scope": "local", "requests": [\n')
        for row, start in enumerate(range(0, ids, 800)):
            listed = [name(n) for n in range(start, min(start + 800, ids))]
            prompt = 16 * len(listed)
            if local:
                lengths = {"arrival_s": row, "prompt_tokens": prompt, "output_tokens": 10}
                item = {**lengths, "session": f"s{row}", "hash_ids": listed}
            elif kind == "weka":
                item = {"t": row, "in": prompt, "out": 10, "hash_ids": listed}
            elif kind == "token ids":
                tokens = [token for block in listed for token in block]  # type: ignore[attr-defined]
                lengths = {"arrival_time_ns": row, "input_toks": prompt, "output_toks": 10}
                item = {**lengths, "input_tok_ids": tokens}
            else:
                lengths = {"timestamp": row, "input_length": prompt, "output_length": 10}
                item = {**lengths, "hash_ids": listed}
            comma = "," if row and (local or kind == "weka") else ""
            out.write(comma + json.dumps(item) + "\n")
        if local or kind == "weka":
            out.write("]}\n")


def measure_ids(ids: int) -> None:
    """Prints, for each form, the file's size and the peak of reading it."""
    kinds = ("in order", "64-bit", "strings", "native, local", "weka", "token ids")
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = Path(folder) / "trace"
            write_ids(kind, path, ids // 10 if kind == "token ids" else ids)
            size = path.stat().st_size / 1e6
            result = measure("ids", path)
            print(
                f"{kind:15} {size:7.1f} MB {result['rows']:>7,.0f} rows  {result['cpu_s']:7.3f} "
                f"CPU-s  {result['peak_mb']:7.1f} MB  {result['peak_mb'] / size:5.2f} x the file"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", type=int, metavar="N")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "PATH"))
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    if arguments.ids:
        measure_ids(arguments.ids)
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
