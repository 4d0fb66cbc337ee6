"""Qwen2.5-VL's vision tower in the two halves that graphs want: transformers' modules, called one by one.

Prelude: projection of the patches, order window by window, rotary tables. Blocks: the layers and the merger. Rows stay
in window order; whoever stores them knows where each belongs, which saves putting them back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triptych.journey import Grid
from triptych.models.base import BatchShape, StaticInput
from triptych.models.qwen2_5_vl.patches import order_patches
from triptych.models.qwen2_5_vl.tower import Qwen25VLTower
from triptych.models.segment_attention import Segments, has_segment_kernel, segment
from triptych.models.shipping import ship


class Qwen25VLGraphTower:
    """A GraphTower over the modules of a loaded tower, which stays as it is."""

    def __init__(self, tower: Qwen25VLTower) -> None:
        module: Any = tower.module
        self._module = module
        self.width, self.levels = tower.width, tower.levels
        self.dtype, self.device = tower.dtype, tower.device
        self.context_kinds = tower.context_kinds
        self._merge_size = int(module.spatial_merge_size)
        self._blocks_per_window = int(module.window_size) // self._merge_size // int(module.patch_size)
        self.tokens_per_row = self._merge_size**2
        self.longest_contexts: tuple[int | None, ...] = (None, self.tokens_per_row * self._blocks_per_window**2)
        hidden, heads = int(module.config.hidden_size), int(module.config.num_heads)
        self.static_inputs: tuple[StaticInput, ...] = (
            StaticInput("hidden", (hidden,), 0, self.dtype),
            StaticInput("cos", (hidden // heads,), 0, torch.float32),
            StaticInput("sin", (hidden // heads,), 0, torch.float32),
        )

    def most_contexts(self, tokens: int, items: int) -> tuple[int, ...]:
        """Of images, which have one frame. The thinnest, one block high, has least patches to its windows."""
        thinnest = self.tokens_per_row * self._blocks_per_window
        return items, tokens // thinnest + items

    def shape(self, grids: Sequence[Grid]) -> BatchShape:
        order = order_patches(grids, self._merge_size, self._blocks_per_window)
        contexts = (order.frame_lengths, order.window_lengths)
        return BatchShape(len(order.positions), order.positions, contexts, order.window_index)

    def prelude(self, patches: Tensor, shape: BatchShape, out: Mapping[str, Tensor]) -> None:
        assert patches.shape[0] == shape.tokens, (patches.shape, shape.tokens)
        positions, order = ship(self.device, shape.positions, shape.row_order)
        patches = patches.to(device=self.device, dtype=self.dtype, non_blocking=True)
        cos, sin = self._module.rotary_pos_emb(patches, positions)
        made = {"hidden": self._module.patch_embed(patches), "cos": cos, "sin": sin}
        for name, values in made.items():
            self._by_window(values, order, out[name][: shape.tokens])

    def _by_window(self, values: Tensor, order: Tensor, out: Tensor) -> None:
        """Blocks of [tokens, numbers] in another order."""
        rows = len(order)
        torch.index_select(values.view(rows, -1), 0, order, out=out.view(rows, -1))

    def blocks(self, inputs: Mapping[str, Tensor], boundaries: Sequence[Tensor], longest: Sequence[int]) -> Tensor:
        frames, windows = (self._segments(each, most) for each, most in zip(boundaries, longest, strict=True))
        hidden, full = inputs["hidden"], self._module.fullatt_block_indexes
        for number, block in enumerate(self._module.blocks):
            segments = frames if number in full else windows
            hidden = block(
                hidden,
                cu_seqlens=segments.boundaries,
                max_seqlen=segments.longest,
                position_embeddings=(inputs["cos"], inputs["sin"]),
                segmentations=(segments,),
            )
        rows: Tensor = self._module.merger(hidden)
        return rows

    def _segments(self, boundaries: Tensor, longest: int) -> Segments:
        if has_segment_kernel(self.device, self.dtype):
            return Segments(boundaries, longest, ())
        # Only the CPU comes here, where reading a tensor waits for nobody; see `capturable`.
        lengths = np.diff(boundaries.numpy()).astype(np.int64)
        return segment(lengths[lengths > 0], self.device, self.dtype)


def capturable(tower: Qwen25VLTower) -> Qwen25VLGraphTower | None:
    """The tower in two halves; None on a device whose attention reads the lengths of segments on the host."""
    if tower.device.type != "cpu" and not has_segment_kernel(tower.device, tower.dtype):
        return None
    return Qwen25VLGraphTower(tower)
