"""The random checkpoint as our language model and tower, and as transformers' own; loaded once for the room."""

import pytest
import torch

from tests.checkpoints import random_checkpoint
from tests.engine.prompts import layout_of, picture, rows_of, text_layout, user
from tests.engine.rig import GREEDY, Asked
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


@pytest.fixture(scope="session")
def text(card: ModelCard, reference: Reference) -> Asked:
    """A question without images."""
    return Asked(text_layout(card, reference, "What is the colour of the sea at night?"), GREEDY)


@pytest.fixture(scope="session")
def image(card: ModelCard, tower: VisionTower, reference: Reference) -> Asked:
    """A question about one image, with more than a block of text before it."""
    one = picture(1, 112, 84)
    ids = reference.inputs([user("Look here: ", one, " What is it?")], [one])["input_ids"][0].tolist()
    return Asked(layout_of(card, ids, [one]), GREEDY, rows_of(reference, tower, [one]))
