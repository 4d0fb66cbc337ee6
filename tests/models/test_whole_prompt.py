"""From pixels and text to tokens with everything of ours, against everything of transformers'."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tests.models.stepper import Stepper, Stepping, generate
from tests.reference import Message, Reference, compare
from triptych.journey import Layout
from triptych.models.card import ModelCard, load_card
from triptych.models.loading import load_image_processor, load_language, load_tower
from triptych.multimodal.digest import item_digest, source_digest
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.multimodal.rope import rope_positions

CPU = torch.device("cpu")

RGB = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def card(folder: Path) -> ModelCard:
    return load_card(str(folder), "auto")


def pictures(seed: int, *sizes: tuple[int, int]) -> list[RGB]:
    chosen = np.random.default_rng(seed)
    return [chosen.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in sizes]


def turn(role: str, *parts: str | None) -> Message:
    """None stands for an image."""
    content = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]
    return {"role": role, "content": content}


ONE, OTHER, WIDE = pictures(5, (84, 140), (150, 60), (57, 333))

CASES: dict[str, tuple[list[Message], list[RGB]]] = {
    "text": ([turn("user", "Name a colour, a shape and a number.")], []),
    "one image": ([turn("user", None, "What does it say?")], [ONE]),
    "three images": ([turn("user", "First", None, " then", None, " and at last", None, "?")], [ONE, OTHER, WIDE]),
    "twice the same": ([turn("user", None, None, "Are they equal?")], [ONE, ONE]),
    "two turns": (
        [turn("user", None, "What is it?"), turn("assistant", "A red square."), turn("user", None, "And this?")],
        [OTHER, ONE],
    ),
}


def layout_of(card: ModelCard, reference: Reference, messages: list[Message], images: list[RGB]) -> Layout:
    """The template's text, cut at its placeholders, with a part for each image."""
    tokenizer = Tokenizer.from_file(str(card.folder / "tokenizer.json"))
    text = reference.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    pieces = text.split(card.adapter.placeholder_text)
    parts: list[TextPart | ItemPart] = [TextPart(tuple(tokenizer.encode(pieces[0]).ids))]
    for index, (image, piece) in enumerate(zip(images, pieces[1:], strict=True)):
        height, width = image.shape[:2]
        digest = item_digest(source_digest(image.tobytes()), {}, card.fingerprint)
        parts.append(card.adapter.part(card.adapter.plan(width, height, {}), digest, width, height, index))
        parts.append(TextPart(tuple(tokenizer.encode(piece).ids)))
    return lay_out(parts)


def rows_of(card: ModelCard, layout: Layout, images: list[RGB]) -> Tensor:
    """All items in one batch of the tower."""
    processor, tower = load_image_processor(card), load_tower(card, CPU)
    prepared = [processor.pixels(images[item.media], item) for item in layout.items]
    grids = tuple(each.grid for each in prepared)
    return tower.encode(tower.patches([each.pixels for each in prepared], grids), grids)


@pytest.mark.parametrize("name", CASES)
def test_an_answer_equals_transformers(card: ModelCard, reference: Reference, name: str) -> None:
    messages, images = CASES[name]
    inputs = reference.inputs(messages, images)
    layout = layout_of(card, reference, messages, images)
    assert layout.token_ids.tolist() == inputs["input_ids"][0].tolist()
    model = load_language(card, CPU)
    embeddings = model.embed(torch.from_numpy(layout.token_ids.astype(np.int64)))
    if images:
        laid = torch.cat([torch.arange(run.start, run.end) for item in layout.items for run in item.runs])
        embeddings[laid] = rows_of(card, layout, images)
    positions = rope_positions(layout, 0, layout.num_tokens)
    assert positions.max() + 1 == layout.num_tokens + layout.rope_delta
    (answer,) = generate(Stepper(model, 64), [Stepping(embeddings, positions)], steps=48, chunk=50)
    compared = compare(reference.generate_from(inputs)[0], answer.token_ids, answer.logprobs)
    assert compared.equal_tokens == 48
