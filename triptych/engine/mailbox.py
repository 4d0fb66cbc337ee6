"""Between the engine's thread and all others: commands on their way in, news on their way out, and the lock."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from triptych.errors import InternalError, TriptychError

log = logging.getLogger(__name__)

_LONGEST_SLEEP_SECONDS = 3600.0  # a condition does not take an endless timeout


@dataclass(frozen=True, slots=True)
class News:
    """One call to a sink, and what to undo, under the lock again, when it raises."""

    call: Callable[[], None]
    refused: Callable[[], None] | None = None


NewsQueue = deque[News]


@dataclass(frozen=True, slots=True)
class _Command:
    run: Callable[[], None]
    failed: Callable[[TriptychError], None] | None


class Mailbox:
    """Commands wait here for the engine's thread, news for the moment when the lock is not held.

    lock: guards the engine's books, on all threads
    news: appended to under the lock
    """

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.news: NewsQueue = deque()
        self._commands: deque[_Command] = deque()
        self._refusal: TriptychError | None = None
        self._woken = False

    @property
    def is_empty(self) -> bool:
        return not (self._commands or self.news)

    @property
    def refusal(self) -> TriptychError | None:
        """Why nothing more is taken in; None while it is."""
        return self._refusal

    def post(self, run: Callable[[], None], failed: Callable[[TriptychError], None] | None = None) -> None:
        """Have `run` called by the engine's thread, under the lock; `failed` is called when it raises, or never can be.

        Any thread; never blocks.
        """
        with self.lock:
            if self._refusal is None:
                self._commands.append(_Command(run, failed))
                self.wake()
                return
        if failed is not None:
            failed(self._refusal)

    def close(self, refusal: TriptychError) -> TriptychError:
        """Take nothing in from now on; the first reason stays."""
        with self.lock:
            self._refusal = self._refusal or refusal
            self.wake()
            return self._refusal

    def wake(self) -> None:
        """Under the lock: the next `sleep` returns at once."""
        self._woken = True
        self.lock.notify_all()

    def sleep(self, deadline: float) -> None:
        """Under the lock, which it gives up meanwhile: until somebody wakes it, or that time.monotonic."""
        if not self._woken:
            self.lock.wait(min(max(0.0, deadline - time.monotonic()), _LONGEST_SLEEP_SECONDS))
        self._woken = False

    def take_commands(self) -> None:
        """Under the lock: run what has been posted, in order. One that raises fails alone."""
        while self._commands:
            command = self._commands.popleft()
            try:
                command.run()
            except Exception as error:
                reason = as_triptych(error)
                if isinstance(reason, InternalError):
                    log.exception("a command of the engine failed")
                if command.failed is not None:
                    self.news.append(News(partial(command.failed, reason)))

    def deliver(self) -> None:
        """Call the sinks, in order, without the lock. One that raises has its news undone and stops nobody."""
        while True:
            with self.lock:
                if not self.news:
                    return
                news = self.news.popleft()
            try:
                news.call()
            except Exception:
                log.exception("a sink of the engine failed")
                if news.refused is not None:
                    with self.lock:
                        news.refused()
                        self.wake()


def as_triptych(error: Exception) -> TriptychError:
    """The error as sinks are told it."""
    return error if isinstance(error, TriptychError) else InternalError(f"{type(error).__name__}: {error}")
