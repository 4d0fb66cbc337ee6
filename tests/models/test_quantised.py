"""Matrices in 8 bits: numbers are the nearest ones, no row depends on another, nothing broken passes for sound."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from triptych.errors import ConfigError
from triptych.models.quantised import (
    FP8,
    LARGEST,
    SMALLEST_ROW,
    Scaled,
    from_fp8,
    padded,
    product,
    quantise_rows,
    quantise_weight,
    to_fp8,
)

ROOT = Path(__file__).resolve().parents[2]
EVERY_BYTE = torch.arange(256, dtype=torch.uint8).view(FP8)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def e4m3_numbers() -> Tensor:
    """All non-negative ones by the format's definition, in float64; their place is their byte."""
    bits = torch.arange(127)
    exponent, mantissa = (bits >> 3).double(), (bits & 7).double()
    return torch.where(bits < 8, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def nearest(numbers: Tensor) -> Tensor:
    """Bytes of the nearest e4m3 numbers of finite float64 numbers, ties to the even byte, by looking at all of them."""
    distances = (numbers.abs()[:, None] - e4m3_numbers()).abs()
    closest = distances.amin(1, keepdim=True)
    tied = torch.where(distances == closest, torch.arange(127), 1000)
    even = torch.where(tied % 2 == 0, tied, 1000).amin(1)
    return torch.where(even < 1000, even, tied.amin(1)) + 128 * torch.signbit(numbers)


def numbers_to_round() -> Tensor:
    """Of every size, all numbers of the format, and all midpoints between two of them with their float32 neighbours."""
    exact = e4m3_numbers()
    middle = ((exact[1:] + exact[:-1]) / 2).float()
    near = [middle.nextafter(torch.tensor(far)) for far in (0.0, 1e9)]
    sizes = torch.randn(4000, generator=torch.Generator().manual_seed(0)).exp2().pow(6)
    chosen = torch.cat([exact.float(), middle, *near, sizes, torch.tensor([448.01, 463.9, 464.0, 480.0, 1e6])])
    return torch.cat([chosen, -chosen])


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_every_number_becomes_the_nearest_one_of_the_format() -> None:
    numbers = numbers_to_round()
    found = to_fp8(numbers).view(torch.uint8).long()
    assert torch.equal(found, nearest(numbers.double()))


def test_what_is_no_number_stays_none() -> None:
    broken = torch.tensor([torch.inf, -torch.inf, torch.nan])
    assert to_fp8(broken).float().isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wider_dtypes_hold_all_numbers(dtype: torch.dtype) -> None:
    wide = from_fp8(EVERY_BYTE.view(16, 16), dtype)
    assert (wide.dtype, wide.shape) == (dtype, (16, 16))
    wanted = torch.cat([e4m3_numbers(), torch.tensor([torch.nan])])
    torch.testing.assert_close(
        wide.double().view(2, 128), torch.stack([wanted, -wanted]), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 256, 1030])
def test_a_row_is_off_by_half_a_step_at_most(width: int, dtype: torch.dtype) -> None:
    matrix = noise(40, width, dtype=dtype) * noise(40, 1, seed=1).exp().to(dtype)
    scaled = quantise_rows(matrix)
    exact, found = matrix.double(), scaled.numbers.double() * scaled.scales.double()[:, None]
    steps = torch.maximum(exact.abs() / 16, scaled.scales.double()[:, None] * 2.0**-10)
    assert ((found - exact).abs() <= steps * (1 + 1e-6)).all()
    assert (scaled.numbers.float().abs().amax(1) == LARGEST).all()
    torch.testing.assert_close(scaled.values().double(), found, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_row_depends_on_its_neighbours(dtype: torch.dtype) -> None:
    matrix = noise(6, 33, dtype=dtype)
    matrix[1], matrix[3, 4], matrix[4, 5] = 0, torch.nan, torch.inf
    together = quantise_rows(matrix)
    for row in (0, 1, 2, 5):
        alone = quantise_rows(matrix[row : row + 1])
        assert torch.equal(together.numbers[row].view(torch.uint8), alone.numbers[0].view(torch.uint8))
        assert torch.equal(together.scales[row], alone.scales[0])
    assert together.values()[3:5].isnan().all(), "a row with one number that is none has no numbers"
    assert not together.values()[[0, 1, 2, 5]].isnan().any()
    assert (together.values()[1] == 0).all()


@pytest.mark.parametrize("size", [3.0e38, 1.0, 1e-20, SMALLEST_ROW, SMALLEST_ROW / 3, 1e-38, 1e-44])
def test_rows_of_any_size_keep_their_numbers_or_become_nothing(size: float) -> None:
    row = torch.tensor([[1.0, -0.5, 0.0, 0.25]]) * size
    scaled = quantise_rows(row)
    assert scaled.scales.isfinite().all()
    assert not scaled.numbers.float().isnan().any()
    atol = 0.0 if size >= SMALLEST_ROW else SMALLEST_ROW
    torch.testing.assert_close(scaled.values(), row, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("broken", [torch.inf, -torch.inf, torch.nan])
def test_a_weight_that_is_not_finite_is_refused_by_name(broken: float) -> None:
    weight = noise(5, 9)
    weight[2, 3] = weight[4, 0] = broken
    with pytest.raises(ConfigError, match=r"layer 3's qkv has 2 rows"):
        quantise_weight(weight, "layer 3's qkv")


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (16, 32), (17, 33), (48, 20)])
def test_padding_changes_no_product(rows: int, width: int) -> None:
    scaled, others = quantise_rows(noise(rows, width)), quantise_rows(noise(5, width, seed=1))
    full, wide = padded(scaled, 16), padded(others, 16)
    assert full.numbers.shape == (-(-rows // 16) * 16, -(-width // 16) * 16)
    assert full.scales.isfinite().all()
    small = product(others.widened(torch.float32), scaled.widened(torch.float32), None, torch.float32)
    large = product(wide.widened(torch.float32), full.widened(torch.float32), None, torch.float32)
    torch.testing.assert_close(large[:5, :rows], small)
    assert (large[:, rows:] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_is_that_of_the_numbers_kept(dtype: torch.dtype) -> None:
    rows, weight, bias = noise(9, 300, dtype=dtype), noise(70, 300, seed=1, dtype=dtype), noise(70, seed=2, dtype=dtype)
    kept, scaled = quantise_rows(rows), quantise_weight(weight)
    found = product(kept.widened(torch.float32), scaled.widened(torch.float32), bias, dtype)
    exact = exact_values(kept) @ exact_values(scaled).T + bias.double()
    assert found.dtype == dtype
    assert apart(found, exact) < {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
    assert 0.005 < apart(found, rows.double() @ weight.double().T + bias.double()) < 0.05, "what 8 bits cost"


def exact_values(scaled: Scaled) -> Tensor:
    return scaled.numbers.double() * scaled.scales.double()[:, None]


def apart(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def test_triton_makes_the_same_bytes() -> None:
    pytest.importorskip("triton")
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.models.interpreted_fp8"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    assert json.loads(told.stdout) == {"bytes": 0, "values": 0, "rows": 0}, "how many differ"
