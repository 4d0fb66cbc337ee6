"""Which positions of a prompt are an item's, which take rows, which are embedded as text."""

import numpy as np
import pytest

from tests.multimodal.parts import IMAGE_ID, masked, random_parts, text
from triptych.errors import InvalidRecord
from triptych.journey import BoolArray, Grid, Layout, Modality
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.multimodal.masks import Masks, masks, rows_per_item, special_offsets, starts


def bits(letters: str) -> BoolArray:
    return np.array([letter == "T" for letter in letters])


def item(ids: tuple[int, ...], letters: str) -> ItemPart:
    rows = letters.count("T")
    mask = tuple(letter == "T" for letter in letters)
    return ItemPart(bytes(32), Modality.IMAGE, 28, 28, Grid(1, 2, 2 * rows), 4 * rows, rows, 0, ids, mask)


def layout_of(*parts: TextPart | ItemPart) -> Layout:
    return lay_out(parts)


def test_specials_are_the_items_and_take_no_rows() -> None:
    found = masks(layout_of(TextPart((1,)), item((5, 5, 6, 5, 7), "TTFTF"), TextPart((2,))))
    np.testing.assert_array_equal(found.embed, bits("FTTFTFF"))
    np.testing.assert_array_equal(found.mm, bits("FTTTTTF"))
    assert found.special is not None
    np.testing.assert_array_equal(found.special, bits("FFFTFTF"))


def test_a_prompt_without_specials_has_no_mask_of_them() -> None:
    found = masks(layout_of(text(2), item((5, 5), "TT"), text(1)))
    assert found.special is None
    assert special_offsets(found) == ()


def test_ids_are_never_looked_at() -> None:
    found = masks(layout_of(TextPart((IMAGE_ID, IMAGE_ID)), item((1, IMAGE_ID), "TF")))
    np.testing.assert_array_equal(found.embed, bits("FFTF"))


def test_rows_are_counted_inside_each_items_span() -> None:
    first, second = item((5,) * 5, "TFTFT"), item((5,) * 4, "TTFT")
    for between in (3, 0):  # neighbours without text between them too
        found = masks(layout_of(text(1), first, text(between), second, text(1)))
        assert rows_per_item(found, [5, 4]) == (3, 3)
        assert starts(found, [5, 4]) == (1, 6 + between)


def test_starts_and_special_offsets_count_as_in_the_article() -> None:
    found = masks(layout_of(text(1), item((5, 5, 6, 5, 7), "TTFTF"), text(1)))
    assert starts(found, [5]) == (1,)
    assert special_offsets(found) == (2, 4)


def test_special_offsets_leave_out_the_text_between_items() -> None:
    found = masks(layout_of(text(9), item((5, 6), "TF"), text(4), item((6, 5), "FT")))
    assert special_offsets(found) == (1, 2)


def test_spans_of_another_length_are_refused_with_both_numbers() -> None:
    found = masks(layout_of(text(1), masked((True,) * 5)))
    for read in (rows_per_item, starts):
        with pytest.raises(InvalidRecord, match="6 positions together, the prompt has 5"):
            read(found, [3, 3])
        with pytest.raises(InvalidRecord, match="at least 1 each"):
            read(found, [5, 0])


def test_masks_of_any_random_layout_agree_with_its_items() -> None:
    for seed in range(300):
        layout = lay_out(random_parts(seed))
        found: Masks = masks(layout)
        lengths = [each.span.length for each in layout.items]
        assert found.embed.sum() == layout.num_rows
        assert rows_per_item(found, lengths) == tuple(each.rows for each in layout.items)
        assert starts(found, lengths) == tuple(each.span.start for each in layout.items)
        special = np.zeros_like(found.mm) if found.special is None else found.special
        assert not (found.embed & special).any()
        np.testing.assert_array_equal(found.embed | special, found.mm)
        assert len(special_offsets(found)) == special.sum()
