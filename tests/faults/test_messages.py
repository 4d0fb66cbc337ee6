"""Messages late, lost, doubled and out of order, and copies that are wrong: a right answer or an error, and no leak."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cluster import FaultyCluster, Outcome
from tests.faults.nursery import Nursery
from tests.faults.trial import ASKED, MAX_TOKENS, SLACK_SECONDS, answers
from triptych.journey import Role
from triptych.transfer.faults import STEPS, Action, Fault

LOUD = {Action.KILL, Action.STOP, Action.DELAY}
# Claims are made ready for readers over a network alone: test_network.py.
QUIET = [
    (step, action)
    for step, actions in STEPS.items()
    for action in sorted(actions - LOUD)
    if not step.startswith("prepare")
]
HARMLESS = {Action.DUPLICATE, Action.DELAY}  # nobody is even to notice
STAGE_SECONDS = 3.0
# What has to be slow, or new, for a step to be taken at all.
SLOW = (
    Fault("rows.begin", Action.DELAY, seconds=1.2, every=True),
    Fault("kv.begin", Action.DELAY, seconds=1.2, every=True),
)
WORKER = {"connect.serve": Role.ENCODE}  # whose first meeting with its consumers it is


@pytest.fixture(scope="module")
def cluster(
    nursery: Nursery, checkpoint_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultyCluster]:
    """One worker of each role, and stages that soon give up."""
    tables = {"router": {"stage_timeout_seconds": STAGE_SECONDS, "request_timeout_seconds": 20.0}}
    folder = tmp_path_factory.mktemp("messages")
    cluster = FaultyCluster(nursery, folder, str(checkpoint_folders["random"]), dict.fromkeys(Role, 1), tables)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def wanted(cluster: FaultyCluster) -> list[Outcome]:
    return answers(cluster)


@pytest.mark.parametrize(("step", "action"), QUIET, ids=[f"{step}-{action}" for step, action in QUIET])
def test_a_request_ends_rightly_or_with_an_error_and_nothing_stays_behind(
    cluster: FaultyCluster, wanted: list[Outcome], step: str, action: Action
) -> None:
    if step in WORKER:
        cluster.restart(cluster.of_role(WORKER[step]))
    for slow in SLOW if step.startswith("renew") else ():
        cluster.faults.set(slow)
    cluster.faults.set(Fault(step, action, at=WORKER.get(step, "")))
    outcomes = cluster.together(ASKED, MAX_TOKENS)
    struck = [fault for fault, _ in cluster.faults.struck() if fault.step == step]
    cluster.faults.clear()
    assert len(struck) == 1, "nobody came to the step"
    assert_right_or_failed(outcomes, wanted)
    if action in HARMLESS:
        assert outcomes == wanted
    if action is Action.CORRUPT:
        assert outcomes == wanted, "a wrong copy is an ordinary failure: the request is tried again"
    cluster.seconds_until_idle(cluster.lease_seconds + SLACK_SECONDS)
    assert answers(cluster) == wanted


def test_delays_at_every_step_cost_nothing_but_time(cluster: FaultyCluster, wanted: list[Outcome]) -> None:
    for step in STEPS:
        cluster.faults.set(Fault(step, Action.DELAY, seconds=0.05, every=True))
    outcomes = cluster.together(ASKED, MAX_TOKENS)
    cluster.faults.clear()
    assert outcomes == wanted
    cluster.seconds_until_idle(cluster.lease_seconds + SLACK_SECONDS)


def assert_right_or_failed(outcomes: list[Outcome], wanted: list[Outcome]) -> None:
    """Never other tokens; an error is one of the cluster's, as nobody asked for anything wrong."""
    for outcome, right in zip(outcomes, wanted, strict=True):
        assert outcome == right or outcome.status >= 500, f"{outcome}, expected {right} or an error"
