"""When things go wrong: a full device, a thief, a lowered limit, Ctrl-C, a reader unmapped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from common import G, M, Report, one_arena, plan_of


def fill(traces: Path) -> Report:
    """Create until the device itself refuses, then go on with what fits."""
    from vtsim.backends.cuda.driver import open_driver
    from vtsim.plan import Operation, OpKind

    chunk = 64 * M
    keeper = open_driver()  # its context outlives the backend's, so that one can look
    backend = one_arena(4096, chunk)
    start = backend.driver.memory()[0]
    made = 0
    while True:
        plan = plan_of([Operation(OpKind.CREATE, chunk=made, nbytes=chunk)], chunk)
        receipt = backend.execute(plan, 0)
        if not receipt.done:
            break
        made += 1
    full = backend.driver.memory()[0]
    accounted_room = backend.free_bytes()
    again = backend.execute(plan, 0)
    gone = [Operation(OpKind.DESTROY, chunk=n, nbytes=chunk) for n in range(10)]
    fits = [Operation(OpKind.CREATE, chunk=made + n, nbytes=chunk) for n in range(10)]
    fits += [
        Operation(OpKind.MAP, chunk=made + n, slot=0, arena=0, index=n, nbytes=chunk)
        for n in range(10)
    ]
    went_on = all(
        backend.execute(plan_of(operations, chunk), 0).done for operations in (gone, fits)
    )
    too_many = [Operation(OpKind.CREATE, chunk=10**6 + n, nbytes=chunk) for n in range(3)]
    undone = backend.execute(plan_of(too_many, chunk), 0)
    backend.abandon()
    end = keeper.memory()[0]
    keeper.close()
    return {
        "chunks_of_64_MiB": made,
        "free_bytes": {"start": start, "full": full, "end": end},
        "refused_under_the_accounted_limit_by_bytes": accounted_room,
        "receipt": {"done": receipt.done, "short_bytes": receipt.short_bytes, "again": again.done},
        "went_on": went_on,
        "refused_plan_undone": not undone.done,
        "left_bytes": start - end,
        "ok": went_on and not receipt.done and not undone.done and start == end,
    }


HOLDER = (
    "import sys, time\n"
    "from vtsim.backends.cuda.driver import open_driver\n"
    "d = open_driver(); free = d.memory()[0]\n"
    "a = d.allocate(free - int(sys.argv[1])); print('held', flush=True)\n"
    "sys.stdin.readline(); d.free(a); d.close()\n"
)


def thief(traces: Path) -> Report:
    """Another process takes memory while a replay runs: it must finish with what is left."""
    from vtsim.api import replay
    from vtsim.backends.cuda.backend import CudaBackend
    from vtsim.backends.cuda.compare import Witness
    from vtsim.backends.cuda.driver import open_driver

    driver = open_driver()
    start = driver.memory()[0]
    holder: list[subprocess.Popen[str]] = []
    taken_at: list[int] = []

    class Watched(Witness):
        def execute(self, plan: Any, step: int) -> Any:
            if not holder and self.backend.bytes_in_use() > 20 * G:
                child = subprocess.Popen(
                    [sys.executable, "-c", HOLDER, str(1 * G)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                assert child.stdout is not None and child.stdout.readline() == "held\n"
                holder.append(child)
                taken_at.append(self.backend.bytes_in_use())
            return super().execute(plan, step)

    seen: list[Watched] = []

    def make(info: Any, kv: Any, **how: Any) -> Watched:
        seen.append(Watched(CudaBackend(info, kv, driver=driver, **{**how, "keep_log": True})))
        return seen[0]

    result = replay(
        traces / "mooncake.jsonl", ["vtensor"], gpu="h200", max_model_len=131_072, limit=400,
        memory="cuda", make_backend=make, kv_memory=100 * G, check=False,
        settings={"vtensor": {"chunk": 16 * M}},
    )  # fmt: skip
    (run,) = result.as_json()["runs"]
    if holder:
        holder[0].communicate("\n")
    trail = seen[0].trail
    end = driver.memory()[0]
    driver.close()
    return {
        "requests": run["requests"],
        "in_use_when_taken": taken_at,
        "refused_plans": trail.refused,
        "peak_bytes": trail.peak_bytes,
        "left_bytes": start - end,
        "ok": run["requests"]["completed"] == 400 and trail.refused > 0 and start == end,
    }


def lowered(traces: Path) -> Report:
    """A pool's limit lowered while kernels read its vTensors: idle memory goes back at once.

    Twice: kernels that the first round loads may stay (the second may leave nothing), and what
    torch's allocator keeps is not counted. A replay's limit is lowered by the engine wherever the
    device refuses: see `thief`, and the runs of `replays.py` with a failure injected.
    """
    import torch

    from vtsim.backends.cuda.driver import open_driver

    torch.zeros(1, device="cuda")
    driver = open_driver()
    first = _lower_once(driver)
    report = _lower_once(driver)
    driver.close()
    report["first_round"] = {key: first[key] for key in ("torch_keeps_bytes", "left_bytes")}
    report["ok"] &= first["ok"] and report["left_bytes"] == 0
    return report


def _lower_once(driver: Any) -> Report:
    import torch

    from vtsim.backends.cuda.tensors import KVShape
    from vtsim.backends.cuda.vtensor import VTensorPool
    from vtsim.errors import CapacityError

    start, kept = driver.memory()[0], torch.cuda.memory_reserved()
    pool = VTensorPool(KVShape(32, 4, 128), 16_384, slots=64, driver=driver)
    live = [pool.create(4096) for _ in range(16)]
    for vtensor in [pool.create(8192) for _ in range(16)]:
        vtensor.release(park=True)
    for number, vtensor in enumerate(live):
        vtensor.key(7).fill_(number)
    warm = torch.stack([vtensor.key(7).float().mean() for vtensor in live])
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(0.2 * 1.7e9))
    sums = torch.stack([vtensor.key(7).float().mean() for vtensor in live])
    free, held = driver.memory()[0], pool.held_bytes
    begin = time.perf_counter()
    pool.set_limit(held // 2)
    seconds = time.perf_counter() - begin
    given = driver.memory()[0] - free
    try:
        pool.set_limit(G)
        refused = False
    except CapacityError:
        refused = True
    torch.cuda.synchronize()
    right = bool((sums == torch.arange(16, device="cuda")).all())
    held_after = pool.held_bytes
    del live, vtensor
    pool.close()
    kept = torch.cuda.memory_reserved() - kept
    left = start - driver.memory()[0] - kept
    return {
        "held_before": held,
        "held_after": held_after,
        "device_got_back": given,
        "set_limit_seconds": seconds,
        "lower_than_live_refused": refused,
        "readers_right": right and bool((warm == sums).all()),
        "torch_keeps_bytes": kept,
        "left_bytes": left,
        "ok": refused and right and given == held - held_after and held_after <= held // 2,
    }


def interrupt(traces: Path) -> Report:
    """Ctrl-C in mid-run: in this process, whose memory is looked at, and on the command line."""
    from vtsim.api import replay
    from vtsim.backends.cuda.driver import open_driver

    driver = open_driver()
    start = driver.memory()[0]
    lowest = [start]
    stop = threading.Event()

    def watch() -> None:
        driver.set_current()
        while not stop.wait(0.05):
            lowest[0] = min(lowest[0], driver.memory()[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    interrupted = False
    try:
        replay(traces / "mooncake.jsonl", ["vtensor"], gpu="h200", max_model_len=131_072,
               memory="cuda")  # fmt: skip
    except KeyboardInterrupt:
        interrupted = True
    stop.set()
    watcher.join()
    end = driver.memory()[0]
    child = subprocess.Popen(
        [sys.executable, "-m", "vtsim.cli.main", "replay", str(traces / "mooncake.jsonl"),
         "--policy", "vtensor", "--gpu", "h200", "--max-model-len", "131072", "--memory", "cuda"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    time.sleep(8)
    with_child = driver.memory()[0]
    child.send_signal(signal.SIGINT)
    message = child.communicate(timeout=60)[1]
    after = driver.memory()[0]
    driver.close()
    return {
        "interrupted": interrupted,
        "most_in_use_bytes": start - lowest[0],
        "left_bytes": start - end,
        "command": {
            "status": child.returncode,
            "stderr": message.strip(),
            "in_use_bytes": end - with_child,
            "left_bytes": end - after,
        },
        "ok": interrupted and start == end and child.returncode == 130 and start > lowest[0],
    }


FENCE = """
import sys, torch
from vtsim.backends.cuda.tensors import KVShape
from vtsim.backends.cuda.vtensor import VTensorPool
fenced = sys.argv[1] == "fenced"
torch.zeros(1, device="cuda")
pool = VTensorPool(KVShape(32, 4, 128), 16384, slots=4)
vtensor = pool.create(8192)
for layer in range(32):
    vtensor.key(layer).fill_(1.0)
