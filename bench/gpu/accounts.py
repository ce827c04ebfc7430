"""What is in use by whose word, and whole commands: accounts, doctor, calibrate, replay twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import G, M, Report, one_arena, plan_of


def memory(traces: Path) -> Report:
    """Accounted bytes beside the device's and NVML's; ordinary allocations, idle and not."""
    import pynvml
    import torch

    from vtsim.plan import Operation, OpKind

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)

    def nvml() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(card).used)

    used_before_context = nvml()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    report: Report = {"context_bytes_nvml": nvml() - used_before_context, "levels": []}
    chunk = 64 * M
    backend = one_arena(2048, chunk)
    free, used = backend.driver.memory()[0], nvml()
    report["free_bytes_at_start"] = free
    for upto in (16, 160, 800, 1600):
        have = len(backend.memory._handles)
        operations = [Operation(OpKind.CREATE, chunk=n, nbytes=chunk) for n in range(have, upto)]
        operations += [
            Operation(OpKind.MAP, chunk=n, slot=0, arena=0, index=n, nbytes=chunk)
            for n in range(have, upto)
        ]
        assert backend.execute(plan_of(operations, chunk), 0).done
        accounted = backend.bytes_in_use()
        report["levels"].append({
            "accounted_bytes": accounted,
            "device_less_accounted": free - backend.driver.memory()[0] - accounted,
            "nvml_less_accounted": nvml() - used - accounted,
        })  # fmt: skip
    backend.abandon()
    report["free_bytes_after"] = torch.cuda.mem_get_info()[0]
    report["left_bytes"] = free - report["free_bytes_after"]
    driver = one_arena(16)
    for size in (13 * G, 113 * G):
        times: dict[str, list[float]] = {"allocate": [], "free": [], "free_behind_150_ms": []}
        for behind in (False, False, True):
            begin = time.perf_counter()
            address = driver.driver.allocate(size)
            times["allocate"].append(time.perf_counter() - begin)
            if behind:
                torch.cuda._sleep(int(150e-3 * 1.7e9))
            begin = time.perf_counter()
            driver.driver.free(address)
            name = "free_behind_150_ms" if behind else "free"
            times[name].append(time.perf_counter() - begin)
            torch.cuda.synchronize()
        report[f"cuMemAlloc of {size // G} GiB, ms"] = {
            name: [round(t * 1e3, 3) for t in seconds] for name, seconds in times.items()
        }
    driver.abandon()
    return report


def passes(traces: Path) -> Report:
    """The same load twice: what the second pass still asks of the driver."""
    from vtsim.api import replay
    from vtsim.backends.cuda.backend import CudaBackend
    from vtsim.backends.cuda.compare import Witness
    from vtsim.backends.cuda.driver import open_driver
    from vtsim.request import TICKS_PER_S
    from vtsim.testing.toys import Ask, make_trace

    driver = open_driver()

    def calls(trace: Any, settings: Report) -> dict[str, int]:
        seen: list[Witness] = []

        def make(info: Any, kv: Any, **how: Any) -> Witness:
            seen.append(Witness(CudaBackend(info, kv, driver=driver, **{**how, "keep_log": True})))
            return seen[0]

        replay(trace, ["vtensor"], gpu="h200", max_model_len=16_384, make_backend=make, log=True,
               settings={"vtensor": settings})  # fmt: skip
        return seen[0].trail.counts()

    def batch(passes: int) -> Any:
        return make_trace(
            Ask(n * 1000 * TICKS_PER_S, 1024, 512) for n in range(passes) for _ in range(64)
        )

    settings = {"release": "park"}
    once, twice = calls(batch(1), settings), calls(batch(2), settings)
    driver.close()
    return {"64 x (1024, 512) once": once, "twice": twice, "ok": once == twice}


def command(traces: Path) -> Report:
    """`vtsim replay` with --memory cuda and sim: the JSON but for the device's own part."""
    documents = []
    walls = []
    for world in ("sim", "cuda"):
        begin = time.perf_counter()
        child = subprocess.run(
            [sys.executable, "-m", "vtsim.cli.main", "replay", str(traces / "azure.csv"),
             "--gpu", "h200", "--max-model-len", "16384", "--memory", world, "--clock", "virtual",
             "--json", "-", "-q"],
            capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        if child.returncode:
            return {"ok": False, "stderr": child.stderr[-500:]}
        walls.append(time.perf_counter() - begin)
        documents.append(json.loads(child.stdout))
    devices = {}
    for document in documents:
        for run in document["runs"]:
            assert run.pop("memory_backend") in ("sim", "cuda")
            devices[run["label"]] = run["details"].pop("device", None)
    return {"ok": documents[0] == documents[1], "seconds": walls, "devices": devices}


def doctor(traces: Path) -> Report:
    """What `vtsim doctor` prints, and the profile `vtsim calibrate memory` writes."""
    said = subprocess.run(
        [sys.executable, "-m", "vtsim.cli.main", "doctor"], capture_output=True, text=True
    )
    path = Path(os.environ.get("OUT", ".")) / "h200-measured.toml"
    wrote = subprocess.run(
        [sys.executable, "-m", "vtsim.cli.main", "calibrate", "memory", str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    return {
        "doctor": said.stdout.splitlines() + said.stderr.splitlines()[-3:],
        "calibrate": wrote.returncode,
        "stderr": wrote.stderr[-300:],
        "profile": path.read_text() if path.is_file() else "",
        "ok": said.returncode == wrote.returncode == 0,
    }
