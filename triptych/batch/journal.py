"""The output file as journal: a line that is there whole is done, anything else is as if it had never been.

Lines are appended by one write each and made durable in groups, so after a crash of this process no whole line is lost;
after a crash of the machine only requests of the last moments are asked again.
"""

import fcntl
import json
import os
import time
from pathlib import Path

from triptych.batch.lines import Outcome
from triptych.errors import ClusterError, InvalidRequest

SYNC_SECONDS = 1.0


class Journal:
    """One output file, open for appending; a context. Only one process may hold it."""

    def __init__(self, path: Path) -> None:
        """Cuts off a torn last line. Raises InvalidRequest where the file is somebody else's, or in use."""
        self._path = path
        self.done: dict[str, bool] = {}  # custom_id: whether it has an answer
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidRequest(f"cannot write {path}: {error.strerror}") from error
        try:
            self._lock()
            self._recover()
        except BaseException:
            os.close(self._file)
            raise
        self._synced_at = time.monotonic()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def append(self, outcome: Outcome) -> None:
        """Raises ClusterError where the disk is full; what was written of the line is cut off again."""
        line = outcome.to_line()
        end = os.fstat(self._file).st_size
        try:
            _write_all(self._file, line)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise ClusterError(f"cannot write {self._path}: {error.strerror}") from error
        self.done[outcome.custom_id] = outcome.is_answer
        if time.monotonic() - self._synced_at >= SYNC_SECONDS:
            os.fsync(self._file)
            self._synced_at = time.monotonic()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidRequest(f"{self._path} is being written by another batch") from error

    def _recover(self) -> None:
        whole = 0
        with open(os.dup(self._file), "rb") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                custom_id, has_answer = self._read(number, line)
                self.done[custom_id] = has_answer
                whole += len(line)
        if whole < os.fstat(self._file).st_size:
            os.ftruncate(self._file, whole)

    def _read(self, number: int, line: bytes) -> tuple[str, bool]:
        try:
            entry = json.loads(line)
            response = entry["response"]
            return str(entry["custom_id"]), response is not None and 200 <= response["status_code"] < 300
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidRequest(
                f"{self._path}, line {number}: not the output of a batch; name another file, or remove this one"
            ) from error


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
