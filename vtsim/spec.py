"""Sizes of models, GPUs and KV layouts: every byte/token/chunk conversion goes through here.

This module only re-exports; it knows no policy, no time and no profile folder (that is
`vtsim.backends.gpus`).
"""

from vtsim._gpu import (
    AllocationCosts,
    CallCost,
    DecodeKernel,
    ElementwiseCosts,
    GpuSpec,
    HostCosts,
    LinearCosts,
    LinkCosts,
    PrefillKernel,
    Provenance,
    VmmCosts,
)
from vtsim._growing import GrowingLayout
from vtsim._layout import DEFAULT_CHUNK_BYTES, LAYOUTS, KVLayout, check_chunk_bytes
from vtsim._model import ARCHITECTURES, KV_DTYPES, Linear, ModelSpec, load_model, models
from vtsim._profile import parse_gpu

__all__ = [
    "ARCHITECTURES",
    "DEFAULT_CHUNK_BYTES",
    "KV_DTYPES",
    "LAYOUTS",
    "AllocationCosts",
    "CallCost",
    "DecodeKernel",
    "ElementwiseCosts",
    "GpuSpec",
    "GrowingLayout",
    "HostCosts",
    "KVLayout",
    "Linear",
    "LinearCosts",
    "LinkCosts",
    "ModelSpec",
    "PrefillKernel",
    "Provenance",
    "VmmCosts",
    "check_chunk_bytes",
    "load_model",
    "models",
    "parse_gpu",
]
