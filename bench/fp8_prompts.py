"""What bench/fp8_accuracy.py asks: tiny-vl's exam questions with their answers, or random tokens for other models."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from tools.tiny_vl.chat import ChatEncoder, Encoded
from tools.tiny_vl.exam import draw_question
from tools.tiny_vl.families import FAMILIES
from triptych.journey import Int64Array
from triptych.models.card import ModelCard
from triptych.models.loading import load_image_processor, load_tower
from triptych.multimodal.digest import item_digest, source_digest
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.multimodal.rope import rope_positions


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A prompt with its answer behind it.

    family:    what kind of question it is
    token_ids: [tokens] int64, the answer and its end among them
    positions: [3, tokens] int64
    rows_at:   [rows] int64, where image rows lie
    rows:      [rows, hidden] float32, on the CPU
    answer:    tokens begin to end that have to be foretold, each from those before it; begin is above 0
    """

    family: str
    token_ids: Int64Array
    positions: Int64Array
    rows_at: Int64Array
    rows: Tensor
    answer: tuple[int, int]

    @property
    def num_tokens(self) -> int:
        """Without the answer's last, behind which nothing is foretold."""
        return self.answer[1] - 1


def exam_prompts(card: ModelCard, per_family: int, seed: int) -> Iterator[Prompt]:
    """So many questions of each family of the exam, its kinds in turns: a function of the arguments alone."""
    maker = _Exam(card)
    for family, kinds in FAMILIES.items():
        for index in range(per_family):
            yield maker.prompt(family, kinds[index % len(kinds)].name, seed, index)


def random_prompts(vocab_size: int, hidden_size: int, count: int, tokens: int, seed: int) -> Iterator[Prompt]:
    """Tokens drawn evenly, so many to a prompt; the second half has to be foretold."""
    chosen = np.random.default_rng(seed)
    for _ in range(count):
        yield Prompt(
            family="random tokens",
            token_ids=chosen.integers(0, vocab_size, tokens),
            positions=np.tile(np.arange(tokens), (3, 1)),
            rows_at=np.empty(0, np.int64),
            rows=torch.empty(0, hidden_size),
            answer=(tokens // 2, tokens),
        )


class _Exam:
    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._encoder = ChatEncoder(Tokenizer.from_file(str(card.folder / "tokenizer.json")))
        self._processor = load_image_processor(card)
        self._tower = load_tower(card, torch.device("cpu"), "float32")

    def prompt(self, family: str, kind: str, seed: int, index: int) -> Prompt:
        question = draw_question(kind, seed, index)
        images = [np.asarray(image.convert("RGB")) for image in question.images]
        parts = [self._part(image, number) for number, image in enumerate(question.images)]
        encoded = self._encoder.encode(question.sample, [part.rows for part in parts])
        layout = lay_out(list(_interleaved(encoded, parts)))
        assert layout.token_ids.tolist() == encoded.token_ids, "the layout is not the conversation"
        prepared = [self._processor.pixels(image, item) for image, item in zip(images, layout.items, strict=True)]
        rows = torch.empty(0, self._tower.width)
        if prepared:
            grids = tuple(each.grid for each in prepared)
            rows = self._tower.encode(self._tower.patches([each.pixels for each in prepared], grids), grids)
        return Prompt(
            family=family,
            token_ids=layout.token_ids.astype(np.int64),
            positions=rope_positions(layout, 0, layout.num_tokens),
            rows_at=np.array([at for begin, end in encoded.images for at in range(begin, end)], np.int64),
            rows=rows,
            answer=encoded.answers[-1],
        )

    def _part(self, image: Image.Image, number: int) -> ItemPart:
        plan = self._card.adapter.plan(*image.size, {})
        digest = item_digest(source_digest(image.tobytes()), {}, self._card.fingerprint)
        return self._card.adapter.part(plan, digest, *image.size, number)


def _interleaved(encoded: Encoded, parts: Sequence[ItemPart]) -> Iterator[TextPart | ItemPart]:
    done = 0
    for (begin, end), part in zip(encoded.images, parts, strict=True):
        yield TextPart(tuple(encoded.token_ids[done:begin]))
        yield part
        done = end
    yield TextPart(tuple(encoded.token_ids[done:]))
