"""Operators' routes, over real encoder processes: what is warmed, pinned and cleared is so at each of them."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints import EMBEDDED
from tests.processes import WorkerProcess
from tests.router.serving import chat_body, picture, serving, tiers, until
from triptych.config import RouterSettings, ServeSettings, Settings
from triptych.journey import Role
from triptych.models.card import ModelCard
from triptych.router.api.schema import Chat
from triptych.router.app import build_app
from triptych.router.edge.auth import DEFAULT_TENANT
from triptych.router.edge.caller import Caller
from triptych.router.fleet.link import KnownWorker
from triptych.router.observe.timeline import Timeline
from triptych.router.router import Router

pytestmark = pytest.mark.anyio
KEY = {"authorization": "Bearer secret"}
SERVE = ServeSettings(model=str(EMBEDDED), served_name="tiny_vl", device="cpu", dtype="float32")
TWO_PICTURES = [picture("red-circle.png"), picture("sign-cafe.jpg"), picture("red-circle.png")]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[KnownWorker]]:
    folder: Path = tmp_path_factory.mktemp("encoders")
    config = folder / "triptych.toml"
    config.write_text("[encoder]\nhost_cache_bytes = 1048576\n[serve]\ncpu_threads = 1\n")
    workers = [
        WorkerProcess(
            *(f"e-{number}", frozenset({Role.ENCODE}), Settings(serve=SERVE), config, folder / f"{number}.log"),
            module="triptych.services.encoder",
        )
        for number in range(2)
    ]
    try:
        yield [worker.wait_ready() for worker in workers]
    finally:
        for worker in workers:
            worker.stop()


class Admin:
    """A router over the encoders, and an operator's client."""

    def __init__(self, router: Router, client: httpx.AsyncClient) -> None:
        self.router = router
        self._client = client

    async def __call__(self, action: str, body: Any = None) -> dict[str, Any]:
        response = await self.post(action, body)
        assert response.status_code == 200, response.text
        told: dict[str, Any] = response.json()
        assert [worker["worker_id"] for worker in told["workers"]] == ["e-0", "e-1"]
        return told

    async def post(self, action: str, body: Any = None) -> httpx.Response:
        return await self._client.post(f"/admin/embeddings/{action}", json=body)

    async def counts(self, action: str, body: Any = None) -> list[int]:
        """Items, by encoder."""
        return [worker["items"] for worker in (await self(action, body))["workers"]]

    async def gauges(self, name: str, wanted: float) -> None:
        """Waits until all encoders say so."""
        await until(lambda: all(link.gauges[name] == wanted for link in self.router.fleet.links))


@asynccontextmanager
async def operating(card: ModelCard, encoders: Sequence[KnownWorker], memfd: bool = True) -> AsyncIterator[Admin]:
    settings = Settings(
        serve=SERVE,
        router=RouterSettings(
            api_key="secret", api_keys=("alice=hers",), status_interval_seconds=0.02, self_test=False
        ),
    )
    router = Router(settings, card, encoders, media_by_memfd=memfd)
    transport = httpx.ASGITransport(app=build_app(router))
    await router.start()
    try:
        await until(lambda: all(link.takes(Role.ENCODE) for link in router.fleet.links))
        async with httpx.AsyncClient(transport=transport, base_url="http://router", headers=KEY, timeout=30) as client:
            admin = Admin(router, client)
            yield admin
            await admin("clear")
    finally:
        await router.stop()


@pytest.mark.parametrize("memfd", [True, False])
async def test_warmed_images_are_cached_at_every_encoder_and_nobody_claims_them(
    card: ModelCard, encoders: Sequence[KnownWorker], memfd: bool
) -> None:
    async with operating(card, encoders, memfd) as admin:
        told = await admin("warm", chat_body(TWO_PICTURES))
        assert [(worker["items"], worker["cached"]) for worker in told["workers"]] == [(2, 0), (2, 0)]
        first, second, third = told["digests"]
        assert first == third != second
        await admin.gauges("encoder_cached_items", 2)
        await admin.gauges("claims", 0)
        again = await admin("warm", chat_body(TWO_PICTURES))
        assert [worker["cached"] for worker in again["workers"]] == [2, 2]
        assert again["digests"] == told["digests"]


