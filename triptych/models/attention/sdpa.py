"""Paged attention by torch's scaled_dot_product_attention: on any device, and the measure of other implementations.

Blocks are copied together for each layer, then each sequence attends over its own: those with one new token (decode)
in batches, longer ones (prompt chunks) one by one; in float32 on the CPU those by cpu_chunks.py, and the former, where
it is told what their histories are, by bag_decode.py.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from triptych.journey import Int32Array
from triptych.models.attention import cpu_chunks
from triptych.models.attention.bag_decode import BagDecode, BagStep
from triptych.models.attention.base import AttentionShape
from triptych.models.attention.sdpa_step import Chunk, DecodeGroup, SlabShape, index_step
from triptych.models.base import DecodeInputs, PagedInputs, StepInputs, StepShape
from triptych.models.quantised import from_fp8


class SdpaAttention:
    """An Attention."""

    name = "sdpa"
    recordable = False  # how much is read depends on the lengths

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._bags = BagDecode(shape)

    def step(self, inputs: PagedInputs, kv_slab: Tensor) -> "SdpaStep":
        """As Attention.step; whatever lies in the slab where nothing was written does no harm."""
        bags = self._bags.step(inputs, kv_slab) if inputs.histories and self._bags.takes(kv_slab) else None
        return SdpaStep(inputs, kv_slab, self._shape.dtype, self._shape.scale, bags)

    def decode_step(self, inputs: DecodeInputs, kv_slab: Tensor) -> "_PaddedStep":
        """As Attention.decode_step. Waits for the device."""
        lengths = inputs.kv_lengths.tolist()
        # A row that stands for no sequence reads one token of whatever block: its result is thrown away.
        told = PagedInputs(
            positions=inputs.positions,
            slots=inputs.slots,
            query_lengths=(1,) * len(lengths),
            kv_lengths=tuple(max(length, 1) for length in lengths),
            block_tables=inputs.block_tables.long(),
            logits_at=inputs.slots,
        )
        padded = inputs.kv_lengths == 0 if 0 in lengths else None
        return _PaddedStep(self.step(told, kv_slab), padded)

    def list_step(self, sequences: Int32Array, shape: StepShape) -> list[NDArray[np.generic]]:
        """As Attention.list_step: nothing but the sequences themselves is wanted."""
        return []

    def told_step(self, inputs: StepInputs, kv_slab: Tensor) -> "_BegunStep":
        """As Attention.told_step. Waits for the device."""
        _, lengths, kv_lengths = inputs.sequences.tolist()
        count = sum(length > 0 for length in lengths)
        told = PagedInputs(
            positions=inputs.positions,
            slots=inputs.slots,
            query_lengths=tuple(lengths[:count]),
            kv_lengths=tuple(kv_lengths[:count]),
            block_tables=inputs.block_tables.long(),
            logits_at=inputs.logits_at,
        )
        return _BegunStep(self.step(told, kv_slab), sum(lengths))


class SdpaStep:
    """One forward step over a KV slab, shared by all layers: an AttentionStep."""

    def __init__(
        self, inputs: PagedInputs, kv_slab: Tensor, dtype: torch.dtype, scale: float, bags: BagStep | None = None
    ) -> None:
        """kv_slab: [blocks, layers, 2, block_size, kv_heads, head_size], contiguous; dtype: of queries and results.

        bags: what of the step is attended to there
        """
        blocks, layers, _, block_size, kv_heads, head_size = kv_slab.shape
        self._slab = SlabShape(blocks, layers, block_size, kv_heads, head_size)
        self._kv_dtype = kv_slab.dtype
        # As bytes where numbers are of one: torch does not move numbers of every such type.
        moved = kv_slab.view(torch.uint8) if kv_slab.dtype.itemsize == 1 else kv_slab
        self._planes = moved.view(-1, block_size * kv_heads * head_size)
        self._dtype = dtype
        self._scale = scale
        indices = index_step(inputs, self._slab, dtype, bags.rows if bags is not None else ())
        self._decodes, self._chunks = indices.decodes, indices.chunks
        self._bags, self._batches = bags, bags.batches if bags is not None else ()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As AttentionStep.attend."""
        decodes, chunks, batches = self._decodes, self._chunks, self._batches
        if len(decodes) == 1 and not (chunks or batches):
            return self._attend_decodes(decodes[0], layer, query)
        if self._bags is not None and len(batches) == 1 and batches[0].count == len(query):
            return self._bags.attend(batches[0], layer, query, key)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for chunk in chunks:
            if chunk.planes is None:
                keys, values = key[chunk.tokens], value[chunk.tokens]
            else:
                keys, values = self._read(chunk.planes[layer], 1)[:, 0, : chunk.kv_length]
            output[chunk.tokens] = _attend_chunk(chunk, query[chunk.tokens], keys, values, self._scale)
        for group in decodes:
            output[group.tokens] = self._attend_decodes(group, layer, query[group.tokens])
        if self._bags is not None:
            for batch in batches:
                tokens = batch.tokens
                output[tokens] = self._bags.attend(batch, layer, query[tokens], key[tokens])
        return output

    def _attend_decodes(self, group: DecodeGroup, layer: int, query: Tensor) -> Tensor:
        read = self._read(group.planes[layer], group.count)
        if group.stale is not None:
            read.view(-1, self._slab.kv_heads * self._slab.head_size).index_fill_(0, group.stale, 0)
        keys, values = read[:, :, : group.length].transpose(2, 3)  # [sequences, kv_heads, length, head_size]
        # The query heads that share a key head stand in as its queries, so that no key is copied for them.
        shared = query.view(group.count, self._slab.kv_heads, -1, self._slab.head_size)
        attended = functional.scaled_dot_product_attention(
            shared, keys, values, attn_mask=group.mask, scale=self._scale
        )
        return attended.reshape(query.shape)

    def _read(self, planes: Tensor, sequences: int) -> Tensor:
        """A copy of whole blocks: [2, sequences, tokens, kv_heads, head_size]."""
        read = self._planes.index_select(0, planes).view(self._kv_dtype)
        return from_fp8(read, self._dtype).view(2, sequences, -1, self._slab.kv_heads, self._slab.head_size)


