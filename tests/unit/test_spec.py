"""Model shapes and layouts: FACTS' table, config.json, and the arithmetic of growth."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.errors import ConfigError
from vtsim.spec import KVLayout, ModelSpec, check_chunk_bytes, load_model, models

MIB = 1 << 20
KIB = 1 << 10
LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}


def layout(
    model: str, name: str = "token_major", chunk: int = 2 * MIB, tp: int = 1, tokens: int = 4096
) -> KVLayout:
    return KVLayout.build(models()[model], tp, name, chunk, tokens)


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    def write(drop: str = "", **changes: object) -> Path:
        fields = {**LLAMA, **changes}
        fields.pop(drop, None)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(fields))
        return path

    return write


class TestModels:
    @pytest.mark.parametrize(
        ("name", "token_bytes"),
        [
            ("yi-6b", 65536),
            ("yi-9b", 98304),
            ("yi-34b", 245760),
            ("llama-2-7b", 524288),
            ("llama-3-8b", 131072),
        ],
    )
    def test_token_bytes_are_those_of_facts(self, name: str, token_bytes: int) -> None:
        assert models()[name].token_bytes(1) == token_bytes

    def test_kv_heads_are_repeated_beyond_their_number(self) -> None:
        yi = models()["yi-6b"]
        sizes = [yi.token_bytes(tp) for tp in (1, 2, 4, 8, 16)]
        assert sizes == [65536, 32768, 16384, 16384, 16384]

    def test_weights_of_llama_2_7b_are_its_published_parameter_count(self) -> None:
        assert models()["llama-2-7b"].weight_bytes(1) == 2 * 6_738_415_616

    def test_weights_of_llama_3_8b_are_its_published_parameter_count(self) -> None:
        assert models()["llama-3-8b"].weight_bytes(1) == 2 * 8_030_261_248

    def test_the_embedding_is_held_but_not_streamed(self) -> None:
        yi = models()["yi-6b"]
        assert yi.weight_bytes(1) - yi.streamed_weight_bytes(1) == 64000 * 4096 * 2

    def test_a_tied_embedding_is_held_once_and_streamed_as_the_head(self) -> None:
        tied = ModelSpec("t", 2, 64, 4, 2, 16, 128, 100, 512, tied_embeddings=True)
        assert tied.weight_bytes(1) == tied.streamed_weight_bytes(1)

    def test_layer_flops_are_twice_the_layer_parameters(self) -> None:
        model = models()["llama-2-7b"]
        norms = (2 * 32 + 1) * 4096
        layers = 6_738_415_616 - 2 * 32000 * 4096 - norms
        assert model.layer_flops(1) == 2 * layers
        assert model.layer_flops(2) == layers
        assert model.head_flops(1) == 2 * 32000 * 4096

    @pytest.mark.parametrize("tp", [0, 3, -1, 64])
    def test_a_tp_that_does_not_divide_is_refused_with_those_that_do(self, tp: int) -> None:
        with pytest.raises(ConfigError, match=r"tp -?\d+: use one of 1, 2, 4, 8"):
            models()["yi-6b"].token_bytes(tp)

    def test_a_tp_that_would_lose_kv_heads_is_refused(self) -> None:
        model = ModelSpec("m", 1, 56, 56, 8, 1, 56, 10, 10)
        assert model.tp_sizes() == [1, 2, 4, 8, 56]

    @pytest.mark.parametrize("field", ["layers", "kv_heads", "vocab"])
    def test_sizes_must_be_positive(self, field: str) -> None:
        model = ModelSpec("m", 1, 8, 2, 1, 4, 8, 8, 8)
        with pytest.raises(ConfigError, match=f"{field} must be a positive integer, got 0"):
            replace(model, **{field: 0})  # type: ignore[arg-type]

    def test_query_heads_share_kv_heads_equally(self) -> None:
        with pytest.raises(ConfigError, match="3 query heads cannot share 2 KV heads"):
            ModelSpec("m", 1, 8, 3, 2, 4, 8, 8, 8)


class TestLoadModel:
    def test_by_name(self) -> None:
        assert load_model("yi-6b") == models()["yi-6b"]

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(ConfigError, match="unknown model: yi-7b .*yi-6b, yi-9b, yi-34b"):
            load_model("yi-7b")

    def test_a_missing_file_is_called_a_file(self) -> None:
        with pytest.raises(ConfigError, match="no such model file: nowhere/config.json"):
            load_model("nowhere/config.json")

    @pytest.mark.parametrize(
        ("kv_dtype", "size"), [("auto", 2), ("bf16", 2), ("fp16", 2), ("fp8", 1), ("fp32", 4)]
    )
    def test_kv_dtype(self, kv_dtype: str, size: int) -> None:
        assert load_model("yi-6b", kv_dtype).token_bytes(1) == 32768 * size

    def test_unknown_kv_dtype(self) -> None:
        with pytest.raises(ConfigError, match="unknown KV dtype 'int3': use one of auto, bf16"):
            load_model("yi-6b", "int3")

    def test_config_json_equals_the_named_model(self, config: Callable[..., Path]) -> None:
        path = config(_name_or_path="/models/llama-2-7b/")
        read, named = load_model(path), models()["llama-2-7b"]
        assert read.name == "llama-2-7b"
        assert read.weight_bytes(1) == named.weight_bytes(1)
        assert read.token_bytes(1) == named.token_bytes(1)
        assert load_model(path.parent) == read

    def test_the_name_is_the_file_stem_without_one_inside(
        self, config: Callable[..., Path]
    ) -> None:
        assert load_model(config()).name == "config"

    def test_defaults_of_older_configs(self, config: Callable[..., Path]) -> None:
        model = load_model(config(drop="num_key_value_heads", torch_dtype=None))
        assert (model.kv_heads, model.head_dim, model.dtype_bytes) == (32, 128, 2)

    def test_head_dim_is_taken_where_given(self, config: Callable[..., Path]) -> None:
        assert load_model(config(head_dim=256)).head_dim == 256

    def test_float32_weights(self, config: Callable[..., Path]) -> None:
        model = load_model(config(torch_dtype="float32"))
        assert (model.dtype_bytes, model.kv_dtype_bytes) == (4, 4)

    def test_a_sliding_window_bounds_the_positions(self, config: Callable[..., Path]) -> None:
        path = config(architectures=["MistralForCausalLM"], max_position_embeddings=32768,
                      sliding_window=4096)  # fmt: skip
        assert load_model(path).max_positions == 4096

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"architectures": ["GPT2LMHeadModel"]}, "unsupported architecture 'GPT2LMHeadModel'"),
            ({"architectures": None}, "unsupported architecture None"),
            ({"hidden_size": -1}, "hidden_size: must be a positive integer, got -1"),
            ({"hidden_size": 4096.0}, "hidden_size: must be a positive integer, got 4096.0"),
            ({"vocab_size": True}, "vocab_size: must be a positive integer, got True"),
            ({"num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide"),
            ({"hidden_size": 4095}, "hidden_size: 4095 is no multiple"),
            ({"torch_dtype": "int8"}, "torch_dtype: 'int8' is none of"),
            ({"tie_word_embeddings": "no"}, "tie_word_embeddings: must be true or false"),
            ({"quantization_config": {"bits": 4}}, "quantization_config: quantised"),
        ],
    )
    def test_a_bad_field_is_named_with_the_file(
        self, config: Callable[..., Path], changes: dict[str, object], message: str
    ) -> None:
        path = config(**changes)
        with pytest.raises(ConfigError) as error:
            load_model(path)
        assert str(error.value).startswith(f"{path}: ")
        assert message in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        "field", ["hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"]
    )
    def test_a_missing_field_is_named(self, config: Callable[..., Path], field: str) -> None:
        with pytest.raises(ConfigError, match=f"config.json: {field}: missing"):
            load_model(config(drop=field))

    @pytest.mark.parametrize(("text", "message"), [("{", "not a readable JSON"), ("[]", "one obj")])
    def test_what_is_no_config_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "config.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_model(path)


class TestGrowth:
    def test_a_token_major_chunk_holds_32_tokens_of_yi_6b(self) -> None:
        kv = layout("yi-6b")
        assert (kv.unit_tokens(1), kv.period_tokens, kv.crossings) == (32, 32, ((0, 1),))

    def test_a_per_layer_extend_of_yi_6b_is_128_mib_for_2048_tokens(self) -> None:
        kv = layout("yi-6b", "per_layer")
        assert (kv.arenas, kv.unit_tokens(1), kv.unit_bytes) == (64, 2048, 128 * MIB)

    def test_yi_34b_straddles_with_gaps_of_8_and_9(self) -> None:
        kv = layout("yi-34b")
        phases = [phase for phase, new in kv.crossings]
        gaps = [b - a for a, b in zip(phases, [*phases[1:], 128], strict=True)]
        assert (kv.period_tokens, kv.period_units) == (128, 15)
        assert set(gaps) == {8, 9} and {new for _, new in kv.crossings} == {1}
        assert kv.shared_boundary_units(127) == 0
        assert kv.shared_boundary_units(128) == 15
        assert kv.shared_boundary_units(300) == 30

    def test_yi_9b_repeats_after_64_tokens_in_3_chunks(self) -> None:
        kv = layout("yi-9b")
        assert (kv.period_tokens, kv.period_units) == (64, 3)

    @pytest.mark.parametrize(
        ("model", "tp", "per_layer", "kv_split"),
        [
            ("yi-6b", 1, (64, 128, 256, 2048), (2, 4, 8, 64)),
            ("llama-3-8b", 1, (32, 64, 128, 1024), (1, 2, 4, 32)),
            ("yi-34b", 2, (64, 128, 256, 2048), (1, 2, 4, 34)),
        ],
    )
    def test_vattention_growth_table(
        self, model: str, tp: int, per_layer: tuple[int, ...], kv_split: tuple[int, ...]
    ) -> None:
        pages = (64 * KIB, 128 * KIB, 256 * KIB, 2 * MIB)
        for name, tokens in (("per_layer", per_layer), ("kv_split", kv_split)):
            assert tokens == tuple(layout(model, name, page, tp).unit_tokens(1) for page in pages)

    def test_tokens_larger_than_a_chunk(self) -> None:
        kv = KVLayout("token_major", 1, 5, 2, 10)
        assert [kv.units(n) for n in range(5)] == [0, 3, 5, 8, 10]
        assert kv.crossings == ((0, 3), (1, 2))

    def test_200k_token_slots_of_yi_6b_fill_64_tib_at_about_5300(self) -> None:
        assert layout("yi-6b", tokens=200_000).slots(64 << 40) == 5368

    def test_pool_blocks(self) -> None:
        kv = layout("yi-6b")
        assert kv.block_bytes(16) == MIB
        assert kv.pool_blocks(10 * MIB + 5, 16) == 10

    def test_tail_bytes_count_every_arena(self) -> None:
        assert layout("yi-6b").tail_bytes(33) == 65536
        assert layout("yi-6b", "per_layer").tail_bytes(2049) == 65536
        assert layout("yi-6b").tail_bytes(32) == 0

    def test_unknown_layout(self) -> None:
        with pytest.raises(ConfigError, match="unknown layout 'x': use one of token_major"):
            layout("yi-6b", "x")

    @pytest.mark.parametrize("chunk", [0, -2 * MIB, 3 * MIB, 64 * KIB])
    def test_a_chunk_is_a_positive_multiple_of_the_granularity(self, chunk: int) -> None:
        with pytest.raises(ConfigError, match="positive multiple of the device's granularity"):
            check_chunk_bytes(chunk, 2 * MIB)
        check_chunk_bytes(4 * MIB, 2 * MIB)

    def test_sizes_are_positive(self) -> None:
        with pytest.raises(ConfigError, match="max_tokens must be positive"):
            KVLayout("token_major", 1, 5, 2, 0)

    @given(
        row=st.integers(1, 60),
        chunk=st.integers(1, 60),
        arenas=st.integers(1, 3),
        tokens=st.integers(0, 500),
        max_tokens=st.integers(1, 500),
    )
    def test_arithmetic_holds_for_any_sizes(
        self, row: int, chunk: int, arenas: int, tokens: int, max_tokens: int
    ) -> None:
        kv = KVLayout("any", arenas, row, chunk, max_tokens)
        units, full = kv.units(tokens), kv.full_units(tokens)
        assert (units - 1) * chunk < tokens * row <= units * chunk
        assert full * chunk <= tokens * row < (full + 1) * chunk
        held = kv.unit_tokens(units)
        assert held >= tokens and kv.units(held) <= units < kv.units(held + 1)
        assert kv.tail_bytes(tokens) == (tokens * row - full * chunk) * arenas

        expected = kv.units(tokens + 1) - units
        assert dict(kv.crossings).get(tokens % kv.period_tokens, 0) == expected
        assert kv.new_units(tokens, 1) == expected
        assert list(kv.crossings) == sorted(kv.crossings)
        assert sum(new for _, new in kv.crossings) == kv.period_units == kv.units(kv.period_tokens)

        shared = kv.shared_boundary_units(tokens)
        assert shared <= full and shared * chunk % row == 0
        assert all(n * chunk % row for n in range(shared + 1, full + 1))

        stride = kv.slot_stride_bytes
        assert stride % chunk == 0 and stride % row == 0 and stride >= max_tokens * row
        assert stride - row * kv.period_tokens < max_tokens * row
        assert kv.slot_units * chunk == stride
        assert kv.slots(10**6) * stride * arenas <= 10**6
