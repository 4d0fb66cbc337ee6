"""A process killed or stopped at each step of each edge: the others answer, and soon hold nothing for the dead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cluster import FaultyCluster, Outcome
from tests.faults.nursery import Nursery, Nursling, Order
from tests.faults.trial import PLACES, Place, answers, strike
from triptych.transfer.faults import Action


@pytest.fixture(scope="module")
def wanted(cluster: FaultyCluster) -> list[Outcome]:
    return answers(cluster)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("action", [Action.KILL, Action.STOP])
def test_requests_outlive_a_process_and_the_others_are_idle_within_a_lease(
    cluster: FaultyCluster,
    wanted: list[Outcome],
    place: Place,
    action: Action,
    record_property: Callable[[str, Any], None],
) -> None:
    # A router retries about one request in ten, and here every third is one: each test gets a new one's reserve.
    cluster.new_router()
    trial = strike(cluster, place, action, wanted)
    record_property("answered_after", trial.answered_after)
    record_property("idle_after", trial.idle_after)


def test_a_worker_that_is_to_obey_faults_without_leave_does_not_start(
    nursery: Nursery, checkpoint_folders: dict[str, Path], tmp_path: Path
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(f'[transfer]\nfaults = "{tmp_path}"\n')
    arguments = ["--roles", "encode", "--model", str(checkpoint_folders["random"]), "--device", "cpu"]
    order = Order([*arguments, "--config", str(config)], str(tmp_path / "ready"), str(tmp_path / "log"))
    with pytest.raises(RuntimeError, match="ALLOW_FAULT_INJECTION"):
        Nursling(nursery, "disobedient", order).endpoint()
