"""8-bit numbers in Triton: `fp8_byte` for kernels that write them, and `quantised.quantise_rows` in one pass.

Imported only where Triton is; the tensors' device has to be the current one. With TRITON_INTERPRET=1 set before the
import it runs on the CPU, slowly.
"""

# Triton compiles annotations too, and knows none but its own.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from triptych.models.quantised import FP8, LARGEST, SMALLEST_ROW, Scaled

_NUMBERS_PER_WARP = 512  # 16 for each thread
_SMALLEST_BITS = int(torch.tensor(SMALLEST_ROW).view(torch.int32))


def quantise_rows(matrix: Tensor, width: int) -> Scaled:
    """As quantised.quantise_rows of [rows, at most width] contiguous, with zeros behind up to this width."""
    rows, present = matrix.shape
    assert matrix.is_contiguous(), f"rows must follow one another, got strides {matrix.stride()}"
    numbers = torch.empty(rows, width, dtype=FP8, device=matrix.device)
    scales = torch.empty(rows, dtype=torch.float32, device=matrix.device)
    block = triton.next_power_of_2(width)
    _quantise_rows[(rows,)](
        matrix,
        numbers.view(torch.uint8),
        scales,
        WIDTH=present,
        WIDTH_OUT=width,
        SMALLEST_BITS=_SMALLEST_BITS,
        LARGEST=LARGEST,
        BLOCK=block,
        num_warps=warps_for(block),
    )
    return Scaled(numbers, scales)


def warps_for(block: int) -> int:
    """Of one program that makes a row of so many numbers."""
    return min(32, max(1, block // _NUMBERS_PER_WARP))


@triton.jit
def fp8_byte(numbers):
    """The bytes of quantised.to_fp8(float32 numbers), as uint8: of their bits, as no cast treats infinities so.

    [sign][4 bits of exponent, bias 7][3 of mantissa]; 0x7e is 448, 0x7f no number.
    """
    bits = numbers.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Exponent and 3 bits of mantissa are the upper 11 of 31; half a step is added, less where that leads to odd ones.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Behind 2^14 float32 counts in steps of 2^-9, as e4m3 does below its smallest normal number, 2^-6.
    small = (tl.abs(numbers) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    byte = tl.where(magnitude < 0x3C800000, small, tl.minimum(normal, 0x7E))
    byte = tl.where(magnitude >= 0x7F800000, 0x7F, byte)
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def fp8_value(byte):
    """float32 numbers of such bytes: the converter of the interpreter knows no NaN, and older GPUs have none."""
    magnitude = (byte & 0x7F).to(tl.int32)
    normal = ((magnitude + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    value = tl.where(magnitude == 0x7F, float("nan"), value)
    return tl.where(byte >= 0x80, -value, value)


@triton.jit
def _quantise_rows(
    matrix,
    numbers,
    scales,
    WIDTH: tl.constexpr,
    WIDTH_OUT: tl.constexpr,
    SMALLEST_BITS: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    exact = tl.load(matrix + row * WIDTH + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    # Of their bits: a maximum of numbers passes over NaN, whose bits are the largest of all.
    magnitudes = exact.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.maximum(tl.max(magnitudes, axis=0), SMALLEST_BITS).to(tl.float32, bitcast=True)
    byte = tl.where(columns < WIDTH, fp8_byte(exact * tl.div_rn(LARGEST, largest)), 0)
    tl.store(numbers + row * WIDTH_OUT + columns, byte, mask=columns < WIDTH_OUT)
    tl.store(scales + row, tl.div_rn(largest, LARGEST))
