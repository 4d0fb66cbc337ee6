"""From bytes to pixels: what the header announced must be what is there."""

import io
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from transformers import AutoImageProcessor

from tests.engine_encoder.rig import item_of, picture
from triptych.errors import InvalidMedia
from triptych.journey import Item, Run
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.multimodal.canonical import to_rgb
from triptych.services.encoder.prepare import Preparer


def oriented_jpeg(orientation: int, width: int, height: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", exif=exif, quality=95)
    return file.getvalue()


def with_options(card: ModelCard, item: Item, **options: int) -> Item:
    """The item as a router plans it for a client that set these options."""
    plan = card.adapter.plan(item.width, item.height, options)
    run = Run(0, plan.rows)
    return replace(item, grid=plan.grid, encoder_tokens=plan.encoder_tokens, rows=plan.rows, runs=(run,), span=run)


def test_sizes_are_those_after_orientation(card: ModelCard, prepare: Preparer) -> None:
    data = oriented_jpeg(6, 112, 56)
    item = item_of(card, data)
    assert (item.width, item.height) == (56, 112)
    prepared = prepare(data, item)
    assert (prepared.grid.h, prepared.grid.w) == (8, 4)
    with pytest.raises(InvalidMedia, match=r"112x56.*56x112"):
        prepare(data, item_of(card, oriented_jpeg(1, 112, 56)))


def test_a_clients_pixel_limits_are_met_through_the_grid_alone(
    card: ModelCard, prepare: Preparer, tower: VisionTower
) -> None:
    data = picture(1, 300, 200)
    item = with_options(card, item_of(card, data), max_pixels=28 * 28 * 20)
    assert item.grid != item_of(card, data).grid
    made = AutoImageProcessor.from_pretrained(card.folder)(
        images=[to_rgb(data)], return_tensors="pt", size={"shortest_edge": 3136, "longest_edge": 28 * 28 * 20}
    )
    prepared = prepare(data, item)
    patches = tower.patches([prepared.pixels], [prepared.grid])
    assert np.array_equal(patches.numpy(), made["pixel_values"].numpy())


def test_bytes_may_come_in_any_kind_of_buffer(card: ModelCard, prepare: Preparer) -> None:
    data = picture(1)
    item = item_of(card, data)
    expected = prepare(data, item).pixels
    for buffer in (bytearray(data), memoryview(data)):
        assert prepare(buffer, item).pixels.equal(expected)


def test_a_header_that_lies_about_its_size_is_not_decoded(card: ModelCard, prepare: Preparer) -> None:
    data = bytearray(picture(1))
    data[16:24] = struct.pack(">II", 30_000, 30_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    with pytest.raises(InvalidMedia, match=r"56x56.*30000x30000") as caught:
        prepare(bytes(data), item_of(card, picture(1), index=4))
    assert caught.value.item_index == 4


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n", picture(1)[:-40], b"no image at all"])
def test_what_cannot_be_decoded_names_its_item(card: ModelCard, prepare: Preparer, data: bytes) -> None:
    with pytest.raises(InvalidMedia) as caught:
        prepare(data, item_of(card, picture(1), index=2))
    assert caught.value.item_index == 2


def test_rows_are_told_by_the_grid_not_by_the_item(card: ModelCard, prepare: Preparer) -> None:
    data = picture(1)
    boastful = replace(item_of(card, data), rows=9, runs=(Run(0, 9),), span=Run(0, 9))
    assert prepare(data, boastful).rows == 4
