"""One line for each request, where lines are JSON: how it went, what it took, and where its time went.

Never what was asked or answered, images, URLs or keys.
"""

import logging
import queue
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

from triptych.config import ObserveSettings
from triptych.logs import FIELDS
from triptych.router.observe.recent import Entry

logger = logging.getLogger(__name__)

MOST_QUEUED = 8192
_STOP_SECONDS = 5.0
_BAD_STATUS = 400


class RequestLog:
    """Lines are made and written by a thread of their own; where it cannot follow they are dropped and counted."""

    def __init__(
        self,
        settings: ObserveSettings,
        most_queued: int = MOST_QUEUED,
        dropped: Callable[[int], None] = lambda num_lines: None,
    ) -> None:
        """dropped: told how many lines were lost, from any thread"""
        self.num_dropped = 0
        self._dropped = dropped
        self._settings = settings
        self._random = random.Random()
        self._lines: queue.Queue[tuple[Mapping[str, Any], Entry | None] | None] = queue.Queue(most_queued)
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, told: Mapping[str, Any], status: int, entry: Entry | None) -> None:
        """told: what the edge knows of it; entry: what the router does, where it came so far"""
        if not self._is_wanted(told, status, entry):
            return
        try:
            self._lines.put_nowait((told, entry))
        except queue.Full:
            self.num_dropped += 1
            self._dropped(1)

    def close(self) -> None:
        """Once everything queued is written, or has had a few seconds for it."""
        try:
            self._lines.put(None, timeout=_STOP_SECONDS)
        except queue.Full:
            return
        self._thread.join(_STOP_SECONDS)
        if self.num_dropped:
            logger.warning(
                "%d lines of requests were dropped, since they came faster than they can be written", self.num_dropped
            )

    def _is_wanted(self, told: Mapping[str, Any], status: int, entry: Entry | None) -> bool:
        if status >= _BAD_STATUS or told.get("error"):
            return True
        first = entry.timeline.first_token if entry is not None else None
        if (told["seconds"] if first is None else first) >= self._settings.slow_seconds:
            return True
        share = self._settings.log_share
        return share >= 1 or self._random.random() < share

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            told, entry = line
            try:
                logger.info("request", extra={FIELDS: {**(request_fields(entry) if entry else {}), **told}})
            except Exception:  # a line must not end those that follow
                logger.exception("a request's line could not be written")


def request_fields(entry: Entry) -> dict[str, Any]:
    """What a line tells of a request that reached the workers."""
    fields = entry.summary()
    for name in ("id", "started", "endpoint", "error", "seconds"):
        del fields[name]  # the edge tells them
    fields["stages"] = {stage: round(seconds, 6) for stage, seconds in fields["stages"].items()}
    return fields
