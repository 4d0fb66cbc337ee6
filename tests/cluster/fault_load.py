"""Streams of image requests, a few at once for as long as wanted, of which every token is kept."""

import asyncio
import itertools
import json
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from tests.journey.conversations import picture, png
from tests.journey.messages import image, user

ANSWER_SECONDS = 150.0  # a liveness bound: longer than a server bears the silence of a worker
_SERIAL = itertools.count()


@dataclass(frozen=True)
class Question:
    """What can be asked often, each time with image files that no cache has seen: only their padding differs."""

    words: str
    pictures: tuple[bytes, ...]  # PNG files
    max_tokens: int
    fields: Mapping[str, Any]

    def body(self) -> dict[str, Any]:
        content = [*(image(_padded(each)) for each in self.pictures), self.words]
        told = {"max_tokens": self.max_tokens, "ignore_eos": True, "return_token_ids": True, **self.fields}
        return {"model": "m", "messages": [user(*content)], "stream": True, **told}


def _question(words: str, sizes: Sequence[tuple[int, int]], max_tokens: int, **fields: Any) -> Question:
    pictures = tuple(png(picture(seed, size)) for seed, size in enumerate(sizes))
    return Question(words, pictures, max_tokens, fields)


QUESTIONS = (
    _question("What is this?", [(224, 224)], 48, temperature=0),
    _question("Compare the two.", [(336, 224), (224, 336)], 48, temperature=0.8, seed=11),
    _question("What is on the left?", [(420, 420)], 48, temperature=0),
    _question("Tell me more.", [(168, 224)], 48, temperature=1.0, top_p=0.9, seed=5),
)
LONG = _question("Tell me all.", [(280, 280)], 160, temperature=0.9, seed=3)


@dataclass
class Asked:
    """One request and what has come of it."""

    question: Question
    asked_at: float
    ids: list[int] = field(default_factory=list)
    text: str = ""
    at: list[float] = field(default_factory=list)  # when each piece of the answer came
    error: str = ""
    has_left: bool = False
    ended_at: float = 0.0

    def pause(self, since: float, until: float) -> float:
        """The longest silence that ended behind `since` and began before `until`, seconds."""
        moments = [self.asked_at, *self.at]
        return max((b - a for a, b in itertools.pairwise(moments) if b > since and a < until), default=0.0)


class FaultLoad:
    """A context that keeps so many streams open. Inside, `asked` grows; afterwards all of them have ended."""

    def __init__(self, url: str, headers: Mapping[str, str], in_flight: int, questions: Sequence[Question]) -> None:
        self.asked: list[Asked] = []
        self._in_flight, self._questions = in_flight, questions
        # A connection for each request: none that a router which has died has left behind is used again.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=ANSWER_SECONDS, limits=limits, trust_env=False
        )
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()), name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(2 * ANSWER_SECONDS)
        assert not self._thread.is_alive(), "requests hang"

    def in_flight(self) -> list[Asked]:
        return [each for each in list(self.asked) if not each.ended_at]

    def answered_since(self, moment: float) -> int:
        """Requests that were asked behind that moment and have had their answer."""
        return sum(each.asked_at > moment and bool(each.ended_at) and not each.error for each in list(self.asked))

    def ask(self, question: Question, times: int) -> list[Asked]:
        """So many more at once, beside the others."""

        async def begin() -> list[Asked]:
            begun = [Asked(question, time.monotonic()) for _ in range(times)]
            for each in begun:
                self._start(each)
            return begun

        return asyncio.run_coroutine_threadsafe(begin(), self._loop).result(ANSWER_SECONDS)

    def leave(self) -> int:
        """Every client closes its connection. How many there were."""

        async def cancel() -> int:
            for task in (running := list(self._running)):
                task.cancel()
            await asyncio.wait(running)
            return len(running)

        return asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(ANSWER_SECONDS)

    async def _run(self) -> None:
        async with self._http:
            await asyncio.gather(self._over.wait(), *(self._keep_asking(index) for index in range(self._in_flight)))
            while self._running:
                await asyncio.wait(set(self._running))

    async def _keep_asking(self, index: int) -> None:
        while not self._over.is_set():
            index += 1
            await asyncio.wait({self._start(Asked(self._questions[index % len(self._questions)], time.monotonic()))})

    def _start(self, asked: Asked) -> asyncio.Task[None]:
        self.asked.append(asked)
        task = asyncio.create_task(self._ask(asked))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _ask(self, asked: Asked) -> None:
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=asked.question.body()) as response:
                if response.status_code != httpx.codes.OK:
                    asked.error = f"{response.status_code}: {(await response.aread()).decode()}"
                    return
                asked.error = "it ended early"
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        asked.error = ""
                    elif line.startswith("data: "):
                        _take(asked, json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            asked.error = repr(error)
        except asyncio.CancelledError:
            asked.error, asked.has_left = "the client has left", True
            raise
        finally:
            asked.ended_at = time.monotonic()


def right_answers(
    url: str, headers: Mapping[str, str], questions: Sequence[Question]
) -> Callable[[Question], tuple[list[int], str]]:
    """Token ids and text of each, asked one after the other of a server at rest."""
    known = []
    for question in questions:
        with FaultLoad(url, headers, 0, ()) as load:
            (asked,) = load.ask(question, 1)
        assert not asked.error, asked.error
        assert len(asked.ids) == question.max_tokens
        known.append((asked.ids, asked.text))
    return lambda question: known[questions.index(question)]


def _take(asked: Asked, chunk: Mapping[str, Any]) -> None:
    for choice in chunk.get("choices", ()):
        ids = choice.get("token_ids") or []
        asked.ids += ids
        asked.text += choice["delta"].get("content") or ""
        if ids:
            asked.at.append(time.monotonic())


def _padded(file: bytes) -> bytes:
    """The same picture in a file that there has never been: a private chunk ahead of IEND, which has twelve bytes."""
    data = b"paDd" + struct.pack(">Q", next(_SERIAL)) + struct.pack(">d", time.time())
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return file[:-12] + chunk + file[-12:]
