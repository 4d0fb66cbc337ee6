"""Trees of processes that are held, and the arithmetic of the comparison."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.peer_cpu import PEER, WORKLOADS, Figures, commands, figures_of, median_of, pooled, ratio, read_arguments
from bench.process_tree import ProcessTree, descendants, is_alive

# A process with a child, both of which do nothing but use the CPU.
BUSY = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have had it ignored
if len(sys.argv) < 2:
    subprocess.Popen([sys.executable, __file__, "child"])
while True:
    pass
"""


@pytest.fixture
def busy(tmp_path: Path) -> list[str]:
    (tmp_path / "busy.py").write_text(BUSY)
    return [sys.executable, str(tmp_path / "busy.py")]


def wait_for_child(tree: ProcessTree) -> None:
    deadline = time.monotonic() + 20
    while len(tree.pids()) < 2:
        assert time.monotonic() < deadline, "no child after 20 s"
        time.sleep(0.02)


def used_by(tree: ProcessTree, seconds: float) -> float:
    before = tree.cpu_seconds()
    time.sleep(seconds)
    return tree.cpu_seconds() - before


def test_a_tree_that_is_held_computes_nothing_until_it_goes_on(busy: list[str], tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, ProcessTree(busy, log) as tree:
        wait_for_child(tree)
        tree.hold()
        time.sleep(0.05)
        assert used_by(tree, 0.3) <= 0.02
        tree.go_on()
        deadline = time.monotonic() + 20
        while used_by(tree, 0.1) == 0:
            assert time.monotonic() < deadline, "it did not go on"


def test_a_tree_is_gone_with_its_children_when_the_block_ends(busy: list[str], tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, ProcessTree(busy, log) as tree:
        wait_for_child(tree)
        pids = tree.pids()
        tree.hold()  # the end must reach one that is held, too
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)


def test_descendants_begin_with_the_process_itself_and_leave_out_strangers() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert descendants(stranger.pid) == [stranger.pid]
    finally:
        stranger.communicate(b"\n")


def figures(rate: float, ttft: float, tpot: float | None = 0.01) -> Figures:
    return Figures(rate, ttft, tpot, cpu_seconds_per_request=0.5, failed=0, samples=())


def test_ratios_are_of_medians_and_every_round_keeps_its_own() -> None:
    ours, peers = [figures(12, 0.1), figures(30, 0.3), figures(18, 0.2)], [figures(10, 0.4)] * 3
    found = ratio(ours, peers, least_rate=1.2)
    assert (found["requests_per_second"], found["ttft_p50_seconds"]) == (1.8, 0.5)
    assert [each["requests_per_second"] for each in found["rounds"]] == [1.2, 3.0, 1.8]
    assert found["holds"]


@pytest.mark.parametrize(("rate", "ttft"), [(11.9, 0.1), (20, 0.33)])
def test_a_goal_is_missed_by_the_rate_or_by_the_first_token(rate: float, ttft: float) -> None:
    assert not ratio([figures(rate, ttft)], [figures(10, 0.4)], least_rate=1.2)["holds"]
    assert ratio([figures(12, 0.32)], [figures(10, 0.4)], least_rate=1.2)["holds"]


def test_one_token_has_no_time_between_tokens() -> None:
    alone = [figures(1, 1, tpot=None)]
    assert median_of(alone, "tpot_p50_seconds") is None
    assert ratio(alone, alone, 1.0)["tpot_p50_seconds"] is None
    assert pooled(alone)["failed"] == 0


def test_figures_count_short_replies_as_failed_and_are_in_seconds() -> None:
    found = figures_of(
        {
            "req_per_s": 2.0,
            "ttft_s": {"p50": 0.25},
            "tpot_ms": {"p50": 12.5},
            "errors": 1,
            "short_replies": 2,
            "workload": {"requests": 4},
            "raw": [],
        },
        cpu_seconds=6.0,
    )
    assert (found.tpot_p50_seconds, found.cpu_seconds_per_request, found.failed) == (0.0125, 1.5, 3)


def test_the_peers_command_is_taken_apart_as_a_shell_would(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = "serve 'a b' --model {model} --port {port}"
    monkeypatch.setattr(
        sys, "argv", ["peer_cpu", "--mmbench", "mmbench.py", "--peer", peer, "--model", "/models/small"]
    )
    found = commands(read_arguments())
    assert found[PEER] == ["serve", "a b", "--model", "/models/small", "--port", "{port}"]
    assert set(found) == {PEER, "epd", "e+p+d"}
    assert all("{port}" in command for command in found.values())


def test_every_workload_says_all_that_the_load_generator_must_know() -> None:
    for flags, requests in WORKLOADS.values():
        assert {"--images", "--size", "--max-tokens", "--concurrency"} <= set(flags.split())
        assert requests > 0
