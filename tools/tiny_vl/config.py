"""The shape of tiny-vl and the recipe it is trained by."""

from dataclasses import dataclass
from typing import Any

IMAGE_MEAN = (0.48145467042922974, 0.45782750844955444, 0.40821072459220886)
IMAGE_STD = (0.2686295509338379, 0.2613025903701782, 0.27577710151672363)
MAX_PARAMETERS, MAX_BYTES = 12_000_000, 24_000_000


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a Qwen2.5-VL whose tower and language model are equally wide.

    full_blocks: the tower's blocks whose attention spans the image. The last one is windowed, so that a row still says
        most about its own place when the language model gets it
    rope_theta: small, because the w axis only gets the slowest frequencies: at 1e6 they would not turn visibly
    """

    hidden: int = 256
    heads: int = 4
    key_heads: int = 2
    vision_blocks: int = 6
    vision_mlp: int = 512
    full_blocks: tuple[int, ...] = (1, 4)
    layers: int = 6
    text_mlp: int = 768
    vocabulary: int = 1536
    mrope_section: tuple[int, int, int] = (8, 12, 12)
    rope_theta: float = 100.0

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def __post_init__(self) -> None:
        if 2 * sum(self.mrope_section) != self.head_size:
            raise ValueError(
                f"mrope_section {self.mrope_section} sums to {sum(self.mrope_section)}, expected half a head"
            )


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run must keep from its first step to its last, legs included; saved with the state.

    muon_rate, adam_rate: peak learning rates of the matrices and of all else
    warmup_steps: rising steps at the start; the rate is then constant up to decay_from (a share of steps) and ends at
        final_share of its peak, along a cosine
    echo: steps for each batch of fresh samples: one on the batch itself, the others on some of those before it, with
        new noise. Drawing is the bottleneck, and going over samples again is nearly as good as new ones
        (data echoing, Choi et al. 2019)
    echo_window: how many batches back those others may lie
    """

    seed: int = 1
    steps: int = 27_000
    echo: int = 4
    echo_window: int = 64
    muon_rate: float = 3.9e-3
    adam_rate: float = 1.95e-3
    momentum: float = 0.95
    weight_decay: float = 0.05
    adam_betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0
    warmup_steps: int = 200
    decay_from: float = 0.52
    final_share: float = 0.01


def model_config(geometry: Geometry) -> dict[str, Any]:
    """config.json as transformers reads it."""
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "dtype": "bfloat16",
        "image_token_id": 5,
        "model_type": "qwen2_5_vl",
        "text_config": _text_config(geometry),
        "tie_word_embeddings": True,
        "video_token_id": 6,
        "vision_config": _vision_config(geometry),
        "vision_end_token_id": 4,
        "vision_start_token_id": 3,
    }


def _text_config(geometry: Geometry) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": geometry.hidden,
        "initializer_range": 0.02,
        "intermediate_size": geometry.text_mlp,
        "layer_types": ["full_attention"] * geometry.layers,
        "max_position_embeddings": 8192,
        "max_window_layers": 80,
        "model_type": "qwen2_5_vl_text",
        "num_attention_heads": geometry.heads,
        "num_hidden_layers": geometry.layers,
        "num_key_value_heads": geometry.key_heads,
        "pad_token_id": None,
        # Spelled out: the default is 1e-5 for this part and 1e-6 for the tower.
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_section": list(geometry.mrope_section),
            "rope_theta": geometry.rope_theta,
            "rope_type": "default",
        },
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": geometry.vocabulary,
    }


def _vision_config(geometry: Geometry) -> dict[str, Any]:
    return {
        "depth": geometry.vision_blocks,
        "fullatt_block_indexes": list(geometry.full_blocks),
        "hidden_act": "silu",
        "hidden_size": geometry.hidden,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": geometry.vision_mlp,
        "model_type": "qwen2_5_vl_vision",
        "num_heads": geometry.heads,
        "out_hidden_size": geometry.hidden,
        "patch_size": 14,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 4,
        "window_size": 112,
    }
