"""Who is taken up next: new requests go through one after the other, up to the workers.

Reading, laying out and placing a request takes milliseconds of the one event loop, in a dozen steps between which
others run. Were sixteen requests that come together taken up together, each step of the first would wait for one of
all the others, and all would reach the workers late and at once, while those have nothing to do. In turns the first is
there after its own milliseconds, and the last no later than it would be anyway.

A turn ends when the request is with its prefill worker. It ends early where the request waits for others: for a
worker that is full, a long text in a thread, an image that is fetched.
"""

import asyncio
from collections import deque

_PLACES = 3  # so that the loop has something to do while one waits for a worker's answer
_MOST_SECONDS = 0.02


class Turnstile:
    """Used on one event loop. First come, first served."""

    def __init__(self, places: int = _PLACES, most_seconds: float = _MOST_SECONDS) -> None:
        self._free = places
        self._most_seconds = most_seconds
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> "Turn":
        """Waits for a turn; whoever gets it ends it. However many are ahead, each keeps it for 20 ms at most."""
        if self._free and not self._waiting:
            self._free -= 1
            return Turn(self, self._most_seconds)
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(called)
        try:
            await called
        except BaseException:
            if called.done() and not called.cancelled():  # called and cancelled at once
                self.leave()
            raise
        return Turn(self, self._most_seconds)

    def leave(self) -> None:
        """For Turn: the place goes to the next one who still waits."""
        while self._waiting:
            called = self._waiting.popleft()
            if not called.done():
                called.set_result(None)
                return
        self._free += 1


class Turn:
    """A place in the turnstile."""

    def __init__(self, turnstile: Turnstile, most_seconds: float) -> None:
        self._turnstile = turnstile
        self._ended = False
        self._timer = asyncio.get_running_loop().call_later(most_seconds, self.end)

    def end(self) -> None:
        """Idempotent."""
        if not self._ended:
            self._ended = True
            self._timer.cancel()
            self._turnstile.leave()
