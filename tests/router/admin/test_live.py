"""The page's files, and the feed that it draws the cluster from: who is told what, and how many may listen."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.router.serving import picture, serving, tiers
from triptych.config import RouterSettings, Settings
from triptych.models.card import ModelCard
from triptych.router.app import build_apps
from triptych.router.page.feed import MOST_LISTENERS, MOST_OF_A_TENANT
from triptych.router.server import RouterServer

pytestmark = pytest.mark.anyio

LIVE = "/v1/cluster/live"
KEYS: dict[str, Any] = {"api_key": "operator", "api_keys": ("alice=a", "bob=b")}
SECRET = "a question that only its asker knows"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


class Listener:
    """Reads a feed's snapshots one after another."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.text = ""
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            async for line in self._lines:
                if line.startswith("data: "):
                    self.text += line
                    snapshot: dict[str, Any] = json.loads(line[6:])
                    return snapshot
        raise EOFError("the feed has ended")


@asynccontextmanager
async def listening(client: httpx.AsyncClient, key: str = "") -> AsyncIterator[Listener]:
    async with client.stream("GET", LIVE, headers=bearer(key)) as response:
        yield Listener(response)


async def test_the_page_is_asked_for_again_only_when_it_has_changed_and_may_load_nothing_of_others(
    card: ModelCard,
) -> None:
    async with serving(card, api_key="k") as served:
        page = await served.client.get("/")  # without a key: there is nothing in it
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        names = re.findall(r'(?:src|href)="(page/[^"]+)"', page.text)
        assert {name.rpartition(".")[2] for name in names} == {"css", "js", "svg"}
        for name in ("", *names):
            response = await served.client.get(f"/{name}")
            again = await served.client.get(f"/{name}", headers={"if-none-match": f'"x", W/{response.headers["etag"]}'})
            assert (response.status_code, again.status_code, again.content) == (200, 304, b"")
            assert again.headers["etag"] == response.headers["etag"]
            assert (await served.client.get(f"/{name}", headers={"if-none-match": '"x"'})).status_code == 200
        for name in ("page/none.js", "page/feed.py", "page/__init__.py", "page/..%2Fauth.py"):
            assert (await served.client.get(f"/{name}")).status_code == 404
        head = await served.client.head("/")
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", page.headers["etag"])


async def test_the_feed_tells_of_workers_and_of_requests_from_their_beginning_to_their_end(card: ModelCard) -> None:
    workers = tiers(card, "e", "p", "d")
    async with serving(card, workers, stage_timeout_seconds=20.0) as served, listening(served.client) as feed:
        assert feed.response.headers["content-type"].startswith("text/event-stream")
        first = await feed.next()
        assert (first["viewer"], first["answers_here"], first["router"]) == ("operator", True, {"number": 1, "of": 1})
        assert {(each["worker_id"], *each["roles"], each["state"]) for each in first["workers"]} == {
            ("e-0", "encode", "ready"),
            ("p-1", "prefill", "ready"),
            ("d-2", "decode", "ready"),
        }
        ids = await served.ids([picture(), {"type": "text", "text": SECRET}])
        snapshot = await feed.next()
        while not snapshot["recent"]:
            snapshot = await feed.next()
        [ended] = snapshot["recent"]
        assert (ended["outcome"], ended["images"], ended["tokens"]) == ("finished", 1, len(ids))
        names = [name for name, _ in ended["stages"]]
        assert {"parse", "hash", "reserve", "wire", "decode"} <= set(names)
        assert sum(seconds for _, seconds in ended["stages"]) == pytest.approx(ended["seconds"], abs=1e-4)
        told = (await served.client.get(f"/v1/requests/{ended['request_id']}/timeline")).json()
        until_first = [[name, round(seconds, 6)] for name, seconds in told["stages"].items() if name != "respond"]
        assert ended["stages"][: len(until_first)] == until_first
        assert sum(seconds for _, seconds in until_first) == pytest.approx(ended["first_token"], abs=1e-4)
        assert ended["workers"] == {"encode": "e-0", "prefill": "p-1", "decode": "d-2"}
        assert snapshot["num_tokens"] == len(ids)
        assert (await feed.next())["recent"] == []  # told once
        assert SECRET not in feed.text
        assert "data:image" not in feed.text

        killed_at = time.monotonic()
        await served.workers[1].kill()
        while next(each for each in snapshot["workers"] if each["worker_id"] == "p-1")["state"] == "ready":
            snapshot = await feed.next()
        assert time.monotonic() - killed_at < 3


