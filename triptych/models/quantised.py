"""Matrices in 8 bits: e4m3 numbers with one scale for each row, and what is computed with them. Pure functions.

e4m3 has 4 bits of exponent and 3 of mantissa: 448 is the largest number, 2^-6 the smallest normal one, and there is no
infinity (https://arxiv.org/abs/2209.05433). A weight is cut down once, each output channel by itself; activations are
cut down as they come, each token by itself, so that no token's numbers depend on its neighbours.

Everything is correctly rounded float32 arithmetic in a fixed order, so that every device makes the same numbers of the
same row, and products differ only in the order in which they are added up.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from triptych.errors import ConfigError

FP8 = torch.float8_e4m3fn
LARGEST = 448.0

# Rows that are smaller throughout are as good as zero; 448 divided by anything less would be infinite.
SMALLEST_ROW = 2.0**-100

_ROWS_AT_A_TIME = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A matrix of about numbers * scales[:, None].

    numbers: [rows, width] e4m3, or those very numbers in a wider dtype
    scales:  [rows] float32
    """

    numbers: Tensor
    scales: Tensor

    def widened(self, dtype: torch.dtype) -> "Scaled":
        """The same numbers in a dtype that holds them all, for devices that multiply nothing smaller."""
        return Scaled(from_fp8(self.numbers, dtype), self.scales)

    def values(self) -> Tensor:
        """[rows, width] float32"""
        return from_fp8(self.numbers, torch.float32) * self.scales[:, None]


def to_fp8(numbers: Tensor) -> Tensor:
    """The nearest e4m3 numbers, ties to even; those beyond its range become its largest.

    What is no number stays none, infinities included: as a large number it would pass for an answer.
    """
    # A number times zero is zero. Casts differ: between releases of torch, and between devices.
    return (numbers.clamp(-LARGEST, LARGEST) + numbers * 0).to(FP8)


def from_fp8(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers in a wider dtype, in a tensor of the same shape; float32, bfloat16 and float16 hold them all."""
    if numbers.dtype != FP8 or numbers.device.type != "cpu":
        return numbers.to(dtype)
    # A table is several times as fast as the CPU's cast.
    return _values(dtype).index_select(0, numbers.view(torch.uint8).reshape(-1).int()).view(numbers.shape)


@cache
def _values(dtype: torch.dtype) -> Tensor:
    """Of every byte; on the CPU, and never written to."""
    return torch.arange(256, dtype=torch.uint8).view(FP8).to(dtype)


def quantise_rows(matrix: Tensor) -> Scaled:
    """[rows, width] of any float dtype in 8 bits, the largest number of each row at 448.

    Rows without numbers (NaN, infinity) come back without any, the others are right. Zeros stay zeros.
    """
    numbers = matrix.float()
    largest = numbers.abs().amax(dim=1).clamp(min=SMALLEST_ROW)
    limit = torch.full_like(largest, LARGEST)  # torch divides by, and into, a number of Python's in two roundings
    return Scaled(to_fp8(numbers * (limit / largest)[:, None]), largest / limit)


def quantise_weight(weight: Tensor, name: str = "a weight") -> Scaled:
    """[out, in] in 8 bits, each output channel by itself; some at a time, so that little else is needed meanwhile.

    Waits for the device. Raises ConfigError where the weight holds something not finite.
    """
    parts = [quantise_rows(weight[begin : begin + _ROWS_AT_A_TIME]) for begin in range(0, len(weight), _ROWS_AT_A_TIME)]
    # Bytes, as torch does not join numbers of every such type.
    numbers = torch.cat([part.numbers.view(torch.uint8) for part in parts]).view(FP8)
    scales = torch.cat([part.scales for part in parts])
    broken = int((~scales.isfinite()).sum())
    if broken:
        raise ConfigError(f"{name} has {broken} rows with numbers that are not finite, which 8 bits cannot hold")
    return Scaled(numbers, scales)


def padded(scaled: Scaled, multiple: int) -> Scaled:
    """With rows and columns of zeros behind, up to the next multiples: what matrix units take. Scales there are 1."""
    rows, width = scaled.numbers.shape
    more_rows, more_columns = -rows % multiple, -width % multiple
    if not more_rows and not more_columns:
        return scaled
    numbers = torch.zeros(
        rows + more_rows, width + more_columns, dtype=scaled.numbers.dtype, device=scaled.scales.device
    )
    numbers.view(torch.uint8)[:rows, :width] = scaled.numbers.view(torch.uint8)
    return Scaled(numbers, torch.cat([scaled.scales, scaled.scales.new_ones(more_rows)]))


def product(rows: Scaled, weight: Scaled, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """rows times the weight transposed, plus bias: [rows, out] in dtype.

    Both hold their numbers in one and the same dtype that can be multiplied, as `widened` makes it; the sums are in it,
    too, before they are scaled in float32.
    """
    sums = (rows.numbers @ weight.numbers.T).float()
    made = sums * rows.scales[:, None] * weight.scales
    return (made if bias is None else made + bias).to(dtype)
