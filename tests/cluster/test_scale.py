"""Roles are scaled and switched under load: real workers on a Ray of their own, by the commands an operator has.

Two routers take the load, and each has to know by itself who takes work and who does not any more.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.cluster.load import Load
from tests.journey.messages import user
from tests.served import PICTURES, shown
from triptych.cli import main
from triptych.cluster.supervisor import Supervisor
from triptych.config import MIB, EncoderSettings, LanguageSettings, RouterSettings, ServeSettings, Settings

KEY = "operator-of-this-test"
HEADERS = {"authorization": f"Bearer {KEY}"}
IN_FLIGHT = 100
IDLE_SECONDS = 20.0  # a liveness bound
NAMES = ("red-circle.png", "sign-tea.png", "two-shapes.png")


@contextmanager
def serving(topology: str) -> Iterator[str]:
    """The URL of a server with one worker for each group of roles."""
    supervisor = Supervisor(
        Settings(
            serve=ServeSettings(
                served_name="m", topology=topology, routers=2, device="cpu", ray="local", cpu_threads=1
            ),
            router=RouterSettings(port=0, api_key=KEY, status_interval_seconds=0.2, log_level="warning"),
            encoder=EncoderSettings(arena_bytes=32 * MIB),
            language=LanguageSettings(kv_bytes=64 * MIB, landing_bytes=32 * MIB),
        )
    )
    url = f"http://127.0.0.1:{supervisor.start()}"
    try:
        yield url
    finally:
        supervisor.stop()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("e+p+d") as url:
        yield url


@pytest.fixture
def load(url: str) -> Iterator[Load]:
    with loading(url) as load:
        yield load


@contextmanager
def loading(url: str, in_flight: int = IN_FLIGHT) -> Iterator[Load]:
    """What is wrong with any answer raises AssertionError at its end, and what is left over anywhere."""
    parts = [[shown(name), f"What is in picture {name}?"] for name in NAMES if (PICTURES / name).exists()]
    messages = [user(*part) for part in [*parts, ["Which colours are there?"]]]
    bodies = [
        {"model": "m", "messages": [message], "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        for message in messages
    ]
    with Load(url, bodies, in_flight, HEADERS) as load:
        yield load
        assert all(clients_of_routers(url)), "every router has had its part of it"
    assert load.wrong == []
    assert load.num_answered > in_flight
    wait_idle(url)


def wait_idle(url: str) -> None:
    deadline = time.monotonic() + IDLE_SECONDS
    while busy := [worker for worker in workers(url) if not worker["idle"]]:
        assert time.monotonic() < deadline, busy
        time.sleep(0.05)


def clients_of_routers(url: str) -> list[int]:
    """How many each router has."""
    port = int(url.rpartition(":")[2])
    alive = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    routers = [each for each in alive if "triptych.router.router_process" in each.cmdline()]
    states = [[each.status for each in router.net_connections() if each.laddr.port == port] for router in routers]
    counts = [each.count(psutil.CONN_ESTABLISHED) for each in states if psutil.CONN_LISTEN in each]
    assert len(counts) == 2
    return counts


def workers(url: str) -> list[dict[str, object]]:
    return list(httpx.get(f"{url}/v1/cluster", headers=HEADERS, trust_env=False).json()["workers"])


def operate(url: str, *words: str) -> int:
    return main([*words, "--url", url, "--api-key", KEY, "--timeout", "120"])


def counts(url: str) -> dict[str, tuple[int, int]]:
    """Wanted and ready, by group."""
    groups = httpx.get(f"{url}/admin/scale", headers=HEADERS, trust_env=False).json()["groups"]
    return {name: (each["wanted"], each["ready"]) for name, each in groups.items()}


def retries(url: str) -> float:
    """That requests have spent so far."""
    text = httpx.get(f"{url}/metrics", headers=HEADERS, trust_env=False).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("triptych:retries_total{"))


def refused(url: str, path: str, body: object, headers: dict[str, str] = HEADERS) -> tuple[int, str]:
    response = httpx.post(url + path, json=body, headers=headers, trust_env=False)
    return response.status_code, response.json()["error"]["message"]


def test_what_cannot_be_is_refused_with_what_could(url: str) -> None:
    for path, body, reason in (
        ("/admin/scale", {"decode": 0}, "decode=0 would leave requests without a worker of a role"),
        ("/admin/scale", {"encoder": 1}, "there are encode, prefill, decode"),
        ("/admin/scale", {"encode": "2"}, "encode: Input should be a valid integer"),
        ("/admin/scale", {"encode": True}, "encode: Input should be a valid integer"),
        ("/admin/scale", [], "the body is not a JSON object"),
        ("/admin/role", {"worker": "decode-0", "role": "prefill"}, "first add another: triptych scale decode=2"),
        ("/admin/role", {"worker": "decode-0"}, "role: Field required"),
    ):
        status, message = refused(url, path, body)
        assert (status, reason in message) == (400, True), message
    assert refused(url, "/admin/scale", {"decode": 2}, headers={})[0] == 401
    assert counts(url) == {"encode": (1, 1), "prefill": (1, 1), "decode": (1, 1)}


def test_encoders_and_decode_workers_come_and_go_under_load(url: str, load: Load) -> None:
    assert operate(url, "scale", "encode=2", "decode=2") == 0
    assert counts(url) == {"encode": (2, 2), "prefill": (1, 1), "decode": (2, 2)}
    before = load.num_answered
    assert operate(url, "scale", "encode=1", "decode=1") == 0
    assert counts(url) == {"encode": (1, 1), "prefill": (1, 1), "decode": (1, 1)}
    assert load.num_answered > before
    assert retries(url) == 0, "going on elsewhere is no retry"


def test_workers_switch_between_prefill_and_decode_under_load(url: str, load: Load) -> None:
    assert operate(url, "scale", "decode=2") == 0
    assert operate(url, "role", "decode-0", "prefill") == 0
    assert counts(url) == {"encode": (1, 1), "prefill": (2, 2), "decode": (1, 1)}
    assert operate(url, "role", "prefill-0", "decode") == 0
    assert operate(url, "scale", "decode=1") == 0
    assert counts(url) == {"encode": (1, 1), "prefill": (1, 1), "decode": (1, 1)}
    assert retries(url) == 0


@pytest.mark.parametrize(("topology", "together", "alone"), [("ep+d", "ep", "decode"), ("epd", "epd", "")])
def test_workers_of_several_roles_come_and_go_under_load(topology: str, together: str, alone: str) -> None:
    with serving(topology) as url, loading(url, in_flight=30) as load:
        assert operate(url, "scale", f"{together}=2") == 0
        before = load.num_answered
        if alone:
            assert operate(url, "role", f"{together}-0", alone) == 0
            assert counts(url) == {together: (1, 1), alone: (2, 2)}
        assert operate(url, "scale", f"{alone or together}=1") == 0
        assert set(counts(url).values()) == {(1, 1)}
        assert load.num_answered > before
        assert retries(url) == 0
