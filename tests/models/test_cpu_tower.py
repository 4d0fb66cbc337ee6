"""The packed tower on the CPU makes the stock tower's rows, and so do its halves."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.halves import check_halves
from tests.models.stock import stock_tower
from triptych.journey import Grid
from triptych.models.card import load_card
from triptych.models.cpu_linear import can_pack
from triptych.models.loading import graph_tower, load_tower
from triptych.models.qwen2_5_vl.cpu_tower import CpuTower
from triptych.models.qwen2_5_vl.tower import Qwen25VLTower

pytestmark = pytest.mark.skipif(not can_pack(torch.zeros(1, 1)), reason="this torch has no packed products")

CPU = torch.device("cpu")
GRIDS = [
    (Grid(1, 2, 2),),
    (Grid(1, 32, 32),),
    (Grid(1, 18, 10), Grid(1, 8, 24), Grid(1, 18, 10)),
    (Grid(1, 2, 60), Grid(2, 6, 10), Grid(1, 16, 16)),
]


def packed_tower(folder: Path) -> CpuTower:
    tower = load_tower(load_card(str(folder), "auto"), CPU, "float32")
    assert isinstance(tower, CpuTower)
    return tower


def patches_of(seed: int, *grids: Grid) -> Tensor:
    tokens = sum(grid.patches for grid in grids)
    return torch.randn(tokens, 1176, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("grids", GRIDS, ids=lambda grids: "+".join(f"{grid.t}x{grid.h}x{grid.w}" for grid in grids))
def test_its_rows_are_the_stock_towers(folder: Path, grids: tuple[Grid, ...]) -> None:
    patches = patches_of(1, *grids)
    expected = stock_tower(load_card(str(folder), "auto"), "float32").encode(patches, grids)
    found = packed_tower(folder).encode(patches, grids)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4 * float(expected.abs().max())


def in_float64(tower: Qwen25VLTower) -> Qwen25VLTower:
    tower.module, tower.dtype = tower.module.double(), torch.float64
    return tower


@pytest.mark.parametrize("grids", GRIDS, ids=lambda grids: "+".join(f"{grid.t}x{grid.h}x{grid.w}" for grid in grids))
def test_its_rounding_is_of_the_stock_towers_size(folder: Path, grids: tuple[Grid, ...]) -> None:
    """Both against float64: root mean squares of 0.5 and 0.7 millionths of the largest number were seen."""
    card, patches = load_card(str(folder), "auto"), patches_of(2, *grids)
    exact = in_float64(stock_tower(card, "float32")).encode(patches.double(), grids)
    own, stocks = (
        float((tower.encode(patches, grids) - exact).square().mean().sqrt() / exact.abs().max())
        for tower in (packed_tower(folder), stock_tower(card, "float32"))
    )
    assert own <= 2 * stocks <= 4e-6


def test_every_item_of_a_batch_gets_nearly_the_rows_it_gets_alone(folder: Path) -> None:
    tower, grids = packed_tower(folder), (Grid(1, 12, 10), Grid(1, 30, 4), Grid(1, 2, 2))
    patches = [patches_of(number, grid) for number, grid in enumerate(grids)]
    together = tower.encode(torch.cat(patches), grids)
    alone = torch.cat([tower.encode(each, (grid,)) for each, grid in zip(patches, grids, strict=True)])
    assert (together - alone).abs().max() <= 1e-5 * float(alone.abs().max())


def test_its_halves_make_the_same_rows_in_the_order_of_windows(folder: Path) -> None:
    tower, grids = packed_tower(folder), (Grid(1, 10, 6), Grid(2, 4, 8))
    assert graph_tower(tower) is tower
    check_halves(tower, patches_of(3, *grids), grids)


def test_filling_leaves_no_trace_in_the_rows(folder: Path) -> None:
    """61 blocks fill no grain: the last rows are those of the same item in a batch that fills one."""
    tower, odd, rest = packed_tower(folder), Grid(1, 2, 122), Grid(1, 2, 6)
    patches = patches_of(4, odd, rest)
    alone = tower.encode(patches[: odd.patches], (odd,))
    together = tower.encode(patches, (odd, rest))
    torch.testing.assert_close(alone, together[: odd.patches // 4])


def test_making_it_leaves_no_layer_in_memory_twice(folder: Path) -> None:
    stock = stock_tower(load_card(str(folder), "auto"), "float32")
    CpuTower(stock)
    assert not list(stock.module.blocks.parameters())
