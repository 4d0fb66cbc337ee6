"""Attention over paged keys and values, known to transformers as `triptych_paged`.

A forward step is one flattened batch: the new tokens of several sequences, one behind the other. Every layer writes
its new keys and values into the slab, then torch's own attention reads them there.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from triptych.models.attention.sdpa import SdpaStep
from triptych.models.base import PagedInputs

ATTENTION_NAME = "triptych_paged"


class PagedStep:
    """One forward step over a KV slab, shared by all layers."""

    def __init__(self, inputs: PagedInputs, kv_slab: Tensor) -> None:
        """kv_slab: [blocks, layers, 2, block_size, kv_heads, head_size], contiguous."""
        *_, kv_heads, head_size = kv_slab.shape
        self.scale = float(head_size**-0.5)
        self._rows = kv_slab.view(-1, kv_heads * head_size)
        self._write_rows = _write_rows(inputs.slots, kv_slab)
        self._attention = SdpaStep(inputs, kv_slab, kv_slab.dtype, self.scale)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Puts the step's keys and values, [tokens, kv_heads, head_size] each, where its slots say."""
        rows = self._write_rows[layer]
        self._rows.index_copy_(0, rows[0], key.flatten(1))
        self._rows.index_copy_(0, rows[1], value.flatten(1))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of the step's queries over their sequences: [tokens, heads, head_size].

        query:      [tokens, heads, head_size]
        key, value: [tokens, kv_heads, head_size] of the step itself, already written
        """
        return self._attention.attend(layer, query, key, value)


def _write_rows(slots: Tensor, kv_slab: Tensor) -> Tensor:
    """[layers, 2, tokens] int64  token rows of the slab where keys and values go"""
    _, layers, pair, block_size, _, _ = kv_slab.shape
    first = (slots // block_size) * (layers * pair * block_size) + slots % block_size
    planes = torch.arange(layers * pair, device=slots.device) * block_size
    return (planes[:, None] + first[None, :]).view(layers, pair, -1)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    paged: PagedStep,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, heads, tokens, head_size] in, [1, tokens, heads, head_size] out."""
    assert scaling == paged.scale, f"the module scales products by {scaling}, paged attention by {paged.scale}"
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # set by every decoder's attention module
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    paged.write(layer, keys, values)
    return paged.attend(layer, queries, keys, values)[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """What may be seen is told by PagedInputs; transformers has no mask to make."""


AttentionInterface.register(ATTENTION_NAME, paged_attention)
AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)
