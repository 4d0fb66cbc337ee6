"""The rule from pixels to patches, beside transformers' own arithmetic (test_images.py compares the whole way)."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoImageProcessor

from tests.checkpoints import EMBEDDED
from triptych.errors import ConfigError, LayoutMismatch
from triptych.journey import Grid
from triptych.models.base import VisionTower
from triptych.models.card import load_card
from triptych.models.loading import load_tower
from triptych.models.pixels import PixelRule, patches_of


@pytest.fixture(scope="module")
def own() -> Any:
    return AutoImageProcessor.from_pretrained(EMBEDDED)


@pytest.fixture(scope="module")
def tower() -> VisionTower:
    return load_tower(load_card(str(EMBEDDED), "float32"), torch.device("cpu"))


def noise(seed: int, grid: Grid) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, grid.h * 14, grid.w * 14), generator=generator, dtype=torch.uint8)


def own_patches(own: Any, pixels: Tensor) -> Tensor:
    made = own(images=[pixels], return_tensors="pt", input_data_format="channels_first", do_resize=False)
    patches: Tensor = made["pixel_values"]
    return patches


def test_patches_equal_the_processors_own_and_round_once(own: Any) -> None:
    rule, chosen = PixelRule.of(own), random.Random(4)
    for seed in range(20):
        grid = Grid(1, 2 * chosen.randint(1, 9), 2 * chosen.randint(1, 9))
        pixels = noise(seed, grid)
        expected = own_patches(own, pixels)
        assert expected.shape == (grid.patches, rule.patch_numbers)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert torch.equal(patches_of(pixels, grid, rule, dtype), expected.to(dtype))


def test_pixels_are_an_eighth_of_their_float32_patches(own: Any) -> None:
    rule, grid = PixelRule.of(own), Grid(1, 6, 8)
    pixels = noise(1, grid)
    assert pixels.nbytes == grid.patches * rule.token_bytes
    assert patches_of(pixels, grid, rule, torch.float32).nbytes == 8 * pixels.nbytes


def test_the_pixels_are_left_as_they_were(own: Any) -> None:
    pixels = noise(1, Grid(1, 2, 4))
    before = pixels.clone()
    patches_of(pixels, Grid(1, 2, 4), PixelRule.of(own), torch.float32)
    assert torch.equal(pixels, before)


def test_a_batch_has_each_items_patches_one_behind_the_other(own: Any, tower: VisionTower) -> None:
    grids = (Grid(1, 4, 6), Grid(1, 2, 2), Grid(1, 8, 2))
    pixels = [noise(seed, grid) for seed, grid in enumerate(grids)]
    assert torch.equal(tower.patches(pixels, grids), torch.cat([own_patches(own, each) for each in pixels]))


@pytest.mark.parametrize(
    ("pixels", "grid"),
    [
        (noise(1, Grid(1, 2, 4)), Grid(1, 4, 2)),
        (noise(1, Grid(1, 2, 4)), Grid(2, 2, 4)),
        (noise(1, Grid(1, 2, 4)).float(), Grid(1, 2, 4)),
        (noise(1, Grid(1, 2, 4))[:1], Grid(1, 2, 4)),
    ],
    ids=["another grid", "two frames", "another dtype", "one channel"],
)
def test_pixels_of_another_grid_are_refused_with_both_shapes(own: Any, pixels: Tensor, grid: Grid) -> None:
    with pytest.raises(LayoutMismatch, match=r"pixels are \([13], 28, 56\).*expected \(3, ") as caught:
        patches_of(pixels, grid, PixelRule.of(own), torch.float32)
    assert f"{grid.t}x{grid.h}x{grid.w} patches" in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"do_rescale": False}, "do_rescale false, expected true"),
        ({"do_normalize": None}, "do_normalize false, expected true"),
        ({"image_mean": [0.5]}, r"image_mean is \[0.5\], expected 3 numbers"),
        ({"image_std": [1.0] * 4}, "image_std is .*, expected 3 numbers"),
    ],
)
def test_a_processor_that_does_otherwise_is_refused(own: Any, broken: dict[str, Any], message: str) -> None:
    names = ("do_rescale", "do_normalize", "rescale_factor", "image_mean", "image_std", "patch_size", "merge_size")
    values = {name: getattr(own, name) for name in (*names, "temporal_patch_size")}
    with pytest.raises(ConfigError, match=message):
        PixelRule.of(SimpleNamespace(**values | broken))
