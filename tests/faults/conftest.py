"""One nursery for all clusters, one cluster for all tests that leave it whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cluster import FaultyCluster
from tests.faults.nursery import Nursery
from triptych.journey import Role


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def cluster(
    nursery: Nursery, checkpoint_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyCluster]:
    """Two workers of each role."""
    folder = tmp_path_factory.mktemp("faulty")
    cluster = FaultyCluster(nursery, folder, str(checkpoint_folders["random"]), dict.fromkeys(Role, 2))
    yield cluster
    cluster.stop()
