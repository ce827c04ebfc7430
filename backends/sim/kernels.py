"""Attention kernels by name: which family prefills, which decodes, and at what integer rates.

The families' speeds are data in the GPU profile; a profile that adds a family of one name under
both `[prefill]` and `[decode]` has added a kernel, without an edit here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from vtsim.errors import ConfigError
from vtsim.request import TICKS_PER_S, Tick
from vtsim.spec import GpuSpec, ModelSpec

SCALE_BITS = 20
"""Rates that are multiplied by large counts carry this many fractional bits."""


class KernelChoice(NamedTuple):
    """The families a kernel name stands for."""

    prefill: str
    decode: str


KERNELS: Mapping[str, KernelChoice] = MappingProxyType(
    {
        "flash": KernelChoice("flash", "flash"),
        "flash_paged": KernelChoice("flash_paged", "flash_paged"),
        # What vLLM 0.4.2 ran, the vTensor paper's baseline: CUDA cores, Triton prefix-prefill.
        "paged_v2": KernelChoice("triton_prefix", "paged_cuda"),
    }
)


def kernel_names(gpu: GpuSpec) -> list[str]:
    """Kernels that the profile has numbers for."""
    own = [name for name in gpu.decode if name in gpu.prefill and name not in KERNELS]
    known = [
        name
        for name, choice in KERNELS.items()
        if choice.prefill in gpu.prefill and choice.decode in gpu.decode
    ]
    return known + own


def kernel_choice(gpu: GpuSpec, name: str) -> KernelChoice:
    """The families of kernel `name`; ConfigError, with the known names, if the profile lacks it."""
    if name not in kernel_names(gpu):
        raise ConfigError(
            f"unknown kernel {name!r} on {gpu.name}: use one of {', '.join(kernel_names(gpu))}"
        )
    return KERNELS.get(name, KernelChoice(name, name))


def ticks_for(amount: float, per_s: float) -> Tick:
    """Ticks that `amount` takes at `per_s`, rounded once."""
    return round(amount * TICKS_PER_S / per_s)


def _scaled(amount: float, per_s: float) -> int:
    return round(amount * (TICKS_PER_S << SCALE_BITS) / per_s)


class DecodeRate(NamedTuple):
    """Decode attention of all layers: `fixed + kv_tokens * per_kv_token` ticks."""

    fixed: Tick
    per_kv_token: Tick


def decode_rate(model: ModelSpec, gpu: GpuSpec, tp: int, family: str) -> DecodeRate:
    """The slower of reading KV and computing, per KV token: both grow with it, so one is the
    maximum at every length. Repeated KV heads (tp above their number) are read on each GPU."""
    kernel = gpu.decode[family]
    flops = 4 * (model.q_heads // tp) * model.head_dim * model.layers
    return DecodeRate(
        model.layers * kernel.kernel,
        max(
            ticks_for(model.token_bytes(tp), kernel.bytes_per_s),
            ticks_for(flops, kernel.flops_per_s),
        ),
    )


class PrefillRate(NamedTuple):
    """Prefill attention of all layers. The three rates carry SCALE_BITS fractional bits."""

    fixed: Tick
    per_prefix_pair: int
    """One new token attending one token before its chunk."""
    per_causal_square: int
    """A chunk of c tokens attends c * c / 2 pairs of its own: this times c * c."""
    per_kv_token: int

    def chunk(self, tokens: int, prefix: int) -> Tick:
        """Ticks of one chunk, beyond `fixed` of the step: c * (p + c/2) pairs, or the KV read."""
        compute = tokens * (prefix * self.per_prefix_pair + tokens * self.per_causal_square)
        memory = (tokens + prefix) * self.per_kv_token
        return max(compute, memory) >> SCALE_BITS


def prefill_rate(model: ModelSpec, gpu: GpuSpec, tp: int, family: str) -> PrefillRate:
    """Integer rates of one family on this model, cut over `tp` GPUs."""
    kernel = gpu.prefill[family]
    pair_flops = 4 * (model.q_heads // tp) * model.head_dim * model.layers
    return PrefillRate(
        model.layers * kernel.kernel,
        _scaled(pair_flops, kernel.prefix_flops_per_s),
        _scaled(pair_flops / 2, kernel.causal_flops_per_s),
        _scaled(model.token_bytes(tp), kernel.bytes_per_s),
    )
