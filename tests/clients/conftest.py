"""One cluster for all clients."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.served import PICTURES, Served, served_model


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_model(tmp_path_factory.mktemp("clients")) as served:
        yield served


@pytest.fixture(scope="session")
def picture() -> bytes:
    return (PICTURES / "red-circle.png").read_bytes()


@pytest.fixture(scope="session")
def weather() -> dict[str, Any]:
    """Parameters of a tool."""
    return {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "Oslo"]},
            "days": {"type": "integer", "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    }


@pytest.fixture
def idle_afterwards(served: Served) -> Iterator[None]:
    """What a client left behind is gone soon: no tier computes for it, none holds memory of it."""
    yield
    end = time.monotonic() + 5.0
    while busy := served.cluster.busy():
        assert time.monotonic() < end, busy
        time.sleep(0.05)
