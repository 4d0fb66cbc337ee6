"""Attention over paged keys and values, known to transformers as `triptych_paged`.

A forward step is one flattened batch: the new tokens of several sequences, one behind the other. Every layer writes
its new keys and values into the slab, then each sequence attends over its own blocks: those with one new token
(decode) in one batch, longer ones (prefill chunks) one by one.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from triptych.models.base import PagedInputs
from triptych.models.paged_step import Chunk, DecodeGroup, SlabShape, index_step

ATTENTION_NAME = "triptych_paged"


class PagedStep:
    """One forward step over a KV slab, shared by all layers."""

    def __init__(self, inputs: PagedInputs, kv_slab: Tensor) -> None:
        """kv_slab: [blocks, layers, 2, block_size, kv_heads, head_size], contiguous."""
        blocks, layers, _, block_size, kv_heads, head_size = kv_slab.shape
        self._slab = SlabShape(blocks, layers, block_size, kv_heads, head_size)
        self._planes = kv_slab.view(-1, block_size * kv_heads * head_size)
        self._rows = kv_slab.view(-1, kv_heads * head_size)
        self._indices = index_step(inputs, self._slab, kv_slab.dtype)

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Puts the step's keys and values, [tokens, kv_heads, head_size] each, where its slots say."""
        rows = self._indices.write_rows[layer]
        self._rows.index_copy_(0, rows[0], key.flatten(1))
        self._rows.index_copy_(0, rows[1], value.flatten(1))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention of the step's queries over their sequences: [tokens, heads, head_size].

        query:      [tokens, heads, head_size]
        key, value: [tokens, kv_heads, head_size] of the step itself, already written
        """
        decodes, chunks = self._indices.decodes, self._indices.chunks
        if decodes is not None and not chunks:
            return self._attend_decodes(decodes, layer, query, scaling)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for chunk in chunks:
            if chunk.planes is None:
                keys, values = key[chunk.tokens], value[chunk.tokens]
            else:
                keys, values = self._read(layer, chunk.planes, 1)[:, 0, : chunk.kv_length]
            output[chunk.tokens] = _attend_chunk(chunk, query[chunk.tokens], keys, values, scaling)
        if decodes is not None:
            output[decodes.tokens] = self._attend_decodes(decodes, layer, query[decodes.tokens], scaling)
        return output

    def _attend_decodes(self, group: DecodeGroup, layer: int, query: Tensor, scaling: float) -> Tensor:
        read = self._read(layer, group.planes, group.count)
        if group.stale is not None:
            read.view(-1, self._slab.kv_heads * self._slab.head_size).index_fill_(0, group.stale, 0)
        keys, values = read[:, :, : group.length].transpose(2, 3)  # [sequences, kv_heads, length, head_size]
        # The query heads that share a key head stand in as its queries, so that no key is copied for them.
        shared = query.view(group.count, self._slab.kv_heads, -1, self._slab.head_size)
        attended = functional.scaled_dot_product_attention(shared, keys, values, attn_mask=group.mask, scale=scaling)
        return attended.reshape(query.shape)

    def _read(self, layer: int, planes: Tensor, sequences: int) -> Tensor:
        """A copy of whole blocks: [2, sequences, tokens, kv_heads, head_size]."""
        read = self._planes.index_select(0, planes + 2 * layer)
        return read.view(2, sequences, -1, self._slab.kv_heads, self._slab.head_size)


def _attend_chunk(chunk: Chunk, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """[tokens, heads, head_size]; keys and values are [kv_length, kv_heads, head_size]."""
    share = query.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(share, dim=1) for each in (keys, values))
    queries, keys, values = (each.transpose(0, 1)[None] for each in (query, keys, values))
    attended = functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=scaling
    )
    return attended[0].transpose(0, 1)


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
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # set by every decoder's attention module
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    paged.write(layer, keys, values)
    return paged.attend(layer, queries, keys, values, scaling)[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """What may be seen is told by PagedInputs; transformers has no mask to make."""


AttentionInterface.register(ATTENTION_NAME, paged_attention)
AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)
