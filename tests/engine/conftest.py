"""The random checkpoint as our language model and tower, and as transformers' own; loaded once for the room."""

import pytest
import torch

from tests.checkpoints import random_checkpoint
from tests.reference import Reference
from triptych.models.base import LanguageModel, VisionTower
from triptych.models.card import ModelCard, load_card
from triptych.models.loading import load_language, load_tower

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def card() -> ModelCard:
    return load_card(str(random_checkpoint()), "float32")


@pytest.fixture(scope="session")
def model(card: ModelCard) -> LanguageModel:
    return load_language(card, CPU, "float32")


@pytest.fixture(scope="session")
def tower(card: ModelCard) -> VisionTower:
    return load_tower(card, CPU, "float32")


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference(random_checkpoint())
