"""The conversations of issue equality: OpenAI messages for us, the same with pictures for the reference."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tests.journey.messages import image, text

SIZES = ((56, 56), (112, 84), (84, 140), (168, 56), (61, 173), (224, 112))  # width, height; some off the 28 px grid


@dataclass(frozen=True)
class Conversation:
    """Messages with image parts as data URIs, and the pictures in prompt order."""

    name: str
    messages: Sequence[Mapping[str, Any]]
    pictures: Sequence[Image.Image]


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    """Smooth random colours: no two seeds look alike, and no region is flat."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def conversation(name: str, *turns: Sequence[Image.Image | str]) -> Conversation:
    """User and assistant turns in turn; strings are text, the rest are pictures."""
    messages: list[dict[str, Any]] = []
    pictures: list[Image.Image] = []
    for index, turn in enumerate(turns):
        parts = [text(part) if isinstance(part, str) else image(png(part)) for part in turn]
        pictures += [part for part in turn if not isinstance(part, str)]
        messages.append({"role": "user" if index % 2 == 0 else "assistant", "content": parts})
    return Conversation(name, messages, pictures)


def conversations(seed: int = 0) -> list[Conversation]:
    """The six kinds that every topology must answer as transformers does; other seeds give other pictures."""
    one, two, three, four = (picture(100 * seed + index, SIZES[(seed + index) % len(SIZES)]) for index in range(4))
    return [
        conversation("text", [f"Tell me about the number {seed} in a few words."]),
        conversation("one image", [one, f"What is in picture {seed}?"]),
        conversation("three images", ["First ", one, " then ", two, " and last ", three, " Compare them."]),
        conversation("same image twice", [one, " and again ", one, " Are they the same?"]),
        conversation("two turns", [two, "What is this?"], ["A red thing."], [four, "And this one?"]),
        conversation("text after image turn", [three, "Describe it."], ["It is bright."], ["Why?"]),
    ]
