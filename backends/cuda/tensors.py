"""Arenas as ordinary torch tensors: no copy, and the addresses live as long as a tensor does.

Layouts (row = one token in one arena, H heads of D elements):

| layout | arenas | row | K of layer l starts at |
|---|---|---|---|
| token_major | 1 | [layer][k or v][H][D] | (2 l) H D elements into the row |
| kv_split | K, V | [layer][H][D] | l H D elements into the K arena's row |
| per_layer | K0, V0, K1, ... | [H][D] | arena 2 l |

Touching what is not mapped faults: never print or reduce a whole arena. Imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vtsim.backends.cuda.memory import CudaMemory
from vtsim.backends.cuda.owners import Reservation
from vtsim.errors import ConfigError
from vtsim.spec import KVLayout


@dataclass(frozen=True, slots=True)
class KVShape:
    """What is cached for a token."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16

    @property
    def head_bytes(self) -> int:
        """K or V of one token in one layer."""
        return self.kv_heads * self.head_dim * int(self.dtype.itemsize)

    def layout(self, name: str, chunk_bytes: int, max_tokens: int) -> KVLayout:
        """The layout of that name. Raises ConfigError if there is none."""
        arenas = {"token_major": 1, "kv_split": 2, "per_layer": 2 * self.layers}.get(name)
        if arenas is None:
            raise ConfigError(f"unknown layout {name!r}: token_major, kv_split or per_layer")
        row_bytes = 2 * self.layers * self.head_bytes // arenas
        return KVLayout(name, arenas, row_bytes, chunk_bytes, max_tokens)


class _Bytes:
    """A range of addresses in the form tensors are made of; holds the reservation."""

    def __init__(self, reservation: Reservation) -> None:
        self.owner = reservation
        interface: dict[str, Any] = {
            "shape": (reservation.nbytes,),
            "typestr": "|u1",
            "data": (reservation.address, False),
            "version": 3,
        }
        if on_host(reservation):
            self.__array_interface__ = interface
        else:
            self.__cuda_array_interface__ = interface
        reservation.viewers.add(self)


def on_host(reservation: Reservation) -> bool:
    """True if the fake driver's host memory is behind the addresses."""
    return bool(getattr(reservation.driver.api, "backed", False))


def byte_tensor(reservation: Reservation) -> torch.Tensor:
    """The whole range as uint8, on its device; the range cannot be freed while it lives."""
    view = _Bytes(reservation)
    if on_host(reservation):
        import numpy as np

        return torch.from_numpy(np.asarray(view))
    return torch.as_tensor(view, device=f"cuda:{reservation.driver.ordinal}")


class ArenaTensors:
    """Views of all slots' K and V by layer: [slots, tokens, H, D], strided, nothing copied."""

    def __init__(self, memory: CudaMemory, shape: KVShape) -> None:
        kv = memory.kv
        self.shape = shape
        self.slot_tokens = kv.slot_stride_bytes // kv.row_bytes
        """Rows of a slot, all of its addresses: more than may be mapped."""
        self._name = kv.name
        self._row = kv.row_bytes // shape.dtype.itemsize
        self._slots = memory.reservation(0).nbytes // kv.slot_stride_bytes
        self._arenas = [
            byte_tensor(memory.reservation(arena)).view(shape.dtype) for arena in range(kv.arenas)
        ]

    @property
    def device(self) -> torch.device:
        return self._arenas[0].device

    def keys(self, layer: int) -> torch.Tensor:
        return self._view(layer, 0)

    def values(self, layer: int) -> torch.Tensor:
        return self._view(layer, 1)

    def flat(self, layer: int, value: int) -> torch.Tensor:
        """[slots x tokens, H, D]: slot s starts at row s x `slot_tokens`, as kernels with start
        offsets want it."""
        return self._view(layer, value).flatten(0, 1)

    def _view(self, layer: int, value: int) -> torch.Tensor:
        shape = self.shape
        head = shape.kv_heads * shape.head_dim
        arena, offset = {
            "token_major": (0, (2 * layer + value) * head),
            "kv_split": (value, layer * head),
            "per_layer": (2 * layer + value, 0),
        }[self._name]
        return self._arenas[arena].as_strided(
            (self._slots, self.slot_tokens, shape.kv_heads, shape.head_dim),
            (self.slot_tokens * self._row, self._row, shape.head_dim, 1),
            offset,
        )

    def close(self) -> None:
        """Let go of the arenas; tensors handed out keep theirs."""
        self._arenas.clear()
