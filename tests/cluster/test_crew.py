"""How workers are kept, on a Ray of this test's own; the workers here load nothing."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray

from triptych.cluster import crew as crew_module
from triptych.cluster import member, pacing, progress
from triptych.cluster.actors import WorkerAddress
from triptych.cluster.crew import Crew
from triptych.cluster.hiring import Hiring
from triptych.cluster.progress import Progress
from triptych.cluster.reconcile import State
from triptych.cluster.runtime import RayRuntime
from triptych.cluster.view import View
from triptych.config import ServeSettings, Settings
from triptych.errors import ConfigError, InvalidRequest
from triptych.journey import Endpoint, Role

WAIT_SECONDS = 60.0  # a liveness bound


class Light:
    """Does what a worker's actor does, at once; with a busy one of its group that never becomes empty."""

    def __init__(self, worker_id: str, roles: list[str], *_: object) -> None:
        self._worker_id = worker_id
        self._roles = frozenset(Role(role) for role in roles)

    def address(self) -> WorkerAddress:
        return WorkerAddress(self._worker_id, self._roles, Endpoint("127.0.0.1:1", 1), os.getpid())

    def drain(self) -> bool:
        return self._worker_id != "encode-1"

    def stop(self) -> None:
        pass


class Broken(Light):
    """Its encoders cannot start."""

    def __init__(self, worker_id: str, *more: object) -> None:
        if worker_id.startswith("encode"):
            raise ConfigError("no such folder")
        super().__init__(worker_id, *more)  # type: ignore[arg-type]


class Terminated(Light):
    """Drains from when its process gets a SIGTERM."""

    def __init__(self, worker_id: str, *more: object) -> None:
        super().__init__(worker_id, *more)  # type: ignore[arg-type]
        self._is_draining = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._is_draining.set())

    def address(self) -> WorkerAddress:
        return replace(super().address(), is_draining=self._is_draining.is_set())


