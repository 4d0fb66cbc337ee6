"""The same as `plain.py` in Triton: each function reads its operands once and writes its results once.

Imported only where Triton is; the tensors' device has to be the current one. With TRITON_INTERPRET=1 set before the
import it runs on the CPU, slowly.
"""

# Triton compiles annotations too, and knows none but its own.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024  # of the gate that one program makes
_NARROW = 2048  # numbers of a token that four warps norm; a decoder's few and wide ones wait less with eight


def add_norm(hidden: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """As plain.add_norm."""
    tokens, width = hidden.shape
    block = triton.next_power_of_2(width)
    added = hidden if delta is None else torch.empty_like(hidden)
    normed = torch.empty_like(hidden)
    _check_contiguous(hidden, normed if delta is None else delta, weight)
    _add_norm[(tokens,)](
        hidden,
        hidden if delta is None else delta,
        weight,
        added,
        normed,
        epsilon,
        HAS_DELTA=delta is not None,
        WIDTH=width,
        BLOCK=block,
        num_warps=4 if block <= _NARROW else 8,
    )
    return added, normed


def rotate(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> None:
    """As plain.rotate."""
    tokens, half = cos.shape
    _check_contiguous(qkv, cos, sin)
    _rotate[(tokens,)](
        qkv,
        cos,
        sin,
        HEADS=2 * heads,
        HALF=half,
        ROW=qkv.shape[1],
        BLOCK_HEADS=triton.next_power_of_2(2 * heads),
        BLOCK_HALF=triton.next_power_of_2(half),
        num_warps=4,
    )


def gate(both: Tensor) -> Tensor:
    """As plain.gate."""
    tokens, width = both.shape[0], both.shape[1] // 2
    _check_contiguous(both)
    made = torch.empty(tokens, width, dtype=both.dtype, device=both.device)
    _gate[(tokens, triton.cdiv(width, _COLUMNS))](both, made, WIDTH=width, BLOCK=_COLUMNS, num_warps=4)
    return made


def _check_contiguous(*tensors: Tensor) -> None:
    for tensor in tensors:
        assert tensor.is_contiguous(), f"kernels take rows that follow one another, got strides {tensor.stride()}"


@triton.jit
def _add_norm(
    hidden,
    delta,
    weight,
    added,
    normed,
    epsilon,
    HAS_DELTA: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    numbers = tl.load(hidden + at, mask=inside, other=0.0)
    if HAS_DELTA:
        both = numbers.to(tl.float32) + tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        numbers = both.to(added.dtype.element_ty)
        tl.store(added + at, numbers, mask=inside)
    exact = numbers.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, axis=0) / WIDTH + epsilon)
    rounded = (exact * scale).to(normed.dtype.element_ty).to(tl.float32)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (rounded * weights).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(
    qkv,
    cos,
    sin,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    ROW: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    number = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < HEADS) & (number < HALF)
    first = qkv + token * ROW + head * (2 * HALF) + number
    c = tl.load(cos + token * HALF + number, mask=number < HALF, other=0.0)
    s = tl.load(sin + token * HALF + number, mask=number < HALF, other=0.0)
    x = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(first + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, (x * c - y * s).to(qkv.dtype.element_ty), mask=inside)
    tl.store(first + HALF, (y * c + x * s).to(qkv.dtype.element_ty), mask=inside)


@triton.jit
def _gate(both, made, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gates = tl.load(both + token * (2 * WIDTH) + columns, mask=inside, other=0.0).to(tl.float32)
    values = tl.load(both + token * (2 * WIDTH) + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    product = gates * tl.sigmoid(gates) * values
    tl.store(made + token * WIDTH + columns, product.to(made.dtype.element_ty), mask=inside)
