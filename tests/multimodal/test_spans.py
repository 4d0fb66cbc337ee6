"""Spans with marks between the rows of a grid: their length, their rows, and what stands where."""

import pytest

from triptych.errors import InvalidRecord
from triptych.journey import Grid, Modality
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.multimodal.masks import masks, rows_per_item
from triptych.multimodal.spans import GridSpan, Kind, SpanIds, grid_span

IDS = SpanIds(start=11, patch=12, row_break=13, end=14)


def part(span: GridSpan) -> ItemPart:
    rows = span.rows
    fields = (rows, 0, span.token_ids, span.embed_mask)
    return ItemPart(bytes(32), Modality.IMAGE, 28, 28, Grid(1, 2, 2 * rows), 4 * rows, *fields)


def test_learned_marks_stand_in_order_and_take_rows_like_patches() -> None:
    span = grid_span(2, 3, 6, IDS, learned=True)
    assert "".join(str(int(kind)) for kind in span.kinds) == "0111211123"
    assert span.rows == 10
    assert span.token_ids == (12,) * 10


def test_marks_that_are_text_take_no_rows() -> None:
    span = grid_span(2, 3, 6, IDS, learned=False)
    assert span.token_ids == (11, 12, 12, 12, 13, 12, 12, 12, 13, 14)
    assert span.rows == 6
    assert [kind for kind, laid in zip(span.kinds, span.embed_mask, strict=True) if laid] == [Kind.PATCH] * 6


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(("rows", "columns", "length"), [(1, 1, 4), (2, 3, 10), (3, 2, 11), (1, 200, 203)])
def test_a_span_is_as_long_as_its_grid_says(rows: int, columns: int, length: int, learned: bool) -> None:
    span = grid_span(rows, columns, rows * columns, IDS, learned=learned)
    assert len(span.token_ids) == len(span.embed_mask) == len(span.kinds) == length == rows * (columns + 1) + 2
    assert span.rows == (length if learned else rows * columns)


@pytest.mark.parametrize(("rows", "columns", "features"), [(2, 3, 5), (2, 3, 10), (3, 3, 6), (0, 3, 0), (-2, -3, 6)])
def test_features_of_another_grid_are_refused(rows: int, columns: int, features: int) -> None:
    with pytest.raises(InvalidRecord, match=f"grid {rows}x{columns} does not match {features} features"):
        grid_span(rows, columns, features, IDS, learned=True)


@pytest.mark.parametrize("learned", [True, False])
def test_a_span_is_laid_into_a_prompt_as_it_is(learned: bool) -> None:
    span = grid_span(2, 3, 6, IDS, learned=learned)
    layout = lay_out([TextPart((1, 2)), part(span), TextPart((3,)), part(span)])
    assert rows_per_item(masks(layout), [10, 10]) == (span.rows, span.rows)
    assert tuple(layout.token_ids[2:12]) == span.token_ids
