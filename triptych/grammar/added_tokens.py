"""Tokens that a tokenizer has been given later, as the text that they are."""

import json
from typing import Any


def spell_added_tokens(tokenizer_json: str) -> str:
    """The tokenizer.json with added tokens that are not special, such as `<tool_call>`, among its ordinary ones.

    The library takes whatever is added and looks like a tag for a special token, which no text is ever made of.
    """
    found: dict[str, Any] = json.loads(tokenizer_json)
    vocabulary = found["model"].get("vocab")
    plain = [token for token in found.get("added_tokens", ()) if not token["special"]]
    if not plain or not isinstance(vocabulary, dict):
        return tokenizer_json
    spell = _as_bytes if "ByteLevel" in json.dumps(found.get("decoder")) else str
    for token in plain:
        vocabulary.pop(token["content"], None)
        vocabulary[spell(token["content"])] = token["id"]
    found["added_tokens"] = [token for token in found["added_tokens"] if token["special"]]
    return json.dumps(found)


def _as_bytes(text: str) -> str:
    """Each byte as the character that byte-level vocabularies write for it: printable ones as they are."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    shown = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    return "".join(shown[byte] for byte in text.encode())
