"""One line of JSON for each request: who asked, how it went, what it took. Never what was asked, or a key."""

import json
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triptych.errors import ConfigError

logger = logging.getLogger(__name__)

MOST_QUEUED = 16_384
STOP_SECONDS = 5.0
_MOST_AT_ONCE = 1024


class UsageLog:
    """Written by a thread of its own; where it cannot follow, lines are dropped and counted, and nobody waits.

    The file may be moved away at any time: the next line opens a new one. Several processes may write to one file,
    since each write appends whole lines.
    """

    def __init__(self, path: Path, dropped: Callable[[int], None], most_queued: int = MOST_QUEUED) -> None:
        """dropped: told how many lines were lost, from any thread. Raises ConfigError where it cannot be opened."""
        self._path = path
        self._dropped = dropped
        self._lines: queue.Queue[bytes | None] = queue.Queue(most_queued)
        self._has_failed = False
        try:
            self._file = self._open()
        except OSError as error:
            raise ConfigError(f"router.usage_log: cannot write {path}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="usage-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, entry: dict[str, Any]) -> None:
        try:
            self._lines.put_nowait(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        except queue.Full:
            self._dropped(1)

    def close(self) -> None:
        """Once everything queued is written; a disk that stands still is waited for only so long."""
        try:
            self._lines.put(None, timeout=STOP_SECONDS)
        except queue.Full:
            logger.warning("the usage log did not follow; its last lines are lost")
            return
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        over = False
        while not over:
            lines = [self._lines.get()]
            while len(lines) < _MOST_AT_ONCE and not self._lines.empty():
                lines.append(self._lines.get())
            over = None in lines
            self._append([line for line in lines if line is not None])
        os.close(self._file)

    def _append(self, lines: list[bytes]) -> None:
        if not lines:
            return
        try:
            if self._was_moved():
                opened = self._open()  # first: where it cannot be, the old one's number must not become somebody else's
                os.close(self._file)
                self._file = opened
            data = b"".join(lines)
            while data:
                data = data[os.write(self._file, data) :]
            self._has_failed = False
        except OSError as error:
            self._dropped(len(lines))
            if not self._has_failed:  # once, not for every line while a disk is full
                logger.error("cannot write the usage log: %s", error)
            self._has_failed = True

    def _was_moved(self) -> bool:
        here = os.fstat(self._file)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
