"""A small HTTP server that says exactly what it is told, byte by byte and moment by moment."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Step = float | bytes  # wait so many seconds, or write these bytes in one piece
Script = Callable[[dict[str, Any]], "Answer"]


@dataclass(frozen=True)
class Answer:
    """What one request gets: a status line, and a body in timed pieces."""

    steps: Sequence[Step]
    status: int = 200
    content_type: str = "text/event-stream"
    hang_up: bool = False  # break the connection instead of ending the body


@dataclass
class Visit:
    """One request as the server saw it; times of time.perf_counter."""

    body: dict[str, Any]
    arrived: float
    headers: dict[str, str]
    written: list[float] = field(default_factory=list)  # one for each piece


class ScriptedServer:
    """Answers chat requests by a script; runs on a thread of its own as a context."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.visits: list[Visit] = []
        self.most_at_once = 0
        self._at_once = 0

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = started.result(timeout=10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if request.startswith("GET /v1/models"):
                    answer = Answer([json.dumps({"data": [{"id": "listed"}]}).encode()], 200, "application/json")
                    visit = Visit({}, time.perf_counter(), headers)
                else:
                    visit = Visit(json.loads(body), time.perf_counter(), headers)
                    self.visits.append(visit)
                    answer = self._script(visit.body)
                await self._answer(writer, answer, visit)
                if answer.hang_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, answer: Answer, visit: Visit) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            head = f"HTTP/1.1 {answer.status} X\r\nContent-Type: {answer.content_type}\r\n"
            writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            for step in answer.steps:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    visit.written.append(time.perf_counter())
                    writer.write(f"{len(step):x}\r\n".encode() + step + b"\r\n")
                    await writer.drain()
            if not answer.hang_up:
                writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            self._at_once -= 1


def frame(data: dict[str, Any] | str, name: str = "") -> bytes:
    """One event, as a chat server writes it."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    return frame({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}})


ROLE = chunk({"role": "assistant", "content": ""})
FINISH = chunk({}, "length")
DONE = frame("[DONE]")


def text(content: str) -> bytes:
    return chunk({"content": content})


def words(count: int, first_after: float = 0.0, gap: float = 0.0) -> list[Step]:
    """A complete answer of so many one-token chunks."""
    steps: list[Step] = [ROLE, first_after]
    for index in range(count):
        steps += [gap] if index else []
        steps.append(text(f" w{index}"))
    return [*steps, FINISH + usage(7, count) + DONE]
