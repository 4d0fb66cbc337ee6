"""Rows in the arena are those that transformers' own tower makes of the same pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoImageProcessor, Qwen2_5_VLForConditionalGeneration

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.engine_encoder.rig import Front, Gate, picture, running
from tests.models.stock import stock_tower
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard, load_card
from triptych.multimodal.canonical import to_rgb
from triptych.services.encoder.prepare import Preparer

SIZES = ((56, 56), (224, 112), (30, 200), (300, 311), (112, 112))


class Stock:
    """The checkpoint's vision tower and image processor as transformers has them."""

    def __init__(self, folder: Path) -> None:
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        self._visual = model.model.visual.eval()
        self._processor = AutoImageProcessor.from_pretrained(folder)

    def rows(self, data: bytes) -> Tensor:
        made = self._processor(images=[to_rgb(data)], return_tensors="pt")
        with torch.inference_mode():
            found = self._visual(made["pixel_values"], grid_thw=made["image_grid_thw"])
        rows: Tensor = found.pooler_output
        return rows


def apart(rows: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number: a batch adds up in another order than one item alone."""
    assert rows.shape == expected.shape
    return ((rows - expected).abs().max() / expected.abs().max()).item()


@pytest.fixture(scope="module", params=["embedded", "random"])
def model(request: pytest.FixtureRequest) -> tuple[ModelCard, VisionTower, Preparer, Stock]:
    folder = EMBEDDED if request.param == "embedded" else random_checkpoint()
    card = load_card(str(folder), "float32")
    # Modules of transformers itself: how far ours round from it is told in tests/models.
    return card, stock_tower(card, "float32"), Preparer(card), Stock(folder)


def test_every_item_of_a_batch_has_the_rows_of_the_stock_tower(
    model: tuple[ModelCard, VisionTower, Preparer, Stock],
) -> None:
    card, tower, prepare, stock = model
    gate = Gate(tower)
    with running(card, gate, prepare) as rig:
        pictures = [picture(seed, *size) for seed, size in enumerate(SIZES)]
        busy = rig.wish(picture(99))
        assert gate.reached.wait(20)
        wishes = [rig.wish(data) for data in pictures]
        rig.eventually(lambda: rig.gauge("preprocess_queued_items") == 0 and rig.gauge("waiting_jobs") == 6)
        gate.open.set()
        assert busy.ref
        for data, wish in zip(pictures, wishes, strict=True):
            assert apart(rig.rows(wish.ref), stock.rows(data)) <= 1e-5
        assert max(len(batch) for batch in gate.batches) > 1
        assert {wish.ref.dtype for wish in wishes} == {"float32"}
        assert all(len(wish.ref.checksum) == 16 for wish in wishes)


def test_batch_mates_do_not_touch_each_others_rows(model: tuple[ModelCard, VisionTower, Preparer, Stock]) -> None:
    card, tower, prepare, _ = model
    mates = [picture(seed, *size) for seed, size in enumerate(SIZES)]
    alone = []
    for data in mates:
        with running(card, tower, prepare) as rig:
            alone.append(rig.rows(rig.wish(data).ref))
    gate = Gate(tower)
    with running(card, gate, prepare) as rig:
        wishes = [rig.wish(data) for data in mates]
        rig.eventually(lambda: rig.gauge("preprocess_queued_items") == 0)
        gate.open.set()
        for rows, wish in zip(alone, wishes, strict=True):
            assert apart(rig.rows(wish.ref), rows) <= 1e-5


def test_prepared_patches_are_bit_equal_to_the_models_own_processor(
    model: tuple[ModelCard, VisionTower, Preparer, Stock],
) -> None:
    card, _, prepare, stock = model
    with running(card, Front(model[1]), prepare) as rig:
        for seed, size in enumerate(SIZES):
            data = picture(seed, *size)
            prepared = prepare(data, rig.wish(data).job.item)
            made = stock._processor(images=[to_rgb(data)], return_tensors="pt")
            patches = model[1].patches([prepared.pixels], [prepared.grid])
            assert np.array_equal(patches.numpy(), made["pixel_values"].numpy())
