"""The lean tower, with plain and with interpreted kernels, makes the stock tower's rows."""

import importlib.util
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models import stock
from tests.models.halves import check_halves
from tests.models.kernel_cases import LARGEST_ERRORS, errors
from triptych.journey import Grid
from triptych.models.card import load_card
from triptych.models.kernels import plain
from triptych.models.kernels.choice import PLAIN, Kernels, choose_kernels, trusted
from triptych.models.loading import graph_tower, load_tower
from triptych.models.qwen2_5_vl.lean_tower import LeanTower
from triptych.models.qwen2_5_vl.tower import Qwen25VLTower

ROOT = Path(__file__).parent.parent.parent
CPU = torch.device("cpu")
GRIDS = [
    (Grid(1, 2, 2),),
    (Grid(1, 18, 10), Grid(1, 8, 24), Grid(1, 18, 10)),
    (Grid(1, 2, 60), Grid(2, 6, 10), Grid(1, 16, 16)),
]


def stock_tower(folder: Path) -> Qwen25VLTower:
    return stock.stock_tower(load_card(str(folder), "auto"))


def patches_of(seed: int, grids: tuple[Grid, ...]) -> Tensor:
    tokens = sum(grid.patches for grid in grids)
    return torch.randn(tokens, 1176, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("grids", GRIDS, ids=lambda grids: "+".join(f"{grid.t}x{grid.h}x{grid.w}" for grid in grids))
def test_its_rows_are_the_stock_towers(folder: Path, grids: tuple[Grid, ...]) -> None:
    patches = patches_of(1, grids)
    expected = stock_tower(folder).encode(patches, grids)
    found = LeanTower(stock_tower(folder), PLAIN).encode(patches, grids)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4 * float(expected.abs().max())


def test_its_halves_make_the_same_rows_in_the_order_of_windows(folder: Path) -> None:
    tower, numbers = LeanTower(stock_tower(folder), PLAIN), random.Random(1)
    assert graph_tower(tower) is tower
    for seed in range(10):
        sides = [2 * numbers.randint(1, 12) for _ in range(6)]
        grids = (Grid(1, sides[0], sides[1]), Grid(2, sides[2], sides[3]), Grid(1, sides[4], sides[5]))
        check_halves(tower, patches_of(seed, grids), grids)


def test_making_it_leaves_no_layer_in_memory_twice(folder: Path) -> None:
    tower = stock_tower(folder)
    LeanTower(tower, PLAIN)
    assert not list(tower.module.blocks.parameters())


def test_the_cpu_keeps_the_stock_tower_in_16_bits_and_plain_kernels(folder: Path) -> None:
    assert isinstance(load_tower(load_card(str(folder), "auto"), CPU, "bfloat16"), Qwen25VLTower)
    assert choose_kernels(CPU, torch.float32) is PLAIN


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_kernels_equal_their_formulas_in_float64(dtype: torch.dtype) -> None:
    for name, error in errors(PLAIN, CPU, dtype).items():
        assert error <= LARGEST_ERRORS[dtype], name


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not there")
def test_fused_kernels_equal_their_formulas_in_float64() -> None:
    """In a process of its own: the interpreter is chosen when the kernels are imported."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.interpreted_kernels"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "gated" in found[str(torch.float16)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for name, error in found[str(dtype)].items():
            assert error <= LARGEST_ERRORS[dtype], f"{name} in {dtype}"


def wrong_gate(both: Tensor) -> Tensor:
    return plain.gate(both) * 1.5


def no_gate(both: Tensor) -> Tensor:
    return plain.gate(both) * float("nan")


def broken_gate(both: Tensor) -> Tensor:
    raise RuntimeError("no such instruction")


@pytest.mark.parametrize("gate", [wrong_gate, no_gate, broken_gate])
def test_a_kernel_that_fails_its_trial_is_replaced_alone(
    gate: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    def add_norm(hidden: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        return plain.add_norm(hidden, delta, weight, epsilon)

    with caplog.at_level(logging.WARNING):
        chosen = trusted(replace(Kernels(), add_norm=add_norm, gate=gate), CPU, torch.float32)
    assert (chosen.add_norm, chosen.gate) == (add_norm, plain.gate)
    assert len(caplog.messages) == 1
    assert "gate" in caplog.messages[0]
