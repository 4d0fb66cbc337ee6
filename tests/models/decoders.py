"""Decoders of transformers' own, small and with weights that tell faults apart, and lean ones on the same weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from triptych.config import LanguageSettings
from triptych.models.card import load_card
from triptych.models.decoder.lean import LeanDecoder
from triptych.models.decoder.loading import PREFIXES, build_decoder
from triptych.models.weights import fill

CPU = torch.device("cpu")
SHARPNESS = 1.6  # see tools/make_random_checkpoint.py

_SIDES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 100.0}


@dataclass(frozen=True)
class Family:
    """A causal language model of transformers by its own config."""

    config: type[Any]
    model: type[Any]
    sides: Mapping[str, Any]


FAMILIES = {
    "qwen2": Family(Qwen2Config, Qwen2ForCausalLM, {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "qwen2, tied, yarn": Family(
        Qwen2Config,
        Qwen2ForCausalLM,
        {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True, "rope_parameters": YARN},
    ),
    "qwen3": Family(
        Qwen3Config, Qwen3ForCausalLM, {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24}
    ),
    "qwen3, biased, tied": Family(
        Qwen3Config,
        Qwen3ForCausalLM,
        {
            "num_attention_heads": 7,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
}


def stock_model(family: Family, seed: int = 0) -> Any:
    """In float32; queries and keys are sharp, norms and biases are drawn, too, so that one left out is noticed."""
    config = family.config(**_SIDES | dict(family.sides))
    config._attn_implementation = "sdpa"
    model = family.model(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(0.1 * noise + (1 if "norm" in name else 0))
                continue
            scale = 1.0 if "embed" in name else 1 / math.sqrt(parameter.shape[1])
            parameter.copy_(noise * scale * (SHARPNESS if "q_proj" in name or "k_proj" in name else 1))
    return model


def lean_copy(model: Any, host: bool | None = None, settings: LanguageSettings | None = None) -> LeanDecoder:
    """A lean decoder by the stock model's config and with its weights."""
    stored = dict(model.named_parameters())

    def copy(places: Mapping[str, Tensor]) -> None:
        assert places.keys() == stored.keys()
        for name, place in places.items():
            place.copy_(stored[name].detach())

    chosen = settings or LanguageSettings(block_size=16)
    return build_decoder(model.config.to_dict(), torch.float32, CPU, chosen, copy, host=host)


def lean_decoder(folder: Path, dtype: torch.dtype = torch.float32, host: bool | None = None) -> LeanDecoder:
    """Of a checkpoint, on the CPU; host False: in the form for GPUs."""
    card = load_card(str(folder), "auto")
    read = partial(fill, card=card, prefixes=PREFIXES)
    return build_decoder(card.config, dtype, CPU, LanguageSettings(), read, host=host)
