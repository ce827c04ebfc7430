"""Hugging Face `generate` on a VTensorCache: its tokens, its logits, its memory beside others'."""

from __future__ import annotations

import gc
import json
import sys
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


def _run(model: Any, prompt: Any, cache: Any, new: int) -> tuple[Any, float]:
    """(tokens, seconds)."""
    import torch

    begin = time.perf_counter()
    out = model.generate(
        prompt, past_key_values=cache, max_new_tokens=new, do_sample=False, pad_token_id=0,
        eos_token_id=None, disable_compile=True,
    )  # fmt: skip
    torch.cuda.synchronize()
    return out, time.perf_counter() - begin


def _forced(model: Any, prompt: Any, new: Any, cache: Any) -> Any:
    """Logits of each step, [new tokens, batch, vocabulary], in float32 or wider, when `new` is
    what was generated, [batch, new tokens], whatever they say: no near tie parts two runs."""
    import torch

    steps = [model(prompt, past_key_values=cache, logits_to_keep=1).logits[:, -1]]
    for column in new.T[:-1]:
        step = model(column[:, None], past_key_values=cache)
        steps.append(step.logits[:, -1])
    return torch.stack(steps).to(torch.promote_types(steps[0].dtype, torch.float32))


def _differ(mine: Any, theirs: Any, prompt_tokens: int) -> Report:
    """How far two runs of `generate` had the same tokens."""
    same = int((mine[0] == theirs[0]).all(0).cumprod(0).sum())
    return {
        "tokens_equal": bool((mine[0] == theirs[0]).all()),
        "new_tokens_equal_until": same - prompt_tokens,
    }


def _far(mine: Any, theirs: Any, exact: Any) -> Report:
    """How far the logits of two forced runs are apart, and each from `exact`'s: the same
    weights, in float32 (float64 for a float32 model).

    Where the likeliest token differs, the two candidates lie no further apart in `theirs` than
    twice the largest difference: `lead_where_another_token_won` is the largest such lead.
    """
    apart = (mine - theirs).abs()
    won, other = theirs.argmax(-1, keepdim=True), mine.argmax(-1, keepdim=True)
    lead = (theirs.gather(-1, won) - theirs.gather(-1, other)).squeeze(-1)
    return {
        "bit_equal": bool((mine == theirs).all()),
        "largest_logit_difference": apart.max().item(),
        "rms_logit_difference": apart.square().mean().sqrt().item(),
        "steps_with_another_token": int((lead > 0).sum()),
        "lead_where_another_token_won": lead.max().item(),
        "rms_from_exact": (mine - exact).square().mean().sqrt().item(),
        "default_rms_from_exact": (theirs - exact).square().mean().sqrt().item(),
    }


def _device_bytes() -> int:
    """Free on the device, what torch keeps for itself counted as free."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())


def _compare(model: Any, exact_model: Any, prompt: Any, new: int) -> Report:
    """Every layout against the default cache, and that against itself: tokens of `generate`, and
    logits when all are given the default's tokens."""
    import transformers

    from vtsim.backends.cuda.hf import VTensorCache

    report: Report = {}
    prompt_tokens = prompt.shape[1]
    expected = _run(model, prompt, transformers.DynamicCache(), new)
    again = _run(model, prompt, transformers.DynamicCache(), new)
    tokens = expected[0][:, prompt_tokens:]
    exact = _forced(exact_model, prompt, tokens, transformers.DynamicCache())
    theirs = _forced(model, prompt, tokens, transformers.DynamicCache())
    once_more = _forced(model, prompt, tokens, transformers.DynamicCache())
    report["largest_logit"] = exact.abs().max().item()
    report["dynamic"] = {
        "seconds_first_and_again": [round(expected[1], 2), round(again[1], 2)],
        **_differ(again, expected, prompt_tokens),
        **_far(once_more, theirs, exact),
    }
    del again, once_more
    for layout in LAYOUTS:
        seconds, left = [], []
        for _ in range(2):  # the first builds and keeps what its kernels need: cuDNN a plan a shape
            start = _device_bytes()
            cache: Any = VTensorCache(model.config, layout=layout)
            model(prompt[:, :1], past_key_values=cache)
            held = [cache.held_bytes]
            cache.reset()
            mine = _run(model, prompt, cache, new)
            seconds.append(round(mine[1], 2))
            held.append(cache.held_bytes)
            cache.reset()
            logits = _forced(model, prompt, tokens, cache)
            cache.close()
            report[layout] = {
                "seconds_first_and_again": seconds,
                "held_bytes_at_1_token_and_at_the_end": held,
                **_differ(mine, expected, prompt_tokens),
                **_far(logits, theirs, exact),
                "left_bytes_first_and_again": left,
            }
            del cache, mine, logits
            left.append(start - _device_bytes())
    return report


def _as_good(report: Report, layout: str) -> bool:
    """As near to exact as the default cache, another token only at a near tie, nothing left."""
    mine = report[layout]
    return bool(
        mine["rms_from_exact"] <= 1.02 * mine["default_rms_from_exact"]
        and mine["lead_where_another_token_won"] <= 2 * mine["largest_logit_difference"]
        and mine["left_bytes_first_and_again"][1] <= 0
    )


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
    """Greedy, 4 prompts of 700 tokens, 200 new ones, with flash attention and whatever torch picks.

    Random weights make near ties of many tokens, so what `generate` gives is told beside logits
    under equal tokens, which are measured against the same weights in a wider type.
    """
    import copy

    import torch
    import transformers
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from vtsim.backends.cuda.hf import VTensorCache

    torch.set_grad_enabled(False)
    report: Report = {"torch": torch.__version__, "transformers": transformers.__version__}
    prompt = torch.randint(1, 64_000, (4, 700), device="cuda")
    model = _model(32, torch.bfloat16)
    exact = copy.deepcopy(model).float()
    flash = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    ways: dict[str, tuple[int, AbstractContextManager[Any]]] = {
        "bf16, flash attention": (200, sdpa_kernel(flash)),
        "bf16, torch's choice": (64, nullcontext()),
    }
    for name, (new, way) in ways.items():
        with way:
            for warm in (transformers.DynamicCache(), VTensorCache(model.config)):
                _run(model, prompt, warm, 4)  # loads modules
            warm.close()
            report[name] = _compare(model, exact, prompt, new)
            cache = VTensorCache(model.config)
            report[f"{name}: time goes to"] = {
                "dynamic": _where(model, prompt, transformers.DynamicCache()),
                "vtensor": _where(model, prompt, cache),
            }
            cache.close()
        print(json.dumps({name: report[name]}), file=sys.stderr, flush=True)
    report["held_bytes"] = _footprints(model, prompt)
    del model, exact
    gc.collect()
    small = _model(4, torch.float32)
    exact = copy.deepcopy(small).double()
    report["float32, 4 layers"] = _compare(small, exact, prompt, 100)
    ways_told = [*ways, "float32, 4 layers"]
    report["ok"] = all(_as_good(report[way], layout) for way in ways_told for layout in LAYOUTS)
    return report
