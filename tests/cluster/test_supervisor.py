"""What a supervisor passes on from whoever keeps the workers, without any."""

import threading
import time

import pytest

from triptych.cluster import supervisor as supervisor_module
from triptych.cluster.actors import WorkerAddress
from triptych.cluster.crew import Crew
from triptych.cluster.hiring import Hiring
from triptych.cluster.reconcile import State
from triptych.cluster.routers import RouterProcesses
from triptych.cluster.sets import Phase
from triptych.cluster.supervisor import Supervisor
from triptych.cluster.view import SetView, View, WorkerView
from triptych.config import RouterSettings, Settings
from triptych.errors import ClusterError
from triptych.journey import Endpoint, Role
from triptych.router.pipeline.proving import TEST_SECONDS

SETTINGS = Settings(router=RouterSettings(port=0))
START_SECONDS = 30.0


def view(*news: tuple[int, str], workers: tuple[WorkerView, ...] = ()) -> View:
    sets = (SetView(1, SETTINGS.serve.model, Phase.SERVING),)
    return View("e+p+d", {"encode": 1, "prefill": 1, "decode": 1}, workers, news=news, sets=sets)


def test_news_are_told_once_and_also_by_a_keeper_that_was_started_again_and_counts_anew() -> None:
    told: list[str] = []
    supervisor = Supervisor(SETTINGS, told.append)
    for news in (((7, "a"), (8, "b")), ((7, "a"), (8, "b"), (9, "c")), (), ((0, "d"),), ((0, "d"), (1, "e"))):
        supervisor._pass_on(view(*news))
    assert told == ["a", "b", "c", "d", "e"]


def test_routers_hear_of_a_worker_before_anybody_waits_for_them_to_find_it_ready() -> None:
    """It may have come in the place of one that has died since the others had started."""
    address = WorkerAddress("decode-0", frozenset({Role.DECODE}), Endpoint("127.0.0.1:1", 7), 1)
    worker = WorkerView("decode-0", "decode", State.READY, address=address)
    routers = RouterProcesses(SETTINGS, lambda text: None)
    routers.start()
    try:
        routers.pids(START_SECONDS)
        deadline = time.monotonic() + START_SECONDS
        while routers.ask("workers", START_SECONDS) != [{"decode-0": "unknown"}]:
            assert Supervisor(SETTINGS)._join(view(workers=(worker,)), routers) == {"decode-0"}
            assert time.monotonic() < deadline
    finally:
        routers.stop()


def test_routers_are_told_of_workers_though_something_has_gone_wrong_once() -> None:
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if text == "a":
            raise BrokenPipeError  # nobody reads what this process prints

    crew, routers = Crew(SETTINGS, Hiring(SETTINGS, {}, {})), RouterProcesses(SETTINGS, lambda text: None)
    supervisor = Supervisor(SETTINGS, tell)
    watcher = threading.Thread(target=supervisor._watch, args=(crew, routers))
    routers.start()
    watcher.start()
    try:
        for news in ("a", "b"):
            crew._say(news)
            crew._publish()
            deadline = time.monotonic() + START_SECONDS
            while told[-1:] != [news]:
                assert time.monotonic() < deadline, told
                time.sleep(0.02)
    finally:
        supervisor.stop()
        routers.stop()
        watcher.join(START_SECONDS)
    assert not watcher.is_alive()


def test_a_start_ends_once_nobody_keeps_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_START_SECONDS", 0.5)
    crew, routers = Crew(SETTINGS, Hiring(SETTINGS, {}, {})), RouterProcesses(SETTINGS, lambda text: None)
    crew._publish(is_lost=True)
    supervisor = Supervisor(SETTINGS)
    try:
        for wait in (supervisor._wait_started, supervisor._wait_ready):
            with pytest.raises(ClusterError, match="Ray has gone"):
                wait(crew, routers)
    finally:
        routers.stop()


def test_a_first_self_test_has_all_its_time() -> None:
    assert supervisor_module._READY_SECONDS > TEST_SECONDS
