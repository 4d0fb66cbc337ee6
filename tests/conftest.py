"""What all rooms' tests share."""

import os

# Several processes of one test compute at once on two cores; a spinning OpenMP thread would starve the others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys
import threading
from pathlib import Path

import pytest

from tests.checkpoints import EMBEDDED, random_checkpoint


@pytest.fixture(scope="session")
def checkpoint_folders() -> dict[str, Path]:
    """Model folders by the name that test variations use."""
    return {"random": random_checkpoint(), "embedded": EMBEDDED}


_END_SECONDS = 60.0


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """All has been told. A failed test may have left a gRPC server behind, whose collection waits for ever."""

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(exitstatus)

    timer = threading.Timer(_END_SECONDS, end)
    timer.daemon = True
    timer.start()
