"""Stock attention kernels on vTensor memory, unmodified, and what their reading past the end costs.

The kernels are found where they are installed, or under the folder VTSIM_KERNELS (see
docs/validation); those that are missing are left out of the report.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from common import M, Report

HEADS, KV_HEADS, DIM = 32, 4, 128


def _flash_attn() -> Callable[..., Any] | None:
    """flash-attn's decode over a whole cache: [slots, tokens, H, D] and row numbers."""
    try:
        from flash_attn import flash_attn_with_kvcache
    except ImportError:
        return None

    def run(query: Any, keys: Any, values: Any, slots: Any, lengths: Any) -> Any:
        return flash_attn_with_kvcache(
            query, keys, values, cache_seqlens=lengths, cache_batch_idx=slots
        )

    return run


def _torch_fa2(slot_tokens: int) -> Callable[..., Any]:
    """FlashAttention 2 inside torch: start offsets in any order, lengths beside them."""
    import torch

    def run(query: Any, keys: Any, values: Any, slots: Any, lengths: Any) -> Any:
        batch = query.shape[0]
        each = torch.arange(batch + 1, device=query.device, dtype=torch.int32)
        starts = torch.cat([slots, slots[-1:] + 1]).to(torch.int32) * slot_tokens
        out = torch.ops.aten._flash_attention_forward(
            query.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), each, starts, 1,
            int(lengths.max()), 0.0, False, False, scale=DIM**-0.5, seqused_k=lengths,
        )  # fmt: skip
        return out[0].unflatten(0, (batch, 1))

    return run


def _fa3() -> Callable[..., Any] | None:
    """FlashAttention 3 from the library a vLLM wheel carries."""
    import torch

    folder = os.environ.get("VTSIM_KERNELS", "")
    library = Path(folder) / "_vllm_fa3_C.abi3.so"
    if not folder or not library.is_file():
        return None
    torch.ops.load_library(str(library))
    operator = torch.ops._vllm_fa3_C.fwd.default
    names = [argument.name for argument in operator._schema.arguments]

    def run(query: Any, keys: Any, values: Any, slots: Any, lengths: Any) -> Any:
        given: Report = {
            "q": query, "k": keys, "v": values, "seqused_k": lengths, "kv_batch_idx": slots,
            "softmax_scale": DIM**-0.5, "is_causal": False, "window_size_left": -1,
            "window_size_right": -1, "attention_chunk": 0, "softcap": 0.0,
            "is_rotary_interleaved": False, "num_splits": 0, "sm_margin": 0,
            "cp_world_size": 1, "cp_rank": 0,
        }  # fmt: skip
        return operator(*[given.get(name) for name in names])[0]

    return run


def _kernels(slot_tokens: int) -> dict[str, Callable[..., Any]]:
    found = {
        "torch FA2": _torch_fa2(slot_tokens),
        "flash-attn with_kvcache": _flash_attn(),
        "FA3": _fa3(),
    }
    return {name: run for name, run in found.items() if run is not None}


