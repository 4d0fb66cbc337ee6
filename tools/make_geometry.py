"""Writes a model folder without weights: python tools/make_geometry.py FOLDER [--geometry qwen2.5-vl-7b | tiny].

Numbers of a published model, a tokenizer of its size, processor settings and a chat template: what `triptych serve
FOLDER --load-format dummy` needs, which makes random weights on the device. Speed depends on shapes, not on what
weights know, so a benchmark fetches nothing. Answers are noise.

- The tokenizer has as many tokens as the model has rows of logits, and the published ids for special tokens. Every
  other id is text, so that whatever noise picks is streamed: a load generator takes a chunk with text for a token.
- Frequent English words are one token each, with the space before them; what else is written falls into pieces.
- Nothing ends an answer but its length where a request says `ignore_eos`; otherwise noise may.
"""

import argparse
import itertools
import json
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, trainers

from tools.folder_parts import CHAT_TEMPLATE, IMAGE_PROCESSOR, WORDS, untrained_tokenizer

# As Qwen's tokenizers name them, in the order of their ids.
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)

_FREQUENT = """
a able about after again all also an and any are as at away back be because been before being best better between
both but by call came can come could day did do does down each even every few find first for from get give go good
great had has have he help her here him his how i if in into is it its just keep know last left let life like line
little long look made make man many may me means men might more most much must my name need never new no not now
number of off old on one only or other our out over own part people place put read right said same say see set she
should show side small so some something state still such take tell than that the their them then there these they
thing things think this those three through time to too turn two under up upon us use used very want was water way
we well went were what when where which while who why will with word words work world would write year years you
your
"""


def _text_7b() -> dict[str, Any]:
    return {
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128_000,
        "mrope_section": [16, 24, 24],
        "first_special_id": 151_643,
    }


def _vision_7b() -> dict[str, Any]:
    return {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "fullatt_block_indexes": [7, 15, 23, 31],
    }


def _text_tiny() -> dict[str, Any]:
    return {
        "vocab_size": 4096,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "mrope_section": [2, 3, 3],
        "first_special_id": 4000,
    }


def _vision_tiny() -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 100,
        "num_heads": 4,
        "out_hidden_size": 64,
        "fullatt_block_indexes": [1],
    }


GEOMETRIES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2.5-vl-7b": (_text_7b(), _vision_7b()),
    "tiny": (_text_tiny(), _vision_tiny()),  # the same shapes of everything, for a dry run on a CPU
}
# From 4 to 16,384 embedding rows an image, as the published models have it: 1280x720 is 1,196.
PIXELS = {"min_pixels": 4 * 28**2, "max_pixels": 16_384 * 28**2}


def make_geometry(folder: Path, geometry: str = "qwen2.5-vl-7b") -> None:
    """Writes config, tokenizer, processor settings and template into the folder, made if need be."""
    text, vision = GEOMETRIES[geometry]
    folder.mkdir(parents=True, exist_ok=True)
    ids = special_ids(text["first_special_id"])
    _write(folder / "config.json", config_json(text, vision, ids))
    _write(folder / "tokenizer.json", tokenizer_json(text["vocab_size"], ids), indent=None)
    _write(folder / "generation_config.json", {"eos_token_id": [ids["<|im_end|>"]], "pad_token_id": min(ids.values())})
    image = IMAGE_PROCESSOR | PIXELS
    video = {name: value for name, value in image.items() if name != "image_processor_type"}
    _write(folder / "preprocessor_config.json", image)
    _write(folder / "video_preprocessor_config.json", video | {"video_processor_type": "Qwen2VLVideoProcessor"})
    _write(folder / "processor_config.json", {"processor_class": "Qwen2_5_VLProcessor"})
    _write(folder / "tokenizer_config.json", _tokenizer_config(text["max_position_embeddings"]))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def special_ids(first: int) -> dict[str, int]:
    """Special tokens and their ids, which follow one another."""
    return {token: first + place for place, token in enumerate(SPECIAL_TOKENS)}


def config_json(text: Mapping[str, Any], vision: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """config.json as transformers writes that of a Qwen2.5-VL model in bfloat16."""
    shapes = {name: value for name, value in text.items() if name not in ("mrope_section", "first_special_id")}
    rope = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": text["mrope_section"]}
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "dtype": "bfloat16",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            **shapes,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_parameters": rope,
            "use_sliding_window": False,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "qwen2_5_vl",
            **vision,
            "hidden_act": "silu",
            "in_channels": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
        },
    }


def tokenizer_json(vocab_size: int, ids: Mapping[str, int]) -> dict[str, Any]:
    """Byte-level BPE in which every id below vocab_size is a token, and all but the special ones are text."""
    made: dict[str, Any] = json.loads(_trained().to_str())
    learnt = sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)
    first = min(ids.values())
    if len(learnt) > first:
        raise ValueError(f"the frequent words make {len(learnt)} tokens, expected at most {first}")
    known = set(learnt)
    fillers = (token for token in _fillers() if token not in known)
    words = [*learnt, *itertools.islice(fillers, first - len(learnt)), *ids]
    words += itertools.islice(fillers, vocab_size - len(words))
    made["model"]["vocab"] = {word: number for number, word in enumerate(words)}
    made["added_tokens"] = [
        {"id": number, "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token, number in ids.items()
    ]
    return made


def _trained() -> Tokenizer:
    """BPE merged until each frequent word, with the space before it, is one token."""
    tokenizer = untrained_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=3500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    words = dict.fromkeys([*_FREQUENT.split(), *WORDS])
    tokenizer.train_from_iterator([" " + " ".join(words)] * 2, trainer)
    return tokenizer


def _fillers() -> Iterator[str]:
    """Made-up words with a space before them, as byte-level BPE writes it; they are decoded, and never come of text."""
    for length in itertools.count(3):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "Ġ" + "".join(letters)


def _tokenizer_config(longest: int) -> dict[str, Any]:
    return {
        "backend": "tokenizers",
        "tokenizer_class": "TokenizersBackend",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "extra_special_tokens": list(SPECIAL_TOKENS),
        "model_max_length": longest,
    }


def _write(file: Path, values: Mapping[str, Any], indent: int | None = 2) -> None:
    file.write_text(json.dumps(values, indent=indent) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--geometry", choices=tuple(GEOMETRIES), default="qwen2.5-vl-7b")
    arguments = parser.parse_args()
    make_geometry(arguments.folder, arguments.geometry)


if __name__ == "__main__":
    main()
