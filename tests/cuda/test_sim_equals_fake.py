"""A replay on the real backend's code is the simulated one: calls, page tables, footprint, times.

On the fake driver here; `bench/gpu` runs the same comparison on a card.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from vtsim.api import replay
from vtsim.backends.cuda.backend import CudaBackend
from vtsim.backends.cuda.compare import Trail, Witness
from vtsim.backends.cuda.driver import CudaDriver
from vtsim.backends.cuda.fake import FakeCuda
from vtsim.backends.gpus import load_gpu
from vtsim.backends.sim import SimBackend
from vtsim.errors import CapacityError, ConfigError
from vtsim.request import TICKS_PER_S, Trace
from vtsim.testing.toys import Ask, make_trace

M = 1 << 20
G = 1 << 30
BLOCK = 500


def shared_prompts() -> Trace:
    """40 requests a second over 6 prompts of several blocks: hits, tails, pressure."""
    asks = []
    for row in range(60):
        family = row * 7 % 6
        blocks = 2 + row % 4
        ids = tuple(range(family * 10, family * 10 + blocks))
        asks.append(
            Ask(row * TICKS_PER_S // 40, blocks * BLOCK + row % 90, 20 + row * 13 % 400, ids=ids)
        )
    return make_trace(asks, block=BLOCK)


@pytest.fixture
def api() -> Iterator[FakeCuda]:
    fake = FakeCuda(total_bytes=load_gpu("h200").capacity_bytes, va_bytes=65 << 40)
    yield fake
    assert fake.leaks() == {}
    assert fake.used_bytes == 0


def run(world: str, api: FakeCuda, policy: str, **options: Any) -> tuple[Trail, dict[str, Any]]:
    """One replay: what its backend was seen to do, and the result's JSON without the device's."""
    seen: list[Witness] = []

    def make(info: Any, kv: Any, **how: Any) -> Witness:
        how["keep_log"] = True
        backend: Any
        if world == "sim":
            backend = SimBackend(info, kv, **{**how, "placement": True})
        else:
            backend = CudaBackend(info, kv, driver=driver, **how)
        seen.append(Witness(backend))
        return seen[0]

    driver = CudaDriver(api=api)
    result = replay(
        shared_prompts(), [policy], gpu="h200", max_model_len=4096, max_num_seqs=32,
        memory=world, make_backend=make, log=True, **options,
    )  # fmt: skip
    driver.close()
    (document,) = result.as_json()["runs"]
    document["details"].pop("device", None)
    del document["memory_backend"]
    return seen[0].trail, document


POLICIES = {
    "native": {},
    "paged": {},
    "token_major": {"layout": "token_major"},
    "kv_split": {"layout": "kv_split"},
    "per_layer": {"layout": "per_layer"},
    "token_major, 16 MiB": {"layout": "token_major", "chunk": 16 * M},
    "per_layer, 16 MiB": {"layout": "per_layer", "chunk": 16 * M},
    "parked, watermark": {"release": "park", "retain": "watermark", "retain_bytes": 64 * M},
    "token_major, growing": {"layout": "token_major", "max_chunk": 64 * M},
    "kv_split, growing": {"layout": "kv_split", "max_chunk": 64 * M, "growth": 8},
    "per_layer, growing": {"layout": "per_layer", "max_chunk": 8 * M, "growth": 4},
    "growing, parked, watermark": {
        "max_chunk": 16 * M,
        "growth": 4,
        "release": "park",
        "retain": "watermark",
        "retain_bytes": 512 * M,
    },
    "retain none, recompute": {"retain": "none", "tail": "recompute", "lookahead": 0},
}


@pytest.mark.parametrize("memory", [40 * G, 2 * G], ids=["plenty", "pressure"])
@pytest.mark.parametrize("name", POLICIES)
def test_every_call_table_and_footprint_is_the_simulations(
    api: FakeCuda, name: str, memory: int
) -> None:
    policy = name if name in ("native", "paged") else "vtensor"
    if "per_layer, 16" in name or "per_layer, growing" in name:
        memory = max(memory, 4 * G)  # one unit is 1 GiB
    settings = {policy: POLICIES[name]}
    simulated, expected = run("sim", api, policy, kv_memory=memory, settings=settings)
    real, got = run("cuda", api, policy, kv_memory=memory, settings=settings)
    assert simulated.first_difference(real) == ""
    assert simulated.digest() == real.digest() and real.counts() == simulated.counts()
    assert json.dumps(got, sort_keys=True) == json.dumps(expected, sort_keys=True)
    if policy == "vtensor":
        assert real.counts()["map"] > 100 and len(real.hashes) > 50
        assert ("copy" in real.counts()) == (name != "retain none, recompute")
    if "growing" in name:
        made = got["details"]["chunks_created_by_bytes"]
        assert sum(n > 0 for n in made.values()) > 1, made


@pytest.mark.parametrize("max_chunk", [None, 64 * M], ids=["2MiB", "growing"])
@pytest.mark.parametrize("call", [0, 5, 130, 131, 132, 400])
def test_a_failure_injected_at_a_call_is_the_simulations(
    api: FakeCuda, call: int, max_chunk: int | None
) -> None:
    options: dict[str, Any] = {"kv_memory": 2 * G, "fail_at": call}
    options["settings"] = {"vtensor": {"max_chunk": max_chunk}}
    if call == 0:
        for world in ("sim", "cuda"):
            with pytest.raises(CapacityError, match="vtensor cannot be set up"):
                run(world, api, "vtensor", **options)
        api._contexts = 0  # the driver that `run` could not close
        return
    simulated, expected = run("sim", api, "vtensor", **options)
    real, got = run("cuda", api, "vtensor", **options)
    assert simulated.first_difference(real) == "" and real.refused == 1
    assert got == expected


@pytest.mark.parametrize("layout", ["token_major", "kv_split"])
def test_swapped_bytes_cross_chunks_of_several_sizes(api: FakeCuda, layout: str) -> None:
    settings = {"vtensor": {"layout": layout, "max_chunk": 64 * M, "growth": 4}}
    options: dict[str, Any] = {"kv_memory": G, "preemption": "swap", "settings": settings}
    simulated, expected = run("sim", api, "vtensor", **options)
    real, got = run("cuda", api, "vtensor", **options)
    assert simulated.first_difference(real) == "" and got == expected
    assert real.counts()["swap_out"] >= 5 and real.counts()["swap_in"] >= 5
    stepped, _ = run("sim", api, "vtensor", step=True, **options)
    assert stepped.counts() == real.counts() and stepped.peak_bytes == real.peak_bytes


def test_leaping_and_stepping_make_the_same_calls(api: FakeCuda) -> None:
    leapt, _ = run("cuda", api, "vtensor", kv_memory=40 * G)
    stepped, _ = run("cuda", api, "vtensor", kv_memory=40 * G, step=True)
    assert leapt.counts() == stepped.counts() and leapt.peak_bytes == stepped.peak_bytes
    assert len(stepped.hashes) >= len(leapt.hashes)


def test_the_device_refusing_under_the_limit_is_an_ordinary_shortage(api: FakeCuda) -> None:
    """Another process takes memory while the run is going: it goes on with what fits."""
    total = api.total_bytes

    class Greedy(Witness):
        def execute(self, plan: Any, step: int) -> Any:
            if step >= 20 and not api.elsewhere_bytes:
                api.elsewhere_bytes = total - api.used_bytes - 64 * M
            return super().execute(plan, step)

    driver = CudaDriver(api=api)
    seen: list[Witness] = []

    def make(info: Any, kv: Any, **how: Any) -> Witness:
        seen.append(Greedy(CudaBackend(info, kv, driver=driver, **{**how, "keep_log": True})))
        return seen[0]

    result = replay(
        shared_prompts(), ["vtensor"], gpu="h200", max_model_len=4096, max_num_seqs=32,
        memory="cuda", make_backend=make, kv_memory=40 * G, check=True,
    )  # fmt: skip
    driver.close()
    (document,) = result.as_json()["runs"]
    assert document["requests"]["completed"] == 60
    assert seen[0].trail.refused > 0


def test_an_interrupt_leaves_nothing_behind(api: FakeCuda) -> None:
    class Interrupted(Witness):
        def execute(self, plan: Any, step: int) -> Any:
            if step > 100:
                raise KeyboardInterrupt
            return super().execute(plan, step)

    driver = CudaDriver(api=api)
    with pytest.raises(KeyboardInterrupt):
        replay(
            shared_prompts(), ["vtensor"], gpu="h200", max_model_len=4096, memory="cuda",
            make_backend=lambda i, k, **how: Interrupted(CudaBackend(i, k, driver=driver, **how)),
        )  # fmt: skip
    driver.close()


def test_what_real_memory_cannot_do() -> None:
    with pytest.raises(ConfigError, match="unlimited is not to be had with memory='cuda'"):
        replay(shared_prompts(), ["vtensor"], memory="cuda", kv_memory="unlimited")
    with pytest.raises(ConfigError, match="unknown backend 'rocm'"):
        replay(shared_prompts(), ["vtensor"], memory="rocm")
    with pytest.raises(ConfigError, match="clock"):
        replay(shared_prompts(), ["vtensor"], clock="measured")
