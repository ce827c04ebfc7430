"""How fast: map+access beside a bare loop, adoption, the fence, what launches pay meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from common import M, Report, chunk_operations, one_arena, plan_of, spread_of


def speed(traces: Path) -> Report:
    """map+access through the backend beside a bare loop; adopting a parked vTensor; the fence."""
    from vtsim.backends.cuda.measure import Spread, map_rate
    from vtsim.plan import OpKind

    count = 2048
    backend = one_arena(count)
    chunk = 2 * M
    assert backend.execute(plan_of(chunk_operations(OpKind.CREATE, count, chunk), chunk), 0).done
    maps, unmaps = (
        plan_of(chunk_operations(kind, count, chunk, slot=0)) for kind in (OpKind.MAP, OpKind.UNMAP)
    )
    bare, through, unmap_us, fenced_us = [], [], [], []
    for turn in range(5):
        bare.append(map_rate(backend.driver, chunk, count))
        through.append(count / backend.execute(maps, 0).wall_s)
        if turn % 2:  # the fence knows the slot: one event query an unmap plan
            backend.protect(0, [0])
        (fenced_us if turn % 2 else unmap_us).append(
            backend.execute(unmaps, 0).wall_s / count * 1e6
        )
    report: Report = {
        "bare_map_access_per_s": bare,
        "backend_map_access_per_s": through,
        "ratio_of_medians": median(through) / median(bare),
        "unmap_us": unmap_us,
        "unmap_fenced_us": fenced_us,
    }
    seconds = []
    for _ in range(2000):
        begin = time.perf_counter()
        backend.protect(0, range(64))
        seconds.append(time.perf_counter() - begin)
    report["protect_64_slots_us"] = spread_of(Spread.of(seconds))
    begin = time.perf_counter()
    for _ in range(2000):
        backend.execute(plan_of([]), 0)
    report["empty_plan_round_trip_us"] = (time.perf_counter() - begin) / 2000 * 1e6
    backend.abandon()
    report["adopt_us"] = _adoption()
    return report


def _adoption() -> Report:
    """Create calls that take over a parked vTensor, with 64 parked."""
    import torch

    from vtsim.backends.cuda.measure import Spread
    from vtsim.backends.cuda.tensors import KVShape
    from vtsim.backends.cuda.vtensor import VTensorPool

    torch.zeros(1, device="cuda")
    pool = VTensorPool(KVShape(32, 4, 128), 4096, slots=64)
    for vtensor in [pool.create(1024) for _ in range(64)]:
        vtensor.release(park=True)
    seconds = []
    for _ in range(20):
        made = []
        for _ in range(64):
            begin = time.perf_counter()
            made.append(pool.create(1000))
            seconds.append(time.perf_counter() - begin)
        for vtensor in made:
            vtensor.release(park=True)
    del made, vtensor
    pool.close()
    return spread_of(Spread.of(seconds))


def launches(traces: Path) -> Report:
    """What a thread that launches kernels pays while the memory thread maps."""
    import torch

    from vtsim.plan import Operation, OpKind

    x = torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    count = 60_000
    backend = one_arena(count)
    create = Operation(OpKind.CREATE, chunk=0, nbytes=2 * M)
    assert backend.execute(plan_of([create], 2 * M), 0).done
    report: Report = {}
    for round_number in range(2):
        for rate in (0, 1000, 5000, 12_000):
            done, launched, in_launches, tickets = 0, 0, 0.0, []
            begin = time.perf_counter()
            while (now := time.perf_counter()) - begin < 1.5:
                owed = int((now - begin) * rate) - done
                if owed > 0:  # one chunk at ever new indices: aliases need no memory
                    operations = [
                        Operation(OpKind.MAP, chunk=0, slot=0, arena=0, index=n, nbytes=2 * M)
                        for n in range(done, done + owed)
                    ]
                    tickets.append(backend.submit(plan_of(operations), 0))
                    done += owed
                start = time.perf_counter()
                for _ in range(200):
                    x.add_(1)
                in_launches += time.perf_counter() - start
                launched += 200
                if launched % 4000 == 0:
                    torch.cuda.synchronize()
            for ticket in tickets:
                backend.settle(ticket)
            key = f"{rate}/s round {round_number}"
            report[key] = {
                "us_per_launch": in_launches / launched * 1e6,
                "maps": done,
                "map_us": backend.wall_s,
            }
            if done:
                gone = [
                    Operation(OpKind.UNMAP, chunk=0, slot=0, arena=0, index=n, nbytes=2 * M)
                    for n in range(done)
                ]
                backend.execute(plan_of(gone), 0)
    backend.abandon()
    for rate in (1000, 5000, 12_000):
        loads = [report[f"{rate}/s round {n}"]["us_per_launch"] for n in range(2)]
        idle = [report[f"0/s round {n}"]["us_per_launch"] for n in range(2)]
        report[f"slowdown at {rate}/s"] = median(loads) / median(idle) - 1
    return report


def scaling(traces: Path) -> Report:
    """Bare map+access of 1, 2 and 4 processes at once."""
    report: Report = {}
    code = (
        "import sys,time\n"
        "from vtsim.backends.cuda.driver import open_driver\n"
        "from vtsim.backends.cuda.measure import map_rate\n"
        "d = open_driver(); map_rate(d, 2 << 20, 64)\n"
        "time.sleep(max(0, float(sys.argv[1]) - time.time()))\n"
        "print(map_rate(d, 2 << 20, 4096))\n"
    )
    for processes in (1, 2, 4):
        start = str(time.time() + 4)
        children = [
            subprocess.Popen([sys.executable, "-c", code, start], stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        report[f"{processes} processes"] = [float(c.communicate()[0]) for c in children]
    return report
