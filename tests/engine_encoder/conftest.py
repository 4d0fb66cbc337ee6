"""The embedded model's vision tower and image processor, loaded once for the room."""

import pytest
import torch

from triptych.models.base import VisionTower
from triptych.models.card import ModelCard, load_card
from triptych.models.loading import load_tower
from triptych.services.encoder.prepare import Preparer


@pytest.fixture(scope="session")
def card() -> ModelCard:
    return load_card("tiny-vl", "float32")


@pytest.fixture(scope="session")
def tower(card: ModelCard) -> VisionTower:
    return load_tower(card, torch.device("cpu"), "float32")


@pytest.fixture(scope="session")
def prepare(card: ModelCard) -> Preparer:
    return Preparer(card)
