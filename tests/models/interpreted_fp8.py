"""Prints how many numbers Triton's kernels, run by its interpreter, make otherwise than torch: a JSON object.

TRITON_INTERPRET=1 python -m tests.models.interpreted_fp8; see test_quantised.py.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False

import json
import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.models.test_quantised import DTYPES, noise, numbers_to_round
from triptych.models.kernels import fp8
from triptych.models.quantised import FP8, SMALLEST_ROW, padded, quantise_rows, to_fp8

SHAPES = [(3, 1, 16), (5, 40, 48), (2, 256, 256), (4, 1030, 1040)]  # rows, width, width with what is behind


@triton.jit
def _to_bytes(numbers, made, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(made + at, fp8.fp8_byte(tl.load(numbers + at, mask=at < COUNT, other=0.0)), mask=at < COUNT)


@triton.jit
def _to_values(numbers, made, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(made + at, fp8.fp8_value(tl.load(numbers + at)))


def bytes_apart(numbers: Tensor) -> int:
    made = torch.empty(len(numbers), dtype=torch.uint8)
    _to_bytes[(1,)](numbers, made, COUNT=len(numbers), BLOCK=triton.next_power_of_2(len(numbers)))
    return numbers_apart(made.view(FP8), to_fp8(numbers))


def values_apart() -> int:
    every, made = torch.arange(256, dtype=torch.uint8), torch.empty(256)
    _to_values[(1,)](every, made, COUNT=256)
    wanted = every.view(FP8).float()
    return int((~((made == wanted) & (made.signbit() == wanted.signbit()) | made.isnan() & wanted.isnan())).sum())


def rows_apart(dtype: torch.dtype, rows: int, width: int, with_padding: int) -> int:
    matrix = noise(rows + 4, width, dtype=dtype)
    matrix[rows], matrix[rows + 1, -1], matrix[rows + 2, 0] = 0, torch.nan, -torch.inf
    matrix[rows + 3] *= SMALLEST_ROW / 3
    found, wanted = fp8.quantise_rows(matrix, with_padding), padded(quantise_rows(matrix), 16)
    scales = found.scales.eq(wanted.scales[: rows + 4]) | found.scales.isnan() & wanted.scales[: rows + 4].isnan()
    return numbers_apart(found.numbers, wanted.numbers[: rows + 4]) + int((~scales).sum())


def numbers_apart(found: Tensor, wanted: Tensor) -> int:
    """Bytes that differ, other than in which of the two bytes says that there is no number."""
    neither = found.float().isnan() & wanted.float().isnan()
    return int((~(found.view(torch.uint8).eq(wanted.view(torch.uint8)) | neither)).sum())


def main() -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1", "the interpreter is chosen before the kernels are imported"
    broken = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 2.0**-149])
    numbers = torch.cat([numbers_to_round(), broken])
    rows = sum(rows_apart(dtype, *shape) for dtype in DTYPES for shape in SHAPES)
    print(json.dumps({"bytes": bytes_apart(numbers), "values": values_apart(), "rows": rows}))


if __name__ == "__main__":
    main()
