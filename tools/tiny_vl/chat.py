"""Conversations as the chat template writes them: token ids for training, messages for a server."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from tools.tiny_vl.scenes import Picture, Sample, Turn
from tools.tiny_vl.tokenizer import IMAGE_PAD, TURN_END, TURN_START, VISION_END, VISION_START

_CACHED_TEXTS = 20_000  # pieces between pictures; most phrasings recur, random strings do not


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation in tokens; spans are half-open.

    images: place of each picture's run of placeholders, in order
    answers: place of each turn's answer and the end-of-turn token behind it, in order
    """

    token_ids: list[int]
    images: list[tuple[int, int]]
    answers: list[tuple[int, int]]


class ChatEncoder:
    """Encodes as the processor does (template, then tokenizer, then one placeholder for each row), only faster.

    It may cut texts at special tokens and behind a role, since no merge reaches over either.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids_by_text: dict[str, list[int]] = {}
        self._system = [TURN_START, *self._ids("system\n")]
        self._user = [TURN_START, *self._ids("user\n")]
        self._assistant = [TURN_END, *self._ids("\n"), TURN_START, *self._ids("assistant\n")]
        self._end = [TURN_END, *self._ids("\n")]

    def encode(self, sample: Sample, row_counts: Sequence[int]) -> Encoded:
        """row_counts: rows that the language model gets of each of the sample's pictures

        The conversation ends with the newline behind its last answer, as the template has it.
        """
        encoded = Encoded([], [], [])
        ids = encoded.token_ids
        counts = iter(row_counts)
        if sample.system is not None:
            ids += self._system + self._ids(sample.system) + self._end
        for turn in sample.turns:
            ids += self._user
            for part in _pieces(turn):
                if isinstance(part, str):
                    ids += self._ids(part)
                else:
                    self._add_image(encoded, next(counts))
            ids += self._assistant
            answer = self._ids(turn.answer)
            encoded.answers.append((len(ids), len(ids) + len(answer) + 1))
            ids += answer
            ids += self._end
        return encoded

    def _add_image(self, encoded: Encoded, rows: int) -> None:
        ids = encoded.token_ids
        ids.append(VISION_START)
        encoded.images.append((len(ids), len(ids) + rows))
        ids += [IMAGE_PAD] * rows
        ids.append(VISION_END)

    def _ids(self, text: str) -> list[int]:
        known = self._ids_by_text.get(text)
        if known is None:
            known = self._tokenizer.encode(text, add_special_tokens=False).ids
            if len(self._ids_by_text) < _CACHED_TEXTS:
                self._ids_by_text[text] = known
        return known


def _pieces(turn: Turn) -> Iterator[str | Picture]:
    """The turn's parts with neighbouring texts joined: a word may be cut by them."""
    text = ""
    for part in turn.parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
            text = ""
        yield part
    if text:
        yield text


def messages(sample: Sample, image_urls: Sequence[str]) -> list[dict[str, Any]]:
    """The conversation up to its last question in the chat API's form; a URL for each of the sample's pictures."""
    urls = iter(image_urls)
    written: list[dict[str, Any]] = []
    if sample.system is not None:
        written.append({"role": "system", "content": sample.system})
    for turn in sample.turns:
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image_url", "image_url": {"url": next(urls)}}
            for part in turn.parts
        ]
        written += [{"role": "user", "content": content}, {"role": "assistant", "content": turn.answer}]
    return written[:-1]
