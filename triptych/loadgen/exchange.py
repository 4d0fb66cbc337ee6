"""Requests on the wire: only time-stamps while the clock runs, everything else afterwards."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp

from triptych.errors import ClusterError
from triptych.loadgen.options import BenchOptions

# Below uvicorn's five seconds: a connection that the server is about to close must not be used for a request.
_KEEP_ALIVE_SECONDS = 2.0
_ERROR_BYTES = 2000


@dataclass(slots=True)
class Exchange:
    """One request as it happened; times in seconds of one monotonic clock."""

    due: float
    sent: float = 0.0  # just before the first byte; 0 when no connection came about
    ended: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    failure: str = ""  # why there is no complete body: "http 429: ...", "timeout", ...


class ChatClient:
    """Sends chat bodies to one server; an asynchronous context."""

    def __init__(self, options: BenchOptions) -> None:
        self._root = options.root
        self._headers = {"Content-Type": "application/json"}
        if options.api_key:
            self._headers["Authorization"] = f"Bearer {options.api_key}"
        if options.slo_class:
            self._headers["X-Triptych-SLO"] = options.slo_class
        self._timeout = aiohttp.ClientTimeout(total=options.timeout_seconds)
        self.num_ended = 0  # of the exchanges sent, whatever became of them

    async def __aenter__(self) -> "ChatClient":
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_note_first_byte)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
            headers=self._headers,
            timeout=self._timeout,
            trace_configs=[trace],
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def first_model(self) -> str:
        """Raises ClusterError when the server does not answer or lists none."""
        try:
            async with self._session.get(f"{self._root}/v1/models") as response:
                if response.status != HTTPStatus.OK:
                    raise ClusterError(
                        f"the server at {self._root} refused ({response.status}): {await _why(response)}"
                    )
                listing = await response.json(content_type=None)
            return str(listing["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterError(f"no server answers at {self._root}: {error}") from error
        except (LookupError, TypeError, ValueError) as error:
            raise ClusterError(f"the server at {self._root} lists no model") from error

    async def send(self, body: bytes, due: float) -> Exchange:
        """Never raises for what a server or the network does: the exchange tells."""
        exchange = Exchange(due)
        try:
            async with self._session.post(
                f"{self._root}/v1/chat/completions", data=body, trace_request_ctx=exchange
            ) as response:
                await _receive(response, exchange)
        except TimeoutError:
            exchange.failure = "timeout"
        except (aiohttp.ClientError, OSError) as error:
            exchange.failure = f"connection: {type(error).__name__}: {error}"
        exchange.ended = time.perf_counter()
        self.num_ended += 1
        return exchange


async def _why(response: aiohttp.ClientResponse) -> str:
    """In the server's words."""
    text = await response.text(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (LookupError, TypeError, ValueError):
        return text[:200]


async def _note_first_byte(session: aiohttp.ClientSession, context: SimpleNamespace, parameters: Any) -> None:
    exchange = context.trace_request_ctx
    if exchange is not None:
        exchange.sent = time.perf_counter()


async def _receive(response: aiohttp.ClientResponse, exchange: Exchange) -> None:
    if response.status != 200:
        text = (await response.content.read(_ERROR_BYTES)).decode(errors="replace")
        exchange.failure = f"http {response.status}: {text}"
    elif response.content_type != "text/event-stream":
        exchange.failure = f"stream: content type is {response.content_type}"
    else:
        async for piece in response.content.iter_any():
            exchange.pieces.append((time.perf_counter(), piece))


async def closed_loop(client: ChatClient, bodies: Sequence[bytes], concurrency: int) -> list[Exchange]:
    """All bodies, each sent as soon as one of `concurrency` places is free; results in the order of the bodies."""
    waiting = iter(enumerate(bodies))
    exchanges: dict[int, Exchange] = {}

    async def place() -> None:
        for index, body in waiting:
            exchanges[index] = await client.send(body, time.perf_counter())

    await asyncio.gather(*(place() for _ in range(min(concurrency, len(bodies)))))
    return [exchanges[index] for index in range(len(bodies))]


async def open_loop(client: ChatClient, bodies: Sequence[bytes], arrivals: Sequence[float]) -> list[Exchange]:
    """All bodies, each sent when it is due, whatever became of those before it."""
    start = time.perf_counter()
    tasks = []
    for body, arrival in zip(bodies, arrivals, strict=True):
        await asyncio.sleep(max(0.0, start + arrival - time.perf_counter()))
        tasks.append(asyncio.create_task(client.send(body, start + arrival)))
    return await asyncio.gather(*tasks)
