"""A step's tokens flattened into the arrays that a forward pass reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from triptych.engine.decode_rows import Rows
from triptych.engine.plan import Chunk
from triptych.journey import Int32Array, Int64Array
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


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """A step on the host, as `PagedInputs` tells it to the device: branches first, then stretches of prompts."""

    token_ids: Int64Array  # [tokens]
    positions: Int64Array  # [3, tokens]
    slots: Int64Array  # [tokens]
    tables: Int64Array  # [sequences, most blocks in use]
    logits_at: Int64Array  # [asked]
    query_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    histories: tuple[int, ...]

    @property
    def arrays(self) -> list[Int64Array]:
        """What is to be shipped, in the order in which `inputs` takes it."""
        return [self.token_ids, self.positions, self.slots, self.tables, self.logits_at]

    def inputs(self, shipped: Sequence[Tensor]) -> tuple[Tensor, PagedInputs]:
        """Token ids [tokens], and where they stand, of `arrays` on the device."""
        token_ids, positions, slots, tables, logits_at = shipped
        told = positions, slots, self.query_lengths, self.kv_lengths, tables, logits_at
        return token_ids, PagedInputs(*told, histories=self.histories)


def flatten(rows: Rows, table: Callable[[int, int], Int32Array], stretches: Sequence[Stretch], block_size: int) -> Flat:
    """table: of the branches, as DecodeRows.table"""
    used = [-(-stretch.end // block_size) for stretch in stretches]
    count, width = rows.count, max([rows.width, *used])
    tables = np.zeros((count + len(stretches), width), dtype=np.int64)
    tables[:count] = table(count, width)
    for row, (stretch, blocks) in enumerate(zip(stretches, used, strict=True), start=count):
        tables[row, :blocks] = stretch.blocks[:blocks]
    lengths = [len(stretch.token_ids) for stretch in stretches]
    ends = count + np.cumsum(lengths, dtype=np.int64)
    asked = [end - 1 for end, stretch in zip(ends.tolist(), stretches, strict=True) if stretch.wants_logits]
    slots = [_slots(stretch, block_size) for stretch in stretches]
    return Flat(
        token_ids=np.concatenate([rows.token_ids, *(stretch.token_ids for stretch in stretches)]),
        positions=np.concatenate([np.tile(rows.ropes, (3, 1)), *(stretch.rope for stretch in stretches)], axis=1),
        slots=np.concatenate([rows.slots, *slots]),
        tables=tables,
        logits_at=np.concatenate([np.arange(count), np.array(asked, dtype=np.int64)]),
        query_lengths=(*((1,) * count), *lengths),
        kv_lengths=(*(rows.positions + 1).tolist(), *(stretch.end for stretch in stretches)),
        histories=(*rows.histories, *((0,) * len(stretches))),
    )


def _slots(stretch: Stretch, block_size: int) -> Int64Array:
    """block_id * block_size + offset of each of its tokens."""
    positions = np.arange(stretch.begin, stretch.end)
    return stretch.blocks[positions // block_size] * block_size + positions % block_size
