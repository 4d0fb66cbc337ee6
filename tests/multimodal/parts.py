"""Parts of prompts for tests: what adapters make, with sizes and masks drawn at random."""

import random

from triptych.journey import Grid, Modality
from triptych.multimodal.layout import ItemPart, TextPart

IMAGE_ID = 7


def text(length: int, first: int = 100) -> TextPart:
    return TextPart(tuple(range(first, first + length)))


def image(h: int, w: int, *, atomic: bool = False, media: int = 0) -> ItemPart:
    """An image as the Qwen family lays it: h x w rows, all in one run."""
    return ItemPart(
        digest=bytes([media]) * 32,
        modality=Modality.IMAGE,
        width=28 * w,
        height=28 * h,
        grid=Grid(1, 2 * h, 2 * w),
        encoder_tokens=4 * h * w,
        rows=h * w,
        media=media,
        span_token_ids=(IMAGE_ID,) * (h * w),
        embed_mask=(True,) * (h * w),
        atomic=atomic,
        rope_grid=Grid(1, h, w),
    )


def masked(mask: tuple[bool, ...], *, atomic: bool = False) -> ItemPart:
    """An item with separators inside its span and plain rope positions."""
    rows = sum(mask)
    return ItemPart(
        digest=bytes(32),
        modality=Modality.IMAGE,
        width=28,
        height=28,
        grid=Grid(1, 2, 2 * rows),
        encoder_tokens=4 * rows,
        rows=rows,
        media=0,
        span_token_ids=tuple(IMAGE_ID if taken else 8 for taken in mask),
        embed_mask=mask,
        atomic=atomic,
    )


def random_parts(seed: int) -> list[TextPart | ItemPart]:
    """Text, whole images and items with separators, some atomic; some texts are empty."""
    rng = random.Random(seed)
    parts: list[TextPart | ItemPart] = []
    for media in range(rng.randrange(6)):
        parts.append(text(rng.randrange(5), first=rng.randrange(1000)))
        atomic = rng.random() < 0.4
        if rng.random() < 0.5:
            parts.append(image(rng.randrange(1, 5), rng.randrange(1, 5), atomic=atomic, media=media))
        else:
            mask = [rng.random() < 0.6 for _ in range(rng.randrange(1, 9))]
            mask[rng.randrange(len(mask))] = True
            parts.append(masked(tuple(mask), atomic=atomic))
    parts.append(text(rng.randrange(1, 7)))
    return parts
