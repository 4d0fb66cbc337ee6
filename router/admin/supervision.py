"""What operators ask of whoever keeps the workers: it goes to the supervisor, which started this router."""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from triptych.errors import ERROR_BY_NAME, ClusterError, DeadlineExceeded, NoWorker

ANSWER_SECONDS = 20.0  # the supervisor may have to ask a Ray that takes its time


class Supervision:
    """Belongs to the router's event loop; `told` is called from any thread."""

    def __init__(self, send: Callable[[dict[str, Any]], None] | None = None) -> None:
        """send: to the supervisor, from any thread; None where nobody keeps this router's workers"""
        self._send = send
        # Not from 0: an answer to the router whose place this one has taken must find nobody.
        self._numbers = itertools.count(secrets.randbits(32))
        self._open: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wish(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """How things stand then. Raises what the supervisor refuses with, NoWorker without one, DeadlineExceeded."""
        if self._send is None:
            raise NoWorker("no supervisor keeps this router's workers; start it with `triptych serve`")
        self._loop = loop = asyncio.get_running_loop()
        number = next(self._numbers)
        answer = self._open[number] = loop.create_future()
        try:
            await loop.run_in_executor(None, self._send, {"wish": dict(wish), "number": number})
            async with asyncio.timeout(ANSWER_SECONDS):
                told = await answer
        except TimeoutError:
            raise DeadlineExceeded(f"the supervisor has not answered within {ANSWER_SECONDS:g} s") from None
        except OSError as error:
            raise NoWorker(f"the supervisor is gone: {error}") from error
        finally:
            del self._open[number]
        if "error" in told:
            raise ERROR_BY_NAME.get(told["error"], ClusterError)(told["message"], param=told["param"])
        value: dict[str, Any] = told["value"]
        return value

    def told(self, message: Mapping[str, Any]) -> None:
        """The supervisor's answer to one of the wishes."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._settle, message)

    def _settle(self, message: Mapping[str, Any]) -> None:
        answer = self._open.get(message["told"])
        if answer is not None and not answer.done():
            answer.set_result(message)
