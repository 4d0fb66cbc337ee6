"""Which implementation a decoder is given: by a trial, and where several pass, by a measurement."""

import importlib
import logging
from typing import Any

import torch

from triptych.errors import ConfigError
from triptych.models.attention.base import Attention, AttentionShape
from triptych.models.attention.sdpa import SdpaAttention
from triptych.models.attention.trial import prompt_seconds, what_is_wrong

log = logging.getLogger(__name__)

_SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def choose_attention(shape: AttentionShape, device: torch.device, wanted: str = "auto") -> Attention:
    """The wanted implementation, one of config.ATTENTIONS.

    auto: on CUDA our Triton kernels, with torch's varlen_attn for fresh prompts where that is faster; torch's
    scaled_dot_product_attention where they fail their trial, with a warning, and on the CPU. FlashInfer is never
    taken unasked: it compiles for a minute or two.

    Waits for the device. Raises ConfigError where one that was asked for by name does not work.
    """
    if wanted == "sdpa" or (wanted == "auto" and device.type != "cuda"):
        return SdpaAttention(shape)
    if device.type != "cuda":
        raise ConfigError(f"language.attention is {wanted!r}, which needs CUDA; use auto or sdpa on {device.type}")
    with torch.cuda.device(device):
        return _best(shape, device) if wanted == "auto" else _asked_for(wanted, shape, device)


def _best(shape: AttentionShape, device: torch.device) -> Attention:
    names = ("triton", "varlen") if shape.dtype in _SIXTEEN_BITS else ("triton",)
    working = []
    for name in names:
        try:
            working.append(_tried(name, shape, device))
        except ConfigError as error:
            log.warning("attention is not %s's, which may cost time: %s", name, error)
    if not working:
        log.warning("attention is torch's scaled_dot_product_attention: slow, and decoding cannot be recorded")
        return SdpaAttention(shape)
    if len(working) == 1:
        return working[0]
    seconds = [prompt_seconds(each, shape, device) for each in working]
    measured = ", ".join(f"{each.name} {1e6 * time:.0f} µs" for each, time in zip(working, seconds, strict=True))
    best = working[seconds.index(min(seconds))]
    log.info("attention is %s's: two prompts of 2,048 tokens take %s", best.name, measured)
    return best


def _asked_for(name: str, shape: AttentionShape, device: torch.device) -> Attention:
    try:
        return _tried(name, shape, device)
    except ConfigError as error:
        raise ConfigError(f"language.attention is {name!r}, which does not work here: {error}; use auto") from error


def _tried(name: str, shape: AttentionShape, device: torch.device) -> Attention:
    """Raises ConfigError where it cannot be made or fails its trial."""
    try:
        attention = make_attention(name, shape, device)
        wrong = what_is_wrong(attention, shape, device)
    except Exception as error:  # a compiler may fail in any way
        raise ConfigError(f"{type(error).__name__}: {error}") from error
    if wrong:
        raise ConfigError(wrong)
    return attention


def make_attention(name: str, shape: AttentionShape, device: torch.device) -> Attention:
    """An implementation by name, untried. Raises ImportError or ConfigError where what it needs is not there."""
    if name == "sdpa":
        return SdpaAttention(shape)
    # By name, and on a GPU alone: Triton comes with torch for those, and torch's varlen_attn loads its compiler along.
    if name == "flashinfer":
        optional: Any = importlib.import_module("triptych.models.attention.flash_infer")
        made: Attention = optional.FlashInferAttention(shape, device)
        return made
    ours: Any = importlib.import_module("triptych.models.attention.paged")
    attention: Attention = ours.TritonAttention(shape, device, varlen=name == "varlen")
    return attention
