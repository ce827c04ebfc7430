"""Hugging Face `generate` on a VTensorCache: its tokens, its logits, its memory beside others'."""

from __future__ import annotations

import gc
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from common import Report

LAYOUTS = ("token_major", "kv_split", "per_layer")


def _model(layers: int, dtype: Any) -> Any:
    """Yi-6B's shape, or its first layers, with random weights."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64_000, hidden_size=4096, intermediate_size=11_008, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=16_384,
        rope_parameters={"rope_type": "default", "rope_theta": 5e6}, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).eval()


def _run(model: Any, prompt: Any, cache: Any, new: int) -> tuple[Any, Any, float]:
    """(tokens, logits of each step, seconds)."""
    import torch

    begin = time.perf_counter()
    out = model.generate(
        prompt, past_key_values=cache, max_new_tokens=new, do_sample=False, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True, eos_token_id=None, disable_compile=True,
    )  # fmt: skip
    torch.cuda.synchronize()
    return out.sequences, torch.stack(out.logits), time.perf_counter() - begin


def _differ(mine: Any, theirs: Any, prompt_tokens: int) -> Report:
    """How two runs differ: in tokens, and in logits as long as the tokens were the same."""
    same = int((mine[0] == theirs[0]).all(0).cumprod(0).sum())
    steps = min(same - prompt_tokens + 1, len(mine[1]))
    return {
        "tokens_equal": bool((mine[0] == theirs[0]).all()),
        "new_tokens_equal_until": same - prompt_tokens,
        "largest_logit_difference": (mine[1][:steps] - theirs[1][:steps]).abs().max().item(),
    }


def _device_bytes() -> int:
    """Free on the device, what torch keeps for itself counted as free."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())


def _compare(model: Any, prompt: Any, new: int) -> Report:
    """Every layout against the default cache, and that against itself."""
    import transformers

    from vtsim.backends.cuda.hf import VTensorCache

    report: Report = {}
    expected = _run(model, prompt, transformers.DynamicCache(), new)
    again = _run(model, prompt, transformers.DynamicCache(), new)
    report["largest_logit"] = expected[1].abs().max().item()
    report["dynamic"] = {"seconds": round(again[2], 2), **_differ(again, expected, prompt.shape[1])}
    del again
    for layout in LAYOUTS:
        start = _device_bytes()
        cache: Any = VTensorCache(model.config, layout=layout)
        model(prompt[:, :1], past_key_values=cache)
        held = [cache.held_bytes]
        cache.reset()
        mine = _run(model, prompt, cache, new)
        held.append(cache.held_bytes)
        cache.close()
        report[layout] = {
            "seconds": round(mine[2], 2),
            "held_bytes_at_1_token_and_at_the_end": held,
            **_differ(mine, expected, prompt.shape[1]),
        }
        del cache, mine
        report[layout]["left_bytes"] = start - _device_bytes()
    return report


def _footprints(model: Any, prompt: Any) -> Report:
    """Bytes the other caches hold after 900 tokens."""
    import transformers

    report: Report = {}
    caches = {
        "dynamic": transformers.DynamicCache(),
        "static, 16,384 positions": transformers.StaticCache(model.config, max_cache_len=16_384),
        "static, 900 positions": transformers.StaticCache(model.config, max_cache_len=900),
    }
    for name, cache in caches.items():
        model(prompt, past_key_values=cache)
        report[name] = sum(
            layer.keys.untyped_storage().nbytes() + layer.values.untyped_storage().nbytes()
            for layer in cache.layers
        )
    return report


def _where(model: Any, prompt: Any, cache: Any) -> list[str]:
    """The operators that take most of the launching thread's time in 8 decode steps."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        _run(model, prompt, cache, 8)
    events = sorted(profile.key_averages(), key=lambda e: -e.self_cpu_time_total)[:8]
    return [
        f"{e.key[:60]}: {e.count} x, {e.self_cpu_time_total / 1e3:.1f} ms cpu, "
        f"{e.self_device_time_total / 1e3:.1f} ms gpu"
        for e in events
    ]


def generate(traces: Path) -> Report:
    """Greedy, 4 prompts of 700 tokens, 200 new ones; with cuDNN's attention off, too."""
    import torch
    import transformers

    from vtsim.backends.cuda.hf import VTensorCache

    torch.set_grad_enabled(False)
    report: Report = {"torch": torch.__version__, "transformers": transformers.__version__}
    prompt = torch.randint(1, 64_000, (4, 700), device="cuda")
    model = _model(32, torch.bfloat16)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    flash = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    ways: dict[str, AbstractContextManager[Any]] = {
        "bf16": nullcontext(),
        "bf16, no cuDNN attention": sdpa_kernel(flash),
    }
    for name, way in ways.items():
        with way:
            _run(model, prompt, transformers.DynamicCache(), 4)  # loads modules
            report[name] = _compare(model, prompt, 200 if "no" in name else 48)
            report[f"{name}: time goes to"] = {
                "dynamic": _where(model, prompt, transformers.DynamicCache()),
                "vtensor": _where(model, prompt, VTensorCache(model.config)),
            }
    report["held_bytes"] = _footprints(model, prompt)
    del model
    gc.collect()
    report["float32, 4 layers"] = _compare(_model(4, torch.float32), prompt, 100)
    report["ok"] = all(
        report[way][layout]["tokens_equal"]
        for way in ("bf16, no cuDNN attention", "float32, 4 layers")
        for layout in LAYOUTS
    )
    return report
