"""transformers' own vision tower, which is what ours are compared with."""

import torch

from triptych.models.card import ModelCard, resolve_dtype
from triptych.models.loading import load_image_processor
from triptych.models.qwen2_5_vl import tower
from triptych.models.qwen2_5_vl.tower import Qwen25VLTower


def stock_tower(card: ModelCard, dtype: str = "auto") -> Qwen25VLTower:
    """On the CPU; dtype as `load_tower` takes it."""
    chosen: torch.dtype = getattr(torch, resolve_dtype(card, dtype, "cpu"))
    return tower.load(card, load_image_processor(card).rule, chosen, torch.device("cpu"))
