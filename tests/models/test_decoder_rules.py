"""What the lean decoder takes from a config.json is what transformers takes from it; what it does not know it says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding

from triptych.errors import ConfigError
from triptych.models.decoder.geometry import DecoderGeometry
from triptych.models.decoder.rope import Rope, frequencies

CPU = torch.device("cpu")

# As published, without what the decoder has no use for.
PUBLISHED_7B: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}


def test_the_published_7b_config_is_read_as_it_is_meant() -> None:
    geometry = DecoderGeometry.from_config(PUBLISHED_7B)
    assert (geometry.layers, geometry.hidden_size, geometry.intermediate_size) == (28, 3584, 18944)
    assert (geometry.heads, geometry.kv_heads, geometry.head_size) == (28, 4, 128)
    assert (geometry.qkv_bias, geometry.out_bias, geometry.head_norm, geometry.tied) == (True, False, False, False)
    assert geometry.rope.axes == (0,) * 16 + (1,) * 24 + (2,) * 24
    assert (geometry.rope.theta, geometry.rope.scale, geometry.rope.yarn) == (1e6, 1.0, None)


def test_a_config_saved_again_by_transformers_says_the_same() -> None:
    saved = Qwen2_5_VLConfig(**{name: value for name, value in PUBLISHED_7B.items() if name != "model_type"}).to_dict()
    assert "text_config" in saved
    assert DecoderGeometry.from_config(saved) == DecoderGeometry.from_config(PUBLISHED_7B)


ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "rope_theta": 5e4, "factor": 2.5, "beta_fast": 20, "beta_slow": 2, "attention_factor": 1.3},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False},
    {"rope_type": "yarn", "rope_theta": 100.0, "factor": 3.0, "original_max_position_embeddings": 12},
]


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("kind", [Qwen2Config, Qwen3Config])
def test_frequencies_are_transformers_to_the_last_bit(kind: type[Any], rope: Mapping[str, Any]) -> None:
    sides = {"hidden_size": 384, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 65536}
    config = kind(**sides, rope_parameters=dict(rope))
    rule = DecoderGeometry.from_config(config.to_dict()).rope
    if rope["rope_type"] == "default":
        size = rule.head_size
        expected, scale = 1.0 / (rope["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float) / size)), 1.0
    else:
        expected, scale = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    assert torch.equal(frequencies(rule), expected)
    assert rule.scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, {"rope_type": "yarn", "factor": 4.0}])
def test_angles_of_three_axes_are_transformers(rope: Mapping[str, Any]) -> None:
    config = Qwen2_5_VLConfig(
        **PUBLISHED_7B
        | {"rope_scaling": {**rope, "mrope_section": [8, 12, 12], "rope_theta": 1e4}, "hidden_size": 28 * 64}
    )
    positions = torch.randint(0, 100_000, (3, 50), generator=torch.Generator().manual_seed(0))
    stock = Qwen2_5_VLRotaryEmbedding(config.text_config)
    expected = [each[0].chunk(2, dim=-1)[0] for each in stock(torch.empty(0), positions[:, None])]
    found = Rope(DecoderGeometry.from_config(config.to_dict()).rope, CPU).angles(positions)
    for made, wanted in zip(found, expected, strict=True):
        assert made.is_contiguous()
        assert torch.equal(made, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', known: silu"),
        ({"use_sliding_window": True}, "sliding_attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic', known: default, yarn"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 23]}}, r"mrope_section is .*add up to 64"),
        ({"rope_scaling": {"type": "mrope", "mrope_interleaved": True}}, "mrope_interleaved"),
        ({"partial_rotary_factor": 0.5}, "only a part of each head"),
        ({"num_key_value_heads": 3}, "28 heads of 128 over 3 key heads"),
        ({"head_dim": 64}, "head_dim is 64"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None"),
        ({"hidden_size": "3584"}, "hidden_size is '3584'"),
        ({"vocab_size": None}, "vocab_size is None"),
    ],
)
def test_what_it_does_not_know_it_says(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DecoderGeometry.from_config(PUBLISHED_7B | dict(change))


def test_heads_share_nothing_where_the_config_is_silent_about_key_heads() -> None:
    silent = {name: value for name, value in PUBLISHED_7B.items() if name != "num_key_value_heads"}
    known = DecoderGeometry.from_config(PUBLISHED_7B)
    assert DecoderGeometry.from_config(silent) == replace(known, kv_heads=28)
