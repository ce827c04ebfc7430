"""Hugging Face `generate` on a VTensorCache: its tokens, its logits, its memory beside others'."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from common import Report


def _model(small: bool = False) -> Any:
    """Yi-6B's shape with random weights."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64_000, hidden_size=4096, intermediate_size=11_008,
        num_hidden_layers=2 if small else 32, num_attention_heads=32, num_key_value_heads=4,
        max_position_embeddings=16_384, rope_parameters={"rope_type": "default", "rope_theta": 5e6},
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).eval()


def generate(traces: Path) -> Report:
    """Greedy, 4 prompts of 700 tokens, 200 new ones."""
    import torch
    import transformers

    from vtsim.backends.cuda.driver import open_driver
    from vtsim.backends.cuda.hf import VTensorCache

    model = _model()
    prompt = torch.randint(1, 64_000, (4, 700), device="cuda")
    driver = open_driver()
    report: Report = {"torch": torch.__version__, "transformers": transformers.__version__}

    def run(cache: Any) -> Any:
        begin = time.perf_counter()
        out = model.generate(
            prompt, past_key_values=cache, max_new_tokens=200, do_sample=False,
            return_dict_in_generate=True, output_logits=True, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        torch.cuda.synchronize()
        return out.sequences, torch.stack(out.logits), time.perf_counter() - begin

    run(transformers.DynamicCache())  # loads modules
    caches: dict[str, Any] = {
        "dynamic": transformers.DynamicCache(),
        "dynamic again": transformers.DynamicCache(),
        "static": transformers.StaticCache(model.config, max_cache_len=16_384),
    }
    results: dict[str, Any] = {}
    for name, cache in caches.items():
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        results[name] = run(cache)
        held = sum(
            layer.keys.untyped_storage().nbytes() + layer.values.untyped_storage().nbytes()
            for layer in cache.layers
        )
        report[name] = {
            "held_bytes": held,
            "peak_over_start_bytes": torch.cuda.max_memory_allocated() - before,
            "seconds": round(results[name][2], 2),
        }
        caches[name] = cache = None
        gc.collect()
    expected, logits, _ = results["dynamic"]
    for layout in ("token_major", "kv_split", "per_layer"):
        torch.cuda.empty_cache()
        start = driver.memory()[0]
        cache = VTensorCache(model.config, layout=layout)
        growth = []
        model(prompt[:, :1], past_key_values=cache)
        growth.append(cache.held_bytes)
        cache.reset()
        tokens, mine, seconds = run(cache)
        growth.append(cache.held_bytes)
        cache.close()
        cache = None
        gc.collect()
        torch.cuda.empty_cache()
        same = (tokens == expected).all(0).cumprod(0).sum().item()
        steps = max(1, same - prompt.shape[1])
        report[f"vtensor {layout}"] = {
            "held_bytes_at_1_and_899_tokens": growth,
            "tokens_equal": bool((tokens == expected).all()),
            "equal_until_token": same,
            "largest_logit_difference": (mine[:steps] - logits[:steps]).abs().max().item(),
            "seconds": round(seconds, 2),
            "left_bytes": start - driver.memory()[0],
        }
        results[layout] = None
        del tokens, mine
    again = results["dynamic again"]
    report["largest_logit"] = logits.abs().max().item()
    report["dynamic_repeats_itself"] = bool((again[0] == expected).all())
    report["ok"] = all(
        report[f"vtensor {layout}"]["tokens_equal"]
        for layout in ("token_major", "kv_split", "per_layer")
    )
    driver.close()
    return report
