"""How fast: map+access beside a bare loop, adoption, the fence, what launches pay meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

from common import M, Report, chunk_operations, one_arena, plan_of, spread_of

from vtsim.plan import Operation, OpKind


def speed(traces: Path) -> Report:
    """map+access through the backend beside a bare loop; adopting a parked vTensor; the fence."""
    from vtsim.backends.cuda.measure import Spread, map_rate

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


RATES = (1000, 5000, 12_000)


def launches(traces: Path) -> Report:
    """What a thread that launches kernels pays while the memory thread maps: behind one vTensor, as
    a prompt does, or one chunk in each of many, as decoding does; and beside it a thread that does
    the same with the bare bindings, which is the driver's and Python's own price."""
    import torch

    x = torch.zeros(256, device="cuda")
    torch.cuda.synchronize()
    backend = one_arena(2 * 20_000)
    create = Operation(OpKind.CREATE, chunk=0, nbytes=2 * M)
    assert backend.execute(plan_of([create], 2 * M), 0).done
    report: Report = {}
    loads = {"contiguous": _through(backend, 1), "scattered": _through(backend, 2)}
    loads["bare thread"] = _bare(backend.driver)
    idle: list[float] = []
    found: dict[tuple[str, int], list[float]] = {(n, r): [] for n in loads for r in RATES}
    for _ in range(4):  # loads take turns: the machine is not the same from second to second
        for name, load in loads.items():
            idle.append(_launching(x, 0, load))
            for rate in RATES:
                found[name, rate].append(_launching(x, rate, load))
    report["idle us_per_launch"] = [round(us, 2) for us in idle]
    for (name, rate), rounds in found.items():
        report[f"{name}, {rate}/s"] = {
            "us_per_launch": [round(us, 2) for us in rounds],
            "slowdown": round(median(rounds) / median(idle) - 1, 3),
        }
    backend.abandon()
    report["ok"] = report["contiguous, 5000/s"]["slowdown"] < 0.1
    return report


def _launching(x: Any, rate: int, load: Any) -> float:
    """Microseconds a launch in a second of launching, `load` being asked for `rate` maps/s."""
    import torch

    done, launched, in_launches = 0, 0, 0.0
    ask, end = load(rate)
    begin = time.perf_counter()
    while (now := time.perf_counter()) - begin < 0.8:
        owed = int((now - begin) * rate) - done
        if owed > 0:
            ask(owed)
            done += owed
        start = time.perf_counter()
        for _ in range(200):
            x.add_(1)
        in_launches += time.perf_counter() - start
        launched += 200
        if launched % 4000 == 0:
            torch.cuda.synchronize()
    end()
    return in_launches / launched * 1e6


def _through(backend: Any, spread: int) -> Any:
    """A load on the backend: one chunk at ever new places, `spread` chunks apart (aliases need no
    memory)."""

    def load(rate: int) -> tuple[Any, Any]:
        operations: list[Any] = []
        tickets: list[int] = []

        def ask(owed: int) -> None:
            at = len(operations)
            new = [
                Operation(OpKind.MAP, chunk=0, slot=0, arena=0, index=spread * n, nbytes=2 * M)
                for n in range(at, at + owed)
            ]
            operations.extend(new)
            tickets.append(backend.submit(plan_of(new), 0))

        def end() -> None:
            for ticket in tickets:
                backend.settle(ticket)
            gone = [replace(op, kind=OpKind.UNMAP) for op in operations]
            if gone:
                backend.execute(plan_of(gone), 0)

        return ask, end

    return load


def _bare(driver: Any) -> Any:
    """The same with cuMemMap and cuMemSetAccess in a plain thread."""

    def load(rate: int) -> tuple[Any, Any]:
        space = 20_000 * 2 * M
        address, handle = driver.reserve(space), driver.create(2 * M)
        jobs: SimpleQueue[int] = SimpleQueue()
        api, grants = driver.api, driver.grants("readwrite")
        mapped = [0]

        def work() -> None:
            driver.set_current()
            while owed := jobs.get():
                for _ in range(owed):
                    place = address + mapped[0] * 2 * M
                    api.cuMemMap(place, 2 * M, 0, handle, 0)
                    api.cuMemSetAccess(place, 2 * M, grants, 1)
                    mapped[0] += 1

        thread = threading.Thread(target=work)
        thread.start()

        def end() -> None:
            jobs.put(0)
            thread.join()
            if mapped[0]:
                driver.unmap(address, mapped[0] * 2 * M)
            driver.release(handle)
            driver.free_addresses(address, space)

        return jobs.put, end

    return load


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
