"""Encoder rows laid over placeholders: against the article's three ways, in one level and in several."""

import numpy as np
import pytest
import torch
from torch import Tensor

from triptych.engine.fuse import Overlay, fuse, join_rows
from triptych.errors import LayoutMismatch

VOCABULARY, HIDDEN = 50, 6
TEXT_AT, ROWS_AT = [0, 1, 3, 5], [2, 4, 6]


def table(seed: int = 0) -> Tensor:
    return torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(seed))


def rows(count: int, seed: int = 1, levels: int = 1) -> Tensor:
    return torch.randn(count, levels * HIDDEN, generator=torch.Generator().manual_seed(seed))


def overlay(made: Tensor, at: list[int]) -> Overlay:
    return Overlay(made, np.array(at, dtype=np.int64))


# The article's ways, as it describes them.


def fused_by_positions(ids: Tensor, embeddings: Tensor, made: Tensor, text_at: Tensor, rows_at: Tensor) -> Tensor:
    out = torch.empty(len(ids), HIDDEN)
    out[text_at] = embeddings[ids[text_at]]
    out[rows_at] = made
    return out


def fused_by_declared_ids(ids: Tensor, embeddings: Tensor, made: Tensor, declared: Tensor) -> Tensor:
    taken = torch.isin(ids, declared)
    return fused_by_positions(ids, embeddings, made, (~taken).nonzero()[:, 0], taken.nonzero()[:, 0])


def fused_by_ids_outside_the_vocabulary(ids: Tensor, embeddings: Tensor, made: Tensor) -> Tensor:
    taken = ids >= VOCABULARY
    return fused_by_positions(ids, embeddings, made, (~taken).nonzero()[:, 0], taken.nonzero()[:, 0])


def test_positions_alone_give_what_all_three_ways_of_the_article_give() -> None:
    ids = torch.tensor([11, 12, 9, 13, 9, 14, 9])
    embeddings, made = table(), rows(3)
    outside = ids.clone()
    outside[ROWS_AT] = VOCABULARY + torch.arange(3)
    wanted = fused_by_positions(ids, embeddings, made, torch.tensor(TEXT_AT), torch.tensor(ROWS_AT))
    assert fused_by_declared_ids(ids, embeddings, made, torch.tensor([9])).equal(wanted)
    assert fused_by_ids_outside_the_vocabulary(outside, embeddings, made).equal(wanted)
    assert fuse(embeddings[ids], [overlay(made, ROWS_AT)])[0].equal(wanted)


def test_an_id_that_looks_like_a_placeholder_stays_text() -> None:
    """Where the article's ways differ from ours: user text that spells the declared id must not become an image."""
    ids = torch.tensor([9, 12, 9])
    embeddings, made = table(), rows(1)
    fused, _ = fuse(embeddings[ids], [overlay(made, [2])])
    assert fused[0].equal(embeddings[9])
    assert fused[2].equal(made[0])


def test_a_step_without_rows_is_handed_on_as_it_is() -> None:
    embeddings = table()
    for levels in (1, 3):
        fused, deeper = fuse(embeddings, [], levels)
        assert fused is embeddings
        assert deeper is None


def test_rows_are_written_in_place_and_cast() -> None:
    embeddings = torch.zeros(4, HIDDEN)
    made = rows(2).to(torch.bfloat16)
    fused, deeper = fuse(embeddings, [overlay(made, [1, 3])])
    assert (fused.data_ptr(), fused.dtype, deeper) == (embeddings.data_ptr(), torch.float32, None)
    assert embeddings[[1, 3]].equal(made.float())
    assert not embeddings[[0, 2]].any()


def test_deeper_levels_are_scattered_into_zeros() -> None:
    embeddings = torch.ones(8, HIDDEN)
    first, second = rows(2, seed=1, levels=3), rows(1, seed=2, levels=3)
    fused, deeper = fuse(embeddings, [overlay(first, [1, 2]), overlay(second, [6])], levels=3)
    joined = torch.cat([first, second]).view(3, 3, HIDDEN)
    assert deeper is not None
    assert deeper.shape == (2, 8, HIDDEN)
    assert fused[[1, 2, 6]].equal(joined[:, 0])
    for level in (1, 2):
        assert deeper[level - 1, [1, 2, 6]].equal(joined[:, level])
    text = [0, 3, 4, 5, 7]
    assert deeper[:, text].count_nonzero() == 0
    assert fused[text].eq(1).all()


def test_levels_do_not_change_the_embeddings() -> None:
    made = rows(3, levels=2)
    flat, _ = fuse(torch.zeros(7, HIDDEN), [overlay(made[:, :HIDDEN], ROWS_AT)])
    deep, _ = fuse(torch.zeros(7, HIDDEN), [overlay(made, ROWS_AT)], levels=2)
    assert flat.equal(deep)


def test_rows_of_another_number_of_levels_are_refused_with_both_numbers() -> None:
    with pytest.raises(LayoutMismatch, match="rows of 6 numbers came, expected 2 levels of 6"):
        fuse(torch.zeros(7, HIDDEN), [overlay(rows(3), ROWS_AT)], levels=2)
    with pytest.raises(LayoutMismatch, match="rows of 12 numbers came, expected 1 levels of 6"):
        fuse(torch.zeros(7, HIDDEN), [overlay(rows(3, levels=2), ROWS_AT)])


@pytest.mark.parametrize(("begin", "end"), [(0, 2), (1, 2), (2, 5), (3, 5)])
def test_a_single_item_is_never_copied_before_it_is_laid(begin: int, end: int) -> None:
    """Windows over items of 2 and 3 rows: only a window over both needs a joined copy."""
    items = rows(2, seed=3), rows(3, seed=4)
    item, first = (items[0], 0) if end <= 2 else (items[1], 2)
    piece = item[begin - first : end - first]
    joined = join_rows([overlay(piece, list(range(end - begin)))])
    assert joined.untyped_storage().data_ptr() == item.untyped_storage().data_ptr()
    assert joined.data_ptr() == item[begin - first].data_ptr()


def test_a_window_over_two_items_joins_their_rows_in_order() -> None:
    first, second = rows(2, seed=3), rows(3, seed=4)
    joined = join_rows([overlay(first[1:], [0]), overlay(second[:2], [1, 2])])
    assert joined.equal(torch.cat([first[1:], second[:2]]))
    assert joined.untyped_storage().data_ptr() not in {part.untyped_storage().data_ptr() for part in (first, second)}
