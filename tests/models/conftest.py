"""Both checkpoints, and what transformers makes of them."""

from pathlib import Path

import pytest

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.reference import Reference


@pytest.fixture(scope="module", params=["random", "embedded"])
def folder(request: pytest.FixtureRequest) -> Path:
    return random_checkpoint() if request.param == "random" else EMBEDDED


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)