def _reference(query: Any, keys: list[Any], values: list[Any]) -> Any:
    """float32, one sequence at a time."""
    import torch

    rows = []
    for one, key, value in zip(query, keys, values, strict=True):
        k = key.float().repeat_interleave(HEADS // KV_HEADS, 1)
        v = value.float().repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("qhd,thd->hqt", one.float(), k) * DIM**-0.5
        rows.append(torch.einsum("hqt,thd->qhd", scores.softmax(-1), v))
    return torch.stack(rows)


def kernels(traces: Path) -> Report:
    """Every kernel on every layout against float32; decode time against a plain allocation."""
    import torch

    from vtsim.backends.cuda.tensors import KVShape
    from vtsim.backends.cuda.vtensor import VTensorPool

    torch.manual_seed(0)
    lengths = [20, 130, 1000, 4097]
    report: Report = {"relative_error": {}, "decode": {}}
    worst = 0.0
    for layout in ("token_major", "kv_split", "per_layer"):
        pool = VTensorPool(
            KVShape(2, KV_HEADS, DIM), 8192, slots=8, layout=layout, guard_tokens=176
        )
        pool.create(77)  # so that slots are not the batch's numbers
        made = [pool.create(tokens) for tokens in lengths]
        for vtensor in made:
            for layer in range(2):
                vtensor.key(layer).normal_()
                vtensor.value(layer).normal_()
            for layer in range(2):  # rows behind the end are read: they must be finite
                for view in (pool.tensors.keys(layer), pool.tensors.values(layer)):
                    view[vtensor.slot, vtensor.tokens : vtensor.tokens + 176].zero_()
        query = torch.randn(4, 1, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
        expected = _reference(query, [v.key(1) for v in made], [v.value(1) for v in made])
        slots = torch.tensor([v.slot for v in made], device="cuda", dtype=torch.int32)
        counts = torch.tensor(lengths, device="cuda", dtype=torch.int32)
        errors: Report = {}
        sdpa = torch.stack([
            torch.nn.functional.scaled_dot_product_attention(
                one.transpose(0, 1)[None], v.key(1).transpose(0, 1)[None],
                v.value(1).transpose(0, 1)[None], enable_gqa=True,
            )[0].transpose(0, 1)
            for one, v in zip(query, made, strict=True)
        ])  # fmt: skip
        results = {"torch SDPA": sdpa}
        for name, run in _kernels(pool.tensors.slot_tokens).items():
            keys, values = pool.tensors.keys(1), pool.tensors.values(1)
            results[name] = run(query, keys, values, slots, counts)
        torch.cuda.synchronize()
        for name, out in results.items():
            error = ((out.float() - expected).norm() / expected.norm()).item()
            errors[name] = error
            worst = max(worst, error if error == error else 9.0)
        report["relative_error"][layout] = errors
        del made, vtensor, view, keys, values, results, sdpa, run
        pool.close()
    for layout in ("token_major", "per_layer", "plain"):
        report["decode"][layout] = _decode(layout)
    report["ok"] = worst < 1e-2
    return report


def _decode(layout: str) -> Report:
    """Batch 16 at 16K tokens, microseconds a layer, KV rotated over 4 layers."""
    import torch

    from vtsim.backends.cuda.tensors import KVShape
    from vtsim.backends.cuda.vtensor import VTensorPool

    layers, batch, tokens = 4, 16, 16_384
    pool = None
    if layout == "plain":
        shape = (layers, 2, batch, tokens, KV_HEADS, DIM)
        memory = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        kv = [(memory[n, 0], memory[n, 1]) for n in range(layers)]
        slot_tokens = tokens
    else:
        pool = VTensorPool(
            KVShape(layers, KV_HEADS, DIM), tokens, slots=batch, layout=layout, guard_tokens=176
        )
        made = [pool.create(tokens) for _ in range(batch)]
        for vtensor in made:
            for layer in range(layers):
                vtensor.key(layer).normal_()
                vtensor.value(layer).normal_()
        kv = [(pool.tensors.keys(n)[:batch], pool.tensors.values(n)[:batch]) for n in range(layers)]
        slot_tokens = pool.tensors.slot_tokens
    query = torch.randn(batch, 1, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    slots = torch.arange(batch, device="cuda", dtype=torch.int32)
    lengths = torch.full((batch,), tokens, device="cuda", dtype=torch.int32)
    report: Report = {}
    for name, run in _kernels(slot_tokens).items():
        times = []
        for turn in range(12):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
            begin.record()
            for _ in range(4):
                for keys, values in kv:
                    run(query, keys, values, slots, lengths)
            end.record()
            torch.cuda.synchronize()
            if turn > 1:
                times.append(begin.elapsed_time(end) * 1e3 / (4 * layers))
        report[name] = round(median(times), 1)
    del kv, keys, values, run
    if pool is not None:
        del made, vtensor
        pool.close()
    return report


GUARDED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from attention import _kernels
from vtsim.backends.cuda.tensors import KVShape
from vtsim.backends.cuda.vtensor import VTensorPool
guard, tokens = sys.argv[2], int(sys.argv[3])
options = {} if guard == "none" else {"guard": guard, "guard_tokens": 176}
pool = VTensorPool(KVShape(32, 4, 128), 8192, slots=4, **options)
vtensor = pool.create(tokens)
for layer in range(32):
    vtensor.key(layer).normal_(); vtensor.value(layer).normal_()
if guard == "ahead":
    for layer in range(32):
        for view in (pool.tensors.keys(layer), pool.tensors.values(layer)):
            view[vtensor.slot, tokens:tokens + 176].zero_()
query = torch.randn(1, 1, 32, 128, device="cuda", dtype=torch.bfloat16)
slot = torch.tensor([vtensor.slot], device="cuda", dtype=torch.int32)
length = torch.tensor([tokens], device="cuda", dtype=torch.int32)
for name, run in _kernels(pool.tensors.slot_tokens).items():
    for layer in (0, 31):
        out = run(query, pool.tensors.keys(layer), pool.tensors.values(layer), slot, length)
        torch.cuda.synchronize()
        assert out.isfinite().all()
    print(name, "ok", flush=True)
"""


def guards(traces: Path) -> Report:
    """Which kernels read past the end of exactly mapped memory; what either guard costs."""
    report: Report = {"reads": {}}
    for guard, tokens in (("none", 1000), ("none", 20), ("ahead", 1000), ("ahead", 20),
                          ("alias", 1000), ("alias", 20)):  # fmt: skip
        child = subprocess.run(
            [sys.executable, "-c", GUARDED, str(Path(__file__).parent), guard, str(tokens)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        said = child.stdout.split("\n")[:-1]
        if child.returncode:
            illegal = "illegal memory access" in child.stderr
            said.append("then: illegal memory access" if illegal else child.stderr[-300:])
        report["reads"][f"{guard}, {tokens} tokens"] = said
    report["costs"] = {guard: _guard_costs(guard) for guard in ("none", "ahead", "alias")}
    report["ok"] = not any(
        "then" in line for key, lines in report["reads"].items() if "none" not in key
        for line in lines
    )  # fmt: skip
    return report


def _guard_costs(guard: str) -> Report:
    """64 sequences of 1,000 tokens, then 100 growths by one chunk (32 tokens) each."""
    import torch

    from vtsim.backends.cuda.tensors import KVShape
    from vtsim.backends.cuda.vtensor import VTensorPool

    torch.zeros(1, device="cuda")
    options: Report = {} if guard == "none" else {"guard": guard, "guard_tokens": 176}
    pool = VTensorPool(KVShape(32, KV_HEADS, DIM), 8192, slots=64, **options)
    begin = time.perf_counter()
    made = [pool.create(1000) for _ in range(64)]
    created_s = time.perf_counter() - begin
    held = pool.held_bytes
    begin = time.perf_counter()
    for turn in range(100):
        made[turn % 64].extend(32)
    extended_s = time.perf_counter() - begin
    del made
    pool.close()
    return {
        "create_us": round(created_s / 64 * 1e6, 1),
        "extend_us": round(extended_s / 100 * 1e6, 1),
        "held_bytes_64_sequences": held,
        "extra_MiB_a_sequence": (held / 64 - 32 * 2 * M) / M,
    }