class _PaddedStep:
    """A step some of whose rows stand for no sequence. padded: [tokens] bool; None where there are none"""

    def __init__(self, step: SdpaStep, padded: Tensor | None) -> None:
        self._step = step
        self._padded = padded

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As AttentionStep.attend."""
        output = self._step.attend(layer, query, key, value)
        return output if self._padded is None else output.masked_fill(self._padded[:, None, None], 0)


class _BegunStep:
    """A step of which only the first `count` tokens belong to a sequence."""

    def __init__(self, step: SdpaStep, count: int) -> None:
        self._step = step
        self._count = count

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As AttentionStep.attend."""
        output = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        if self._count:
            output[: self._count] = self._step.attend(layer, *(each[: self._count] for each in (query, key, value)))
        return output


def _attend_chunk(chunk: Chunk, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """[tokens, heads, head_size]; keys and values are [kv_length, kv_heads, head_size]."""
    if cpu_chunks.takes(query, chunk.kv_length):
        return cpu_chunks.attend_chunk(query, keys, values, scale)
    share = query.shape[1] // keys.shape[1]
    is_shared = share > 1 and query.device.type == "cpu"  # by torch itself, which elsewhere may not be able to
    if share > 1 and not is_shared:
        keys, values = (each.repeat_interleave(share, dim=1) for each in (keys, values))
    queries, keys, values = (each.transpose(0, 1)[None] for each in (query, keys, values))
    attended = functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=scale, enable_gqa=is_shared
    )
    return attended[0].transpose(0, 1)
