"""The tower over a packed batch gives each item the rows that transformers' own tower gives it alone."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_position_ids, get_vision_window_index

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.models.stock import stock_tower
from tests.reference import Reference
from triptych.journey import Grid
from triptych.models.base import VisionTower
from triptych.models.card import load_card
from triptych.models.qwen2_5_vl.patches import order_patches
from triptych.models.segment_attention import attend_segments, segment

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["random", "embedded"])
def folder(request: pytest.FixtureRequest) -> Path:
    return random_checkpoint() if request.param == "random" else EMBEDDED


@pytest.fixture(scope="module")
def tower(folder: Path) -> VisionTower:
    return stock_tower(load_card(str(folder), "auto"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def patches_of(seed: int, grids: tuple[Grid, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(grid.patches, 3 * 2 * 14 * 14, generator=generator) for grid in grids]


def rows_alone(reference: Reference, patches: Tensor, grid: Grid) -> Tensor:
    with torch.no_grad():
        rows: Tensor = reference.model.model.visual(patches, torch.tensor([[grid.t, grid.h, grid.w]])).pooler_output
    return rows


@pytest.mark.parametrize(
    "grids",
    [
        (Grid(1, 2, 2),),
        (Grid(1, 8, 8),),
        (Grid(1, 18, 10), Grid(1, 8, 24), Grid(1, 18, 10)),
        (Grid(1, 2, 60), Grid(1, 60, 2), Grid(1, 16, 16), Grid(1, 14, 6)),
        (Grid(2, 6, 10), Grid(1, 4, 4)),
    ],
    ids=lambda grids: "+".join(f"{grid.t}x{grid.h}x{grid.w}" for grid in grids),
)
def test_every_item_of_a_batch_gets_the_rows_it_gets_alone(
    tower: VisionTower, reference: Reference, grids: tuple[Grid, ...]
) -> None:
    patches = patches_of(1, grids)
    rows = tower.encode(torch.cat(patches), grids)
    assert rows.shape == (sum(grid.patches // 4 for grid in grids), tower.width * tower.levels)
    expected = torch.cat([rows_alone(reference, p, g) for p, g in zip(patches, grids, strict=True)])
    assert (rows - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


def random_grids(seed: int) -> tuple[Grid, ...]:
    chosen = random.Random(seed)
    return tuple(
        Grid(chosen.choice([1, 1, 1, 2, 3]), 2 * chosen.randint(1, 15), 2 * chosen.randint(1, 15))
        for _ in range(chosen.randint(1, 5))
    )


@pytest.mark.parametrize("window", [112, 56, 28])
def test_patch_order_equals_transformers_for_random_grids(window: int) -> None:
    for seed in range(60):
        grids = random_grids(seed)
        thw = torch.tensor([[grid.t, grid.h, grid.w] for grid in grids])
        order = order_patches(grids, merge_size=2, blocks_per_window=window // 28)
        index, boundaries = get_vision_window_index(thw, 2, window, 14)
        np.testing.assert_array_equal(order.positions, get_vision_position_ids(thw, 2))
        np.testing.assert_array_equal(order.window_index, index)
        np.testing.assert_array_equal(order.window_lengths, boundaries.diff())
        np.testing.assert_array_equal(order.frame_lengths, get_vision_cu_seqlens(thw).diff())


@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [1, 7, 3, 7, 1, 1], list(range(1, 12))])
def test_segments_attend_to_themselves_alone(lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(sum(lengths), 2, 8, generator=generator) for _ in range(3))
    found = attend_segments(query, key, value, segment(np.array(lengths), CPU, torch.float32))
    begin = 0
    for length in lengths:
        span = slice(begin, begin + length)
        weights = torch.einsum("qhd,khd->hqk", query[span], key[span]).div(8**0.5).softmax(-1)
        torch.testing.assert_close(found[span], torch.einsum("hqk,khd->qhd", weights, value[span]))
        begin += length


def test_a_batch_that_does_not_fit_its_grids_is_a_bug(tower: VisionTower) -> None:
    with pytest.raises(AssertionError):
        tower.encode(torch.zeros(15, 1176), (Grid(1, 4, 4),))
