"""By which angles a decoder turns queries and keys, told by its config.json. No torch.

Frequencies are the plain ones (https://arxiv.org/abs/2104.09864) or those of YaRN (https://arxiv.org/abs/2309.00071),
whose constants are computed as transformers computes them. With three axes of positions (M-RoPE,
https://arxiv.org/abs/2409.12191) each frequency follows one of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from triptych.errors import ConfigError

_DEFAULT_SECTIONS = (16, 24, 24)


@dataclass(frozen=True, slots=True)
class Yarn:
    """Frequencies below `low` turn as they are, those from `high` on `factor` times as slowly, between them in part."""

    factor: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RopeRule:
    """Frequencies of one decoder: number i of head_size / 2 is theta ** (-2 i / head_size), before YaRN.

    axes:  of each frequency, which axis of the positions (t, h, w) it follows; all 0 where there is one only
    scale: of cosines and sines
    """

    head_size: int
    theta: float
    axes: tuple[int, ...]
    scale: float = 1.0
    yarn: Yarn | None = None

    @classmethod
    def from_config(
        cls, text: Mapping[str, Any], head_size: int, max_model_len: int, has_axes: bool, default_theta: float
    ) -> Self:
        """Of the decoder's part of a config.json; ConfigError says what of it is not known here."""
        given = text.get("rope_scaling") or text.get("rope_parameters") or {}
        kind = given.get("rope_type", given.get("type", "default"))
        theta = float(given.get("rope_theta") or text.get("rope_theta") or default_theta)
        if given.get("partial_rotary_factor", text.get("partial_rotary_factor")) not in (None, 1.0):
            raise ConfigError("only a part of each head is turned, known: all of it")
        axes = _axes(given, head_size) if has_axes else (0,) * (head_size // 2)
        if kind in ("default", "mrope"):
            return cls(head_size, theta, axes)
        if kind != "yarn":
            raise ConfigError(f"rope_type is {kind!r}, known: default, yarn")
        trained_for = float(given.get("original_max_position_embeddings") or max_model_len)
        factor = float(given.get("factor") or max_model_len / trained_for)
        return cls(
            head_size, theta, axes, _yarn_scale(given, factor), _yarn(given, head_size, theta, trained_for, factor)
        )


def _axes(given: Mapping[str, Any], head_size: int) -> tuple[int, ...]:
    """Sections one behind the other: so many frequencies follow t, so many h, so many w."""
    sections = given.get("mrope_section", _DEFAULT_SECTIONS)
    if given.get("mrope_interleaved"):
        raise ConfigError("mrope_interleaved is set, known: sections one behind the other")
    if len(sections) != 3 or sum(sections) != head_size // 2:
        raise ConfigError(f"mrope_section is {sections!r}, expected three numbers that add up to {head_size // 2}")
    return tuple(axis for axis, count in enumerate(sections) for _ in range(count))


def _yarn_scale(given: Mapping[str, Any], factor: float) -> float:
    """What attention logits are sharpened by, spread over queries and keys."""
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    single, overall = given.get("mscale"), given.get("mscale_all_dim")
    if single and overall:
        return _softened(factor, single) / _softened(factor, overall)
    return _softened(factor, 1.0)


def _softened(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn(given: Mapping[str, Any], head_size: int, theta: float, trained_for: float, factor: float) -> Yarn:
    """The frequencies that turn beta_fast and beta_slow times within the length trained for mark the ramp."""

    def number_of(turns: float) -> float:
        return head_size * math.log(trained_for / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = number_of(float(given.get("beta_fast") or 32)), number_of(float(given.get("beta_slow") or 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    return Yarn(factor, low, high if high != low else high + 0.001)
