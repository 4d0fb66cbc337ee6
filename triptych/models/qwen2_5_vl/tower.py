"""Qwen2.5-VL's vision tower without its decoder: transformers' modules, fed what the host knows.

Left to itself the stock tower reads grids and boundaries back from the device. Position ids, window order, boundaries
and the longest segments are therefore worked out on the host and handed in, under the names that it looks for first.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from triptych.journey import Grid
from triptych.models.card import ModelCard
from triptych.models.pixels import PixelRule, write_patches
from triptych.models.qwen2_5_vl.patches import order_patches
from triptych.models.segment_attention import ATTENTION_NAME, segment
from triptych.models.shipping import ship
from triptych.models.weights import build_empty, fill_module

# As saved under the module's own names, and as published.
_PREFIXES = {"": ("model.visual.", "visual.")}


class PatchProjection(nn.Module):
    """Patches [patches, patch numbers] to hidden states: the stock convolution, whose kernel is as large as a patch.

    The one matrix product that it is takes a fraction of the time. On the CPU the convolution stays, so that rows are
    the stock tower's to the last bit.
    """

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        self.weight = nn.Parameter(convolution.weight.detach().flatten(1), requires_grad=False)

    def forward(self, patches: Tensor) -> Tensor:
        return functional.linear(patches.to(self.weight.dtype), self.weight)


class Qwen25VLTower:
    """A VisionTower of one checkpoint, on one device."""

    def __init__(self, module: Any, rule: PixelRule) -> None:
        """module: Qwen2_5_VisionTransformerPretrainedModel with its weights; rule: the checkpoint's, for its images"""
        self.module = module
        self.dtype: torch.dtype = module.dtype
        self.device: torch.device = module.device
        if self.device.type != "cpu":
            module.patch_embed = PatchProjection(module.patch_embed.proj)
        self.width = int(module.config.out_hidden_size)
        self.levels = 1
        self.context_kinds: tuple[str, ...] = ("frames", "windows")
        self._rule = rule.to(self.device)
        self._merge_size = int(module.spatial_merge_size)
        self._blocks_per_window = int(module.window_size) // self._merge_size // int(module.patch_size)

    def patches(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> Tensor:
        """Patches [patches of all items, patch numbers] on the tower's device, in its dtype; no host synchronisation.

        pixels: each item's [3, height, width] uint8, on the CPU (best pinned) or on the device

        Raises LayoutMismatch where pixels are not those of their grid.
        """
        sizes = [grid.patches for grid in grids]
        made = torch.empty(sum(sizes), self._rule.patch_numbers, dtype=self.dtype, device=self.device)
        for each, grid, home in zip(pixels, grids, torch.split(made, sizes), strict=True):
            write_patches(self._on_device(each), grid, self._rule, home)
        return made

    @torch.no_grad()
    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        """Rows [rows of all items, width] of patches [patches of all items, patch numbers], item by item.

        Each item's rows are what the tower makes of it alone. No host synchronisation.
        """
        assert patches.shape[0] == sum(grid.patches for grid in grids), (patches.shape, grids)
        order = order_patches(grids, self._merge_size, self._blocks_per_window)
        frames = segment(order.frame_lengths, self.device, self.dtype)
        windows = segment(order.window_lengths, self.device, self.dtype)
        positions, window_index = ship(self.device, order.positions, order.window_index)
        made = self.module(
            patches.to(device=self.device, dtype=self.dtype, non_blocking=True),
            grid_thw=torch.tensor([[grid.t, grid.h, grid.w] for grid in grids]),
            position_ids=positions,
            cu_seqlens=frames.boundaries,
            max_seqlen=frames.longest,
            window_index=window_index,
            cu_window_seqlens=windows.boundaries,
            max_window_seqlen=windows.longest,
            segmentations=(frames, windows),
        )
        rows: Tensor = made.pooler_output
        return rows

    def _on_device(self, pixels: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return pixels
        if pixels.device.type == "cpu":
            # From memory that is not pinned the copy would make the host wait.
            return (pixels if pixels.is_pinned() else pixels.pin_memory()).to(self.device, non_blocking=True)
        # Made on another thread's stream, which may not have the memory back before this one has read it.
        pixels.record_stream(torch.cuda.current_stream(self.device))
        return pixels


def load(card: ModelCard, rule: PixelRule, dtype: torch.dtype, device: torch.device) -> Qwen25VLTower:
    """The tower of the card's checkpoint; reads no weight of its decoder. Raises ConfigError."""
    config = Qwen2_5_VLConfig.from_pretrained(card.folder, local_files_only=True)
    vision = copy.deepcopy(config.vision_config)
    vision._attn_implementation = "sdpa"
    module = build_empty(lambda: Qwen2_5_VisionTransformerPretrainedModel(vision), dtype, device)
    # Set only now: while it builds a model, transformers looks for a package behind every name with `flash` in it.
    module.config._attn_implementation = ATTENTION_NAME
    fill_module(module, card, _PREFIXES)
    return Qwen25VLTower(module, rule)
