"""How many requests the engine replays in a CPU-second, and whether the promised floors hold.

Times `Engine.run` alone: one policy, one core, metrics on, the trace already read. Each
figure stands beside the rate of a bare SimPy loop measured right before and after it, because the
machine decides both: a floor is asked in full where the loop runs at 1.4 million timeouts a second,
and scaled down by the loop's rate where it does not. Real traces are read from ../shared/traces and
skipped, saying so, where that folder is absent. `make bench`, or `python bench/engine.py --help`.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import simpy

from vtsim.api import prepare
from vtsim.engine.loop import Engine
from vtsim.request import Tick, Trace
from vtsim.traces import load
from vtsim.traces.generate import synth

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
AZURE = SHARED / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
MOONCAKE = SHARED / "mooncake" / "conversation_trace.jsonl"

LOOP_RATE = 1.4e6
"""Timeouts a second of the bare loop on a machine that owes the floors in full."""
LOOP_STEPS = 1_000_000
MILLION = 1_000_000
MILLION_S = 60.0
"""CPU-seconds in which a million generated requests are to be replayed, where the loop runs so."""
MILLION_BYTES = 10**9
BLOCK_RATIO = 1.2
"""Block 16 may cost this many times what block 512 costs."""


@dataclass(frozen=True)
class Case:
    """A trace through one policy. `floor`: requests a CPU-second owed at `LOOP_RATE`."""

    name: str
    trace: Path
    floor: float | None
    policy: str
    settings: dict[str, Any]
    options: dict[str, Any]


AZURE_OPTIONS: dict[str, Any] = {"max_model_len": 16384}
MOONCAKE_OPTIONS: dict[str, Any] = {"speed": 0.2}
CASES = [
    Case("azure paged 16", AZURE, 20_000, "paged", {"block": 16}, AZURE_OPTIONS),
    Case("azure vtensor", AZURE, 20_000, "vtensor", {}, AZURE_OPTIONS),
    Case("mooncake paged 16", MOONCAKE, 10_000, "paged", {"block": 16}, MOONCAKE_OPTIONS),
    Case("mooncake paged 512", MOONCAKE, None, "paged", {"block": 512}, MOONCAKE_OPTIONS),
    Case("mooncake vtensor", MOONCAKE, 10_000, "vtensor", {}, MOONCAKE_OPTIONS),
]


@dataclass(frozen=True)
class Figure:
    """What was measured; of several repetitions, the one with the median rate."""

    name: str
    requests: int
    cpu_s: float
    rate: float
    """Requests a CPU-second."""
    loop_rate: float
    floor: float | None
    """What is owed here: the promised floor, scaled by the loop's rate."""
    peak_bytes: int | None = None

    @property
    def holds(self) -> bool | None:
        if self.floor is None:
            return None
        return self.rate >= self.floor and (self.peak_bytes or 0) < MILLION_BYTES

    def line(self) -> str:
        owed = "" if self.floor is None else f"{self.floor:10,.0f}"
        said = {None: "", True: "holds", False: "BELOW"}[self.holds]
        memory = "" if self.peak_bytes is None else f"  peak {self.peak_bytes / 1e6:,.0f} MB"
        return (
            f"{self.name:22}{self.requests:10,}{self.cpu_s:9.2f}{self.rate:12,.0f}"
            f"{self.loop_rate / 1e6:9.2f} M{owed:>12}  {said}{memory}"
        )


HEADER = f"{'':22}{'requests':>10}{'CPU-s':>9}{'requests/s':>12}{'bare loop':>11}{'floor here':>12}"


class Stopwatch:
    """CPU time of the last `Engine.run`, wherever a replay calls it."""

    cpu_s = 0.0

    def __enter__(self) -> Stopwatch:
        self._run = run = Engine.run

        def timed(engine: Engine) -> Tick:
            start = process_time()
            end = run(engine)
            self.cpu_s = process_time() - start
            return end

        Engine.run = timed  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Engine.run = self._run  # type: ignore[method-assign]


