"""What the tests of traces share."""

import os
from collections.abc import Iterator

import pytest

from tests.router.observe.collector import Collector


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of OpenTelemetry, nor a proxy between here and here."""
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made
