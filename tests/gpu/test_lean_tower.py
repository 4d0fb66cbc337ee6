"""The lean tower on a GPU: fused kernels are in use, rows are the stock tower's, and nobody waits on the host."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.models.kernel_cases import LARGEST_ERRORS, errors
from triptych.journey import Grid
from triptych.models.card import load_card
from triptych.models.kernels.choice import PLAIN, choose_kernels, fused_kernels
from triptych.models.loading import load_tower
from triptych.models.qwen2_5_vl.lean_tower import LeanTower
from triptych.models.qwen2_5_vl.tower import Qwen25VLTower

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
GRIDS = (Grid(1, 18, 10), Grid(1, 8, 24), Grid(1, 2, 60), Grid(1, 16, 16))
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=["random", "embedded"])
def folder(request: pytest.FixtureRequest) -> Path:
    return random_checkpoint() if request.param == "random" else EMBEDDED


def lean_tower(folder: Path) -> LeanTower:
    tower = load_tower(load_card(str(folder), "bfloat16"), CUDA, "bfloat16")
    assert isinstance(tower, LeanTower)
    return tower


def float32_tower(folder: Path) -> Qwen25VLTower:
    tower = load_tower(load_card(str(folder), "float32"), CUDA, "float32")
    assert isinstance(tower, Qwen25VLTower)
    return tower


def patches_of(seed: int) -> Tensor:
    tokens = sum(grid.patches for grid in GRIDS)
    return torch.randn(tokens, 1176, generator=torch.Generator().manual_seed(seed)).to(CUDA)


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_kernels_equal_their_formulas_in_float64(dtype: torch.dtype) -> None:
    for name, error in errors(fused_kernels(), CUDA, dtype).items():
        assert error <= LARGEST_ERRORS[dtype], name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kernel_passes_its_trial(dtype: torch.dtype) -> None:
    assert choose_kernels(CUDA, dtype) == fused_kernels()


def test_its_rows_are_the_stock_towers_in_float32(folder: Path) -> None:
    """Groups of segments instead of an attention kernel, which takes 16 bits only; all else is what 16 bits run."""
    stock = float32_tower(folder)
    expected = stock.encode(patches_of(1), GRIDS)
    found = LeanTower(stock, fused_kernels()).encode(patches_of(1), GRIDS)
    assert apart(found, expected) <= 1e-3


def test_in_16_bits_it_is_no_farther_from_float32_than_plain_kernels(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    exact = float32_tower(folder).encode(patches_of(2), GRIDS)
    tower = lean_tower(folder)
    fused = apart(tower.encode(patches_of(2), GRIDS), exact)
    tower.kernels = PLAIN
    plain = apart(tower.encode(patches_of(2), GRIDS), exact)
    record_property("fused_error", fused)
    record_property("plain_error", plain)
    assert fused <= max(1.2 * plain, 1e-3)
    assert fused <= 3e-2


def test_a_run_never_makes_the_host_wait(folder: Path) -> None:
    tower, patches = lean_tower(folder), patches_of(3)
    tower.encode(patches, GRIDS)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = tower.encode(patches, GRIDS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not rows.isnan().any()


def test_an_items_rows_do_not_depend_on_what_it_is_packed_with(folder: Path) -> None:
    """But for rounding: products of another shape are summed in another order."""
    tower, patches = lean_tower(folder), patches_of(4)
    packed = tower.encode(patches, GRIDS)
    begin = 0
    for grid in GRIDS:
        alone = tower.encode(patches[begin : begin + grid.patches], (grid,))
        assert apart(packed[begin // 4 : (begin + grid.patches) // 4], alone) <= 3e-2
        begin += grid.patches
