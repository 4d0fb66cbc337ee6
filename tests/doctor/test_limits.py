"""What the system lets a user have."""

import resource

import pytest

from triptych.config import MIB, load_settings
from triptych.doctor.finding import Verdict
from triptych.doctor.limits import judge_locked_memory, judge_open_files, judge_processes

ROUTER = load_settings(environment={}).router
UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "verdict"),
    [(256, Verdict.FAIL), (1024, Verdict.WARN), (4671, Verdict.WARN), (4672, Verdict.OK), (UNLIMITED, Verdict.OK)],
)
def test_files_must_be_enough_for_all_connections(soft: int, verdict: Verdict) -> None:
    assert judge_open_files(soft, UNLIMITED, ROUTER).verdict is verdict


def test_the_advice_on_files_says_how_many() -> None:
    assert "ulimit -n 4672" in judge_open_files(1024, 4096, ROUTER).advice


@pytest.mark.parametrize(
    ("soft", "of_cgroup", "verdict"),
    [
        (UNLIMITED, [], Verdict.OK),
        (UNLIMITED, [100], Verdict.FAIL),
        (100_000, [4096], Verdict.WARN),
        (1000, [100_000], Verdict.FAIL),
    ],
)
def test_the_tightest_limit_of_processes_counts(soft: int, of_cgroup: list[int], verdict: Verdict) -> None:
    assert judge_processes(soft, of_cgroup).verdict is verdict


@pytest.mark.parametrize(
    ("soft", "cards", "verdict"),
    [
        (8 * MIB, [], Verdict.OK),
        (8 * MIB, ["mlx5_0"], Verdict.WARN),
        (UNLIMITED, ["mlx5_0"], Verdict.OK),
    ],
)
def test_locked_memory_matters_where_there_is_rdma(soft: int, cards: list[str], verdict: Verdict) -> None:
    assert judge_locked_memory(soft, cards).verdict is verdict
