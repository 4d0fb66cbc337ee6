"""The server in a thread of its own, and the command line around it."""

import asyncio
import dataclasses
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.metrics.test_books import samples
from tests.router.serving import QUICK, chat_body, tiers, until
from triptych.config import RouterSettings, Settings
from triptych.errors import ConfigError
from triptych.journey import Endpoint, Role
from triptych.models.card import ModelCard
from triptych.router.fleet.link import KnownWorker
from triptych.router.model_set import KnownSet
from triptych.router.pipeline.self_test import NUM_TOKENS, known_answer
from triptych.router.server import RouterServer

ANY_PORT = Settings(router=RouterSettings(port=0, status_interval_seconds=0.05))


def test_a_server_starts_on_a_free_port_and_stops_with_its_thread(card: ModelCard) -> None:
    server = RouterServer(ANY_PORT, card)
    port = server.start()
    assert httpx.get(f"http://127.0.0.1:{port}/live", trust_env=False).status_code == 200
    server.stop()
    assert not any(thread.name == "router" for thread in threading.enumerate())
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/live", trust_env=False)


def test_workers_may_be_told_from_another_thread(card: ModelCard) -> None:
    server = RouterServer(ANY_PORT, card)
    port = server.start()
    server.update([KnownWorker("w", Endpoint("127.0.0.1:1", 7), frozenset({Role.ENCODE}))])
    deadline = time.monotonic() + 5
    workers: list[dict[str, object]] = []
    while not workers and time.monotonic() < deadline:
        workers = httpx.get(f"http://127.0.0.1:{port}/v1/cluster", trust_env=False).json()["workers"]
    assert workers[0]["worker_id"] == "w"
    assert workers[0]["state"] == "unknown"
    server.stop()


def test_ready_says_how_far_workers_are_that_are_not_there_yet(card: ModelCard) -> None:
    server = RouterServer(ANY_PORT, card, None)
    port = server.start()
    both = (["prefill", "decode"], "starting: waits for its place, for 3 s")
    server.tell_coming({"e": (["encode"], "starting: loads its libraries, for 3 s"), "pd": both})
    server.update([KnownWorker("pd", Endpoint("127.0.0.1:1", 7), frozenset({Role.PREFILL, Role.DECODE}))])
    deadline = time.monotonic() + 5
    told: dict[str, object] = {}
    while "UNAVAILABLE" not in str(told) and time.monotonic() < deadline:
        response = httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False)
        told = response.json()
    assert response.status_code == 503
    silent = {"pd": "unknown: it does not answer (UNAVAILABLE)"}
    assert told["why"] == {
        "encode": {"e": "starting: loads its libraries, for 3 s"},
        "prefill": silent,
        "decode": silent,
    }
    found = samples(httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).content)
    workers = {name: count for name, count in found.items() if name.startswith("triptych:workers{")}
    assert workers == {
        "triptych:workers{state=coming,worker_type=encode}": 1,
        "triptych:workers{state=unknown,worker_type=decode+prefill}": 1,
    }
    cluster = httpx.get(f"http://127.0.0.1:{port}/v1/cluster", trust_env=False).json()
    assert cluster["coming"] == [
        {"worker_id": "e", "roles": ["encode"], "note": "starting: loads its libraries, for 3 s"}
    ]
    silent_count = {"wanted": 1, "ready": 0, "coming": 0}
    assert cluster["roles"] == {
        "encode": {"wanted": 1, "ready": 0, "coming": 1},
        "prefill": silent_count,
        "decode": silent_count,
    }
    server.stop()


