"""Small requests, many at once, each of which must get the one right answer."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx

_END_SECONDS = 120.0  # a liveness bound


class Load:
    """A context manager that keeps so many requests in flight. What was not right about an answer is in `wrong`.

    Every second one is streamed: a stream tells also what was said twice or left out on the way.
    """

    def __init__(
        self,
        url: str,
        bodies: Sequence[Mapping[str, Any]],
        in_flight: int,
        headers: Mapping[str, str],
        *,
        collects: bool = False,
    ) -> None:
        """bodies: of greedy chat requests; the answers of the first, unhurried round are the right ones

        collects: another answer is not wrong, but put among the `others` of its body
        """
        self.wrong: list[str] = []
        self.others: list[set[str]] = [set() for _ in bodies]
        self._collects = collects
        self.num_answered = 0
        self._bodies = bodies
        self._in_flight = in_flight
        self._url, self._headers = url, headers
        with httpx.Client(base_url=url, headers=headers, timeout=_END_SECONDS, trust_env=False) as http:
            self._expected = [_text(http.post("/v1/chat/completions", json=dict(body))) for body in bodies]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_END_SECONDS)
        assert not self._thread.is_alive(), "requests hang"

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self._url, headers=self._headers, timeout=_END_SECONDS, limits=limits, trust_env=False
        ) as http:
            await asyncio.gather(*(self._keep_asking(http, index) for index in range(self._in_flight)))

    async def _keep_asking(self, http: httpx.AsyncClient, index: int) -> None:
        while not self._ended.is_set() and not self.wrong:
            index += 1
            number = index % len(self._bodies)
            try:
                text = await self._ask(http, self._bodies[number], stream=index % 2 == 1)
            except (httpx.HTTPError, AssertionError) as error:
                self.wrong.append(repr(error))
                return
            if text != self._expected[number] and self._collects:
                self.others[number].add(text)
            elif text != self._expected[number]:
                self.wrong.append(f"{text!r} instead of {self._expected[number]!r}")
            self.num_answered += 1

    async def _ask(self, http: httpx.AsyncClient, body: Mapping[str, Any], stream: bool) -> str:
        if not stream:
            return _text(await http.post("/v1/chat/completions", json=dict(body)))
        response = await http.post("/v1/chat/completions", json={**body, "stream": True})
        assert response.status_code == httpx.codes.OK, response.text
        frames = response.text.removesuffix("\n\n").split("\n\n")
        assert frames.pop() == "data: [DONE]", response.text
        chunks = [httpx.Response(200, text=frame.removeprefix("data: ")).json() for frame in frames]
        assert not any("error" in chunk for chunk in chunks), response.text
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def _text(response: httpx.Response) -> str:
    assert response.status_code == httpx.codes.OK, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text
