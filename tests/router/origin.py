"""An HTTP server for images on loopback, as strange as a test needs it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Answer = Callable[["Visit", asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Visit:
    target: str
    headers: dict[str, str]


@dataclass(slots=True)
class Origin:
    """Where it listens, and who came."""

    port: int
    host: str = "127.0.0.1"
    visits: list[Visit] = field(default_factory=list)
    connections: int = 0

    def url(self, path: str = "/a.png", scheme: str = "http") -> str:
        return f"{scheme}://{self.host}:{self.port}{path}"


def response(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}"]
    lines += [
        f"{name.replace('_', '-')}: {value}" for name, value in ({"content_length": str(len(body))} | headers).items()
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def always(data: bytes) -> Answer:
    async def answer(visit: Visit, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


@asynccontextmanager
async def origin(answer: Answer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Origin]:
    here = Origin(0, host)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.connections += 1
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            visit = Visit(lines[0].split(" ")[1], headers)
            here.visits.append(visit)
            await answer(visit, writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()
