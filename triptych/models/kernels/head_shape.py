"""What the heads of a decoder's merged product of queries, keys and values look like."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Columns of the product: all queries' heads, then all keys', then all values'."""

    heads: int
    kv_heads: int
    head_size: int
    epsilon: float = 1e-6  # of the norm of queries and keys, where there is one

    @property
    def turned(self) -> int:
        """Heads that are turned: queries' and keys'."""
        return self.heads + self.kv_heads

    @property
    def all(self) -> int:
        return self.heads + 2 * self.kv_heads


@dataclass(frozen=True, slots=True, eq=False)
class TokenPlaces:
    """Where a step's tokens stand in their sequences and in the slab; the same for every layer.

    cos, sin: [tokens, head_size / 2] float32, of the angle between number i and number i + head_size / 2 of each head
    slots:    [tokens] int64  block_id * block_size + offset; -1: this token's keys and values are written nowhere
    kv_slab:  [blocks, layers, 2, block_size, kv_heads, head_size] contiguous, of the model's dtype or float8_e4m3fn
    """

    cos: Tensor
    sin: Tensor
    slots: Tensor
    kv_slab: Tensor
    shape: HeadShape


class Turn(Protocol):
    """One step's rotary embedding and KV write."""

    num_tokens: int

    def __call__(self, layer: int, qkv: Tensor, head_norm: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [tokens, heads, head_size], keys and values [tokens, kv_heads, head_size]; any row stride.

        Queries and keys are RMS-normed by head where there is a norm, then turned; https://arxiv.org/abs/2104.09864.
        Keys and values are also written into the layer's planes of the slab. Into a slab of float8 they go rounded,
        and what comes back is rounded alike: it must not matter whether they are read here or there.

        qkv:       [tokens, all heads * head_size] contiguous; may be overwritten
        head_norm: [heads + kv_heads, head_size] of the model's dtype
        """


def check_places(places: TokenPlaces) -> None:
    """Everything a kernel takes for granted."""
    slab, shape = places.kv_slab, places.shape
    assert slab.is_contiguous(), f"a slab's blocks follow one another, got strides {slab.stride()}"
    assert slab.shape[2] == 2, slab.shape
    assert slab.shape[4:] == (shape.kv_heads, shape.head_size), (slab.shape, shape)
    wanted = (len(places.slots), shape.head_size // 2)
    for angle in (places.cos, places.sin):
        assert angle.shape == wanted, (angle.shape, wanted)
        assert angle.dtype == torch.float32, angle.dtype
        assert angle.is_contiguous(), angle.stride()