async def test_each_is_shown_what_he_may_see(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd"), **KEYS) as served:
        for key in ("", "wrong"):
            assert (await served.client.get(LIVE, headers=bearer(key))).status_code == 401
        ids = {}
        for key in ("a", "b"):
            body = {"model": "tiny_vl", "messages": [{"role": "user", "content": "hello"}]}
            answer = await served.client.post("/v1/chat/completions", json=body, headers=bearer(key))
            ids[key] = answer.json()["id"].removeprefix("chatcmpl-")
        seen, worker = {}, {}
        for key in ("a", "b", "operator"):
            async with listening(served.client, key) as feed:
                snapshot = await feed.next()
            seen[key] = {row["id"] for row in snapshot["recent"]}
            [worker[key]] = snapshot["workers"]
            assert snapshot["viewer"] == ("operator" if key == "operator" else "user")
        assert seen == {"a": {ids["a"]}, "b": {ids["b"]}, "operator": set(ids.values())}
        assert worker["a"].keys() == {"worker_id", "roles", "state"}
        assert {"gauges", "reason", "device", "paths"} <= worker["operator"].keys()


async def test_so_many_may_listen_and_operators_find_a_place(card: ModelCard) -> None:
    limits = httpx.Limits(max_connections=MOST_LISTENERS + 8)
    async with serving(card, **KEYS) as served, AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=served.base_url, limits=limits, trust_env=False)
        )
        held = [await stack.enter_async_context(listening(client, "a")) for _ in range(MOST_OF_A_TENANT)]
        await asyncio.gather(*(feed.next() for feed in held))
        refused = await client.get(LIVE, headers=bearer("a"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        while len(held) < MOST_LISTENERS:
            held.append(await stack.enter_async_context(listening(client, "operator")))
            await held[-1].next()
        assert (await client.get(LIVE, headers=bearer("operator"))).status_code == 429
        await held[0].response.aclose()
        async with asyncio.timeout(5):
            while True:  # until the router has noticed that one of them has left
                async with listening(client, "b") as feed:
                    if feed.response.status_code == 200:
                        break
        told = served.router.expose_metrics().decode()
    assert 'triptych:rejected_requests_total{reason="overload"} 0.0' in told  # nobody is woken for a crowd of tabs
    assert 'triptych:request_errors_total{error="TooManyViewers"}' in told


async def test_a_head_of_whatever_can_be_got_comes_to_its_end_and_takes_no_place(card: ModelCard) -> None:
    async with serving(card) as served, AsyncExitStack() as stack:
        described = (await served.client.get("/openapi.json")).json()["paths"]
        paths = [path for path, operations in described.items() if "get" in operations]
        assert len(paths) > 8
        for path in ("/", "/page/page.css", LIVE, *paths):
            async with asyncio.timeout(5):
                answer = await served.client.head(path)
            assert (answer.status_code in (200, 405), answer.content) == (True, b"")
        for _ in range(MOST_LISTENERS):
            assert (await served.client.head(LIVE)).headers["content-type"].startswith("text/event-stream")
        feed = await stack.enter_async_context(listening(served.client))
        assert (await feed.next())["object"] == "cluster.live"


async def test_operators_with_a_port_of_their_own_look_there(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd"), admin_port=1) as served:
        await served.ids("hello")
        async with listening(served.client) as feed:
            snapshot = await feed.next()
        assert (snapshot["viewer"], snapshot["recent"], snapshot["num_tokens"]) == ("user", [], 0)
        assert "gauges" not in snapshot["workers"][0]
        assert snapshot["answers_here"] is True


def test_who_still_listens_does_not_hold_up_the_end(card: ModelCard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        admin_port = free.getsockname()[1]
    server = RouterServer(Settings(router=RouterSettings(port=0, admin_port=admin_port)), card)
    port, ends = server.start(), []

    def listen(at: int, told: threading.Event) -> None:
        with httpx.stream("GET", f"http://127.0.0.1:{at}{LIVE}", trust_env=False) as response:
            for line in response.iter_lines():
                ends.append((at, line))
                told.set()
        ends.append((at, "end"))

    listeners = []
    for at in (port, admin_port):
        told = threading.Event()
        listeners.append(threading.Thread(target=listen, args=(at, told), daemon=True))
        listeners[-1].start()
        assert told.wait(5)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 3  # of the five seconds that answers may take to their end
    for each in listeners:
        each.join(timeout=5)
    assert {at for at, line in ends if line == "end"} == {port, admin_port}
    by_port = {at: json.loads(line[6:]) for at, line in reversed(ends) if line.startswith("data: ")}
    assert by_port[admin_port]["viewer"] == "operator"
    assert by_port[admin_port]["answers_here"] is False
    assert by_port[port]["viewer"] == "user"


async def test_a_key_that_is_no_operators_is_refused_at_the_operators_port(card: ModelCard) -> None:
    async with serving(card, admin_port=1, **KEYS) as served:
        admin = build_apps(served.router).admin
        assert admin is not None
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=admin), base_url="http://admin") as client:
            assert (await client.get(LIVE, headers=bearer("a"))).status_code == 403
            assert (await client.get("/")).status_code == 200
