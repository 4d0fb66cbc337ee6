"""The stream of tokens to one router: every step's tokens of all its requests in one message."""

import asyncio
import threading
from collections.abc import Sequence

from triptych.errors import TriptychError
from triptych.journey import RequestId, Token

Entry = tuple[RequestId, Token | TriptychError | None]  # None: it makes room for others, and will go on


class RouterStream:
    """What a router's Attach call reads, and the engine's sink for that router's requests.

    Fed from the engine thread, read on the event loop that made it. It knows which requests it serves, so that a
    broken stream ends exactly those.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Sequence[Entry] | None] = asyncio.Queue()
        self._lock = threading.Lock()
        self._open_branches: dict[RequestId, int] = {}
        self._unsent = 0  # messages of the engine's that are not written yet
        self._taken = 0  # of them, by the last `next`
        self._closed = False

    @property
    def idle(self) -> bool:
        return not self._open_branches and not self._unsent

    def add(self, key: RequestId, branches: int) -> bool:
        """Serve this request from now on; False when the stream is closed."""
        with self._lock:
            if not self._closed:
                self._open_branches[key] = branches
            return not self._closed

    def serves(self, key: RequestId) -> bool:
        """Whether a branch of the request has not had its last token."""
        with self._lock:
            return key in self._open_branches

    def finish(self, key: RequestId, branches: int) -> None:
        """That many branches of the request have had their last token."""
        with self._lock:
            left = self._open_branches.get(key, 0) - branches
            if left > 0:
                self._open_branches[key] = left
            else:
                self._open_branches.pop(key, None)

    def discard(self, key: RequestId) -> None:
        with self._lock:
            self._open_branches.pop(key, None)

    def tokens(self, batch: Sequence[tuple[RequestId, int, Token]]) -> None:
        """One step's tokens (key, attempt, token)."""
        for key, _, token in batch:
            if token.finish_reason:
                self.finish(key, 1)
        self._put([(key, token) for key, _, token in batch])

    def waiting(self, key: RequestId, attempt: int) -> None:
        self._put([(key, None)])

    def failed(self, key: RequestId, attempt: int, error: TriptychError) -> None:
        self.discard(key)
        self._put([(key, error)])

    def close(self) -> list[RequestId]:
        """End the stream; gives the requests that were still open."""
        with self._lock:
            self._closed = True
            left = list(self._open_branches)
            self._open_branches.clear()
        self._put(None)
        return left

    async def next(self) -> list[Entry] | None:
        """Everything that has gathered since the last call, in order; None once closed. What that gave is written."""
        with self._lock:
            self._unsent, self._taken = self._unsent - self._taken, 0
        first = await self._queue.get()
        if first is None:
            return None
        gathered, self._taken = list(first), 1
        while not self._queue.empty():
            more = self._queue.get_nowait()
            if more is None:
                self._queue.put_nowait(None)
                break
            gathered += more
            self._taken += 1
        return gathered

    def _put(self, entries: Sequence[Entry] | None) -> None:
        if entries is not None:
            with self._lock:
                self._unsent += 1
        self._loop.call_soon_threadsafe(self._queue.put_nowait, entries)
