"""Writes a small random Qwen2.5-VL checkpoint for tests: python -m tools.make_random_checkpoint FOLDER.

Real architecture at a few million parameters: windowed and full attention blocks, 2x2 merging, grouped-query attention,
M-RoPE; byte-level BPE tokenizer, chat template, image processor settings; sharded safetensors in Hugging Face layout.
Made in a second or two; the same seed gives the same bytes.

A test fixture is worth what it notices. Default initialisation repeats one token and ignores images, so here:

- matrices are N(0, 1/fan_in), embeddings N(0, 1), the head is not tied: activations keep their size in every layer;
- queries and keys are drawn SHARPNESS times as large: with attention logits of unit size a head averages over the
  prompt, and rows rotated by one pass unseen in a quarter of all prompts; from 1.5 on, none or one in forty do. Twice
  as sharp, the model amplifies rounding until two right implementations differ by more than 1e-4;
- rope_theta is 100: over the few dozen positions of a small image every frequency turns visibly, so that rows shifted
  by one or a transposed grid are seen (with 1e6 the width axis hardly moves);
- norms and biases are drawn too, so that one left out is noticed;
- the head is drawn LOGIT_SCALE times as large: the two likeliest tokens are 0.6 apart in the median, and less than
  1e-4 in about one token of ten thousand;
- the head's rows of special tokens are zero: replies do not end, and make no placeholders, unless a test asks for it.
"""

import json
import math
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from tools.folder_parts import CHAT_TEMPLATE, IMAGE_PROCESSOR, WORDS, untrained_tokenizer

SHARPNESS = 1.6
LOGIT_SCALE = 3.0
NORM_SPREAD = 0.1
VOCABULARY = 1024
SHARDS = 3

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def make_checkpoint(folder: Path, seed: int = 0, shapes: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Writes the checkpoint into the folder, made if need be; shapes: numbers of the text model that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(seed)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = make_config(tokenizer, shapes)
    config.save_pretrained(folder)
    _write_json(folder / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0})
    _write_json(folder / "preprocessor_config.json", IMAGE_PROCESSOR)
    video = IMAGE_PROCESSOR | {"video_processor_type": "Qwen2VLVideoProcessor"}
    del video["image_processor_type"]
    _write_json(folder / "video_preprocessor_config.json", video)
    _write_json(folder / "processor_config.json", {"processor_class": "Qwen2_5_VLProcessor"})
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_shards(folder, make_weights(config, seed))


def make_tokenizer(seed: int) -> Tokenizer:
    """Byte-level BPE over WORDS, with Qwen's special tokens as the first ids."""
    tokenizer = untrained_tokenizer()
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    chosen = random.Random(seed)
    corpus = [" ".join(chosen.choices(WORDS, k=20)).capitalize() for _ in range(300)]
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def make_config(tokenizer: Tokenizer, shapes: Mapping[str, Any] = MappingProxyType({})) -> Qwen2_5_VLConfig:
    """4.1 M parameters; two windowed and two full attention blocks, two query heads per key head."""
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    text = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [8, 12, 12]},
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "tie_word_embeddings": False,
        **shapes,
    }
    vision = {
        "depth": 4,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 4,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1, 3],
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
        dtype="float32",
        architectures=["Qwen2_5_VLForConditionalGeneration"],
    )


def make_weights(config: Qwen2_5_VLConfig, seed: int) -> dict[str, torch.Tensor]:
    """Every parameter by its name in published checkpoints, float32."""
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in sorted(model.named_parameters()):
        weights[_published(name)] = _draw(name, tuple(parameter.shape), generator)
    weights["lm_head.weight"][: len(SPECIAL_TOKENS)] = 0
    return weights


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return NORM_SPREAD * noise + (1 if "norm" in name or "ln_q" in name else 0)
    if "embed_tokens" in name:
        return noise
    noise /= math.sqrt(math.prod(shape[1:]))
    if "q_proj" in name or "k_proj" in name:
        noise *= SHARPNESS
    elif "attn.qkv" in name:
        noise[: 2 * shape[0] // 3] *= SHARPNESS
    elif "lm_head" in name:
        noise *= LOGIT_SCALE
    return noise


def _published(name: str) -> str:
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def _write_shards(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Consecutive tensors per file, so that tower and decoder share one."""
    names = sorted(weights)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        chosen = names[len(names) * shard // SHARDS : len(names) * (shard + 1) // SHARDS]
        save_file({name: weights[name] for name in chosen}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(chosen, file)
    total = sum(tensor.numel() * tensor.itemsize for tensor in weights.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _tokenizer_config() -> dict[str, Any]:
    return {
        "backend": "tokenizers",
        "tokenizer_class": "TokenizersBackend",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "extra_special_tokens": list(SPECIAL_TOKENS),
        "model_max_length": 8192,
    }


def _write_json(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tools.make_random_checkpoint FOLDER")
    make_checkpoint(Path(sys.argv[1]))
