"""The encoder engine with its tower captured: the same rows, out of the same small arena, to the last unit."""

import random

import pytest
import torch

from tests.checkpoints import random_checkpoint
from tests.engine_encoder.rig import picture, running
from triptych.config import EncoderSettings
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard, load_card
from triptych.models.loading import load_tower
from triptych.services.encoder.prepare import Preparer

SIZES = ((56, 56), (224, 112), (30, 200), (150, 131), (112, 112))


@pytest.fixture(scope="module")
def model() -> tuple[ModelCard, VisionTower, Preparer]:
    card = load_card(str(random_checkpoint()), "float32")
    return card, load_tower(card, torch.device("cpu"), "float32"), Preparer(card)


def settings(graphs: str) -> EncoderSettings:
    return EncoderSettings(graphs=graphs, max_encoder_tokens_per_batch=400, max_items_per_batch=4)


def test_rows_read_by_their_refs_are_those_of_an_eager_encoder(model: tuple[ModelCard, VisionTower, Preparer]) -> None:
    pictures = [picture(seed, *size) for seed, size in enumerate(SIZES)]
    with running(*model, settings=settings("off")) as rig:
        expected = [rig.rows(rig.wish(data).ref) for data in pictures]
        assert rig.gauge("graph_replays_total") == rig.gauge("graph_misses_total") == 0
    with running(*model, settings=settings("on")) as rig:
        wishes = [rig.wish(data) for data in pictures]
        for wish, rows in zip(wishes, expected, strict=True):
            found = rig.rows(wish.ref)
            assert (found - rows).abs().max() <= 1e-5 * rows.abs().max()
        assert rig.gauge("graph_replays_total") > 0
        large = rig.wish(picture(9, 420, 420))
        assert large.ref
        assert rig.gauge("graph_misses_total") == 1
        rig.release([*wishes, large])
        rig.settle()


def test_rows_stay_whole_while_items_take_each_others_units(model: tuple[ModelCard, VisionTower, Preparer]) -> None:
    """An arena of a few items, full to its last unit: padding goes to the scratch unit behind it and nowhere else."""
    pictures = [picture(seed, *SIZES[seed % len(SIZES)]) for seed in range(12)]
    with running(*model, settings=settings("off")) as rig:
        expected = [rig.rows(rig.wish(data).ref) for data in pictures]
    numbers = random.Random(3)
    with running(*model, arena_rows=96, settings=settings("on")) as rig:
        for _ in range(80):
            # Two of at most 32 rows find room wherever one of them stands, so that neither waits for the other's end.
            chosen = numbers.sample(range(len(pictures)), 2)
            wishes = [rig.wish(pictures[number]) for number in chosen]
            for number, wish in zip(chosen, wishes, strict=True):
                rows = rig.rows(wish.ref)  # its checksum is verified on the way
                assert (rows - expected[number]).abs().max() <= 1e-5 * expected[number].abs().max()
                rig.release([wish])
        assert rig.gauge("cache_evictions_total") > 0
        assert rig.gauge("graph_misses_total") == 0
        rig.settle()
