"""Other weights are served while requests go on, and the way back: real workers, two routers, an operator's words."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints import other_weights
from tests.cluster.load import Load
from tests.journey.messages import user
from tests.served import shown
from triptych.cli import main
from triptych.cluster.supervisor import Supervisor
from triptych.config import MIB, EncoderSettings, LanguageSettings, RouterSettings, ServeSettings, Settings

KEY = "operator-of-this-test"
HEADERS = {"authorization": f"Bearer {KEY}"}
IN_FLIGHT = 12
WAIT_SECONDS = 120.0  # a liveness bound
BODIES = [
    {"model": "tiny-vl", "messages": [user(shown(), question)], "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    for question in ("What is it?", "Which colours are there?", "Describe the picture.")
]


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    """Of a server with an encoder, a worker for the rest, and two routers."""
    supervisor = Supervisor(
        Settings(
            serve=ServeSettings(device="cpu", ray="local", cpu_threads=1, topology="e+pd", routers=2),
            router=RouterSettings(port=0, api_key=KEY, status_interval_seconds=0.2, log_level="warning"),
            encoder=EncoderSettings(arena_bytes=32 * MIB),
            language=LanguageSettings(kv_bytes=64 * MIB, landing_bytes=32 * MIB, swap_bytes=16 * MIB),
        )
    )
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


@pytest.fixture
def url(supervisor: Supervisor) -> str:
    return f"http://127.0.0.1:{supervisor.port}"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("models") / "other")


def operate(url: str, *words: str) -> int:
    return main(["reload", *words, "--url", url, "--api-key", KEY, "--timeout", str(WAIT_SECONDS)])


def get(url: str, path: str) -> Any:
    return httpx.get(url + path, headers=HEADERS, timeout=WAIT_SECONDS, trust_env=False).json()


def phases(url: str) -> dict[int, str]:
    return {each["set"]: each["phase"] for each in get(url, "/admin/reload")["sets"]}


def answers(url: str) -> list[str]:
    """By connections of their own, so that either router may be asked."""
    posted = {"headers": HEADERS, "timeout": WAIT_SECONDS, "trust_env": False}
    found = [httpx.post(f"{url}/v1/chat/completions", json=body, **posted) for body in BODIES]  # type: ignore[arg-type]
    assert [each.status_code for each in found] == [httpx.codes.OK] * len(BODIES), found[0].text
    return [each.json()["choices"][0]["message"]["content"] for each in found]


def refused(url: str, body: object, headers: dict[str, str] = HEADERS) -> tuple[int, str]:
    response = httpx.post(f"{url}/admin/reload", json=body, headers=headers, timeout=WAIT_SECONDS, trust_env=False)
    return response.status_code, response.json()["error"]["message"]


def test_what_cannot_be_is_refused_and_what_does_not_come_up_is_given_up(
    url: str, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no-model").mkdir()
    for body, reason in (
        ({"model": "/no/such"}, "'/no/such' is no folder on the server's machine"),
        ({"model": "some/model"}, "what is on a hub has to be downloaded first"),
        ({"model": str(tmp_path / "no-model")}, "config.json"),
        ({"back": True}, "there is nothing to go back to"),
        ({"model": str(other), "back": True}, "name either a model, or back: true"),
        ({}, "name either a model, or back: true"),
        ({"model": str(other), "deadline_seconds": -1}, "deadline_seconds: Input should be greater than or equal to 0"),
    ):
        status, message = refused(url, body)
        assert (status, reason in message) == (400, True), message
    assert refused(url, {"model": str(other)}, headers={})[0] == 401
    assert operate(url, "--model", "tiny-vl") == 0, "it is served already"
    assert operate(url, "--model", str(other), "--deadline", "0.2") == 1
    assert "was given up: it was not ready in time" in capsys.readouterr().err
    assert operate(url) == 1, "it goes on to say so"
    deadline = time.monotonic() + WAIT_SECONDS
    while phases(url) != {1: "serving"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_weights_change_under_load_and_back(supervisor: Supervisor, url: str, other: Path) -> None:
    first = answers(url)
    with Load(url, BODIES, IN_FLIGHT, HEADERS, collects=True) as load:
        before = load.num_answered
        assert operate(url, "--model", str(other), "--keep", "1000") == 0
        assert load.num_answered > before + IN_FLIGHT, "requests went on"
    second = answers(url)
    assert all(one != another for one, another in zip(first, second, strict=True))
    check(load, second)
    number = max(phases(url))
    assert phases(url) == {1: "finishing", number: "serving"}

    replace_killed(supervisor, url, f"encode-0.{number}")
    assert answers(url) == second, "who comes in a dead one's place has the new weights"

    with Load(url, BODIES, IN_FLIGHT, HEADERS, collects=True) as load:
        assert operate(url, "--back") == 0
        assert answers(url) == first
    check(load, first)
    assert phases(url) == {1: "serving"}
    told = get(url, "/v1/cluster")
    assert [(each["set"], each["model"], each["serving"]) for each in told["sets"]] == [(1, "tiny-vl", True)]
    assert {worker["worker_id"]: worker["set"] for worker in told["workers"]} == {"encode-0": 1, "pd-0": 1}


def check(load: Load, others: list[str]) -> None:
    """No answer was wrong for both models, none has failed, and there were some of the model that came."""
    assert load.wrong == []
    assert [found - {right} for found, right in zip(load.others, others, strict=True)] == [set()] * len(others)
    assert any(load.others)


def replace_killed(supervisor: Supervisor, url: str, worker: str) -> None:
    """The worker and one router are killed; returns once there are others."""
    router, *_ = supervisor.router_pids()
    lost = {each["worker_id"]: each["pid"] for each in get(url, "/v1/cluster")["workers"]}[worker]
    for pid in (lost, router):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + WAIT_SECONDS
    while lost in {each.pid for each in supervisor.addresses()} or not get(url, "/admin/reload")["settled"]:
        assert time.monotonic() < deadline, get(url, "/admin/reload")
        time.sleep(0.1)
    assert router not in supervisor.router_pids()
