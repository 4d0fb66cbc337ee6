"""Questions for the language engine: laid out from transformers' own input ids, with rows from our vision tower."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from PIL import Image
from torch import Tensor

from tests.reference import Reference
from triptych.journey import Grid, Layout
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.multimodal.layout import ItemPart, TextPart, lay_out


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Smooth random colours: no two seeds look alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def user(*parts: str | Image.Image) -> dict[str, Any]:
    """One user message; strings are text, the rest are pictures."""
    return {
        "role": "user",
        "content": [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts],
    }


def layout_of(
    card: ModelCard, token_ids: Sequence[int], pictures: Sequence[Image.Image] = (), atomic: bool = False
) -> Layout:
    """Ids with expanded placeholders, cut into text and items.

    atomic: as a family lays its items whose images must be computed whole
    """
    ids, waiting = list(token_ids), list(pictures)
    parts: list[TextPart | ItemPart] = []
    while ids:
        run = 1
        while run < len(ids) and (ids[run] == card.adapter.placeholder_id) == (ids[0] == card.adapter.placeholder_id):
            run += 1
        if ids[0] == card.adapter.placeholder_id:
            image = waiting.pop(0)
            plan = card.adapter.plan(image.width, image.height, {})
            assert plan.rows == run
            part = card.adapter.part(plan, blake3(image.tobytes()).digest(), image.width, image.height, len(parts))
            parts.append(replace(part, atomic=atomic))
        else:
            parts.append(TextPart(tuple(ids[:run])))
        ids = ids[run:]
    return lay_out(parts)


def rows_of(reference: Reference, tower: VisionTower, pictures: Sequence[Image.Image]) -> list[Tensor]:
    """Each picture's rows [rows, width], encoded one by one."""
    rows = []
    for image in pictures:
        made = reference.processor.image_processor(images=[image], return_tensors="pt")
        grid = Grid(*made["image_grid_thw"][0].tolist())
        rows.append(tower.encode(made["pixel_values"], (grid,)))
    return rows


def text_layout(card: ModelCard, reference: Reference, text: str) -> Layout:
    ids = reference.inputs([user(text)])["input_ids"][0]
    assert isinstance(ids, torch.Tensor)
    return layout_of(card, ids.tolist())
