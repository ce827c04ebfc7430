"""radix: SGLang's token pool and radix cache.

One ordinary allocation, a row a token. All content is found by a radix tree, to the token: what a
prompt shares is locked while it is used, every chunk that has been computed is put into the tree at
once, and when tokens run short whole leaves go, the least recently used first. One difference from
SGLang: a copy computed while another one is in the tree is freed with its sequence, not before.
"""

from __future__ import annotations

from dataclasses import dataclass

from vtsim.errors import ConfigError
from vtsim.memory.blocks import BlockStore
from vtsim.memory.eviction import EvictionRule, make_order
from vtsim.policies.paged import PagedPolicy


@dataclass(frozen=True, slots=True)
class RadixParameters:
    """`pool_tokens`: a measured pool size; 0 derives it from the limit. `prefix_cache`: False is
    SGLang's --disable-radix-cache. `evict`: which leaf goes first (SGLang: lru or lfu); `belady` is
    an oracle."""

    pool_tokens: int = 0
    prefix_cache: bool = True
    evict: EvictionRule = "lru"

    def __post_init__(self) -> None:
        if self.pool_tokens < 0:
            raise ConfigError(f"radix.pool_tokens: must be >= 0, got {self.pool_tokens}")


class RadixPolicy(PagedPolicy):
    """A paged pool of blocks of one token, whose cache lets go of whole leaves."""

    name = "radix"
    summary = "SGLang: a static pool of tokens under a radix tree, whole leaves evicted"
    parameters_type = RadixParameters
    kernels = ("flash_paged",)
    caches_chunks = True
    refusals_last = False
    options: RadixParameters

    def _sizes(self) -> tuple[int, int]:
        return 1, self.options.pool_tokens

    def _open_store(self, blocks: int, block: int) -> BlockStore:
        return BlockStore(blocks, block, make_order(self.options.evict, self.known), whole=True)
