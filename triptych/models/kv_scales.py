"""Scales for keys and values in 8 bits, folded into the weights: what is in the slab needs none.

e4m3 is as precise as it gets from 2^-6 to 448, so a scale need only bring a head's numbers somewhere between. It is a
power of two, hence the weights around the slab can carry it without rounding anything: keys come out divided by it and
the queries that meet them multiplied, values come out divided and the output projection multiplies. Attention itself,
prompt by prompt or from pages, never hears of it, and with a slab in the model's own dtype all results stay the same
to the bit (in float16 as long as no weight drops below its normal numbers).

How large a head's numbers are is told by its weights: behind an RMS norm inputs have a mean square of 1. So every
worker finds the same scales in the same checkpoint, without a calibration run; KVGeometry.scaling names them, and two
workers with different ones do not exchange KV.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from triptych.errors import ConfigError
from triptych.models.kernels.head_shape import HeadShape

# Where the typical number of a head comes to lie: 112 times as much still fits, 1/256 of it is still a normal number.
TYPICAL = 4.0
LARGEST_EXPONENT = 8

_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """What of a layer makes keys and values, and meets them again.

    qkv:        [all heads * head_size, hidden]  in HeadShape's order
    bias:       [all heads * head_size], or None
    out:        [hidden, heads * head_size]
    input_norm: [hidden]  weights of the norm ahead of qkv
    head_norm:  [heads + kv_heads, head_size]  of the norms of queries and keys, or None
    """

    qkv: Tensor
    bias: Tensor | None
    out: Tensor
    input_norm: Tensor
    head_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class KVExponents:
    """Of one layer, for each KV head: 2 to the power of it is what its numbers are divided by."""

    keys: tuple[int, ...]
    values: tuple[int, ...]


def kv_exponents(layer: AttentionWeights, shape: HeadShape) -> KVExponents:
    """Exponents by the typical size of each head's numbers. Waits for the device.

    Raises ConfigError where a head's weights are not finite.
    """
    first = shape.heads * shape.head_size
    rows = shape.kv_heads * shape.head_size
    keys, values = (_mean_squares(layer, slice(first + at, first + at + rows), shape) for at in (0, rows))
    if layer.head_norm is not None:  # behind their norm keys are as large as its weights, whatever made them
        keys = layer.head_norm[shape.heads :].double().square().mean(1)
    return KVExponents(_exponents(keys), _exponents(values))


def fold(layer: AttentionWeights, shape: HeadShape, exponents: KVExponents) -> None:
    """Divides keys and values by their scales, and multiplies whatever meets them, in place."""
    share = shape.heads // shape.kv_heads
    of_queries = [exponent for exponent in exponents.keys for _ in range(share)]
    of_keys = [-exponent for exponent in exponents.keys]
    if layer.head_norm is not None:
        _scale(layer.head_norm, [*of_queries, *of_keys], rows_each=1)
        of_queries, of_keys = [0] * shape.heads, [0] * shape.kv_heads
    of_heads = [*of_queries, *of_keys, *(-exponent for exponent in exponents.values)]
    _scale(layer.qkv, of_heads, shape.head_size)
    if layer.bias is not None:
        _scale(layer.bias, of_heads, shape.head_size)
    _scale(layer.out.T, exponents.values, share * shape.head_size)


def scaling_digest(layers: Sequence[KVExponents]) -> str:
    """Names the scales of all layers: equal where KV in 8 bits means the same."""
    facts = repr([(each.keys, each.values) for each in layers])
    return blake3(facts.encode()).hexdigest(_DIGEST_BYTES)


def _mean_squares(layer: AttentionWeights, rows: slice, shape: HeadShape) -> Tensor:
    """[kv_heads] float64, of what the rows make of inputs of mean square 1 that know nothing of one another.

    In float64, so that no order of summing moves a head across the border between two powers.
    """
    squares = (layer.qkv[rows].double() * layer.input_norm.double()).square().sum(1)
    if layer.bias is not None:
        squares = squares + layer.bias[rows].double().square()
    return squares.view(shape.kv_heads, shape.head_size).mean(1)


def _exponents(mean_squares: Tensor) -> tuple[int, ...]:
    found = mean_squares.cpu()
    if not bool(found.isfinite().all()):
        raise ConfigError("a layer's keys or values have weights that are not finite; KV cannot be held in 8 bits")
    # A head of zeros stays one, whatever it is divided by.
    sizes = torch.where(found > 0, found, TYPICAL**2).sqrt() / TYPICAL
    rounded = sizes.log2().round().clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    return tuple(int(each) for each in rounded)


def _scale(matrix: Tensor, exponents: Sequence[int], rows_each: int) -> None:
    """Multiplies so many rows each by 2 to the power of these exponents, in place."""
    factors = torch.tensor([2.0**exponent for exponent in exponents], dtype=matrix.dtype, device=matrix.device)
    matrix.mul_(factors.repeat_interleave(rows_each).view(-1, *[1] * (matrix.dim() - 1)))
