"""Rows counted at every station: processor, encoder, landing memory, slices, placeholders. They never differ."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.multimodal.parts import image, random_parts, text
from triptych.engine.fuse import Overlay, fuse
from triptych.engine.landing import LandingMemory
from triptych.errors import InvariantViolation, LayoutMismatch
from triptych.journey import Item, Layout, RequestId
from triptych.multimodal.layout import lay_out
from triptych.multimodal.rows import RowMap

CPU = torch.device("cpu")
HIDDEN, MERGE = 3, 2
A, B = RequestId(bytes(16)), RequestId(bytes([1]) * 16)


def encoded(item: Item, levels: int = 1) -> Tensor:
    """[rows, levels * HIDDEN] as an encoder makes them; no two numbers of a prompt are equal."""
    base = (item.index + 1) * 1e5
    return base + torch.arange(item.rows * levels * HIDDEN, dtype=torch.float32).view(item.rows, levels * HIDDEN)


def landed(memory: LandingMemory, request_id: RequestId, items: tuple[Item, ...], levels: int = 1) -> None:
    memory.open(request_id, items)
    for item in items:
        memory.view(request_id, item.index).copy_(encoded(item, levels))


def overlays(memory: LandingMemory, request_id: RequestId, rows: RowMap, begin: int, end: int) -> list[Overlay]:
    """As the engine makes them for a chunk."""
    return [Overlay(memory.rows(request_id, piece), piece.positions - begin) for piece in rows.pieces(begin, end)]


def chunks(rows: RowMap, num_tokens: int, rng: random.Random) -> list[tuple[int, int]]:
    """Any way to cut a prompt that keeps atomic spans whole."""
    found, begin = [], 0
    while begin < num_tokens:
        end = rows.cut(begin, min(num_tokens, begin + rng.randint(1, 9)))
        found.append((begin, end))
        begin = end
    return found


@dataclass(slots=True)
class Counted:
    """Rows of one prompt at each station."""

    processor: int
    encoder: int = 0
    landing: int = 0
    sliced: int = 0
    scattered: int = 0


@pytest.mark.parametrize("seed", range(500))
def test_processor_encoder_slices_and_placeholders_count_the_same_rows(seed: int) -> None:
    rng = random.Random(seed)
    levels = rng.choice((1, 1, 3))
    layout = lay_out(random_parts(seed))
    rows, memory = RowMap(layout), LandingMemory(HIDDEN, torch.float32, CPU, levels)
    counted = Counted(processor=sum(item.grid.patches // MERGE**2 for item in layout.items))
    waiting = list(layout.items)
    memory.open(A, ())
    out = torch.zeros(layout.num_tokens, HIDDEN)
    deep = torch.zeros(levels - 1, layout.num_tokens, HIDDEN)
    for begin, end in chunks(rows, layout.num_tokens, rng):
        while waiting and waiting[0].runs[0].start < end:  # a window that just suffices, or a larger one
            window = tuple(waiting[: rng.randint(1, len(waiting))])
            del waiting[: len(window)]
            landed(memory, A, window, levels)
            counted.encoder += sum(len(encoded(item)) for item in window)
        laid = overlays(memory, A, rows, begin, end)
        counted.sliced += sum(len(overlay.rows) for overlay in laid)
        _, deeper = fuse(out[begin:end], laid, levels)
        if deeper is not None:
            deep[:, begin:end] = deeper
        counted.landing += memory.drop_fused(A, layout, end) // memory.row_bytes
    counted.scattered = int(out.any(dim=1).sum())
    assert counted == Counted(*[layout.num_rows] * 5)
    memory.check(0)
    _check_places(layout, out, deep, levels)


def _check_places(layout: Layout, out: Tensor, deep: Tensor, levels: int) -> None:
    """Every row of every item at its place, by plain counting; nothing anywhere else."""
    wanted = torch.zeros(levels, layout.num_tokens, HIDDEN)
    for item in layout.items:
        places = [place for run in item.runs for place in range(run.start, run.end)]
        for row, place in zip(encoded(item, levels), places, strict=True):
            wanted[:, place] = row.view(levels, HIDDEN)
    assert torch.cat([out[None], deep]).equal(wanted)


@pytest.mark.parametrize("seed", range(100))
def test_the_pieces_of_any_chunking_are_each_item_once_counted_from_its_own_first_row(seed: int) -> None:
    layout = lay_out(random_parts(seed))
    rows, rng = RowMap(layout), random.Random(seed)
    met: dict[int, list[int]] = {item.index: [] for item in layout.items}
    for begin, end in chunks(rows, layout.num_tokens, rng):
        for piece in rows.pieces(begin, end):
            assert int(piece.positions[0]) >= begin
            assert int(piece.positions[-1]) < end
            met[piece.item_index] += range(piece.row_begin, piece.row_end)
    assert met == {item.index: list(range(item.rows)) for item in layout.items}


def test_an_offset_that_is_applied_twice_is_an_error_and_never_other_rows() -> None:
    layout = lay_out([text(2), image(4, 4)])
    rows, memory = RowMap(layout), LandingMemory(HIDDEN, torch.float32, CPU)
    landed(memory, A, layout.items)
    (piece,) = rows.pieces(10, 18)
    sliced = memory.rows(A, piece)
    with pytest.raises(LayoutMismatch, match="0 rows came for 8 placeholders"):
        Overlay(sliced[piece.row_begin : piece.row_end], piece.positions - 10)


def test_a_chunk_and_a_whole_prompt_share_a_step_and_the_rest_stays_for_the_next() -> None:
    """The article's numbers: 480 rows of one prompt's chunk and 100 of another's make 580; of B, 576 rows stay."""
    a, b = (lay_out([text(120), image(24, 24, media=media), text(80)]) for media in (0, 1))
    memory = LandingMemory(HIDDEN, torch.float32, CPU)
    for request_id, layout in ((A, a), (B, b)):
        landed(memory, request_id, layout.items)
    laid = overlays(memory, A, RowMap(a), 0, 600)
    laid += [Overlay(part.rows, part.at + 600) for part in overlays(memory, B, RowMap(b), 120, 220)]
    assert [len(part.rows) for part in laid] == [480, 100]
    fused, _ = fuse(torch.zeros(700, HIDDEN), laid)
    assert int(fused.any(dim=1).sum()) == 580
    assert fused[120:600].equal(encoded(a.items[0])[:480])
    assert fused[600:].equal(encoded(b.items[0])[:100])
    assert memory.drop_fused(A, a, 600) == memory.drop_fused(B, b, 220) == 0
    assert len(memory.view(B, 0)) == 576
    assert memory.view(B, 0).equal(encoded(b.items[0]))


def test_windows_of_one_prompt_land_beside_one_another_and_no_item_twice() -> None:
    layout = lay_out([image(2, 2), text(1), image(1, 3), image(2, 1)])
    memory = LandingMemory(HIDDEN, torch.float32, CPU, levels=2)
    assert memory.row_bytes == 2 * HIDDEN * 4
    landed(memory, A, layout.items[:1], levels=2)
    first = memory.view(A, 0)
    with pytest.raises(LayoutMismatch, match="awaits no rows of item 1"):
        memory.view(A, 1)
    landed(memory, A, layout.items[1:], levels=2)
    assert memory.view(A, 0).data_ptr() == first.data_ptr()
    memory.check(layout.num_rows * memory.row_bytes)
    with pytest.raises(InvariantViolation, match="item 1 is open already"):
        memory.open(A, layout.items[1:])
    assert memory.drop_fused(A, layout, layout.items[1].span.end) == 7 * memory.row_bytes
    assert np.array_equal(memory.view(A, 2).numpy(), encoded(layout.items[2], 2).numpy())
