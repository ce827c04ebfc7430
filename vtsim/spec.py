"""Sizes of models, GPUs and KV layouts: every byte/token/chunk conversion goes through here.

This module only re-exports; it knows no policy, no time and no profile folder (that is
`vtsim.backends.gpus`).
"""

from vtsim._layout import DEFAULT_CHUNK_BYTES, LAYOUTS, KVLayout, check_chunk_bytes
from vtsim._model import ARCHITECTURES, KV_DTYPES, Linear, ModelSpec, load_model, models

__all__ = [
    "ARCHITECTURES",
    "DEFAULT_CHUNK_BYTES",
    "KV_DTYPES",
    "LAYOUTS",
    "KVLayout",
    "Linear",
    "ModelSpec",
    "check_chunk_bytes",
    "load_model",
    "models",
]
