"""Patches equal the checkpoint's own image processor fed the same pixels, and the grid that was planned."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor

from tests.checkpoints import EMBEDDED, random_checkpoint
from triptych.errors import ConfigError, InvalidMedia
from triptych.journey import Grid, Item, Modality, Run
from triptych.models.base import PreparedPixels
from triptych.models.card import ModelCard, load_card
from triptych.models.images import ImageProcessor
from triptych.models.loading import load_image_processor
from triptych.models.pixels import patches_of


@pytest.fixture(scope="module", params=["random", "embedded"])
def card(request: pytest.FixtureRequest) -> ModelCard:
    return load_card(str(random_checkpoint() if request.param == "random" else EMBEDDED), "auto")


@pytest.fixture(scope="module")
def processor(card: ModelCard) -> ImageProcessor:
    return load_image_processor(card)


def picture(seed: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def patches(processor: ImageProcessor, prepared: PreparedPixels) -> Tensor:
    return patches_of(prepared.pixels, prepared.grid, processor.rule, torch.float32)


def item(card: ModelCard, width: int, height: int, grid: Grid | None = None, **options: int) -> Item:
    chosen = grid or card.adapter.plan(width, height, options).grid
    rows = chosen.patches // 4
    return Item(
        2, b"d" * 32, Modality.IMAGE, width, height, chosen, chosen.patches, rows, (Run(0, rows),), Run(0, rows), 0
    )


@pytest.mark.parametrize(
    ("width", "height"), [(224, 224), (61, 300), (1, 1), (3, 90), (90, 3), (200, 3), (641, 479), (28, 56), (30, 2000)]
)
def test_patches_equal_the_processors_own_to_the_last_bit(
    card: ModelCard, processor: ImageProcessor, width: int, height: int
) -> None:
    rgb = picture(width, height, width)
    own = AutoImageProcessor.from_pretrained(card.folder)(images=[Image.fromarray(rgb)], return_tensors="pt")
    prepared = processor.pixels(rgb, item(card, width, height))
    assert torch.equal(patches(processor, prepared), own["pixel_values"])
    assert [[prepared.grid.t, prepared.grid.h, prepared.grid.w]] == own["image_grid_thw"].tolist()
    assert prepared.pixels.dtype == torch.uint8
    assert prepared.rows * 4 == prepared.grid.patches


def test_patches_equal_the_processors_own_under_options(card: ModelCard, processor: ImageProcessor) -> None:
    chosen = random.Random(1)
    own = AutoImageProcessor.from_pretrained(card.folder)
    for seed in range(30):
        width, height = chosen.randint(20, 400), chosen.randint(20, 400)
        low = chosen.randint(1, 40_000)
        high = low + chosen.randint(0, 60_000)
        rgb = picture(seed, height, width)
        size = {"shortest_edge": low, "longest_edge": high}
        wanted = own(images=[Image.fromarray(rgb)], size=size, return_tensors="pt")
        prepared = processor.pixels(rgb, item(card, width, height, min_pixels=low, max_pixels=high))
        assert torch.equal(patches(processor, prepared), wanted["pixel_values"])


def test_an_image_that_is_not_as_its_header_says_is_refused(card: ModelCard, processor: ImageProcessor) -> None:
    with pytest.raises(InvalidMedia, match="the image is 60x50 pixels, its header says 50x60") as raised:
        processor.pixels(picture(0, 50, 60), item(card, 50, 60))
    assert raised.value.item_index == 2


def test_a_grid_that_the_processor_cannot_make_is_refused(card: ModelCard, processor: ImageProcessor) -> None:
    with pytest.raises(InvalidMedia, match="640x480 pixels cannot become 1x6x60") as raised:
        processor.pixels(picture(0, 480, 640), item(card, 640, 480, Grid(1, 6, 60)))
    assert raised.value.item_index == 2


def test_threads_do_not_disturb_each_other(card: ModelCard, processor: ImageProcessor) -> None:
    chosen = random.Random(3)
    sizes = [(chosen.randint(20, 300), chosen.randint(20, 300)) for _ in range(24)]
    images = [(picture(seed, height, width), item(card, width, height)) for seed, (width, height) in enumerate(sizes)]
    alone = [processor.pixels(*each).pixels for each in images]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda each: processor.pixels(*each).pixels, images))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_folder_whose_processor_cannot_be_made_is_named(tmp_path: Path, card: ModelCard) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuchProcessor"}')
    broken = ModelCard(**{name: getattr(card, name) for name in card.__slots__} | {"folder": tmp_path})
    with pytest.raises(ConfigError, match="no image processor in"):
        load_image_processor(broken)
