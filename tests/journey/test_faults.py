"""Clients that leave, inputs that are bad, processes that die: the rest goes on, nothing stays behind."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from tests.journey.bad_images import BAD_IMAGES
from tests.journey.clusters import ANSWER_SECONDS, RESTART_SECONDS, Answer, Running, Variation, events
from tests.journey.conversations import conversations, picture, png
from tests.journey.messages import data_uri, image, user
from triptych.journey import Role

TOPOLOGIES = [Variation("e+p+d"), Variation("epd"), Variation("e+pd"), Variation("ep+d")]
FAST_TO_IDLE_SECONDS = 2.0  # the promise; tests assert five times as much and record what it was


def plain(cluster: Running, max_tokens: int = 16, seed: int = 0) -> Answer:
    return cluster.answers(conversations(seed)[1].messages, max_tokens)[0]


@pytest.mark.parametrize("cluster", TOPOLOGIES, indirect=True, ids=str)
def test_a_client_that_leaves_mid_stream_frees_everything(
    cluster: Running, record_property: Callable[[str, Any], None]
) -> None:
    cluster.seconds_until_idle(10)
    body = {"messages": conversations(3)[2].messages, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with cluster.http.stream("POST", "/v1/chat/completions", json={"model": "m", **body}) as response:
        for count, _ in enumerate(events(response)):
            if count == 5:
                break
    seconds = cluster.seconds_until_idle(5 * FAST_TO_IDLE_SECONDS)
    record_property("seconds_to_idle", seconds)


@pytest.mark.parametrize("cluster", TOPOLOGIES[:2], indirect=True, ids=str)
@pytest.mark.parametrize("delay_seconds", [0.0, 0.01, 0.03, 0.08, 0.2])
def test_a_client_that_leaves_early_frees_everything(
    cluster: Running, delay_seconds: float, record_property: Callable[[str, Any], None]
) -> None:
    body = {"model": "m", "messages": conversations(4)[2].messages, "max_tokens": 2000, "ignore_eos": True}
    with httpx.Client(base_url=cluster.url, trust_env=False) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=body, timeout=httpx.Timeout(10, read=delay_seconds + 1e-3))
    record_property("seconds_to_idle", cluster.seconds_until_idle(5 * FAST_TO_IDLE_SECONDS))


@pytest.mark.parametrize("name", sorted(BAD_IMAGES))
def test_a_bad_image_gets_a_400_while_others_finish(cluster: Running, name: str) -> None:
    bad = BAD_IMAGES[name]
    wanted = plain(cluster)
    good = [partial(plain, cluster) for _ in range(8)]
    messages = [user(image(png(picture(1, (84, 84)))), image(bad.data, bad.kind), "What is this?")]
    *answers, refusal = cluster.together([*good, lambda: cluster.post({"messages": messages, "max_tokens": 4})])
    assert all(answer.token_ids == wanted.token_ids for answer in answers)
    assert refusal.status_code == 400, refusal.text
    error = refusal.json()["error"]
    assert error["param"] == "messages[0].content[1].image_url.url"
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    assert error["message"]
    assert "1" in error["param"]


def test_an_overlong_prompt_gets_a_400_with_both_numbers(cluster: Running) -> None:
    refusal = cluster.post({"messages": [user("word " * 40_000)], "max_tokens": 4})
    assert refusal.status_code == 400
    error = refusal.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is ")
    assert sum(part.strip(".,").isdigit() for part in error["message"].split()) >= 2


def test_a_wrong_model_name_gets_a_404(cluster: Running) -> None:
    refusal = cluster.post({"model": "gpt-9", "messages": [user("hello")]})
    assert refusal.status_code == 404
    assert refusal.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"messages": 3}'])
def test_a_body_that_is_no_request_gets_a_400(cluster: Running, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    refusal = cluster.http.post("/v1/chat/completions", content=body, headers=headers)
    assert refusal.status_code == 400, refusal.text
    assert refusal.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("cluster", TOPOLOGIES[:3], indirect=True, ids=str)
def test_three_hundred_mixed_requests_leave_everything_idle(cluster: Running) -> None:
    rng = random.Random(5)
    asked = conversations(6)
    bad = [entry for _, entry in sorted(BAD_IMAGES.items())]

    def one(index: int) -> str:
        if index % 10 == 3:
            return _leave(cluster, asked[index % len(asked)].messages, after_seconds=rng.random() * 0.2)
        if index % 10 == 7:
            entry = bad[index // 10 % len(bad)]
            return str(cluster.post({"messages": [user(image(entry.data, entry.kind), "?")]}).status_code)
        body = {"messages": asked[index % len(asked)].messages, "max_tokens": 8, "ignore_eos": True}
        return str(cluster.post(body).status_code)

    outcomes: list[str] = []
    for start in range(0, 300, 25):
        outcomes += cluster.together([partial(one, index) for index in range(start, start + 25)])
    assert outcomes.count("200") == 240
    assert outcomes.count("left") + outcomes.count("finished first") == 30
    assert outcomes.count("400") == 30
    cluster.seconds_until_idle(20)


@pytest.mark.parametrize("role", list(Role))
def test_a_killed_tier_comes_back_and_no_request_hangs_or_lies(cluster: Running, role: Role) -> None:
    wanted = plain(cluster, 32)
    address = next(address for address in cluster.addresses() if role in address.roles)
    outcomes: list[tuple[int, tuple[int, ...]]] = []

    def ask() -> None:
        body = {
            "messages": conversations(0)[1].messages,
            "max_tokens": 32,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        response = cluster.post(body, timeout=ANSWER_SECONDS)
        ids = tuple(response.json()["choices"][0]["token_ids"]) if response.status_code == 200 else ()
        outcomes.append((response.status_code, ids))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    os.kill(address.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(timeout=ANSWER_SECONDS)
    assert len(outcomes) == len(threads), "a request hung"
    for status, ids in outcomes:
        assert status in (200, 500, 502, 503, 504)
        if status == 200:
            assert ids == wanted.token_ids
    cluster.wait_for_successor(address)
    assert _first_success(cluster).token_ids == wanted.token_ids[:16]
    cluster.seconds_until_idle(20)


@pytest.mark.parametrize("kill_after", [1, 20])
def test_a_stream_goes_on_where_its_decode_worker_died(cluster: Running, kill_after: int) -> None:
    """No token twice, none missing, none different: prompt and tokens so far are prefilled again."""
    messages, tokens = conversations(5)[2].messages, 600
    wanted = cluster.answers(messages, tokens)[0]
    address = next(address for address in cluster.addresses() if Role.DECODE in address.roles)
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    received: list[int] = []
    with cluster.http.stream("POST", "/v1/chat/completions", json={"model": "m", "stream": True, **body}) as response:
        for data in events(response):
            if data == "[DONE]":
                break
            event = json.loads(data)
            assert "error" not in event, event
            for choice in event["choices"]:
                received += choice.get("token_ids") or []
            if len(received) >= kill_after and address is not None:
                os.kill(address.pid, signal.SIGKILL)
                killed, address = address, None
    assert tuple(received) == wanted.token_ids
    cluster.wait_for_successor(killed)
    cluster.seconds_until_idle(20)


def test_a_killed_router_comes_back_on_its_port_and_workers_return_to_idle(cluster: Running) -> None:
    wanted = plain(cluster)
    [old] = cluster.supervisor.router_pids()
    body = {"model": "m", "messages": conversations(3)[2].messages, "max_tokens": 4000, "ignore_eos": True}
    with cluster.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        received = events(response)
        for _ in range(5):
            next(received)
        os.kill(old, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            list(received)
    cluster.seconds_until_idle(30)
    deadline = time.monotonic() + RESTART_SECONDS
    while not _healthy(cluster):
        assert time.monotonic() < deadline, "the router did not come back"
        time.sleep(0.2)
    assert cluster.supervisor.router_pids() != [old]
    assert plain(cluster).token_ids == wanted.token_ids


def _healthy(cluster: Running) -> bool:
    try:
        return cluster.http.get("/health").is_success
    except httpx.HTTPError:
        return False


def _leave(cluster: Running, messages: Any, after_seconds: float) -> str:
    """Send a request and close the connection after a while, wherever the request is then."""
    body = {"model": "m", "messages": messages, "max_tokens": 400, "ignore_eos": True}
    with httpx.Client(base_url=cluster.url, trust_env=False) as client:
        try:
            client.post("/v1/chat/completions", json=body, timeout=httpx.Timeout(30, read=after_seconds + 1e-3))
        except httpx.ReadTimeout:
            return "left"
    return "finished first"


def _first_success(cluster: Running) -> Answer:
    """The very next request after the worker is back must succeed."""
    return plain(cluster, 16)


def test_the_url_of_an_image_may_be_http_or_data(cluster: Running, image_server: str) -> None:
    data = png(picture(9, (112, 84)))
    by_data = cluster.answers([user(image(data), "What?")], 16)[0]
    by_url = cluster.answers([user({"type": "image_url", "image_url": {"url": f"{image_server}/9.png"}}, "What?")], 16)[
        0
    ]
    assert by_data.token_ids == by_url.token_ids
    assert data_uri(data).startswith("data:image/png;base64,")
