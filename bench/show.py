"""What replays of the real traces show: `python bench/show.py [azure] [mooncake] [equal]`.

azure     native, paged and vtensor on the Azure conversation file: all answered, categories add up,
          byte-identical JSON under another hash seed, folder and time zone
mooncake  first-admission hits on the Mooncake conversation file as memory shrinks from twice to a
          quarter of what the load needs
equal     leaping and stepping, placed and counted: one JSON, on real rows under pressure

Reads ../shared/traces; says so and does nothing where that is absent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"
AZURE = TRACES / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
MOONCAKE = TRACES / "mooncake" / "conversation_trace.jsonl"
GIB = 1 << 30


def run(arguments: list[str], folder: str, **environment: str) -> bytes:
    """The JSON that `vtsim replay ARGUMENTS` writes, run in `folder`."""
    out = Path(folder) / "out.json"
    command = [
        sys.executable,
        "-m",
        "vtsim.cli.main",
        "replay",
        *arguments,
        "-q",
        "--json",
        str(out),
    ]
    path = {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env={**os.environ, **path, **environment}, check=True)
    return out.read_bytes()


def show(label: str, run: dict[str, Any]) -> None:
    """One run in one line."""
    requests, memory = run["requests"], run["memory"]
    print(
        f"{label:<16}{run['policy']:<9}"
        f"completed {requests['completed']:>6,}  rejected {requests['rejected']:>4,}  "
        f"preempted {requests['preemptions']:>5,}  "
        f"free mean {memory['mean_bytes']['free'] / GIB:6.2f} GiB  "
        f"free p1 {memory['free_bytes']['p1'] / GIB:6.2f} GiB  "
        f"{run['throughput']['output_tokens_per_s']:8.1f} tok/s  "
        f"hit {100 * run['prefix']['hit_rate']:5.2f} %  "
        f"exposed {run['vmm']['exposed_s']:.3f} s"
    )


def azure() -> None:
    """Determinism and free memory. The sum of the categories is checked at every sample by the run
    itself, which fails otherwise."""
    arguments = [str(AZURE), "--max-model-len", "16384"]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        first = run(arguments, one, PYTHONHASHSEED="1", TZ="UTC")
        second = run(arguments, two, PYTHONHASHSEED="2", TZ="Asia/Kathmandu")
    document = json.loads(first)
    for outcome in document["runs"]:
        show("azure", outcome)
        answered = outcome["requests"]["completed"] + outcome["requests"]["rejected"]
        assert answered == document["trace"]["requests"], "a request was not answered"
    print(
        f"azure         JSON {sha256(first).hexdigest()[:16]}, identical again: {first == second}"
    )
    assert first == second


def mooncake() -> None:
    """The ideal hit, and hits with less and less memory."""
    base = [str(MOONCAKE), "--speed", "0.2", "--policy", "paged", "--policy", "vtensor"]
    with tempfile.TemporaryDirectory() as folder:
        document = json.loads(run([*base, "--kv-memory", "unlimited"], folder))
        trace = document["trace"]
        ideal = trace["ideal_hit_tokens"] / trace["prompt_tokens"]
        print(f"mooncake      ideal hit {100 * ideal:.2f} % of prompt tokens")
        needed = {r["policy"]: r["memory"]["peak_bytes"]["kv_live"] for r in document["runs"]}
        for outcome in document["runs"]:
            show("unlimited", outcome)
        hits: dict[str, list[float]] = {policy: [] for policy in needed}
        for share in (2, 1, 0.5, 0.25):
            for policy, need in needed.items():
                limit = int(need * share)
                arguments = [*base[:3], "--policy", policy, "--kv-memory", str(limit)]
                card = ["--gpu-memory", str(limit + 30 * GIB)]
                outcome = json.loads(run([*arguments, *card], folder))["runs"][0]
                show(f"x {share:g}: {limit / GIB:.0f} GiB", outcome)
                hits[policy].append(outcome["prefix"]["hit_rate"])
    for policy, rates in hits.items():
        assert rates == sorted(rates, reverse=True), f"{policy}: less memory, more hits: {rates}"


def equal() -> None:
    """One JSON from four ways to run: leaps or steps, counts or placed chunks with every check."""
    cases = {
        "azure": [str(AZURE), "--limit", "1500", "--max-model-len", "16384", "--kv-memory", "2GiB"],
        "mooncake": [str(MOONCAKE), "--limit", "250", "--speed", "0.2", "--kv-memory", "16GiB"],
    }
    for name, arguments in cases.items():
        texts = set()
        with tempfile.TemporaryDirectory() as folder:
            for options in ([], ["--step"], ["--check"], ["--step", "--check"]):
                text = run([*arguments, *options], folder)
                texts.add(text)
        for outcome in json.loads(text)["runs"]:
            show(name, outcome)
        print(f"{name:<14}leap/step x counted/placed: {len(texts)} different JSON (1 is right)")
        assert len(texts) == 1


def main() -> None:
    if not TRACES.is_dir():
        print(f"skipped: no {TRACES}")
        return
    shows = {"azure": azure, "mooncake": mooncake, "equal": equal}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", help=f"of {', '.join(shows)} [default: all]")
    for name in parser.parse_args().name or shows:
        if name not in shows:
            parser.error(f"{name!r} is not one of {', '.join(shows)}")
        shows[name]()


if __name__ == "__main__":
    main()