class Stuck(Light):
    """Its first encoder stands still before it says a word, prefill loads for long, and does something all the time."""

    def __init__(self, worker_id: str, roles: list[str], settings: Settings, loopback: bool) -> None:
        super().__init__(worker_id, roles)
        self._began = time.monotonic()
        folder = Path(settings.serve.profile_folder)
        if worker_id == "encode-0" and not list(folder.iterdir()):
            (folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    def address(self) -> WorkerAddress | Progress:  # type: ignore[override]
        seconds = time.monotonic() - self._began
        if self._worker_id == "prefill-0" and seconds < 1.5 * STALL_SECONDS:
            return Progress("loads a model", seconds)
        return super().address()


STALL_SECONDS = 3.0  # a process of Ray's takes a second, on a busy machine, before it can say anything


@pytest.fixture(scope="module", autouse=True)
def own_ray() -> Iterator[None]:
    runtime = RayRuntime("local", num_actors=3)
    yield
    runtime.close()


@pytest.fixture
def crew_of() -> Iterator[Callable[..., Crew]]:
    crews: list[Crew] = []

    def make(actor: type, here: Collection[str] = (), **serve: object) -> Crew:
        """here: of its group decode, that there are already"""
        settings = Settings(serve=ServeSettings(device="cpu", **serve))  # type: ignore[arg-type]
        hiring = Hiring(settings, {}, {}, loopback=True, actor=actor)
        crew = Crew(settings, hiring, here={name: hiring.hire(name, frozenset({Role.DECODE})) for name in here})
        crews.append(crew)
        crew.start()
        return crew

    yield make
    for crew in crews:
        crew.stop()


def wait(crew: Crew, holds: Callable[[View], bool]) -> View:
    """What is told once it holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds(view := crew.view()):
        assert time.monotonic() < deadline, view
        threading.Event().wait(0.02)
    return view


def settled(view: View) -> bool:
    return bool(view.told()["settled"])


def ids(view: View) -> list[str]:
    return sorted(worker.worker_id for worker in view.workers)


def test_a_worker_that_cannot_start_is_tried_again_ever_more_rarely_and_says_why(
    crew_of: Callable[..., Crew],
) -> None:
    crew = crew_of(Broken)
    view = wait(crew, lambda view: any("3 times in a row now" in text for _, text in view.news))
    assert view.failures == {"encode-0": "no such folder"}
    told = [text for _, text in view.news if text.startswith("encode-0")]
    assert told[-1] == "encode-0 is down: no such folder; 3 times in a row now, the next try is in 1 s"
    assert {"prefill-0 ready", "decode-0 ready"} <= {text for _, text in view.news}, "others are not held up"
    assert not settled(view)


def test_one_that_is_killed_comes_back_as_another(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(Light)
    before = {each.worker_id: each.pid for each in wait(crew, settled).addresses}
    os.kill(before["decode-0"], signal.SIGKILL)
    wait(crew, lambda view: any(text.startswith("decode-0 is down") for _, text in view.news))
    after = {each.worker_id: each.pid for each in wait(crew, settled).addresses}
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"decode-0"}


def test_one_that_stands_still_is_ended_and_another_takes_its_place(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "STILL_SECONDS", 1.0)
    crew = crew_of(Light)
    before = {each.worker_id: each.pid for each in wait(crew, settled).addresses}
    os.kill(before["encode-0"], signal.SIGSTOP)
    wait(crew, lambda view: "encode-0 is down: it has not answered for 1 s" in [text for _, text in view.news])
    after = {each.worker_id: each.pid for each in wait(crew, settled).addresses}
    assert {name for name in after if after[name] != before[name]} == {"encode-0"}
    wait(crew, lambda view: not os.path.exists(f"/proc/{before['encode-0']}"))


def test_nobody_is_ended_for_what_was_not_heard_while_the_crew_itself_stood_still(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "STILL_SECONDS", 2.0)
    monkeypatch.setattr(crew_module, "_STOOD_SECONDS", 1.0)
    crew = crew_of(Light)
    before = {each.worker_id: each.pid for each in wait(crew, settled).addresses}
    with crew._lock:  # which each look takes
        time.sleep(3.0)
    time.sleep(1.0)
    assert {each.worker_id: each.pid for each in wait(crew, settled).addresses} == before


def test_one_that_was_found_and_is_too_many_drains_before_it_ends(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(Light, here=("decode-0", "decode-1"))
    told = [text for _, text in wait(crew, settled).news]
    assert told.index("decode-1 drains") < told.index("decode-1 has ended")


def test_a_start_that_does_not_go_on_is_ended_and_tried_again(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(progress, "STALL_SECONDS", STALL_SECONDS)
    crew = crew_of(Stuck, profile_folder=str(tmp_path))
    notes = [worker.note for worker in wait(crew, lambda view: "loads a model" in str(view.workers)).workers]
    assert any(note.startswith("loads a model, for ") for note in notes)
    view = wait(crew, settled)
    told = [text for _, text in view.news if " is down" in text]
    assert told == ["encode-0 is down: its start has not gone on for 3 s"]
    (stopped,) = tmp_path.iterdir()
    wait(crew, lambda view: not os.path.exists(f"/proc/{stopped.name}"))


def test_one_that_is_refused_is_replaced_with_the_reason_and_ever_more_rarely(
    crew_of: Callable[..., Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "BURST", 1)
    monkeypatch.setattr(pacing, "INTERVAL_SECONDS", 0.25)
    crew = crew_of(Light)
    began = time.monotonic()
    crew.replace("decode-0", 7, "another that was there before")
    crew.replace("decode-9", 1, "nobody")
    for number in (1, 2, 3):
        before = {each.worker_id: each.pid for each in wait(crew, settled).addresses}
        if number == 1:
            assert time.monotonic() - began >= 2 * 0.25, "three that start at once do so in turns"
        crew.replace("decode-0", 1, "it gave a wrong answer")
        wait(crew, lambda view: sum("decode-0 is down" in text for _, text in view.news) == number)  # noqa: B023
        after = {each.worker_id: each.pid for each in wait(crew, settled).addresses}
        assert {name for name in after if after[name] != before[name]} == {"decode-0"}
    told = [text for _, text in crew.view().news if "is down" in text]
    assert told[0] == "decode-0 is down: it gave a wrong answer"
    assert told[2].endswith("3 times in a row now, the next try is in 1 s")


def test_one_that_gets_a_sigterm_is_replaced_while_it_finishes(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(Terminated)
    before = {each.worker_id: each.pid for each in wait(crew, settled).addresses}
    os.kill(before["decode-0"], signal.SIGTERM)
    wait(crew, lambda view: "decode-0 has ended" in [text for _, text in view.news])
    view = wait(crew, settled)
    told = [text for _, text in view.news]
    assert told.index("decode-0 drains") < told.index("decode-0 has ended")
    assert {each.worker_id: each.pid for each in view.addresses}.keys() == {"encode-0", "prefill-0", "decode-1"}


def test_one_that_takes_too_long_to_drain_is_stopped(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(Light, encoders=2, drain_seconds=0.5)
    wait(crew, settled)
    crew.scale({"encode": 1})
    draining = wait(crew, lambda view: any(worker.state is State.DRAINING for worker in view.workers))
    assert "encode-1" not in {each.worker_id for each in draining.addresses}, "routers give it nothing more"
    view = wait(crew, settled)
    assert ids(view) == ["decode-0", "encode-0", "prefill-0"]
    assert any("encode-1 has taken too long to finish" in text for _, text in view.news)


def test_a_worker_switches_once_and_only_where_it_can_be_spared(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(Light, decodes=2)
    wait(crew, settled)
    for worker_id, role, reason in (
        ("prefill-0", "decode", "prefill-0 is all that there will be of prefill; .* triptych scale prefill=2"),
        ("decode-0", "decode", "is of decode already"),
        ("decode-7", "prefill", "there is no worker 'decode-7'; there are "),
        ("decode-0", "vision", "'vision' is no role of topology"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            crew.switch(worker_id, role)
    crew.switch("decode-0", "prefill")
    with pytest.raises(InvalidRequest, match="decode-1 is all that there will be"):
        crew.switch("decode-1", "prefill")
    assert ids(wait(crew, settled)) == ["decode-1", "encode-0", "prefill-0", "prefill-1"]


def test_a_switch_that_is_sent_twice_takes_nobody_else(crew_of: Callable[..., Crew]) -> None:
    """The second comes before anybody has looked at the first: what it would end is another worker."""
    crew = crew_of(Light, decodes=3)
    wait(crew, settled)
    crew.switch("decode-0", "prefill")
    with pytest.raises(InvalidRequest, match=r"decode-0 is (to leave decode|draining|stopping) already"):
        crew.switch("decode-0", "prefill")
    assert ids(wait(crew, settled)) == ["decode-1", "decode-2", "encode-0", "prefill-0", "prefill-1"]


def test_who_was_to_leave_is_forgotten_with_the_wish(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(Light, decodes=2)
    wait(crew, settled)
    crew._leaving = frozenset({"decode-0"})  # as a switch has it, until a look later
    crew.scale({"decode": 3})
    wait(crew, settled)
    crew.scale({"decode": 2})
    assert ids(wait(crew, settled)) == ["decode-0", "decode-1", "encode-0", "prefill-0"]


def test_a_ray_of_our_own_listens_on_loopback_alone() -> None:
    listening: list[tuple[str, str]] = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # of a worker before this
            sockets = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
            listening += [(process.name(), each.laddr.ip) for each in sockets]
    assert {name for name, _ in listening} >= {"gcs_server", "raylet"}
    assert {address.removeprefix("::ffff:") for _, address in listening} == {"127.0.0.1"}, listening


def test_stopping_ends_every_process(crew_of: Callable[..., Crew]) -> None:
    crew = crew_of(Light)
    actors = [each.pid for each in wait(crew, settled).addresses]
    crew.stop()
    deadline = time.monotonic() + WAIT_SECONDS
    while any(os.path.exists(f"/proc/{pid}") for pid in actors):
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
    assert ray.is_initialized()
