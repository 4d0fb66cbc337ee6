"""What a decoder is made of, told by its config.json. No torch.

Only what the file says in so many words is taken from it: where it is silent on something that matters, or says what
the lean decoder does not compute, the model is left to transformers' modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from triptych.errors import ConfigError
from triptych.models.config_values import text_config, whole_number
from triptych.models.decoder.rope_rule import RopeRule


@dataclass(frozen=True, slots=True)
class _Family:
    """What a family has that its config.json does not say."""

    qkv_bias: bool
    head_norm: bool  # queries and keys are normed, head by head
    axes: bool  # rope positions have three axes
    default_theta: float


_FAMILIES: Mapping[str, _Family] = {
    "qwen2_5_vl": _Family(qkv_bias=True, head_norm=False, axes=True, default_theta=1e6),
    "qwen2": _Family(qkv_bias=True, head_norm=False, axes=False, default_theta=1e4),
    "qwen3": _Family(qkv_bias=False, head_norm=True, axes=False, default_theta=1e4),
}


@dataclass(frozen=True, slots=True)
class DecoderGeometry:
    """Sides and constants of one decoder."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    max_model_len: int
    epsilon: float  # of every norm
    qkv_bias: bool
    out_bias: bool
    head_norm: bool  # queries and keys are normed, head by head
    tied: bool  # the embedding table is the head, too
    rope: RopeRule

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Of a config.json; ConfigError says what of it is not known here."""
        family = _FAMILIES.get(str(config.get("model_type")))
        if family is None:
            raise ConfigError(f"model_type is {config.get('model_type')!r}; known: {', '.join(_FAMILIES)}")
        text = text_config(config)
        _refuse_unknown_parts(text)
        heads, hidden = (whole_number(text, name) for name in ("num_attention_heads", "hidden_size"))
        kv_heads = whole_number(
            {"num_key_value_heads": heads} | _given(text, "num_key_value_heads"), "num_key_value_heads"
        )
        head_size = _head_size(text, family, hidden, heads)
        if heads % kv_heads or head_size % 2:
            raise ConfigError(
                f"{heads} heads of {head_size} over {kv_heads} key heads: expected an even size and share"
            )
        bias = bool(text.get("attention_bias", False))
        max_model_len = whole_number(text, "max_position_embeddings")
        return cls(
            layers=whole_number(text, "num_hidden_layers"),
            hidden_size=hidden,
            intermediate_size=whole_number(text, "intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            vocab_size=whole_number(text, "vocab_size"),
            max_model_len=max_model_len,
            epsilon=_epsilon(text),
            qkv_bias=family.qkv_bias or bias,
            out_bias=family.head_norm and bias,
            head_norm=family.head_norm,
            tied=bool(config.get("tie_word_embeddings", False)),
            rope=RopeRule.from_config(text, head_size, max_model_len, family.axes, family.default_theta),
        )


def _given(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: values[name]} if values.get(name) is not None else {}


def _refuse_unknown_parts(text: Mapping[str, Any]) -> None:
    """What would change the answer and is not computed here."""
    if text.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act is {text['hidden_act']!r}, known: silu")
    kinds = {"full_attention", *(text.get("layer_types") or ())}
    slides = bool(text.get("use_sliding_window")) and text.get("layer_types") is None
    if slides or len(kinds) > 1:
        raise ConfigError("it has sliding_attention layers, known: full_attention")


def _head_size(text: Mapping[str, Any], family: _Family, hidden: int, heads: int) -> int:
    derived = hidden // heads
    if family.head_norm:
        return whole_number(text, "head_dim")
    if text.get("head_dim") not in (None, derived) or hidden % heads:
        raise ConfigError(f"head_dim is {text.get('head_dim')!r}, known: {hidden} / {heads}")
    return derived


def _epsilon(text: Mapping[str, Any]) -> float:
    value = text.get("rms_norm_eps")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ConfigError(f"rms_norm_eps is {value!r}, expected a number between 0 and 1")
    return float(value)
