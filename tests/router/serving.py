"""A live router over HTTP on loopback, with loopback workers or none."""

import asyncio
import base64
import dataclasses
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.router.loopback import LoopbackWorker
from tests.router.loopback_prefill import token_id
from triptych.config import ObserveSettings, RouterSettings, Settings, SLOSettings, TransferSettings
from triptych.journey import Role
from triptych.models.card import ModelCard
from triptych.router.app import build_app
from triptych.router.edge.connection import connection_class
from triptych.router.pipeline.prompt import PromptBuilder
from triptych.router.router import Router

PICTURES = Path(__file__).parent.parent / "data"
TEXT = {"type": "text", "text": "what?"}
QUICK: dict[str, Any] = {
    "status_interval_seconds": 0.02,
    "port": 0,
    "stage_timeout_seconds": 10.0,
    "self_test": False,  # loopback workers compute nothing
}


@dataclass(slots=True)
class Served:
    """A router, its workers, and a client."""

    router: Router
    workers: list[LoopbackWorker]
    client: httpx.AsyncClient
    base_url: str

    async def chat(self, content: Any = "hello", **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=chat_body(content, **fields))

    async def ids(self, content: Any = "hello", **fields: Any) -> list[int]:
        """Token ids of the one choice of a finished answer."""
        response = await self.chat(content, return_token_ids=True, **fields)
        assert response.status_code == 200, response.text
        ids: list[int] = response.json()["choices"][0]["token_ids"]
        return ids

    async def frames(self, content: Any = "hello", **fields: Any) -> list[str]:
        """Every frame of a streamed answer."""
        body = chat_body(content, stream=True, **fields)
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, (await response.aread()).decode()
            assert response.headers["content-type"].startswith("text/event-stream")
            text = "".join([piece async for piece in response.aiter_text()])
        assert text.endswith("\n\n")
        return text.removesuffix("\n\n").split("\n\n")


def chat_body(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny_vl", "messages": [{"role": "user", "content": content}], **fields}


def image(data: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def picture(name: str = "red-circle.png") -> dict[str, Any]:
    return image((PICTURES / name).read_bytes())


def expected(count: int, choice: int = 0) -> list[int]:
    """The ids of so many tokens, as loopback workers give them."""
    return [token_id(choice, position) for position in range(count)]


def chunks(frames: Sequence[str]) -> list[dict[str, Any]]:
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if frame.startswith("data: {")]


def tiers(card: ModelCard, *roles: str) -> list[LoopbackWorker]:
    """One worker for each string of role letters: "e", "p", "d", "epd", ..."""
    by_letter = {"e": Role.ENCODE, "p": Role.PREFILL, "d": Role.DECODE}
    return [
        LoopbackWorker(f"{letters}-{index}", frozenset(by_letter[letter] for letter in letters), card.fingerprint)
        for index, letters in enumerate(roles)
    ]


def say(workers: Sequence[LoopbackWorker], card: ModelCard, text: str) -> Sequence[LoopbackWorker]:
    """The workers, which from now on answer everything with this text."""
    ids = PromptBuilder(card).encode_text(text)
    for worker in workers:
        worker.says = ids
    return workers


@asynccontextmanager
async def serving(
    card: ModelCard,
    workers: Sequence[LoopbackWorker] = (),
    *,
    memfd: bool = True,
    lease_seconds: float = 30.0,
    observe: ObserveSettings | None = None,
    slo: SLOSettings | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    for worker in workers:
        await worker.start()
    chosen = Settings(
        router=RouterSettings(**(QUICK | settings)),
        transfer=TransferSettings(lease_seconds=lease_seconds),
        observe=observe or ObserveSettings(),
        slo=slo or SLOSettings(),
    )
    named = dataclasses.replace(card, name="tiny_vl")
    router = Router(chosen, named, [worker.known for worker in workers], media_by_memfd=memfd)
    async with _listening(router) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        served = Served(router, list(workers), client, url)
        if workers:
            await until(lambda: all(link.takes(role) for link in router.fleet.links for role in link.roles))
        yield served
    for worker in served.workers:
        await worker.kill()


@asynccontextmanager
async def _listening(router: Router) -> AsyncIterator[str]:
    # asyncio sends without delay on sockets that name TCP, and on others waits 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    limits = router.settings.router
    config = uvicorn.Config(
        build_app(router),
        http=connection_class(limits.max_connections, router.metrics),
        log_config=None,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=limits.max_head_bytes,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started or task.done())
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
