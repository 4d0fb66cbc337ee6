"""A product and what follows it in one kernel, for the few tokens of a decode step.

So few tokens wait for weights alone. A library's product keeps up with memory but for its beginning and its end, and
then the gate has both of its own, with what goes out and comes back between them. Weights are the left side here:
tensor cores take 64 of their rows at once, however few tokens there are. Each program has gates and values of the same
numbers, and stores their product. On an H200, for 7B's numbers: 69 µs of 74 for 64 tokens, 65 of 73 for 16.

Numbers are added in one order whatever the number of tokens is: a token's result does not depend on its neighbours.

Imported only where Triton is; the tensors' device has to be the current one. With TRITON_INTERPRET=1 set before the
import it runs on the CPU, slowly.
"""

# Triton compiles annotations too, and knows none but its own.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from triptych.models.kernels import fused

MOST_TOKENS = 64  # beyond that products are bound by arithmetic, which libraries do better
_LEAST_TOKENS = 16  # of a matrix product
_ROWS = 64  # of gates, and as many of values, in each program
_STEP = 64  # numbers of a token that are multiplied at a time


def gated(x: Tensor, weight: Tensor) -> Tensor:
    """As plain.gated; where the kernel does not fit, a library's product and the gate."""
    if not _fits(x, weight):
        return fused.gate(functional.linear(x, weight))
    tokens, inputs = x.shape
    width = weight.shape[0] // 2
    made = torch.empty(tokens, width, dtype=x.dtype, device=x.device)
    _gated[(width // _ROWS,)](
        x,
        weight,
        made,
        tokens,
        inputs,
        width,
        TOKENS=max(triton.next_power_of_2(tokens), _LEAST_TOKENS),
        ROWS=_ROWS,
        STEP=_STEP,
        num_warps=4,
        num_stages=3,
    )
    return made


def _fits(x: Tensor, weight: Tensor) -> bool:
    """float32 would be multiplied as less than it is."""
    rows, inputs = weight.shape
    is_whole = rows % (2 * _ROWS) == 0 and inputs % _STEP == 0 and x.is_contiguous() and weight.is_contiguous()
    return is_whole and 0 < len(x) <= MOST_TOKENS and x.dtype.itemsize == 2 and x.dtype == weight.dtype


@triton.jit(do_not_specialize=["tokens"])
def _gated(
    x,
    weight,
    made,
    tokens,
    inputs,
    width,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    number = tl.arange(0, STEP)
    inside = token[None, :] < tokens
    gate_at = weight + row.to(tl.int64)[:, None] * inputs + number[None, :]
    value_at = gate_at + width.to(tl.int64) * inputs
    x_at = x + token[None, :] * inputs + number[:, None]
    gates = tl.zeros((ROWS, TOKENS), dtype=tl.float32)
    values = tl.zeros((ROWS, TOKENS), dtype=tl.float32)
    for _ in range(0, inputs, STEP):
        some = tl.load(x_at, mask=inside, other=0.0)
        gates = tl.dot(tl.load(gate_at), some, gates)
        values = tl.dot(tl.load(value_at), some, values)
        gate_at += STEP
        value_at += STEP
        x_at += STEP
    # Rounded as a product's result is, then computed with as `gate` does.
    g = gates.to(made.dtype.element_ty).to(tl.float32)
    v = values.to(made.dtype.element_ty).to(tl.float32)
    product = g * tl.sigmoid(g) * v
    tl.store(made + token[None, :] * width + row[:, None], product.to(made.dtype.element_ty), mask=inside)