async def test_what_is_warmed_is_what_requests_with_the_same_key_ask_for(
    card: ModelCard, encoders: Sequence[KnownWorker]
) -> None:
    async with operating(card, encoders) as admin:
        body = chat_body(TWO_PICTURES)
        told = (await admin("warm", body))["digests"]
        with admin.router.budget.holding() as holding:
            chat = Chat.parse(json.dumps(body).encode(), 8)
            asked = await admin.router.prepare(chat, holding, Timeline(), Caller(DEFAULT_TENANT))
        assert [item.digest.hex() for item in asked.layout.items] == told


async def test_an_operator_may_warm_for_a_tenant_by_its_name(card: ModelCard, encoders: Sequence[KnownWorker]) -> None:
    async with operating(card, encoders) as admin:
        body = chat_body(TWO_PICTURES)
        own = (await admin("warm", body))["digests"]
        hers = (await admin("warm?tenant=alice", body))["digests"]
        with admin.router.budget.holding() as holding:
            chat = Chat.parse(json.dumps(body).encode(), 8)
            asked = await admin.router.prepare(chat, holding, Timeline(), Caller("alice"))
        assert [item.digest.hex() for item in asked.layout.items] == hers
        assert set(hers).isdisjoint(own)
        refused = await admin.post("warm?tenant=alise", body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tenant")


async def test_pins_and_clears_are_told_in_items_and_bytes(card: ModelCard, encoders: Sequence[KnownWorker]) -> None:
    async with operating(card, encoders) as admin:
        first, second, _ = (await admin("warm", chat_body(TWO_PICTURES)))["digests"]
        pinned = await admin("pin", {"digests": [first]})
        assert {worker["items"] for worker in pinned["workers"]} == {1}
        await admin.gauges("encoder_cache_pinned_bytes", pinned["workers"][0]["bytes"])
        assert await admin.counts("unpin", {"digests": [first, second]}) == [1, 1]
        assert await admin.counts("clear", {"digests": [second]}) == [1, 1]
        assert await admin.counts("pin", {"digests": [second]}) == [0, 0]
        assert await admin.counts("clear") == [1, 1]
        await admin.gauges("encoder_cached_items", 0)
        await admin.gauges("encoder_cache_pinned_bytes", 0)


@pytest.mark.parametrize(
    ("action", "body", "status", "param"),
    [
        ("pin", None, 400, "digests"),
        ("unpin", {}, 400, "digests"),
        ("pin", {"digests": []}, 400, "digests"),
        ("clear", {"digests": []}, 400, "digests"),  # an empty list is more likely a slip than a wish for all
        ("clear", {"digest": ["ab" * 32]}, 400, "digest"),  # misspelt, it must not be for all
        ("pin", {"digests": ["ab" * 31]}, 400, "digests[0]"),
        ("clear", {"digests": ["XY" * 32]}, 400, "digests[0]"),
        ("warm", {"model": "tiny_vl"}, 400, "messages"),
        ("evict", None, 404, None),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    card: ModelCard, action: str, body: Any, status: int, param: str | None
) -> None:
    async with serving(card, tiers(card, "e"), api_key="secret") as served:
        response = await served.client.post(f"/admin/embeddings/{action}", json=body, headers=KEY)
        assert response.status_code == status, response.text
        assert response.json()["error"]["param"] == param


async def test_operators_need_a_key_and_an_encoder(card: ModelCard) -> None:
    async with serving(card, api_key="secret") as served:
        assert (await served.client.post("/admin/embeddings/clear")).status_code == 401
        assert (await served.client.post("/admin/embeddings/clear", headers=KEY)).status_code == 503
    async with serving(card) as served:  # without a key anybody could empty the caches
        response = await served.client.post("/admin/embeddings/clear", headers=KEY)
        assert response.status_code == 403
        assert "this server has no keys" in response.json()["error"]["message"]
        assert "set router.api_key" in response.json()["error"]["message"]
