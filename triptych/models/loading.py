"""Tower, decoder and image processor of a checkpoint: what each process loads, and nothing else.

That goes for modules, too: whoever has no tower never imports transformers, which takes seconds. So what needs it is
imported by name, when it is asked for.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from triptych.config import LanguageSettings
from triptych.errors import ConfigError
from triptych.models.base import GraphTower, LanguageModel, VisionTower
from triptych.models.card import ModelCard, resolve_dtype
from triptych.models.qwen2_5_vl import decoders as qwen2_5_vl_decoders

if TYPE_CHECKING:
    from triptych.models.images import ImageProcessor

__all__ = ["graph_tower", "load_image_processor", "load_language", "load_tower"]

_LoadLanguage = Callable[[ModelCard, torch.dtype, torch.device, LanguageSettings], LanguageModel]

_LANGUAGE_BY_MODEL_TYPE: Mapping[str, _LoadLanguage] = {
    "qwen2_5_vl": qwen2_5_vl_decoders.load,
}


def load_language(
    card: ModelCard, device: torch.device, dtype: str = "auto", settings: LanguageSettings | None = None
) -> LanguageModel:
    """The decoder with its weights on the device, without the tower's.

    dtype:    float32, bfloat16, float16, or auto (float32 on the CPU, the checkpoint's own elsewhere)
    settings: which decoder, and how it computes; the defaults if None
    Raises ConfigError naming what in the folder does not fit.
    """
    load: _LoadLanguage = of_family(card, _LANGUAGE_BY_MODEL_TYPE)
    return load(card, torch_dtype(card, dtype, device), device, settings or LanguageSettings())


def load_tower(card: ModelCard, device: torch.device, dtype: str = "auto") -> VisionTower:
    """The vision tower with its weights on the device, without the decoder's; otherwise as `load_language`."""
    tower: VisionTower = _towers().load_tower(card, device, dtype)
    return tower


def load_image_processor(card: ModelCard) -> "ImageProcessor":
    """The image processor of the card's folder; ConfigError where transformers cannot make one of it."""
    processor: ImageProcessor = _towers().load_image_processor(card)
    return processor


def graph_tower(tower: VisionTower) -> GraphTower | None:
    """The loaded tower in the halves that graphs want, on the same weights; None where it cannot be captured."""
    halves: GraphTower | None = _towers().graph_tower(tower)
    return halves


def of_family(card: ModelCard, by_model_type: Mapping[str, Any]) -> Any:
    """The entry for the card's family. Raises ConfigError for one that is not there."""
    model_type: Any = card.config.get("model_type")
    if model_type not in by_model_type:
        raise ConfigError(f"model_type is {model_type!r}; known ones: {', '.join(sorted(by_model_type))}")
    return by_model_type[model_type]


def torch_dtype(card: ModelCard, dtype: str, device: torch.device) -> torch.dtype:
    """What a name of a dtype means for this checkpoint on this device."""
    chosen: torch.dtype = getattr(torch, resolve_dtype(card, dtype, device.type))
    return chosen


def _towers() -> Any:
    return importlib.import_module("triptych.models.tower_loading")