def bare_loop() -> float:
    """Timeouts a CPU-second of the least that a SimPy process can do."""

    def ticking(env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        for _ in range(LOOP_STEPS):
            yield env.timeout(1)

    env = simpy.Environment()
    env.process(ticking(env))
    start = process_time()
    env.run()
    return LOOP_STEPS / (process_time() - start)


def run_once(
    trace: Trace, policy: str, settings: dict[str, Any], options: dict[str, Any]
) -> tuple[float, float]:
    """(CPU-seconds of `Engine.run`, the bare loop's rate around it)."""
    ready = prepare(trace, [policy], settings={policy: settings}, **options)
    before = bare_loop()
    with Stopwatch() as watch:
        (run,) = ready.run().runs
    after = bare_loop()
    counted = run.summary["requests"]
    answered = counted["completed"] + counted["rejected"]
    assert answered == len(trace), f"{answered} of {len(trace)} requests answered"
    return watch.cpu_s, (before + after) / 2


def scale(loop_rate: float) -> float:
    """What share of a floor this machine owes."""
    return min(1.0, loop_rate / LOOP_RATE)


def measure(case: Case, trace: Trace, repetitions: int) -> Figure:
    """The median of several runs of `case`."""
    runs = [run_once(trace, case.policy, case.settings, case.options) for _ in range(repetitions)]
    cpu_s = median(cpu for cpu, _ in runs)
    loop_rate = median(rate for _, rate in runs)
    floor = None if case.floor is None else case.floor * scale(loop_rate)
    return Figure(case.name, len(trace), cpu_s, len(trace) / cpu_s, loop_rate, floor)


def generated(policy: str, requests: int) -> Figure:
    """Generated chat requests, in this process: its peak memory is part of the figure."""
    trace = synth(requests, seed=1, rate=5.0)
    cpu_s, loop_rate = run_once(trace, policy, {}, {})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    floor = MILLION / MILLION_S * scale(loop_rate)
    name = f"generated {policy}"
    return Figure(name, requests, cpu_s, requests / cpu_s, loop_rate, floor, peak)


def generated_apart(policy: str, requests: int) -> Figure:
    """`generated` in a process of its own."""
    command = [sys.executable, __file__, "--generated", policy, "--requests", str(requests)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"generated {policy}: {done.stderr.strip()}")
    return Figure(**json.loads(done.stdout))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name has WORD")
    parser.add_argument(
        "--requests", type=int, default=MILLION, metavar="N", help="generated ones; 0: none"
    )
    parser.add_argument("--generated", metavar="POLICY", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Prints every figure as soon as it is there."""
    asked = arguments()
    if asked.generated:
        print(json.dumps(asdict(generated(asked.generated, asked.requests))))
        return
    print(HEADER)
    figures: dict[str, Figure] = {}
    loaded: tuple[Path, Trace] | None = None
    for case in CASES:
        if asked.only not in case.name:
            continue
        if not case.trace.exists():
            print(f"{case.name:22}  skipped: {case.trace} is not here")
            continue
        if loaded is None or loaded[0] != case.trace:
            loaded = (case.trace, load(case.trace))
        figures[case.name] = measure(case, loaded[1], asked.repetitions)
        print(figures[case.name].line(), flush=True)
    for policy in ("paged", "vtensor"):
        if asked.requests and asked.only in f"generated {policy}":
            figure = generated_apart(policy, asked.requests)
            figures[figure.name] = figure
            print(figure.line(), flush=True)
    ratio = None
    if {"mooncake paged 16", "mooncake paged 512"} <= figures.keys():
        ratio = figures["mooncake paged 16"].cpu_s / figures["mooncake paged 512"].cpu_s
        said = "holds" if ratio <= BLOCK_RATIO else "ABOVE"
        print(f"block 16 costs {ratio:.2f} x block 512 (at most {BLOCK_RATIO})  {said}")
    print(
        f"a floor holds in full where the bare loop runs at {LOOP_RATE / 1e6} M timeouts a second; "
        f"a million generated requests are to take {MILLION_S:.0f} CPU-s there, "
        f"and {MILLION_BYTES / 1e6:,.0f} MB"
    )
    if asked.json:
        document = {
            "machine": {"python": platform.python_version(), "platform": platform.platform()},
            "repetitions": asked.repetitions,
            "block_ratio": ratio,
            "figures": [asdict(f) | {"holds": f.holds} for f in figures.values()],
        }
        Path(asked.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
