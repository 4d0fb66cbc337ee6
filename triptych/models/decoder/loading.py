"""The decoder of a checkpoint: the lean one where it knows the model and passed its trial, else the generic one."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from triptych.config import LanguageSettings
from triptych.errors import ConfigError
from triptych.models.base import KVGeometry, LanguageModel
from triptych.models.card import ModelCard
from triptych.models.decoder.geometry import DecoderGeometry
from triptych.models.decoder.lean import LeanDecoder
from triptych.models.decoder.precision import Precision
from triptych.models.decoder.trial import what_is_wrong
from triptych.models.decoder.weights import DecoderWeights, allocate
from triptych.models.kernels.choice import choose_kernels
from triptych.models.kernels.head_shape import HeadShape
from triptych.models.weights import fill

log = logging.getLogger(__name__)

# As saved under transformers' own names, and as published.
PREFIXES = {"model.": ("model.language_model.", "model."), "lm_head.": ("lm_head.",)}

Fill = Callable[[Mapping[str, Tensor]], None]


def load_decoder(
    card: ModelCard,
    dtype: torch.dtype,
    device: torch.device,
    settings: LanguageSettings,
    generic: Callable[[], LanguageModel],
) -> LanguageModel:
    """The decoder of the card's checkpoint that `language.decoder` asks for; reads no weight of a tower.

    generic: loads transformers' modules
    Raises ConfigError, also where the lean decoder is asked for and cannot be had; in 8 bits there is no other.
    """
    if settings.decoder == "generic":
        _refuse_fewer_bits(settings, "language.decoder is generic")
        return generic()
    try:
        return _lean(card, dtype, device, settings)
    except _NotThisOne as error:
        if settings.decoder == "lean":
            raise ConfigError(f"language.decoder is lean, which cannot be had: {error}; set auto or generic") from error
        _refuse_fewer_bits(settings, str(error))
        log.warning("the decoder is not the lean one, which costs time: %s", error)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the lean one has filled
    return generic()


def build_decoder(
    config: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    settings: LanguageSettings,
    fill_places: Fill,
    *,
    host: bool | None = None,
) -> LeanDecoder:
    """A lean decoder by a config.json, untried.

    fill_places: sets tensors by the names that transformers' modules give them
    host:        as LeanDecoder takes it
    Raises ConfigError where the config has something in it that the lean decoder does not know.
    """
    geometry = DecoderGeometry.from_config(config)
    heads = HeadShape(geometry.heads, geometry.kv_heads, geometry.head_size)
    precision = Precision(settings, heads, dtype, device)
    weights = _filled(geometry, dtype, device, fill_places)
    precision.finish(weights.layers)
    kv = KVGeometry(geometry.layers, geometry.kv_heads, geometry.head_size, precision.kv_dtype, precision.scaling)
    return LeanDecoder(
        geometry,
        weights,
        kv,
        choose_kernels(device, dtype),
        settings.block_size,
        attention=settings.attention,
        host=host,
    )


def _filled(geometry: DecoderGeometry, dtype: torch.dtype, device: torch.device, fill_places: Fill) -> DecoderWeights:
    """Nothing but what comes back keeps a tensor alive: layers' may be replaced one by one."""
    allocated = allocate(geometry, dtype, device)
    fill_places(allocated.places)
    with torch.no_grad():
        allocated.spread()
    return allocated.weights


def _refuse_fewer_bits(settings: LanguageSettings, reason: str) -> None:
    if settings.precision:
        raise ConfigError(
            f"{settings.precision}: only the lean decoder keeps anything in 8 bits, and it cannot be had: {reason}; "
            "set language.weights and language.kv_dtype to auto"
        )


class _NotThisOne(Exception):
    """The lean decoder does not know the model, or failed its trial."""


def _lean(card: ModelCard, dtype: torch.dtype, device: torch.device, settings: LanguageSettings) -> LeanDecoder:
    try:
        DecoderGeometry.from_config(card.config)
    except ConfigError as error:
        raise _NotThisOne(error.message) from error
    read = partial(fill, card=card, prefixes=PREFIXES)
    decoder = build_decoder(card.config, dtype, device, settings, read)
    wrong = _try(decoder, settings.block_size) if device.type == "cuda" else ""
    if wrong:
        raise _NotThisOne(wrong)
    return decoder


def _try(decoder: LeanDecoder, block_size: int) -> str:
    try:
        return what_is_wrong(decoder, block_size)
    except Exception as error:  # a compiler may fail in any way
        return f"its trial ended in {error!r}"
    finally:
        if decoder.device.type == "cuda":
            torch.cuda.empty_cache()  # of matrices in float32: KV is allocated elsewhere
