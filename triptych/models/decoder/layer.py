"""One layer of a decoder: what is computed between two sums of the residual stream.

Two forms of the same arithmetic. `Layer` is for GPUs: products, and one kernel each for residual with norm, for rotary
embedding with KV write, and for SiLU with product, which takes in the product ahead of it where tokens are few.
`HostLayer` is for the CPU in float32, where what lies between products costs calls rather than memory: sums, SiLU and
gate are left to the products themselves.
"""

import math
from typing import Protocol

import torch
from torch import Tensor

from triptych.models.attention.base import AttentionStep
from triptych.models.cpu_linear import CpuLinear, filled
from triptych.models.decoder.weights import Dense, LayerWeights
from triptych.models.kernels.choice import Kernels
from triptych.models.kernels.head_shape import Turn


class AnyLayer(Protocol):
    def __call__(
        self, hidden: Tensor, delta: Tensor | None, turn: Turn, attention: AttentionStep, asked: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream and what is to be added to it next, from those of the layer before.

        hidden, delta: [tokens, hidden]
        asked: [asked] int64, the tokens of which alone a result is wanted; None: all. The last layer's: keys and values
               of all tokens are written, and what comes behind attention is computed of these only.
        """


class Layer:
    """Of any products, on any device; see AnyLayer."""

    def __init__(self, weights: LayerWeights, number: int, epsilon: float, kernels: Kernels) -> None:
        self.weights = weights
        self._number = number
        self._epsilon = epsilon
        self.kernels = kernels

    def __call__(
        self, hidden: Tensor, delta: Tensor | None, turn: Turn, attention: AttentionStep, asked: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        weights, kernels = self.weights, self.kernels
        hidden, normed = kernels.add_norm(hidden, delta, weights.input_norm, self._epsilon)
        states = turn(self._number, weights.qkv(normed), weights.head_norm)
        if asked is not None and not len(asked):
            return hidden[:0], None
        attended = attention.attend(self._number, *states).view(len(hidden), -1)
        if asked is not None:
            hidden, attended = hidden.index_select(0, asked), attended.index_select(0, asked)
        hidden, normed = kernels.add_norm(hidden, weights.out(attended), weights.post_norm, self._epsilon)
        return hidden, weights.down(self._gated(normed))

    def _gated(self, normed: Tensor) -> Tensor:
        product = self.weights.gate_up
        if isinstance(product, Dense) and product.bias is None:
            return self.kernels.gated(normed, product.weight)
        return self.kernels.gate(product(normed))


class HostLayer:
    """Of dense weights in float32 on the CPU; see AnyLayer. Nothing is ever left to be added.

    The weights of both norms are multiplied into the products behind them. Hidden states are filled up (`filled`):
    those of a step's tokens, or of the asked ones, come first.
    """

    def __init__(self, weights: LayerWeights, number: int, epsilon: float) -> None:
        """Takes the products' weights over: of those that are packed no other copy stays."""
        qkv, out, gate_up, down = _dense(weights)
        self._number = number
        self._qkv = CpuLinear(qkv.weight * weights.input_norm, qkv.bias)
        self._out, self._down = (CpuLinear(each.weight, each.bias) for each in (out, down))
        self._gate, self._up = (CpuLinear(half * weights.post_norm) for half in gate_up.weight.chunk(2))
        self._head_norm = weights.head_norm
        self._root_of_epsilon = torch.tensor(math.sqrt(epsilon))
        self._root_of_width = math.sqrt(len(weights.input_norm))

    def __call__(
        self, hidden: Tensor, delta: Tensor | None, turn: Turn, attention: AttentionStep, asked: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        tokens = turn.num_tokens
        if delta is not None:
            hidden = hidden[:tokens] + delta
        if len(hidden) == tokens:  # else it was filled by the layer before
            hidden = filled(hidden)
        states = turn(self._number, self._qkv(self._normed(hidden))[:tokens], self._head_norm)
        if asked is not None and not len(asked):
            return hidden[:0], None
        attended = attention.attend(self._number, *states).view(tokens, -1)
        if asked is not None:
            hidden, attended = filled(hidden.index_select(0, asked)), attended.index_select(0, asked)
        hidden = self._out.plus(filled(attended), hidden)
        normed = self._normed(hidden)
        gated = self._up.times(normed, self._gate.silu(normed))
        return self._down.plus(gated, hidden), None

    def _normed(self, hidden: Tensor) -> Tensor:
        """RMS norm without a weight: half the time of torch's own, which goes over memory once for each operation."""
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        size: Tensor = length.div_(self._root_of_width).hypot_(self._root_of_epsilon)
        return hidden / size


def _dense(weights: LayerWeights) -> tuple[Dense, Dense, Dense, Dense]:
    products = weights.qkv, weights.out, weights.gate_up, weights.down
    dense = tuple(each for each in products if isinstance(each, Dense))
    assert len(dense) == 4, products
    return dense


def is_dense(weights: LayerWeights) -> bool:
    """Whether all products are torch's own."""
    return all(isinstance(each, Dense) for each in (weights.qkv, weights.out, weights.gate_up, weights.down))
