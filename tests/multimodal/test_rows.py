import random

import numpy as np
import pytest

from tests.multimodal.parts import image, masked, random_parts, text
from triptych.errors import InvalidRecord
from triptych.journey import Layout, Run
from triptych.multimodal.layout import lay_out
from triptych.multimodal.rows import RowMap

SEEDS = range(60)


def _rows_by_position(layout: Layout) -> list[tuple[int, int] | None]:
    """For every position the item and its row laid there, by plain counting."""
    found: list[tuple[int, int] | None] = [None] * layout.num_tokens
    for item in layout.items:
        row = 0
        for run in item.runs:
            for position in range(run.start, run.end):
                found[position] = (item.index, row)
                row += 1
    return found


def _is_legal(layout: Layout, position: int) -> bool:
    return not any(run.start < position < run.end for run in layout.atomic)


def test_the_prefix_sum_counts_rows_up_to_and_including_each_position() -> None:
    rows = RowMap(lay_out([text(2), masked((True, False, True, True, True)), text(1)]))
    assert rows.prefix.dtype == np.int64
    assert rows.prefix.tolist() == [0, 0, 1, 1, 2, 3, 4, 4]


def test_a_chunk_asks_for_rows_cached_rows_in_it_and_rows_in_all() -> None:
    rows = RowMap(lay_out([masked((True, True, False, True, True, False, True))]))
    assert (rows.rows_before(3), rows.rows_in(3, 7), rows.rows_before(7)) == (2, 3, 5)


def test_an_image_cut_in_two_chunks_is_counted_in_both() -> None:
    rows = RowMap(lay_out([text(120), image(24, 24), text(80)]))
    assert (rows.rows_in(0, 600), rows.rows_in(600, 776)) == (480, 96)
    assert (rows.rows_before(120), rows.rows_before(696)) == (0, 576)
    (piece,) = rows.pieces(600, 776)
    assert (piece.item_index, piece.row_begin, piece.row_end) == (0, 480, 576)
    assert piece.positions.tolist() == list(range(600, 696))


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_and_pieces_equal_plain_counting_for_every_stretch(seed: int) -> None:
    layout = lay_out(random_parts(seed))
    rows, truth = RowMap(layout), _rows_by_position(layout)
    rng = random.Random(seed)
    for _ in range(80):
        begin, end = sorted(rng.choices(range(layout.num_tokens + 3), k=2))
        expected = [(*entry, position) for position, entry in enumerate(truth) if entry and begin <= position < end]
        assert rows.rows_in(begin, end) == len(expected)
        assert rows.rows_before(begin) == sum(entry is not None for entry in truth[:begin])
        met = []
        pieces = rows.pieces(begin, end)
        for piece in pieces:
            numbers = range(piece.row_begin, piece.row_end)
            assert len(numbers) == len(piece.positions) > 0
            met += [(piece.item_index, row, int(at)) for row, at in zip(numbers, piece.positions, strict=True)]
        assert met == expected
        assert len({piece.item_index for piece in pieces}) == len(pieces)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_ready_prefix_is_the_longest_legal_one_without_a_missing_row(seed: int) -> None:
    layout = lay_out(random_parts(seed))
    rows, truth = RowMap(layout), _rows_by_position(layout)
    rng = random.Random(seed)
    for _ in range(20):
        ready = {item.index for item in layout.items if rng.random() < 0.6}
        missing = [position for position, entry in enumerate(truth) if entry and entry[0] not in ready]
        reach = min(missing, default=layout.num_tokens)
        assert rows.ready_prefix(ready) == max(end for end in range(reach + 1) if _is_legal(layout, end))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_is_the_largest_legal_end_and_always_moves_on(seed: int) -> None:
    layout = lay_out(random_parts(seed))
    rows = RowMap(layout)
    legal = [position for position in range(layout.num_tokens + 5) if _is_legal(layout, position)]
    for begin in legal:
        for limit in range(begin, layout.num_tokens + 5):
            within = [end for end in legal if begin < end <= limit]
            after = next((end for end in legal if end > begin), limit)
            expected = begin if limit == begin else max(within, default=after)
            assert rows.cut(begin, limit) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_at_a_ready_prefix_never_reaches_over_it(seed: int) -> None:
    layout = lay_out(random_parts(seed))
    rows = RowMap(layout)
    rng = random.Random(seed)
    for _ in range(20):
        ready = {item.index for item in layout.items if rng.random() < 0.6}
        begin, reach = 0, rows.ready_prefix(ready)
        while begin < reach:
            end = rows.cut(begin, min(begin + rng.randrange(1, 6), reach))
            assert begin < end <= reach
            begin = end


def test_separators_before_the_first_missing_row_are_ready() -> None:
    rows = RowMap(lay_out([text(2), masked((False, False, True, False))]))
    assert rows.ready_prefix(set()) == 4
    assert rows.ready_prefix({0}) == 6


def test_an_atomic_span_is_ready_as_a_whole_or_not_at_all() -> None:
    rows = RowMap(lay_out([text(2), masked((False, False, True, False), atomic=True), text(3)]))
    assert rows.ready_prefix(set()) == 2
    assert rows.ready_prefix({0}) == 9


def test_an_atomic_span_longer_than_the_budget_becomes_one_chunk() -> None:
    rows = RowMap(lay_out([text(2), image(3, 3, atomic=True), text(5)]))
    assert rows.cut(0, 4) == 2
    assert rows.cut(2, 6) == 11
    assert rows.cut(2, 13) == 13


def test_generated_positions_behind_the_prompt_take_no_rows_and_cut_anywhere() -> None:
    rows = RowMap(lay_out([text(2), image(1, 2, atomic=True)]))
    assert rows.rows_in(0, 100) == 2
    assert rows.pieces(4, 100) == []
    assert rows.cut(2, 50) == 50
    assert rows.cut(40, 50) == 50


def test_a_prompt_without_items_is_all_ready() -> None:
    rows = RowMap(lay_out([text(5)]))
    assert rows.ready_prefix(set()) == 5
    assert rows.pieces(0, 5) == []
    assert rows.cut(1, 3) == 3


def test_negative_reversed_and_mid_span_stretches_are_refused() -> None:
    rows = RowMap(lay_out([text(2), image(2, 2, atomic=True)]))
    for call in (
        lambda: rows.rows_before(-1),
        lambda: rows.rows_in(3, 2),
        lambda: rows.pieces(3, 2),
        lambda: rows.pieces(-1, 2),
        lambda: rows.cut(3, 6),
        lambda: rows.cut(-1, 6),
    ):
        with pytest.raises(InvalidRecord):
            call()


def test_overlapping_atomic_spans_are_refused() -> None:
    layout = lay_out([text(9)])
    broken = Layout(layout.token_ids, (), layout.rope, (Run(1, 4), Run(3, 2)), layout.digest)
    with pytest.raises(InvalidRecord, match="atomic"):
        RowMap(broken)
