"""Vocabularies to mask: the embedded model's, and one that is made up in the size and mix of today's large ones."""

import json
import random
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from triptych.models.folder import EMBEDDED_MODEL, resolve_folder

SYNTHETIC_TOKENS = 151_680

_SYLLABLES = "a e i o u ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo yu za st tr ing er ion ly ed an th"
_SCRIPTS = ((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x400, 0x4FF), (0x600, 0x6FF), (0x900, 0x97F), (0x3040, 0x30FF))
_SIGNS = " \n\t\"'{}[]():,.;=<>/\\_-+*&|!?#@$%"


def embedded_tokenizer() -> dict[str, Any]:
    """tokenizer.json of the embedded model."""
    folder = resolve_folder(EMBEDDED_MODEL, lambda line: None)
    found: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return found


def synthetic_tokenizer(tokens: int = SYNTHETIC_TOKENS) -> dict[str, Any]:
    """A tokenizer.json whose text is never tokenised: half words, a third of other scripts, digits, runs of signs."""
    base = embedded_tokenizer()
    rng = random.Random(11)
    shown = bytes_to_unicode()
    ends = [each["content"] for each in base["added_tokens"]]
    names = dict.fromkeys([*ends, *(shown[byte] for byte in range(256))])
    while len(names) < tokens:
        names["".join(shown[byte] for byte in _piece(rng).encode())] = None
    base["model"] |= {"vocab": {name: number for number, name in enumerate(names)}, "merges": []}
    return base


def _piece(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        word = "".join(rng.choices(_SYLLABLES.split(), k=rng.randint(1, 4)))
        return rng.choice(("", " ")) + (word.capitalize() if rng.random() < 0.3 else word)
    if kind < 0.85:
        first, last = rng.choice(_SCRIPTS)
        return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 3)))
    if kind < 0.95:
        return "".join(rng.choices(_SIGNS, k=rng.randint(1, 5)))
    return rng.choice(("", " ", "_")) + str(rng.randint(0, 99_999))