torch.cuda.synchronize()
if not fenced:
    pool.protect = lambda *vtensors: None
out = torch.zeros(32, device="cuda")
keys = [vtensor.key(layer) for layer in range(32)]
for layer in range(32):                      # loads modules: that would wait for the spinning one
    out[layer] = keys[layer].sum(dtype=torch.float32)
torch.cuda._sleep(1)
out.zero_()
torch.cuda.synchronize()
torch.cuda._sleep(int(0.3 * 1.7e9))          # the kernel that spins
for layer in range(32):
    out[layer] = keys[layer].sum(dtype=torch.float32)
vtensor.release()                            # unmaps
pool.trim()                                  # and destroys
torch.cuda.synchronize()
assert (out == 8192 * 4 * 128).all(), out
print("right, waits", pool.backend.fence.waits)
"""

BROKEN = """
import sys
from vtsim.backends.cuda.driver import open_driver
from vtsim.errors import CudaDriverError
d = open_driver(); G = 2 << 20
area, handle, stream, host = d.reserve(2 * G), d.create(G), d.create_stream(), d.allocate_host(G)
if sys.argv[1] != "unmapped":
    d.map(area, G, handle)
try:
    d.copy_to_host(host, area, 4096, stream)
    d.synchronize_stream(stream)
    print("nothing")
except CudaDriverError as error:
    print(error.call.split("(")[0], error.name)
try:
    d.memory(); d.create_stream(); print("context lives")
except CudaDriverError as error:
    print("context broken:", error.name)
"""


def fence(traces: Path) -> Report:
    """A spinning kernel reads a vTensor that is released: dead without the fence, right with it."""
    report: Report = {}
    for name in ("fenced", "bare"):
        child = subprocess.run(
            [sys.executable, "-c", FENCE, name], capture_output=True, text=True, timeout=120
        )
        report[name] = {
            "status": child.returncode,
            "says": (child.stdout.strip() or child.stderr.strip().splitlines()[-1:]),
        }
        if "illegal memory access" in child.stderr:
            report[name]["says"] = "illegal memory access"
    for name in ("unmapped", "no access"):
        child = subprocess.run(
            [sys.executable, "-c", BROKEN, name], capture_output=True, text=True, timeout=120
        )
        report[f"copy from {name}"] = child.stdout.split("\n")[:2] or child.stderr[-300:]
    report["ok"] = report["fenced"]["status"] == 0 and report["bare"]["status"] != 0
    return report
