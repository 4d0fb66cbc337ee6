"""One request until it has an answer: tried again where that may help, and no longer than it was given."""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from triptych.batch.lines import Outcome
from triptych.batch.options import BatchOptions

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
_RETRIED = frozenset((408, 409, 425, 429))
# Below uvicorn's five seconds: a connection that the server is about to close must not be used for a request.
_KEEP_ALIVE_SECONDS = 2.0


class Sender:
    """A server and the patience for it; an asynchronous context."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._headers = {"content-type": "application/json"}
        if options.api_key:
            self._headers["authorization"] = f"Bearer {options.api_key}"

    async def __aenter__(self) -> "Sender":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, custom_id: str, url: str, body: bytes) -> Outcome:
        """Never raises for what a server or the network does: the outcome tells the last word."""
        deadline = time.monotonic() + self._options.timeout_seconds
        outcome = Outcome(custom_id, 0, failure="no time was left to ask")
        for attempt in range(self._options.max_retries + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            outcome, headers = await self._once(custom_id, url, body, left)
            pause = _pause(attempt, headers)
            if not may_help(outcome, headers) or time.monotonic() + pause >= deadline:
                break
            if attempt < self._options.max_retries:
                await asyncio.sleep(pause)
        return outcome

    async def _once(self, custom_id: str, url: str, body: bytes, seconds: float) -> tuple[Outcome, Mapping[str, str]]:
        try:
            async with asyncio.timeout(seconds), self._session.post(self._options.root + url, data=body) as response:
                text = await response.read()
                request_id = response.headers.get("x-request-id", "")
                return Outcome(custom_id, response.status, request_id, _body_of(text)), response.headers
        except TimeoutError:
            return Outcome(custom_id, 0, failure=f"no answer within {self._options.timeout_seconds:g} s"), {}
        except (aiohttp.ClientError, OSError) as error:
            return Outcome(custom_id, 0, failure=f"{type(error).__name__}: {error}"), {}


def may_help(outcome: Outcome, headers: Mapping[str, str]) -> bool:
    """Whether to ask again. The server's own word comes first."""
    told = headers.get("x-should-retry")
    if told in ("true", "false"):
        return told == "true"
    return outcome.status == 0 or outcome.status in _RETRIED or outcome.status >= 500


def _pause(attempt: int, headers: Mapping[str, str]) -> float:
    """Seconds until the next attempt: what the server asks for, and at least a growing random time.

    Random, so that requests that were refused together do not come back together.
    """
    backoff: float = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**attempt) * random.uniform(0.5, 1.0)
    try:
        asked = float(headers.get("retry-after", 0))
    except ValueError:  # a date; OpenAI-like servers send seconds
        asked = 0.0
    return max(backoff, asked)


def _body_of(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")
