"""From sequences to the arrays of a forward pass, and rows to their placeholders."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.multimodal.parts import IMAGE_ID, image, text
from triptych.engine.batch import chunk_stretch, flatten
from triptych.engine.decode_rows import DecodeRows
from triptych.engine.device import Stage
from triptych.engine.fuse import Overlay, fuse
from triptych.engine.landing import LandingMemory
from triptych.engine.plan import Chunk
from triptych.engine.sequence import DecodeSequence, PrefillSequence
from triptych.errors import Cancelled, InvariantViolation, LayoutMismatch
from triptych.journey import Layout, RequestId
from triptych.models.base import PagedInputs
from triptych.multimodal.layout import lay_out
from triptych.multimodal.rope import rope_positions
from triptych.multimodal.rows import RowMap, RowPiece
from triptych.sampling import Sampling

CPU = torch.device("cpu")
ONE = RequestId(bytes(16))


def prompt(layout: Layout, blocks: tuple[int, ...], generated: tuple[int, ...] = ()) -> PrefillSequence:
    sequence = PrefillSequence(ONE, layout, RowMap(layout), generated, keep_kv=True)
    sequence.blocks = blocks
    for item in layout.items:
        sequence.mark_ready(item.index)
    return sequence


def branch(layout: Layout, tokens: list[int], blocks: tuple[int, ...]) -> DecodeSequence:
    return DecodeSequence(ONE, 0, 0, 0, layout, Sampling(), tokens, np.array(blocks))


def flat(branches: Sequence[DecodeSequence], chunks: Sequence[Chunk] = ()) -> tuple[Tensor, PagedInputs]:
    """As it comes to a model, with blocks of 4 tokens."""
    rows = DecodeRows(4)
    made = flatten(rows.update(branches), rows.table, [*map(chunk_stretch, chunks)], block_size=4)
    return made.inputs(Stage(CPU).send(made.arrays))


def test_a_step_is_flattened_branches_first() -> None:
    layout = lay_out([text(6)])
    sequence = prompt(lay_out([text(7, first=50)]), blocks=(9, 4))
    ids, inputs = flat([branch(layout, [80, 81], blocks=(3, 7, 5))], [Chunk(sequence, 2, 7)])
    assert ids.tolist() == [81, 52, 53, 54, 55, 56]
    assert inputs.positions.tolist() == [[7, 2, 3, 4, 5, 6]] * 3
    assert inputs.slots.tolist() == [7 * 4 + 3, 9 * 4 + 2, 9 * 4 + 3, 4 * 4, 4 * 4 + 1, 4 * 4 + 2]
    assert (inputs.query_lengths, inputs.kv_lengths) == ((1, 5), (8, 7))
    assert inputs.block_tables.tolist() == [[3, 7], [9, 4]], "blocks reserved and not in use stay out"
    assert inputs.logits_at.tolist() == [0, 5]


def test_only_the_last_chunk_of_a_prompt_wants_logits() -> None:
    sequence = prompt(lay_out([text(7)]), blocks=(0, 1))
    assert flat([], [Chunk(sequence, 0, 3)])[1].logits_at.tolist() == []
    assert flat([], [Chunk(sequence, 3, 7)])[1].logits_at.tolist() == [3]


def test_shorter_block_tables_are_padded() -> None:
    layout = lay_out([text(6)])
    branches = [branch(layout, [1], (3, 7)), branch(layout, [1] * 4, (5, 2, 6))]
    assert flat(branches)[1].block_tables.tolist() == [[3, 7, 0], [5, 2, 6]]


def test_a_continuation_follows_its_prompt_as_text() -> None:
    layout = lay_out([text(2), image(3, 1), text(1)])
    generated = (IMAGE_ID, 41, 42)
    stretch = chunk_stretch(Chunk(prompt(layout, (0, 1, 2), generated), 4, 9))
    assert stretch.token_ids.tolist() == [IMAGE_ID, layout.token_ids[5], *generated]
    assert stretch.rope.tolist() == rope_positions(layout, 4, 9).tolist()
    assert stretch.wants_logits
    behind = chunk_stretch(Chunk(prompt(layout, (0, 1, 2), generated), 7, 9))
    assert behind.token_ids.tolist() == [41, 42]


def test_decoding_continues_the_rope_positions_of_prefill() -> None:
    layout = lay_out([text(2), image(3, 4), text(3)])
    tokens = [9, 9, 9]
    _, inputs = flat([branch(layout, tokens, (0, 1, 2, 3, 4))])
    end = layout.num_tokens + len(tokens)
    assert inputs.positions.tolist() == rope_positions(layout, end - 1, end).tolist()
    assert layout.rope_delta != 0


def test_rows_are_laid_over_their_placeholders_alone() -> None:
    embeddings = torch.zeros(6, 2)
    overlays = [
        Overlay(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), np.array([1, 2])),
        Overlay(torch.tensor([[3.0, 3.0]]), np.array([5])),
    ]
    assert fuse(embeddings, overlays)[0][:, 0].tolist() == [0, 1, 2, 0, 0, 3]


def test_rows_without_a_placeholder_are_an_error() -> None:
    with pytest.raises(LayoutMismatch, match="2 rows came for 1 placeholders"):
        Overlay(torch.zeros(2, 4), np.array([0]))


def test_landing_memory_is_dropped_item_by_item_as_rows_are_fused() -> None:
    layout = lay_out([text(1), image(2, 2), text(1), image(1, 2)])
    memory = LandingMemory(width=3, dtype=torch.float32, device=CPU)
    memory.open(ONE, layout.items)
    memory.check(6 * 12)
    first = memory.view(ONE, 0)
    first.copy_(torch.arange(12.0).view(4, 3))
    assert memory.rows(ONE, RowPiece(0, 1, 3, np.array([2, 3]))).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert memory.drop_fused(ONE, layout, num_computed=4) == 0
    assert memory.drop_fused(ONE, layout, num_computed=5) == 4 * 12
    memory.check(2 * 12)
    with pytest.raises(LayoutMismatch, match="awaits no rows of item 0"):
        memory.view(ONE, 0)
    memory.close(ONE)
    memory.check(0)
    with pytest.raises(Cancelled):
        memory.view(ONE, 1)


def test_a_view_outlives_its_request() -> None:
    layout = lay_out([image(2, 2)])
    memory = LandingMemory(width=3, dtype=torch.float32, device=CPU)
    memory.open(ONE, layout.items)
    late = memory.view(ONE, 0)
    memory.close(ONE)
    memory.open(ONE, layout.items)
    late.fill_(7)
    assert memory.view(ONE, 0).data_ptr() != late.data_ptr()


def test_check_finds_landing_memory_that_nobody_reserved() -> None:
    memory = LandingMemory(width=3, dtype=torch.float32, device=CPU)
    memory.open(ONE, lay_out([image(1, 1)]).items)
    with pytest.raises(InvariantViolation, match="12 bytes of landing memory are held, 0 are reserved"):
        memory.check(0)
