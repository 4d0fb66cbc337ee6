"""The computations themselves, in torch: on any device, and what the fused ones are measured by.

Everything is computed in float32, and rounded to the tensors' dtype where transformers' modules round, but for SiLU and
product, which are rounded once.
"""

import torch
from torch import Tensor
from torch.nn import functional


def add_norm(hidden: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """hidden + delta, and its RMS norm times the weight; both [tokens, width], of contiguous [tokens, width].

    Without a delta the first result is `hidden` itself. https://arxiv.org/abs/1910.07467
    """
    added = hidden if delta is None else hidden + delta
    numbers = added.float()
    normed = (numbers * torch.rsqrt(numbers.square().mean(-1, keepdim=True) + epsilon)).to(hidden.dtype)
    return added, normed * weight


def rotate(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> None:
    """Rotary embedding of queries and keys, in place. https://arxiv.org/abs/2104.09864

    qkv:      [tokens, 3 * heads * head_size] contiguous; values stay as they are
    cos, sin: [tokens, head_size / 2] float32, of the angle between number i and number i + head_size / 2 of each head
    """
    tokens, half = cos.shape
    first, second = qkv[:, : 4 * heads * half].view(tokens, 2 * heads, 2, half).unbind(2)
    x, y = first.float(), second.float()
    c, s = cos[:, None], sin[:, None]
    # Both before either is written: of float32 numbers x and y are no copies.
    rotated = x * c - y * s, y * c + x * s
    first.copy_(rotated[0])
    second.copy_(rotated[1])


def gated(x: Tensor, weight: Tensor) -> Tensor:
    """silu(g) * u, [tokens, width], of x [tokens, in] and weight [2 * width, in]: g's rows, then u's."""
    return gate(functional.linear(x, weight))


def gate(both: Tensor) -> Tensor:
    """silu(g) * u, [tokens, width], of g and u side by side in contiguous [tokens, 2 * width]."""
    gates, values = both.float().chunk(2, dim=-1)
    return (functional.silu(gates) * values).to(both.dtype)
