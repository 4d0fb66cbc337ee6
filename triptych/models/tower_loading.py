"""The half of loading.py that needs transformers: towers and image processors. Reached through loading.py alone."""

from collections.abc import Callable, Mapping

import torch

from triptych.models.base import GraphTower, VisionTower
from triptych.models.card import ModelCard
from triptych.models.images import load_image_processor
from triptych.models.loading import of_family, torch_dtype
from triptych.models.pixels import PixelRule
from triptych.models.qwen2_5_vl import graph_tower as qwen2_5_vl_graph_tower
from triptych.models.qwen2_5_vl import lean_tower as qwen2_5_vl_lean_tower
from triptych.models.qwen2_5_vl import tower as qwen2_5_vl_tower
from triptych.models.qwen2_5_vl import towers as qwen2_5_vl_towers

__all__ = ["graph_tower", "load_image_processor", "load_tower"]

_LoadTower = Callable[[ModelCard, PixelRule, torch.dtype, torch.device], VisionTower]

_TOWER_BY_MODEL_TYPE: Mapping[str, _LoadTower] = {
    "qwen2_5_vl": qwen2_5_vl_towers.load,
}


def load_tower(card: ModelCard, device: torch.device, dtype: str) -> VisionTower:
    """As loading.load_tower."""
    load: _LoadTower = of_family(card, _TOWER_BY_MODEL_TYPE)
    return load(card, load_image_processor(card).rule, torch_dtype(card, dtype, device), device)


def graph_tower(tower: VisionTower) -> GraphTower | None:
    """As loading.graph_tower."""
    if isinstance(tower, qwen2_5_vl_lean_tower.LeanTower):
        return tower
    if isinstance(tower, qwen2_5_vl_tower.Qwen25VLTower):
        return qwen2_5_vl_graph_tower.capturable(tower)
    return None
