"""Which of the decoders a checkpoint gets. transformers is imported only where its modules are what serves."""

import importlib
from typing import Any

import torch

from triptych.config import LanguageSettings
from triptych.models.base import LanguageModel
from triptych.models.card import ModelCard
from triptych.models.decoder.loading import load_decoder


def load(card: ModelCard, dtype: torch.dtype, device: torch.device, settings: LanguageSettings) -> LanguageModel:
    """The decoder of the card's checkpoint; reads no weight of its tower. Raises ConfigError."""
    return load_decoder(card, dtype, device, settings, lambda: _load_generic(card, dtype, device))


def _load_generic(card: ModelCard, dtype: torch.dtype, device: torch.device) -> LanguageModel:
    module: Any = importlib.import_module("triptych.models.qwen2_5_vl.language")
    model: LanguageModel = module.load_generic(card, dtype, device)
    return model
