"""The model's tokenizer: known words in one token after a space, everything else and every answer byte by byte.

Stock byte-level BPE without splitting. Its merges grow words from their space ("Ġ" + "w", "Ġw" + "h" ...), so an
answer, which no space precedes, is one token per character: the model spells what it sees. The names of the roles are
merged from the newline that ends them ("r" + "\\n" ...), which leaves the letters of answers alone as well.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tools.folder_parts import PIXELS

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
END_OF_TEXT, TURN_START, TURN_END, VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD = range(7)
ROLE_LINES = ("user\n", "assistant\n", "system\n")

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{m['role']}}\n"
    "{% if m['content'] is string %}{{m['content']}}{% else %}{% for c in m['content'] %}"
    "{% if c['type']=='image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{c['text']}}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(words: list[str], size: int = 1536) -> Tokenizer:
    """A tokenizer of at most `size` tokens that has as many of the words whole as fit, the first ones first.

    words: as they stand after a space, most useful first; one that no longer fits with all its beginnings is left to
        bytes, while shorter ones after it may still fit
    """
    alphabet = _alphabet()
    vocabulary = {token: place for place, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    roles = [step for line in ROLE_LINES for step in _from_the_end(_spelled(line, alphabet))]
    merges: list[tuple[str, str]] = []
    for word in words:
        # In order of the words, not of length: all merges grow from the space, so no two compete for a letter.
        steps = [step for step in _from_the_start(_spelled(f" {word}", alphabet)) if "".join(step) not in vocabulary]
        if len(vocabulary) + len(steps) + len(roles) <= size:
            merges += steps
            vocabulary |= {"".join(step): len(vocabulary) + place for place, step in enumerate(steps)}
    # Last, hence weakest: a known word before a newline in a question stays whole.
    vocabulary |= {"".join(step): len(vocabulary) + place for place, step in enumerate(roles)}
    return _assemble(vocabulary, merges + roles)


def _assemble(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _alphabet() -> list[str]:
    """The character that stands for each byte, by the byte's value."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]


def _spelled(text: str, alphabet: list[str]) -> str:
    return "".join(alphabet[byte] for byte in text.encode())


def _from_the_start(spelled: str) -> Iterator[tuple[str, str]]:
    return ((spelled[:end], spelled[end]) for end in range(1, len(spelled)))


def _from_the_end(spelled: str) -> Iterator[tuple[str, str]]:
    return ((spelled[start], spelled[start + 1 :]) for start in range(len(spelled) - 2, -1, -1))


def save_processor(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes what AutoProcessor reads into an existing folder: tokenizer, chat template, image processor settings."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    _write_json(folder / "processor_config.json", {"processor_class": "Qwen2_5_VLProcessor"})
    pixels = _pixel_config()
    _write_json(folder / "preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessor"} | pixels)
    _write_json(folder / "video_preprocessor_config.json", {"video_processor_type": "Qwen2VLVideoProcessor"} | pixels)


def _tokenizer_config() -> dict[str, Any]:
    return {
        "backend": "tokenizers",
        "eos_token": SPECIAL_TOKENS[TURN_END],
        "extra_special_tokens": list(SPECIAL_TOKENS),
        "model_max_length": 8192,
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT],
        "tokenizer_class": "TokenizersBackend",
    }


def _pixel_config() -> dict[str, Any]:
    return {
        "processor_class": "Qwen2_5_VLProcessor",
        "min_pixels": 56 * 56,
        "max_pixels": 28 * 28 * 16384,
        **PIXELS,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
