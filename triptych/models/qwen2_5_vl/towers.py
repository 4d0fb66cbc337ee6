"""Which of the towers a checkpoint gets, by device and dtype."""

import torch

from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.models.cpu_linear import can_pack
from triptych.models.pixels import PixelRule
from triptych.models.qwen2_5_vl import tower as stock
from triptych.models.qwen2_5_vl.cpu_tower import CpuTower
from triptych.models.qwen2_5_vl.lean_tower import LeanTower
from triptych.models.segment_attention import has_segment_kernel


def load(card: ModelCard, rule: PixelRule, dtype: torch.dtype, device: torch.device) -> VisionTower:
    """The tower of the card's checkpoint: the lean one where attention has a kernel (CUDA, 16 bits), the packed one in
    float32 on the CPU, else the stock one.

    Reads no weight of its decoder. Raises ConfigError.
    """
    tower = stock.load(card, rule, dtype, device)
    if has_segment_kernel(device, dtype):
        return LeanTower(tower)
    return CpuTower(tower) if can_pack(torch.empty(0, dtype=dtype, device=device)) else tower
