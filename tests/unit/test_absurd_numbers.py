"""Model and GPU files with absurd numbers are refused, at once, with field and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtsim.backends.gpus import PROFILES, load_gpu
from vtsim.backends.sim.costs import CostModel
from vtsim.errors import ConfigError
from vtsim.ports import StepShape
from vtsim.spec import load_model, models

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "intermediate_size": 11008,
    "vocab_size": 64000,
    "max_position_embeddings": 4096,
}


def refused_model(tmp_path: Path, **fields: object) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | fields))
    with pytest.raises(ConfigError) as caught:
        load_model(path)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 500
    return text


def test_model_numbers(tmp_path: Path) -> None:
    assert "num_hidden_layers: must be at most" in refused_model(
        tmp_path, num_hidden_layers=10**400
    )
    many = 10**9
    text = refused_model(tmp_path, num_attention_heads=many, hidden_size=many)
    assert "num_attention_heads: must be at most 65536, got 1000000000" in text
    wide = refused_model(tmp_path, hidden_size=2**30, num_hidden_layers=2**20)
    assert "weights of" in wide
    assert "torch_dtype: ['bfloat16']" in refused_model(tmp_path, torch_dtype=["bfloat16"])
    assert "torch_dtype: 16" in refused_model(tmp_path, torch_dtype=16)


def test_deep_nesting(tmp_path: Path) -> None:
    model, gpu = tmp_path / "config.json", tmp_path / "gpu.toml"
    model.write_text("[" * 100_000)
    gpu.write_text("x = " + "[" * 100_000)
    for load, path in ((load_model, model), (load_gpu, gpu)):
        with pytest.raises(ConfigError, match="nested too deeply|not a readable"):
            load(path)


def edited(tmp_path: Path, key: str, value: str) -> Path:
    """The H200's profile with the first `key` set to `value`."""
    lines = (PROFILES / "h200.toml").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{key} ="))
    lines[at] = f'{key} = {{ value = {value}, source = "made up" }}'
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("bf16_flops_per_s", "1.0", "compute.bf16_flops_per_s: must be at least 1e+06"),
        ("bf16_flops_per_s", "1e300", "compute.bf16_flops_per_s: must be at most"),
        ("kernel_us", "1e300", "kernel_us: must be at most 1e+09, got 1e+300"),
        ("capacity_bytes", "1" + "0" * 26, "memory.capacity_bytes: must be at most"),
        ("capacity_bytes", "1" + "0" * 400, "memory.capacity_bytes: must be at most"),
        ("efficiency", "[1e-300, 1e-300]", "linear.efficiency: must"),
    ],
)
def test_gpu_numbers(tmp_path: Path, key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_gpu(edited(tmp_path, key, value))
    assert words in str(caught.value) and len(str(caught.value)) < 300


def test_all_missing_keys_are_listed(tmp_path: Path) -> None:
    text = (PROFILES / "h200.toml").read_text()
    kept = [x for x in text.splitlines() if not x.startswith(("va_bytes", "per_step_us", "title"))]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(kept))
    with pytest.raises(ConfigError, match=r": title, memory.va_bytes, host.per_step_us: missing$"):
        load_gpu(path)


@settings(max_examples=40, deadline=None)
@given(rate=st.floats(min_value=1e-10, max_value=1e30))
def test_a_rate_is_refused_or_a_step_fits_64_bits(
    rate: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = edited(tmp_path_factory.mktemp("gpu"), "bf16_flops_per_s", repr(rate))
    try:
        gpu = load_gpu(path)
    except ConfigError:
        assert not 1e6 <= rate <= 1e21
        return
    ticks = CostModel(models()["yi-6b"], gpu).step(StepShape(8, 8000, ()))
    assert type(ticks) is int and 0 < ticks < 1 << 70
