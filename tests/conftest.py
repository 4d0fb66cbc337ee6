"""What all rooms' tests share."""

import os

# Several processes of one test compute at once on two cores; a spinning OpenMP thread would starve the others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from pathlib import Path

import pytest

from tests.checkpoints import EMBEDDED, random_checkpoint


@pytest.fixture(scope="session")
def checkpoint_folders() -> dict[str, Path]:
    """Model folders by the name that test variations use."""
    return {"random": random_checkpoint(), "embedded": EMBEDDED}
