"""From token ids to text, one token at a time: never half a character, never half a stop string."""

import codecs
import json
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer


class TextStream(Protocol):
    """The text of one sequence as its tokens come."""

    def feed(self, token_id: int) -> str:
        """What this token adds; empty while a character is incomplete."""

    def flush(self) -> str:
        """What is left when no token follows: an incomplete character reads U+FFFD."""


class Detokenizer:
    """A model's tokenizer, read backwards; special tokens have no text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self._specials = specials = {
            id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        decoder = json.loads(tokenizer.to_str())["decoder"] or {}
        self._bytes: list[bytes] | None = None
        if decoder.get("type") == "ByteLevel":
            size = max(vocab_size, tokenizer.get_vocab_size(with_added_tokens=True))
            self._bytes = [b"" if id_ in specials else self._token_bytes(id_) for id_ in range(size)]

    def stream(self) -> TextStream:
        return _ByteStream(self._bytes) if self._bytes is not None else _WindowStream(self.tokenizer)

    def token_bytes(self, token_id: int, with_specials: bool) -> bytes:
        """What one token is by itself; nothing for a special one, unless asked for."""
        if token_id in self._specials:
            return self._token_bytes(token_id) if with_specials else b""
        if self._bytes is not None:
            return self._bytes[token_id]
        return self.tokenizer.decode([token_id], skip_special_tokens=False).encode()

    def _token_bytes(self, token_id: int) -> bytes:
        token = self.tokenizer.id_to_token(token_id)
        if token is None:
            return b""  # rows of the embedding table that no token has
        try:
            return bytes(_BYTE_OF[character] for character in token)
        except KeyError:
            return token.encode()  # an added token is written as it is


class _ByteStream:
    """Byte-level vocabularies: every token is some bytes of UTF-8."""

    def __init__(self, bytes_of_id: Sequence[bytes]) -> None:
        self._bytes = bytes_of_id
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._bytes[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowStream:
    """Any other vocabulary: decodes the last few tokens again, and gives what has been added."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._ids: list[int] = []  # the last tokens with text, as context, and those after them
        self._context = 0  # how many of them have been given

    def feed(self, token_id: int) -> str:
        self._ids.append(token_id)
        added = self._added()
        if not added or added.endswith("�"):  # maybe the beginning of a character
            return ""
        del self._ids[: self._context]
        self._context = len(self._ids)
        return added

    def flush(self) -> str:
        added = self._added()
        self._ids.clear()
        self._context = 0
        return added

    def _added(self) -> str:
        given = self.tokenizer.decode(self._ids[: self._context], skip_special_tokens=True)
        return self.tokenizer.decode(self._ids, skip_special_tokens=True)[len(given) :]


class StopScanner:
    """Finds the first stop string, and holds back only what may still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.which = ""  # the stop string that has come

    @property
    def found(self) -> bool:
        return bool(self.which)

    def feed(self, text: str) -> str:
        """What may be shown now; after a stop string was found, nothing more."""
        if not self._stops:
            return text
        if self.found:
            return ""
        text = self._held + text
        # The one that is complete first, however the text was cut into pieces.
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.which = min(ends)
            self._held = ""
            return text[:at]
        kept = self._begun(text)
        shown, self._held = text[: len(text) - kept], text[len(text) - kept :]
        return shown

    def flush(self) -> str:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
