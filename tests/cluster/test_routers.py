"""Two router processes in front of three tiers: one cluster for all tests here, which go in order and end it."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.journey.clusters import Running, Variation
from triptych.cluster.runtime import RayRuntime

NUM_STREAMS = 12
LIMIT_SECONDS = 30.0
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def cluster(checkpoint_folders: dict[str, Path]) -> Iterator[Running]:
    runtime = RayRuntime("local")
    running = Running(Variation(routers=2), Variation(routers=2).settings(checkpoint_folders))
    yield running
    running.stop()
    runtime.close()


class Stream(threading.Thread):
    """One streamed answer on a connection of its own."""

    def __init__(self, url: str, max_tokens: int) -> None:
        super().__init__()
        self._client = httpx.Client(base_url=url, timeout=LIMIT_SECONDS, trust_env=False)
        self._max_tokens = max_tokens
        self.begun = threading.Event()
        self.port = 0  # this end's
        self.num_chunks = 0
        self.is_whole = False

    def run(self) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "Go on."}], "stream": True, "temperature": 0}
        body |= {"max_tokens": self._max_tokens, "ignore_eos": True}
        try:
            with self._client, self._client.stream("POST", CHAT, json=body) as response:
                self.port = response.extensions["network_stream"].get_extra_info("client_addr")[1]
                for line in response.iter_lines():
                    self.num_chunks += line.startswith("data: {")
                    self.is_whole = line == "data: [DONE]" or self.is_whole
                    self.begun.set()
        except httpx.HTTPError:
            pass
        finally:
            self.begun.set()


def streams(cluster: Running, max_tokens: int) -> list[Stream]:
    """Begun, all at once."""
    begun = [Stream(cluster.url, max_tokens) for _ in range(NUM_STREAMS)]
    for stream in begun:
        stream.start()
    for stream in begun:
        assert stream.begun.wait(LIMIT_SECONDS)
    return begun


def clients_of(pid: int) -> set[int]:
    """The ports of those that are connected to a router."""
    connections = psutil.Process(pid).net_connections("tcp")
    return {each.raddr.port for each in connections if each.status == psutil.CONN_ESTABLISHED and each.raddr}


def metric(cluster: Running, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(cluster.http.get("/metrics").text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_until_nothing_runs(cluster: Running) -> None:
    """As the routers count; an answer is counted just behind its end."""
    wait_until(cluster, "triptych:num_requests_running", 0)


def wait_until(cluster: Running, name: str, value: float) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while (told := metric(cluster, name)) != value:
        assert time.monotonic() < deadline, told
        time.sleep(0.02)


def test_every_router_takes_clients_and_any_of_them_counts_all(cluster: Running) -> None:
    begun = streams(cluster, 300)
    shares = [{stream.port for stream in begun} & clients_of(pid) for pid in cluster.supervisor.router_pids()]
    for stream in begun:
        stream.join(LIMIT_SECONDS)
    assert all(stream.is_whole for stream in begun)
    assert all(shares)
    assert sum(map(len, shares)) == NUM_STREAMS
    wait_until_nothing_runs(cluster)
    told = {metric(cluster, "triptych:generation_tokens_total") for _ in range(4)}
    assert told == {300.0 * NUM_STREAMS}
    # Each router books its histograms once a second, and any of them is asked.
    wait_until(cluster, "triptych:time_to_first_token_seconds_count", NUM_STREAMS)
    assert metric(cluster, "triptych:workers", state="ready") == 3


def test_a_killed_router_breaks_its_own_streams_alone_and_another_takes_its_place(cluster: Running) -> None:
    before = metric(cluster, "triptych:requests_total", endpoint=CHAT)
    killed, other = cluster.supervisor.router_pids()
    begun = streams(cluster, 300)
    lost = clients_of(killed)
    os.kill(killed, signal.SIGKILL)
    for stream in begun:
        stream.join(LIMIT_SECONDS)
    assert 0 < sum(stream.port in lost for stream in begun) < NUM_STREAMS
    assert [stream.is_whole for stream in begun] == [stream.port not in lost for stream in begun]
    replaced = cluster.supervisor.router_pids()
    assert replaced[1] == other
    assert replaced[0] != killed
    cluster.seconds_until_idle(LIMIT_SECONDS)  # what the dead one held has been given back
    wait_until_nothing_runs(cluster)
    assert metric(cluster, "triptych:requests_total", endpoint=CHAT) == before + NUM_STREAMS  # what it counted stays


def test_the_new_router_answers_and_knows_the_workers(cluster: Running) -> None:
    [new, _] = cluster.supervisor.router_pids()
    for _ in range(200):  # until it is the one that takes the connection
        with httpx.Client(base_url=cluster.url, timeout=LIMIT_SECONDS, trust_env=False) as client:
            workers = client.get("/v1/cluster").json()["workers"]
            if clients_of(new):
                deadline = time.monotonic() + LIMIT_SECONDS
                while not client.get("/health").is_success:  # once it has seen each worker answer rightly
                    assert time.monotonic() < deadline, client.get("/ready").text
                break
    else:
        pytest.fail("the new router takes no clients")
    assert {worker["worker_id"] for worker in workers} == {"encode-0", "prefill-0", "decode-0"}


def test_requests_that_come_while_every_router_is_dead_are_answered_by_the_next(cluster: Running) -> None:
    dying = [psutil.Process(pid) for pid in cluster.supervisor.router_pids()]
    for process in dying:
        process.kill()
    for process in dying:
        process.wait(LIMIT_SECONDS)
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    reply = httpx.post(f"{cluster.url}{CHAT}", json=body, timeout=LIMIT_SECONDS, trust_env=False)
    assert reply.status_code == 200, reply.text


def test_at_the_end_nothing_is_left(cluster: Running) -> None:
    pids = cluster.supervisor.router_pids()
    port = int(cluster.url.rpartition(":")[2])
    cluster.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
