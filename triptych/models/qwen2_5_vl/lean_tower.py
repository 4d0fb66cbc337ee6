"""Qwen2.5-VL's vision tower as few, large pieces of work: for GPUs in 16 bits, where passes over memory cost time.

The matrix products are transformers', but for the MLP: gate and up are one product, and its width is padded with zeros
to what the matrix units take whole (3,420 -> 3,456). What lies between the products is one kernel each: residual sum
with RMS norm, rotary embedding of queries and keys, SiLU with product. Attention reads queries, keys and values where
the product left them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triptych.journey import Grid
from triptych.models.base import BatchShape, StaticInput
from triptych.models.kernels.choice import Kernels, choose_kernels
from triptych.models.qwen2_5_vl import tower as stock
from triptych.models.qwen2_5_vl.graph_tower import Qwen25VLGraphTower
from triptych.models.segment_attention import Segments, attend_segments, segment
from triptych.models.shipping import ship

_GRAIN = 128  # columns that a tile of a matrix product has


class LeanBlock:
    """The weights of one layer, and what it does with them."""

    def __init__(self, block: Any, heads: int) -> None:
        """block: Qwen2_5_VLVisionBlock with its weights; its MLP is copied, the rest shared"""
        attention, mlp = block.attn, block.mlp
        self._heads = heads
        self._norms = [(norm.weight, float(norm.variance_epsilon)) for norm in (block.norm1, block.norm2)]
        self._qkv = attention.qkv.weight, attention.qkv.bias
        self._proj = attention.proj.weight, attention.proj.bias
        padding = -mlp.gate_proj.out_features % _GRAIN
        gate, up = (_padded_rows(each, padding) for each in (mlp.gate_proj, mlp.up_proj))
        self._gate_up = torch.cat([gate[0], up[0]]), torch.cat([gate[1], up[1]])
        self._down = functional.pad(mlp.down_proj.weight, (0, padding)), mlp.down_proj.bias

    def __call__(
        self, hidden: Tensor, delta: Tensor | None, cos: Tensor, sin: Tensor, segments: Segments, kernels: Kernels
    ) -> tuple[Tensor, Tensor]:
        """The residual stream and what is to be added to it next, [tokens, hidden], from those of the layer before."""
        hidden, normed = kernels.add_norm(hidden, delta, *self._norms[0])
        qkv = functional.linear(normed, *self._qkv)
        kernels.rotate(qkv, cos, sin, self._heads)
        queries, keys, values = qkv.view(len(qkv), 3, self._heads, -1).unbind(1)
        attended = attend_segments(queries, keys, values, segments).reshape(hidden.shape)
        hidden, normed = kernels.add_norm(hidden, functional.linear(attended, *self._proj), *self._norms[1])
        gated = kernels.gate(functional.linear(normed, *self._gate_up))
        return hidden, functional.linear(gated, *self._down)


def _padded_rows(linear: Any, padding: int) -> tuple[Tensor, Tensor]:
    """Weight and bias with so many more outputs, which are 0."""
    return functional.pad(linear.weight, (0, 0, 0, padding)), functional.pad(linear.bias, (0, padding))


class LeanTower(Qwen25VLGraphTower):
    """A VisionTower and a GraphTower. Its rows are the stock tower's but for rounding."""

    def __init__(self, tower: stock.Qwen25VLTower, kernels: Kernels | None = None) -> None:
        """Takes the tower apart, layer by layer, so that no weight lies in memory twice: it cannot encode any more.

        kernels: those that a trial on the device chooses, if None
        """
        super().__init__(tower)
        self.patches = tower.patches
        self.kernels = choose_kernels(self.device, self.dtype) if kernels is None else kernels
        config = self._module.config
        head_size = int(config.hidden_size) // int(config.num_heads)
        hidden, *_ = self.static_inputs
        angles = (StaticInput(name, (head_size // 2,), 0, torch.float32) for name in ("cos", "sin"))
        self.static_inputs = (hidden, *angles)
        self._full = frozenset(int(number) for number in self._module.fullatt_block_indexes)
        self._blocks: list[Any] = []
        with torch.no_grad():
            for number, block in enumerate(self._module.blocks):
                self._blocks.append(self._lean(block, int(config.num_heads)))
                self._module.blocks[number] = nn.Identity()

    def _lean(self, block: Any, heads: int) -> Any:
        """What stands in for a layer of the stock tower."""
        return LeanBlock(block, heads)

    def _projected(self, patches: Tensor) -> Tensor:
        """Hidden states of patches."""
        hidden: Tensor = self._module.patch_embed(patches)
        return hidden

    @torch.no_grad()
    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        """Rows [rows of all items, width], item by item, each item's as of it alone. No host synchronisation."""
        shape = self.shape(grids)
        inputs = {each.name: self._empty(each, shape.tokens) for each in self.static_inputs}
        self.prelude(patches, shape, inputs)
        segments = [segment(lengths, self.device, self.dtype) for lengths in shape.contexts]
        (row_order,) = ship(self.device, shape.row_order)
        rows = self._layers(inputs, *segments)
        return torch.empty_like(rows).index_copy_(0, row_order, rows)

    def _empty(self, spec: StaticInput, tokens: int) -> Tensor:
        return torch.empty(tokens, *spec.shape, dtype=spec.dtype, device=self.device)

    @torch.no_grad()
    def prelude(self, patches: Tensor, shape: BatchShape, out: Mapping[str, Tensor]) -> None:
        assert patches.shape[0] == shape.tokens, (patches.shape, shape.tokens)
        positions, order = ship(self.device, shape.positions, shape.row_order)
        patches = patches.to(device=self.device, dtype=self.dtype, non_blocking=True)
        # transformers repeats each angle for the second half of a head.
        cos, sin = (each.chunk(2, dim=-1)[0].contiguous() for each in self._module.rotary_pos_emb(patches, positions))
        made = {"hidden": self._projected(patches), "cos": cos, "sin": sin}
        for name, values in made.items():
            self._by_window(values, order, out[name][: shape.tokens])

    @torch.no_grad()
    def blocks(self, inputs: Mapping[str, Tensor], boundaries: Sequence[Tensor], longest: Sequence[int]) -> Tensor:
        return self._layers(inputs, *(self._segments(*each) for each in zip(boundaries, longest, strict=True)))

    def _layers(self, inputs: Mapping[str, Tensor], frames: Segments, windows: Segments) -> Tensor:
        """Rows in the order of windows."""
        hidden, cos, sin = (inputs[each.name] for each in self.static_inputs)
        delta: Tensor | None = None
        kernels = self.kernels
        with torch.cuda.device(self.device if self.device.type == "cuda" else -1):  # Triton launches on the current one
            for number, block in enumerate(self._blocks):
                segments = frames if number in self._full else windows
                hidden, delta = block(hidden, delta, cos, sin, segments, kernels)
            norm, mlp = self._module.merger.ln_q, self._module.merger.mlp
            _, normed = kernels.add_norm(hidden, delta, norm.weight, float(norm.variance_epsilon))
            rows: Tensor = mlp(normed.view(len(normed) // self.tokens_per_row, -1))
        return rows
