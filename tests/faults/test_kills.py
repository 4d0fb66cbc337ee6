"""A process killed or stopped at each step of each edge: the others answer, and soon hold nothing for the dead."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.cluster import FaultyCluster, Outcome
from tests.faults.trial import PLACES, Place, answers, strike
from triptych.transfer.faults import Action


@pytest.fixture(scope="module")
def wanted(cluster: FaultyCluster) -> list[Outcome]:
    return answers(cluster)


@pytest.fixture(autouse=True)
def _fresh_router(request: pytest.FixtureRequest, cluster: FaultyCluster) -> None:
    """A router retries about one request in ten, and here every third is one: each test gets a new one's reserve."""
    cluster.new_router()


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("action", [Action.KILL, Action.STOP])
def test_requests_outlive_a_process_and_the_others_are_idle_within_a_lease(
    cluster: FaultyCluster,
    wanted: list[Outcome],
    place: Place,
    action: Action,
    record_property: Callable[[str, Any], None],
) -> None:
    trial = strike(cluster, place, action, wanted)
    record_property("answered_after", trial.answered_after)
    record_property("idle_after", trial.idle_after)
