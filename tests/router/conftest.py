"""What the router's tests share."""

import pytest

from tests.checkpoints import EMBEDDED
from triptych.models.card import ModelCard, load_card
from triptych.router.prompt import PromptBuilder


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on the loop the router runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def card() -> ModelCard:
    return load_card(str(EMBEDDED), "float32")


@pytest.fixture(scope="session")
def prompts(card: ModelCard) -> PromptBuilder:
    return PromptBuilder(card)
