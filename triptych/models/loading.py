"""Tower, decoder and image processor of a checkpoint: what each process loads, and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from triptych.config import LanguageSettings
from triptych.errors import ConfigError
from triptych.models.base import GraphTower, LanguageModel, VisionTower
from triptych.models.card import ModelCard, resolve_dtype
from triptych.models.images import ImageProcessor, load_image_processor
from triptych.models.pixels import PixelRule
from triptych.models.qwen2_5_vl import graph_tower as qwen2_5_vl_graph_tower
from triptych.models.qwen2_5_vl import language as qwen2_5_vl_language
from triptych.models.qwen2_5_vl import lean_tower as qwen2_5_vl_lean_tower
from triptych.models.qwen2_5_vl import tower as qwen2_5_vl_tower
from triptych.models.qwen2_5_vl import towers as qwen2_5_vl_towers

__all__ = ["ImageProcessor", "graph_tower", "load_image_processor", "load_language", "load_tower"]


@dataclass(frozen=True, slots=True)
class Family:
    """The torch half of a model family; `adapter.py` has the other."""

    load_language: Callable[[ModelCard, torch.dtype, torch.device, LanguageSettings], LanguageModel]
    load_tower: Callable[[ModelCard, PixelRule, torch.dtype, torch.device], VisionTower]


_FAMILY_BY_MODEL_TYPE: Mapping[str, Family] = {
    "qwen2_5_vl": Family(qwen2_5_vl_language.load, qwen2_5_vl_towers.load),
}


def load_language(
    card: ModelCard, device: torch.device, dtype: str = "auto", settings: LanguageSettings | None = None
) -> LanguageModel:
    """The decoder with its weights on the device, without the tower's.

    dtype:    float32, bfloat16, float16, or auto (float32 on the CPU, the checkpoint's own elsewhere)
    settings: which decoder, and how it computes; the defaults if None
    Raises ConfigError naming what in the folder does not fit.
    """
    chosen = settings or LanguageSettings()
    return _family(card).load_language(card, _torch_dtype(card, dtype, device), device, chosen)


def load_tower(card: ModelCard, device: torch.device, dtype: str = "auto") -> VisionTower:
    """The vision tower with its weights on the device, without the decoder's; otherwise as `load_language`."""
    rule = load_image_processor(card).rule
    return _family(card).load_tower(card, rule, _torch_dtype(card, dtype, device), device)


def graph_tower(tower: VisionTower) -> GraphTower | None:
    """The loaded tower in the halves that graphs want, on the same weights; None where it cannot be captured."""
    if isinstance(tower, qwen2_5_vl_lean_tower.LeanTower):
        return tower
    if isinstance(tower, qwen2_5_vl_tower.Qwen25VLTower):
        return qwen2_5_vl_graph_tower.capturable(tower)
    return None


def _family(card: ModelCard) -> Family:
    model_type: Any = card.config.get("model_type")
    if model_type not in _FAMILY_BY_MODEL_TYPE:
        raise ConfigError(f"model_type is {model_type!r}; known ones: {', '.join(sorted(_FAMILY_BY_MODEL_TYPE))}")
    return _FAMILY_BY_MODEL_TYPE[model_type]


def _torch_dtype(card: ModelCard, dtype: str, device: torch.device) -> torch.dtype:
    chosen: torch.dtype = getattr(torch, resolve_dtype(card, dtype, device.type))
    return chosen
