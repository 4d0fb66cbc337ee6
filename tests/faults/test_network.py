"""As test_kills.py, for workers that reach each other by NIXL alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cluster import FaultyCluster, Outcome, Tables
from tests.faults.nursery import Nursery
from tests.faults.trial import ASKED, NETWORK_PLACES, Place, answers, strike
from triptych.config import MIB
from triptych.journey import Role
from triptych.transfer.faults import Action

pytest.importorskip("nixl_cu13", reason="NIXL is not installed: pip install 'triptych[nixl]'")


@pytest.fixture(scope="module")
def cluster(
    nursery: Nursery, checkpoint_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyCluster]:
    """Two workers of each role."""
    # Few blocks, soon in disorder; and whatever is in pieces is packed by its owner.
    tables: Tables = {
        "language": {"kv_bytes": 2 * MIB},
        # How long a pull waits for an owner that stands still.
        "transfer": {"transports": ["nixl"], "nixl_pack_below_bytes": 1 << 30, "copy_timeout_seconds": 4.0},
    }
    folder = tmp_path_factory.mktemp("network")
    cluster = FaultyCluster(nursery, folder, str(checkpoint_folders["random"]), dict.fromkeys(Role, 2), tables)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def wanted(cluster: FaultyCluster) -> list[Outcome]:
    return answers(cluster)


@pytest.mark.parametrize("place", NETWORK_PLACES, ids=str)
@pytest.mark.parametrize("action", [Action.KILL, Action.STOP])
def test_requests_outlive_a_process_and_the_others_are_idle_within_a_lease(
    cluster: FaultyCluster, wanted: list[Outcome], place: Place, action: Action
) -> None:
    cluster.new_router()
    if place.step.startswith("prepare"):
        for tokens in (3, 40, 17, 29):  # ends at different times: free blocks come out of order, and KV in pieces
            cluster.together([*ASKED, *ASKED], tokens)
    strike(cluster, place, action, wanted)
