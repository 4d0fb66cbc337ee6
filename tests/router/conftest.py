"""What the router's tests share."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.checkpoints import EMBEDDED
from triptych.models.card import ModelCard, load_card
from triptych.router.pipeline.prompt import PromptBuilder


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on the loop the router runs on."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """All async tests share a loop: gRPC tells late events to the loop they belong to, which must not be closed."""
    yield
    await asyncio.sleep(0.05)


@pytest.fixture(scope="session")
def card() -> ModelCard:
    return load_card(str(EMBEDDED), "float32")


@pytest.fixture(scope="session")
def prompts(card: ModelCard) -> PromptBuilder:
    return PromptBuilder(card)
