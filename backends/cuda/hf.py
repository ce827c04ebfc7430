"""VTensorCache: Hugging Face `generate` on vTensors, unchanged models and kernels.

`model.generate(..., past_key_values=VTensorCache(model.config))`. One vTensor a batch row; memory
is mapped as tokens come and given back by `close()`. Imports torch and transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from vtsim.backends.cuda.driver import CudaDriver
from vtsim.backends.cuda.tensors import KVShape
from vtsim.backends.cuda.vtensor import VTensor, VTensorPool
from vtsim.errors import ConfigError


class VTensorLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's view of the cache: what transformers calls."""

    is_sliding = False
    is_croppable = True

    keys: Any
    """[batch, heads, tokens, dim], or None when nothing is held; `values` too."""
    values: Any

    def __init__(self, cache: VTensorCache, index: int) -> None:
        super().__init__()
        self._cache = cache
        self._index = index
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, heads, new tokens, dim] -> views of all tokens of the layer, nothing copied.
        No gradient goes through the cache."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[-2]
        self._cache.hold(key_states, self.length)
        self.show()
        with torch.no_grad():  # the arena must not become part of anybody's graph
            self.keys[:, :, start:].copy_(key_states)
            self.values[:, :, start:].copy_(value_states)
        return self.keys, self.values

    def show(self) -> None:
        """Set `keys` and `values` to what the layer holds: [batch, heads, tokens, dim]."""
        self.keys, self.values = (
            view[:, : self.length].transpose(1, 2) for view in self._cache.rows(self._index)
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    @property
    def batch_size(self) -> int:
        return self._cache.batch

    def drop(self) -> None:
        """Hold nothing."""
        self.keys = self.values = None
        self.length = 0
        self.is_initialized = False


class VTensorCache(Cache):  # type: ignore[misc]
    """A transformers `Cache` whose memory is vTensors.

    `config` is the model's; full attention in every layer. `max_tokens` (default: the model's
    positions) is the longest a row may become: addresses, not memory. Everything else is
    `VTensorPool`'s. Raises ConfigError for models it cannot hold.
    """

    def __init__(
        self,
        config: Any,
        *,
        max_tokens: int | None = None,
        max_batch: int = 64,
        layout: str = "token_major",
        chunk_bytes: int = 2 << 20,
        limit_bytes: int | None = None,
        guard_tokens: int = 0,
        driver: CudaDriver | None = None,
    ) -> None:
        text = (
            config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        )
        odd = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
        if odd or getattr(text, "sliding_window", None):
            raise ConfigError(
                f"VTensorCache holds full attention layers only, the model has "
                f"{', '.join(odd) or 'a sliding window'}"
            )
        count = int(text.num_hidden_layers)
        super().__init__(layers=[VTensorLayer(self, index) for index in range(count)])
        self._max_tokens = int(max_tokens or text.max_position_embeddings)
        self._options: dict[str, Any] = {
            "slots": max_batch,
            "layout": layout,
            "chunk_bytes": chunk_bytes,
            "limit_bytes": limit_bytes,
            "guard_tokens": guard_tokens,
            "driver": driver,
        }
        self._pool: VTensorPool | None = None
        self._rows: list[VTensor] = []

    # -- what layers ask for ----------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """Rows held; -1 before the first."""
        return len(self._rows) or -1

    @property
    def held_bytes(self) -> int:
        """Device memory held."""
        return 0 if self._pool is None else self._pool.held_bytes

    def hold(self, states: torch.Tensor, tokens: int) -> None:
        """Have memory for `tokens` in every row; the first layer of a step pays for all layers."""
        batch, heads, _, dim = states.shape
        if self._pool is None:
            shape = KVShape(len(self.layers), heads, dim, states.dtype)
            ordinal = states.device.index or 0
            self._pool = VTensorPool(shape, self._max_tokens, ordinal=ordinal, **self._options)
        while len(self._rows) < batch:
            self._rows.append(self._pool.create())
        for row in self._rows:
            if row.tokens < tokens:
                row.extend(tokens - row.tokens)

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of the batch's rows, [batch, slot tokens, heads, dim]: slots 0, 1, 2, ..."""
        assert self._pool is not None
        tensors, batch = self._pool.tensors, len(self._rows)
        return tensors.keys(layer)[:batch], tensors.values(layer)[:batch]

    # -- what generate asks for -------------------------------------------------------------------

    def _rearrange(self, indices: torch.Tensor) -> None:
        """Row i becomes what row indices[i] is."""
        if self._pool is None or not self._rows:
            return
        length, wanted = self.layers[0].length, len(indices)
        indices = indices.to(self._pool.device)
        kept = [[view[indices, :length].clone() for view in self.rows(i)] for i in range(len(self))]
        for layer in self.layers:
            layer.keys = layer.values = None
        while len(self._rows) > wanted:
            self._rows.pop().release()
        while len(self._rows) < wanted:
            self._rows.append(self._pool.create(length))
        for layer, views in zip(self.layers, kept, strict=True):
            for view, content in zip(self.rows(layer._index), views, strict=True):
                view[:, :length].copy_(content)
            layer.show()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._rearrange(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._rearrange(torch.arange(len(self._rows))[indices.cpu()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._rearrange(torch.arange(len(self._rows)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens (negative), or all behind a length (positive, the old way)."""
        length = self.layers[0].length
        keep = length + tokens_to_remove if tokens_to_remove <= 0 else tokens_to_remove
        if keep >= length:
            return
        for row in self._rows:
            row.shrink(keep)
        for layer in self.layers:
            layer.length = keep
            layer.show()

    def reset(self) -> None:
        """Forget everything. The memory stays pooled for the next use."""
        for layer in self.layers:
            layer.drop()
        while self._rows:
            self._rows.pop().release()

    def close(self) -> None:
        """Give the memory back to the device. Tensors got from the cache must be gone."""
        self.reset()
        if self._pool is not None:
            self._pool.close()
            self._pool = None