def test_a_taken_port_is_a_config_error(card: ModelCard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = dataclasses.replace(ANY_PORT, router=RouterSettings(port=port))
        with pytest.raises(ConfigError, match=str(port)):
            RouterServer(settings, card).start()


def test_what_keeps_it_from_starting_is_raised(card: ModelCard, tmp_path: Path) -> None:
    server = RouterServer(ANY_PORT, dataclasses.replace(card, folder=tmp_path))
    with pytest.raises(ConfigError, match="tokenizer"):
        server.start()


def test_a_model_that_makes_no_sense_at_all_ends_no_router_that_serves_another(card: ModelCard, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(card.folder, folder)
    (folder / "self_test.json").write_text("[" * 100_000)  # no reader of JSON goes so deep
    server = RouterServer(ANY_PORT, card)
    port = server.start()
    try:
        server.tell([KnownSet(1, str(card.folder)), KnownSet(2, str(folder))], serving=1, turn=0)
        told = server.told_of_sets()
        assert [each["set"] for each in told["unusable"]] == [2]
        assert "self_test.json: maximum recursion depth" in told["unusable"][0]["reason"]
        assert httpx.get(f"http://127.0.0.1:{port}/live", trust_env=False).status_code == 200
    finally:
        server.stop()


def test_an_admin_port_takes_over_what_operators_ask(card: ModelCard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        admin_port = free.getsockname()[1]
    settings = dataclasses.replace(ANY_PORT, router=RouterSettings(port=0, admin_port=admin_port))
    server = RouterServer(settings, card)
    port = server.start()
    for path, on_main, on_admin in (("/metrics", 404, 200), ("/v1/cluster", 404, 200), ("/v1/models", 200, 404)):
        assert httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False).status_code == on_main
        assert httpx.get(f"http://127.0.0.1:{admin_port}{path}", trust_env=False).status_code == on_admin
    with pytest.raises(ConfigError, match=str(admin_port)):
        RouterServer(settings, card).start()
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{admin_port}/live", trust_env=False)


def test_keys_that_cannot_be_read_keep_it_from_starting_and_need_no_trace(
    card: ModelCard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = dataclasses.replace(ANY_PORT, router=RouterSettings(port=0, api_keys_file=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="cannot read keys"):
        RouterServer(settings, card).start()
    assert not caplog.records


def test_two_servers_live_side_by_side(card: ModelCard) -> None:
    servers = [RouterServer(ANY_PORT, card) for _ in range(2)]
    ports = [server.start() for server in servers]
    servers[0].stop()
    assert httpx.get(f"http://127.0.0.1:{ports[1]}/live", trust_env=False).status_code == 200
    servers[1].stop()


@pytest.mark.anyio
async def test_whoever_keeps_the_workers_hears_which_one_the_self_test_has_refused(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d", "d")
    for worker in workers:
        worker.says = known_answer(card.folder)
        await worker.start()
    workers[3].says = [*known_answer(card.folder)[:1], *[99] * NUM_TOKENS]
    server = RouterServer(Settings(router=RouterSettings(**(QUICK | {"self_test": True}))), card)
    await asyncio.to_thread(server.start)
    server.update([worker.known for worker in workers])
    await until(lambda: server.worker_states().get("d-2") == "ready" and bool(server.faulty_workers()))
    ((name, (incarnation, reason)),) = server.faulty_workers().items()
    assert (name, incarnation) == ("d-3", workers[3].incarnation)
    assert reason.startswith("it gave a wrong answer: token 1 is 99, expected ")
    await asyncio.to_thread(server.stop)
    for worker in workers:
        await worker.kill()


@pytest.mark.anyio
async def test_answers_get_their_time_when_it_is_stopped_and_then_an_error_event(
    card: ModelCard, caplog: pytest.LogCaptureFixture
) -> None:
    (worker,) = tiers(card, "epd")
    worker.token_pause_seconds = 0.02
    await worker.start()
    limits = RouterSettings(**(QUICK | {"drain_seconds": 2.0}))
    named = dataclasses.replace(card, name="tiny_vl")
    server = RouterServer(Settings(router=limits), named, [worker.known])
    url = f"http://127.0.0.1:{await asyncio.to_thread(server.start)}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
        async with asyncio.timeout(10):
            while (await client.get("/health")).status_code != 200:
                await asyncio.sleep(0.02)

        async def asked(max_tokens: int, *, stream: bool) -> str:
            body = chat_body(max_tokens=max_tokens, stream=stream)
            return (await client.post("/v1/chat/completions", json=body)).text

        answers = [asked(20, stream=True), asked(3000, stream=True), asked(3000, stream=False)]
        tasks = [asyncio.create_task(answer) for answer in answers]
        await until(lambda: sum(entry.startswith("decode after") for entry in worker.log) == len(tasks))
        began = time.monotonic()
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        short, long, whole = await asyncio.gather(*tasks)
        await stopping
        took = time.monotonic() - began
    await worker.kill()
    assert short.endswith("data: [DONE]\n\n")
    assert "error" not in short
    name, _, data = long.rstrip().split("\n\n")[-1].partition("\ndata: ")
    assert name == "event: error"
    assert json.loads(data)["error"]["message"] == "the server is being stopped; try again"
    assert json.loads(whole)["error"]["message"] == "the server is being stopped; try again"
    assert 2.0 <= took < 20.0, "the answers would take a minute"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING and "lost" in record.message]


def test_the_command_serves_until_it_is_told_to_stop(card: ModelCard) -> None:
    command = [
        sys.executable,
        "-m",
        "triptych.router",
        "--model",
        str(card.folder),
        "--dtype",
        "float32",
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        [*command, "--worker", "127.0.0.1:1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ,
    )
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("router ready at "))
    url = line.split()[-1]
    assert httpx.get(f"{url}/health", trust_env=False).status_code == 503
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
