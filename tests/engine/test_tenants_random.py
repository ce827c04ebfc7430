"""Two or three tenants, drawn with everything that they can be told: leaping, stepping and checking
agree to the last bit, and nothing that fits is rejected."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from vtsim.errors import CapacityError
from vtsim.metrics.recorder import Recorder
from vtsim.metrics.tenants import GpuRun
from vtsim.registry import POLICIES
from vtsim.tenants import Tenant, replay_tenants
from vtsim.testing.cases import random_trace
from vtsim.testing.toys import toy_model

CHUNK = 2 << 20
TOKEN = 1 << 16
MODEL = toy_model(TOKEN)
GROWING = "vtensor, chunks that grow"


def account(recorder: Recorder) -> dict[str, Any]:
    """All that a run decided, held and took, but whether it leapt."""
    names = [name for name in Recorder.__slots__ if name != "leaps" and name[0] != "_"]
    return {name: getattr(recorder, name) for name in names} | {"samples": list(recorder.samples)}


def draw(random: Random, policy: str) -> tuple[list[Tenant], dict[str, Any]]:
    """Tenants, and options: memory from that of one sequence to plenty, often with limits."""
    traces = [random_trace(random, 30) for _ in range(random.choice((2, 2, 3)))]
    longest = max(int((t.prompt_tokens + t.output_tokens).max()) for t in traces)
    most = longest + random.choice((0, 1, 50))
    chunks = -(-most * TOKEN // CHUNK)
    memory = random.choice((chunks + 1, chunks * 3 // 2 + 1, 2 * chunks, 3 * chunks, 6 * chunks))
    eager = 64 << 20 if policy == "vattention" else 0
    limits = [random.choice((None, None, random.randint(chunks, 3 * chunks) * CHUNK))] * 2
    limits.append(None)
    batched = random.choice((16, 32, 8192))
    options: dict[str, Any] = {
        "max_model_len": most,
        "kv_memory": memory * CHUNK * (1 + (policy == "vattention")) + eager,
        "max_num_seqs": random.choice((2, 4, min(batched, 256))),
        "max_batched_tokens": batched,
        "admit": random.choice(("prompt", "chunk")),
        "preemption": random.choice(("recompute", "recompute", "swap")),
        "victim": random.choice(("policy", "newest", "smallest-loss")),
    }
    if policy in ("vtensor", GROWING):
        told: dict[str, Any] = {
            "release": random.choice(("park", "unmap")),
            "retain": random.choice(("all", "watermark", "none")),
            "lookahead": random.choice((0, 1, 5)),
        }
        if policy == GROWING:
            told |= {"max_chunk": 16 << 20, "growth": 4}
        options["settings"] = {"vtensor": told}
    named = zip("abc", traces, limits, strict=False)
    return [Tenant(name, trace, MODEL, limit) for name, trace, limit in named], options


@pytest.mark.parametrize("policy", (*POLICIES.built_in, GROWING))
def test_tenants_agree_however_they_are_run(policy: str, budget: int) -> None:
    seen = {"ran": 0, "preempted": 0, "moved": 0, "waited": 0}
    for seed in range(16 * budget):
        tenants, options = draw(Random(seed), policy)

        def run(
            tenants: list[Tenant] = tenants, options: dict[str, Any] = options, **more: Any
        ) -> GpuRun:
            name = policy.split(",")[0]
            return replay_tenants(tenants, [name], **options, **more).runs[0]

        try:
            checked = run(check=True)
        except CapacityError:  # limits, or set-ups, that do not fit together
            continue
        for other in (run(step=True), run()):
            assert account(checked.recorder) == account(other.recorder), seed
            for mine, theirs in zip(checked.runs, other.runs, strict=True):
                assert account(mine.recorder) == account(theirs.recorder), seed
                assert mine.memory_waits == theirs.memory_waits
            assert checked.reclaimed == other.reclaimed
        for own in checked.runs:
            needs = (own.trace.prompt_tokens + own.trace.output_tokens) * TOKEN
            for row in own.recorder.reasons:
                reserved = options["max_model_len"] * TOKEN if policy == "native" else needs[row]
                # A few units more than its tokens: rounding, and what is mapped ahead.
                more = 16 if policy == GROWING else 8
                assert reserved > own.limit_bytes - more * own.chunk_bytes, (seed, own.label, row)
        seen["ran"] += 1
        seen["preempted"] += checked.summary["requests"]["preemptions"]
        seen["moved"] += sum(each.nbytes for each in checked.reclaimed)
        seen["waited"] += sum(own.memory_waits for own in checked.runs)
    assert seen["ran"] > 8 * budget
    assert seen["preempted"] or policy == "native"
    assert seen["moved"] or policy in ("native", "paged", "radix")
    assert seen["waited"] or policy != "native"
