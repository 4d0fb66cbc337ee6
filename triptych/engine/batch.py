"""A step's tokens flattened into the arrays that a forward pass reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.engine.device import ship
from triptych.engine.plan import Chunk
from triptych.engine.sequence import DecodeSequence
from triptych.journey import Int64Array
from triptych.models.base import PagedInputs
from triptych.multimodal.rope import rope_positions


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Consecutive tokens of one sequence.

    token_ids: [n] int64
    rope:      [3, n] int64
    begin:     tokens of the sequence whose KV is there already
    blocks:    the sequence's block table
    """

    token_ids: Int64Array
    rope: Int64Array
    begin: int
    blocks: Int64Array
    wants_logits: bool  # of its last token

    @property
    def end(self) -> int:
        return self.begin + len(self.token_ids)


def decode_stretch(sequence: DecodeSequence) -> Stretch:
    """The last token of a branch."""
    position = sequence.num_kv_tokens
    return Stretch(
        token_ids=np.array(sequence.tokens[-1:], dtype=np.int64),
        rope=np.full((3, 1), position + sequence.rope_delta, dtype=np.int64),
        begin=position,
        blocks=sequence.blocks,
        wants_logits=True,
    )


def chunk_stretch(chunk: Chunk) -> Stretch:
    """A chunk of a prompt and of what was generated behind it."""
    prompt, generated = chunk.sequence.layout, chunk.sequence.generated
    ids = prompt.token_ids[chunk.begin : chunk.end].astype(np.int64)
    if chunk.end > prompt.num_tokens:
        begin, end = (max(position - prompt.num_tokens, 0) for position in (chunk.begin, chunk.end))
        ids = np.concatenate([ids, np.array(generated[begin:end], dtype=np.int64)])
    return Stretch(
        token_ids=ids,
        rope=rope_positions(prompt, chunk.begin, chunk.end),
        begin=chunk.begin,
        blocks=np.array(chunk.sequence.blocks, dtype=np.int64),
        wants_logits=chunk.is_last,
    )


def flatten(stretches: Sequence[Stretch], block_size: int, device: torch.device) -> tuple[Tensor, PagedInputs]:
    """Token ids [tokens] int64 on the device, and where they stand."""
    lengths = np.array([len(stretch.token_ids) for stretch in stretches])
    begins = np.array([stretch.begin for stretch in stretches])
    tables = _block_tables(stretches, block_size)
    ends = np.cumsum(lengths)
    rows = np.repeat(np.arange(len(stretches)), lengths)
    position = np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)
    slots = tables[rows, position // block_size] * block_size + position % block_size
    asked = np.array([end - 1 for end, stretch in zip(ends, stretches, strict=True) if stretch.wants_logits])

    def shipped(array: Int64Array) -> Tensor:
        return ship(torch.from_numpy(array), device)

    inputs = PagedInputs(
        positions=shipped(np.concatenate([stretch.rope for stretch in stretches], axis=1)),
        slots=shipped(slots),
        query_lengths=tuple(lengths.tolist()),
        kv_lengths=tuple((begins + lengths).tolist()),
        block_tables=shipped(tables),
        logits_at=shipped(asked.astype(np.int64)),
    )
    return shipped(np.concatenate([stretch.token_ids for stretch in stretches])), inputs


def _block_tables(stretches: Sequence[Stretch], block_size: int) -> Int64Array:
    """[sequences, most blocks in use]: not the reserved ones, whose number would widen every attention."""
    used = [-(-stretch.end // block_size) for stretch in stretches]
    tables = np.zeros((len(stretches), max(used)), dtype=np.int64)
    for row, (stretch, count) in enumerate(zip(stretches, used, strict=True)):
        tables[row, :count] = stretch.blocks[:count]
    return tables
