"""Qwen2.5-VL's vision tower in float32 on the CPU: packed products, and as few passes over memory as they leave.

The products take what follows them along (CpuLinear): SiLU and the gate's product, the residual sums. Norms' weights
lie in the products behind them. Queries and keys come out of theirs with the two halves of each head interleaved, which
attention does not notice, so that the rotary embedding (https://arxiv.org/abs/2104.09864) is one complex product in
place.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.cpu_attention import attend
from triptych.models.cpu_linear import CpuLinear, filled
from triptych.models.kernels.choice import PLAIN
from triptych.models.qwen2_5_vl import tower as stock
from triptych.models.qwen2_5_vl.lean_tower import LeanTower
from triptych.models.segment_attention import Segments


class CpuBlock:
    """The weights of one layer, packed, and what it does with them."""

    def __init__(self, block: Any, heads: int) -> None:
        """block: Qwen2_5_VLVisionBlock with its weights, none of which is shared"""
        attention, mlp = block.attn, block.mlp
        self._heads = heads
        self._epsilons = [float(norm.variance_epsilon) for norm in (block.norm1, block.norm2)]
        qkv = attention.qkv.weight * block.norm1.weight, attention.qkv.bias
        self._qkv = CpuLinear(*(_interleaved(each, heads) for each in qkv))
        self._out = CpuLinear(attention.proj.weight, attention.proj.bias)
        scale = block.norm2.weight
        self._gate = CpuLinear(mlp.gate_proj.weight * scale, mlp.gate_proj.bias)
        self._up = CpuLinear(mlp.up_proj.weight * scale, mlp.up_proj.bias)
        self._down = CpuLinear(mlp.down_proj.weight, mlp.down_proj.bias)

    def __call__(self, hidden: Tensor, turns: Tensor, segments: Segments) -> Tensor:
        """hidden [tokens and filling, width]; turns [tokens, 1, head_size / 2] complex"""
        tokens = len(turns)
        qkv = self._qkv(normed(hidden, self._epsilons[0]))[:tokens].view(tokens, 3, self._heads, -1)
        turned = qkv[:, :2].flatten(1, 2)
        torch.view_as_complex(turned.view(*turned.shape[:2], -1, 2)).mul_(turns)
        queries, keys, values = qkv.unbind(1)
        attended = attend(queries, keys, values, segments).view(tokens, -1)
        hidden = self._out.plus(filled(attended), hidden)
        inner = normed(hidden, self._epsilons[1])
        return self._down.plus(self._up.times(inner, self._gate.silu(inner)), hidden)


class CpuTower(LeanTower):
    """A VisionTower and a GraphTower. Its rows are the stock tower's but for rounding."""

    def __init__(self, tower: stock.Qwen25VLTower) -> None:
        """Takes the tower apart, as LeanTower does. Of float32, on the CPU."""
        super().__init__(tower, PLAIN)
        merger, projection = self._module.merger, self._module.patch_embed.proj
        with torch.no_grad():
            self._projection = CpuLinear(projection.weight.flatten(1), projection.bias)
            self._merge_epsilon = float(merger.ln_q.variance_epsilon)
            widened = merger.mlp[0].weight * merger.ln_q.weight.repeat(self.tokens_per_row)
            self._merge = CpuLinear(widened, merger.mlp[0].bias), CpuLinear(merger.mlp[2].weight, merger.mlp[2].bias)

    def _lean(self, block: Any, heads: int) -> Any:
        return CpuBlock(block, heads)

    def _projected(self, patches: Tensor) -> Tensor:
        return self._projection(filled(patches))[: len(patches)]

    def _layers(self, inputs: Mapping[str, Tensor], frames: Segments, windows: Segments) -> Tensor:
        cos, sin = inputs["cos"], inputs["sin"]
        turns, hidden = torch.complex(cos, sin)[:, None], filled(inputs["hidden"])
        for number, block in enumerate(self._blocks):
            hidden = block(hidden, turns, frames if number in self._full else windows)
        inner, outer = self._merge
        merged = inner(normed(hidden, self._merge_epsilon).view(len(hidden) // self.tokens_per_row, -1))
        rows: Tensor = outer(functional.gelu(merged))
        return rows[: len(turns) // self.tokens_per_row]


def normed(hidden: Tensor, epsilon: float) -> Tensor:
    """[tokens, width] over its root mean square. https://arxiv.org/abs/1910.07467"""
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    shrink: Tensor = length.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()
    return hidden * shrink


def _interleaved(qkv: Tensor, heads: int) -> Tensor:
    """Weight or bias [3 * heads * head_size, ...] of queries, keys and values, in another order.

    In each head of queries and keys, number i + head_size / 2 comes right behind number i.
    """
    parts = qkv.detach().view(3, heads, 2, -1, *qkv.shape[1:]).clone()
    parts[:2] = parts[:2].transpose(2, 3).reshape(parts[:2].shape)
    return parts.flatten(0, 3)
