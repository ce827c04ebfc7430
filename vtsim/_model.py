"""Model shapes, by name or from a Hugging Face `config.json`. Sizes only: no weights, no times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from vtsim.errors import ConfigError

KV_DTYPES: Mapping[str, int] = MappingProxyType({"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4})
"""Bytes of one element of the KV cache; "auto" (the weights' own type) is accepted too."""

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
MOST_COUNT = 1 << 31
"""Of layers, heads, widths, vocabulary, positions: more is a misread file, and would overflow."""
MOST_HEADS = 1 << 16
MOST_WEIGHT_BYTES = 1 << 60
"""Byte counts and times derived from them are kept in 64 bits."""
_TORCH_DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4}


class Linear(NamedTuple):
    """One weight matrix on one GPU: `rows` outputs by `columns` inputs."""

    name: str
    rows: int
    columns: int

    @property
    def parameters(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape of a Llama-family decoder. All counts are of the whole model, not of one GPU."""

    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_positions: int
    dtype_bytes: int = 2
    tied_embeddings: bool = False
    kv_dtype_bytes: int = 2
    source: str = ""

    def __post_init__(self) -> None:
        for field in (
            "layers", "hidden", "q_heads", "kv_heads", "head_dim", "ffn", "vocab",
            "max_positions", "dtype_bytes", "kv_dtype_bytes",
        ):  # fmt: skip
            value = getattr(self, field)
            if type(value) is not int or value <= 0:
                raise ConfigError(
                    f"model {self.name}: {field} must be a positive integer, got {_short(value)}"
                )
            most = MOST_HEADS if field.endswith("_heads") else MOST_COUNT
            if value > most:
                raise ConfigError(
                    f"model {self.name}: {field} must be at most {most}, got {_short(value)}"
                )
        if self.q_heads % self.kv_heads:
            raise ConfigError(
                f"model {self.name}: {self.q_heads} query heads cannot share "
                f"{self.kv_heads} KV heads equally"
            )
        for what, size in (("weights", self.weight_bytes()), ("a token", self.token_bytes())):
            if size > MOST_WEIGHT_BYTES:
                raise ConfigError(
                    f"model {self.name}: {what} of {size} bytes: more than {MOST_WEIGHT_BYTES}"
                )

    def tp_sizes(self) -> list[int]:
        """Tensor-parallel sizes this shape can be cut into."""
        return [n for n in range(1, self.q_heads + 1) if self._divides(n)]

    def _divides(self, tp: int) -> bool:
        shares_kv = self.kv_heads % tp == 0 or tp % self.kv_heads == 0
        return self.q_heads % tp == 0 and self.ffn % tp == 0 and shares_kv

    def check_tp(self, tp: int) -> None:
        """Raises ConfigError, with the sizes that work, unless the model can be cut into `tp`."""
        if type(tp) is not int or tp < 1 or not self._divides(tp):
            raise ConfigError(
                f"model {self.name} cannot be cut for tp {tp}: use one of "
                + ", ".join(map(str, self.tp_sizes()))
            )

    def kv_heads_on(self, tp: int) -> int:
        """KV heads one GPU holds: heads are repeated when there are more GPUs than heads."""
        return max(1, self.kv_heads // tp)

    def token_bytes(self, tp: int = 1) -> int:
        """KV bytes of one token on one GPU."""
        self.check_tp(tp)
        return self.layers * 2 * self.kv_heads_on(tp) * self.head_dim * self.kv_dtype_bytes

    def layer_linears(self, tp: int = 1) -> tuple[Linear, ...]:
        """The matrices of one layer on one GPU, in the order they run, fused as engines fuse them.

        Column-parallel then row-parallel: one all-reduce after `o`, one after `down`.
        """
        self.check_tp(tp)
        q = self.q_heads // tp * self.head_dim
        kv = self.kv_heads_on(tp) * self.head_dim
        return (
            Linear("qkv", q + 2 * kv, self.hidden),
            Linear("o", self.hidden, q),
            Linear("gate_up", 2 * (self.ffn // tp), self.hidden),
            Linear("down", self.hidden, self.ffn // tp),
        )

    def head_linear(self, tp: int = 1) -> Linear:
        """The output head on one GPU; the vocabulary is padded up to a multiple of `tp`."""
        self.check_tp(tp)
        return Linear("head", -(-self.vocab // tp), self.hidden)

    def embedding_bytes(self, tp: int = 1) -> int:
        """The embedding table on one GPU: held, but only rows of it are read in a step."""
        return self.head_linear(tp).parameters * self.dtype_bytes

    def streamed_weight_bytes(self, tp: int = 1) -> int:
        """Weights that one step reads on one GPU: all but the embedding, the head included."""
        layer = sum(linear.parameters for linear in self.layer_linears(tp)) + 2 * self.hidden
        head = self.head_linear(tp).parameters
        return (self.layers * layer + head + self.hidden) * self.dtype_bytes

    def weight_bytes(self, tp: int = 1) -> int:
        """Weights held on one GPU: the streamed ones, and the embedding unless the head is it."""
        embedding = 0 if self.tied_embeddings else self.embedding_bytes(tp)
        return self.streamed_weight_bytes(tp) + embedding

    def layer_flops(self, tp: int = 1) -> int:
        """Floating-point operations of all layers' matrices for one token on one GPU."""
        return 2 * self.layers * sum(linear.parameters for linear in self.layer_linears(tp))

    def head_flops(self, tp: int = 1) -> int:
        """Floating-point operations of the head for one sequence on one GPU."""
        return 2 * self.head_linear(tp).parameters

    def with_kv_dtype(self, kv_dtype: str) -> ModelSpec:
        """The same model with its KV cache in `kv_dtype` ("auto": the weights' type)."""
        if kv_dtype == "auto":
            return replace(self, kv_dtype_bytes=self.dtype_bytes)
        if kv_dtype not in KV_DTYPES:
            raise ConfigError(
                f"unknown KV dtype {kv_dtype!r}: use one of auto, " + ", ".join(KV_DTYPES)
            )
        return replace(self, kv_dtype_bytes=KV_DTYPES[kv_dtype])


def models() -> dict[str, ModelSpec]:
    """The models known by name. Shapes are those of each model's published config.json."""
    known = (
        ModelSpec("yi-6b", 32, 4096, 32, 4, 128, 11008, 64000, 200_000,
                  source="config.json of 01-ai/Yi-6B-200K"),
        ModelSpec("yi-9b", 48, 4096, 32, 4, 128, 11008, 64000, 32_768,
                  source="shape of 01-ai/Yi-9B, positions of the vTensor paper's Yi-9B-32K"),
        ModelSpec("yi-34b", 60, 7168, 56, 8, 128, 20480, 64000, 32_768,
                  source="shape of 01-ai/Yi-34B, positions of the vTensor paper's Yi-34B-32K"),
        ModelSpec("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4_096,
                  source="config.json of meta-llama/Llama-2-7b-hf"),
        ModelSpec("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8_192,
                  source="config.json of meta-llama/Meta-Llama-3-8B (3.1 has 131,072 positions)"),
    )  # fmt: skip
    return {model.name: model for model in known}


def load_model(name_or_path: str | Path, kv_dtype: str = "auto") -> ModelSpec:
    """A model by name, or from a Hugging Face config.json (or the folder that holds one).

    Raises ConfigError: unknown name (with the known ones), unreadable file, unsupported
    architecture, missing or bad field.
    """
    known = models()
    if str(name_or_path) in known:
        return known[str(name_or_path)].with_kv_dtype(kv_dtype)
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        looks_like_path = len(path.parts) > 1 or path.suffix == ".json"
        what = "no such model file" if looks_like_path else "unknown model"
        raise ConfigError(
            f"{what}: {name_or_path} (known models: {', '.join(known)}; or the path of a "
            "Hugging Face config.json)"
        )
    return _from_config(path).with_kv_dtype(kv_dtype)


def _from_config(path: Path) -> ModelSpec:
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise ConfigError(f"{path}: not a readable JSON file: nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable JSON file: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: a config.json holds one object, got {type(config).__name__}")

    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if first not in ARCHITECTURES:
        raise ConfigError(
            f"{path}: architectures: unsupported architecture {_short(first)} "
            f"(supported: {', '.join(ARCHITECTURES)})"
        )
    if config.get("quantization_config") is not None:
        raise ConfigError(f"{path}: quantization_config: quantised weights are not supported")

    def integer(field: str, default: int | None = None) -> int:
        value = config.get(field)
        if value is None:
            if default is None:
                raise ConfigError(f"{path}: {field}: missing")
            return default
        if type(value) is not int or value <= 0:
            raise ConfigError(f"{path}: {field}: must be a positive integer, got {_short(value)}")
        most = MOST_HEADS if field.endswith("_heads") else MOST_COUNT
        if value > most:
            raise ConfigError(f"{path}: {field}: must be at most {most}, got {_short(value)}")
        return value

    hidden, heads = integer("hidden_size"), integer("num_attention_heads")
    kv_heads = integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(
            f"{path}: num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}"
        )
    if config.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{path}: hidden_size: {hidden} is no multiple of num_attention_heads {heads}, "
            "and head_dim is missing"
        )
    dtype = config.get("torch_dtype", config.get("dtype")) or "bfloat16"
    if not isinstance(dtype, str) or dtype not in _TORCH_DTYPES:
        raise ConfigError(
            f"{path}: torch_dtype: {_short(dtype)} is none of " + ", ".join(sorted(_TORCH_DTYPES))
        )
    tied = config.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise ConfigError(f"{path}: tie_word_embeddings: must be true or false, got {_short(tied)}")
    positions = integer("max_position_embeddings")
    # Every policy here keeps all tokens: under a sliding window that is right up to the window.
    positions = min(positions, integer("sliding_window", positions))
    named = config.get("_name_or_path")
    name = named.replace("\\", "/").rstrip("/").rpartition("/")[2] if type(named) is str else ""
    return ModelSpec(
        name=name or path.stem,
        layers=integer("num_hidden_layers"),
        hidden=hidden,
        q_heads=heads,
        kv_heads=kv_heads,
        head_dim=integer("head_dim", hidden // heads),
        ffn=integer("intermediate_size"),
        vocab=integer("vocab_size"),
        max_positions=positions,
        dtype_bytes=_TORCH_DTYPES[dtype],
        tied_embeddings=tied,
        kv_dtype_bytes=_TORCH_DTYPES[dtype],
        source=f"config file {path.name}",
    )


def _short(value: object) -> str:
    """A value of a file for an error; an integer may have more digits than Python prints."""
    if type(value) is int and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
