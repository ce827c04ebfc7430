"""Hugging Face `generate` on a VTensorCache says what it says on its own cache."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from vtsim.backends.cuda.driver import CudaDriver  # noqa: E402
from vtsim.backends.cuda.fake import FakeCuda  # noqa: E402
from vtsim.backends.cuda.hf import VTensorCache  # noqa: E402
from vtsim.errors import CapacityError, ConfigError  # noqa: E402

M = 1 << 20


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def driver() -> Iterator[CudaDriver]:
    api = FakeCuda(backed=True)
    driver = CudaDriver(api=api)
    yield driver
    gc.collect()
    driver.close()
    assert api.leaks() == {}


def generate(model: Any, ids: Any, cache: Any = None, **options: Any) -> Any:
    return model.generate(
        ids, past_key_values=cache, max_new_tokens=24, return_dict_in_generate=True,
        output_logits=True, pad_token_id=0, **{"do_sample": False, **options},
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["token_major", "kv_split", "per_layer"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_return_sequences": 1}])
def test_generate_is_unchanged(
    model: Any, driver: CudaDriver, layout: str, options: dict[str, Any]
) -> None:
    ids = torch.randint(1, 128, (4, 30), generator=torch.Generator().manual_seed(3))
    expected = generate(model, ids, **options)
    cache = VTensorCache(model.config, driver=driver, layout=layout)
    got = generate(model, ids, cache, **options)
    assert torch.equal(got.sequences, expected.sequences)
    for mine, theirs in zip(got.logits, expected.logits, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert cache.get_seq_length() == 30 + 24 - 1
    del got
    gc.collect()
    cache.close()


def test_memory_grows_with_use_and_is_returned(model: Any, driver: CudaDriver) -> None:
    ids = torch.randint(1, 128, (2, 30))
    before = driver.memory()[0]
    cache = VTensorCache(model.config, driver=driver)
    assert cache.held_bytes == 0
    model(ids, past_key_values=cache)
    assert cache.held_bytes == 2 * 2 * M and before - driver.memory()[0] == 4 * M
    model(torch.randint(1, 128, (2, 400)), past_key_values=cache)
    assert cache.held_bytes == 4 * M  # 430 tokens of 1,536 B fit one chunk
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.held_bytes == 4 * M
    expected = generate(model, ids).sequences
    assert torch.equal(generate(model, ids, cache).sequences, expected)
    gc.collect()
    cache.close()
    assert driver.memory()[0] == before


def test_rows_can_be_repeated_selected_and_cropped(model: Any, driver: CudaDriver) -> None:
    ids = torch.randint(1, 128, (2, 20))
    caches = transformers.DynamicCache(), VTensorCache(model.config, driver=driver)
    outputs = []
    for cache in caches:
        model(ids, past_key_values=cache)
        cache.crop(-5)
        cache.batch_repeat_interleave(3)
        cache.batch_select_indices(torch.tensor([0, 2, 5]))
        cache.reorder_cache(torch.tensor([2, 2, 0]))
        cache.crop(12)
        outputs.append(model(ids[[1, 1, 0], 12:], past_key_values=cache).logits)
        assert cache.get_seq_length() == 20 and cache.batch_size in (3, -1)
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(caches[0].layers[1].keys, caches[1].layers[1].keys)
    assert caches[1].batch_size == 3
    caches[1].close()


def test_a_full_pool_is_an_error_that_says_so(model: Any, driver: CudaDriver) -> None:
    cache = VTensorCache(model.config, driver=driver, limit_bytes=2 * M)
    with pytest.raises(CapacityError, match="short of the pool's limit"):
        model(torch.randint(1, 128, (2, 30)), past_key_values=cache)
    cache.close()


def test_models_with_sliding_windows_are_refused() -> None:
    config = transformers.MistralConfig(sliding_window=4096)
    with pytest.raises(ConfigError, match="sliding"):
        VTensorCache(config)
