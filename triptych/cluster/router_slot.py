"""One router's place among those of a server: the process that is in it now, and the next where that one dies."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from prometheus_client.multiprocess import mark_process_dead

from triptych.errors import ConfigError
from triptych.json_lines import JsonLines
from triptych.router.commons import Commons

log = logging.getLogger(__name__)

SILENT_SECONDS = 15.0  # that an event loop may stand still, as a worker's device may: services/canary.py
START_SECONDS = 120.0  # that it may take until it turns
_DEAF_SECONDS = 60.0  # that it may leave unread what it is told; it reads no more while it reads a new model
_STOOD_SECONDS = 5.0  # between two looks: whoever looks stood still, so that nobody's silence says anything
_LONG_SECONDS = 30.0  # a router that lived so long has not died of what it was started with
_FIRST_WAIT_SECONDS = 0.25
_LONGEST_WAIT_SECONDS = 15.0
_LAST_BYTES = 4096
_LOOK_SECONDS = 0.02
_OPEN = object()  # a question's answer that has not come


class RouterSlot:
    """Not for several threads at once."""

    def __init__(
        self,
        index: int,
        task: Mapping[str, Any],
        listener: socket.socket,
        commons: Commons,
        progress: Callable[[str], None],
        show_logs: bool,
        wished: "Wished | None" = None,
    ) -> None:
        """task: what a router is told first; commons: of all slots; wished: must not wait"""
        self._wished = wished
        self.name = f"router-{index}" if task["count"] > 1 else "router"
        self.is_ready = False
        self._questions = 0
        self._answers: dict[int, Any] = {}  # by question; `_OPEN` where there is none yet
        self._task = task
        self._listener = listener
        self._index: int = task["index"]
        self._commons = commons
        commons.forget(self._index)
        self._progress = progress
        self._log: IO[bytes] | None = None if show_logs else tempfile.TemporaryFile()  # noqa: SIM115  # lives as long
        first = {"number": task["number"], "model": task["settings"]["serve.model"], "workers": []}
        self._sets: Mapping[str, Any] = {"sets": [first], "serving": task["number"], "turn": 0}
        self._coming: Sequence[Mapping[str, Any]] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: JsonLines | None = None
        self._started_at = 0.0
        self._begins_at = 0.0  # the next one, where there is none
        self._early_deaths = 0
        self._failure = ""
        self._hung = ""  # why it is being ended
        self._looked_at = self._excused_at = self._read_at = 0.0
        self._ending = False

    @property
    def pid(self) -> int:
        """0 where none is there."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """A fresh interpreter: what this process has loaded is nothing that a router wants."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "triptych.router.router_process"]
        command += ["--listener", str(self._listener.fileno()), "--control", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=(self._listener.fileno(), theirs.fileno(), *self._commons.inherited),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # a terminal's Ctrl-C is the supervisor's, who ends things in order
            )
        self._lines = JsonLines(ours)
        self._started_at = self._read_at = time.monotonic()
        self._send(self._first_words())
        self._send(self._sets)
        self._send({"coming": self._coming})

    def look(self) -> None:
        """Takes what the router has told; starts another, at its time, where it has died, or stands still."""
        # Looked at first: whatever it has told before it died is there by then.
        status = self._process.poll() if self._process is not None else None
        if self._lines is not None:
            for message in self._lines.waiting():
                self._take(message)
        if status is not None:
            self._bury(status)
        elif self._process is not None:
            self._look_alive(time.monotonic())
        if self._process is None and not self._ending and time.monotonic() >= self._begins_at:
            try:
                self.start()
            except OSError as error:  # no memory, or no descriptor, for another process just now
                self._begins_at = time.monotonic() + _LONGEST_WAIT_SECONDS
                self._progress(f"{self.name} was not started, in {_LONGEST_WAIT_SECONDS:g} s again: {error}")

    def check(self) -> None:
        """Raises ConfigError for a router that could not start."""
        if self._failure:
            raise ConfigError(f"{self.name} could not start: {self._failure}")

    def tell_sets(self, sets: Mapping[str, Any]) -> None:
        """sets: each with its number, model and workers; serving: the number of that with which requests begin"""
        self._sets = sets
        self._send(sets)

    def tell_coming(self, coming: Sequence[Mapping[str, Any]]) -> None:
        if coming != self._coming:
            self._coming = coming
            self._send({"coming": coming})

    def tell(self, answer: Mapping[str, Any]) -> None:
        """What a wish has come to. A router that has died meanwhile, or its successor, does not care."""
        self._send(answer)

    def ask(self, what: str) -> int:
        """The number of the question, for `has_answered`, and then `answer`."""
        self._questions += 1
        if self._process is not None:
            self._answers[self._questions] = _OPEN
            self._send({"ask": what, "number": self._questions})
        return self._questions

    def has_answered(self, question: int) -> bool:
        """Or never will, as whoever was asked is no more."""
        return self._answers.get(question) is not _OPEN

    def answer(self, question: int) -> Any:
        """None where there is none; one that comes later is nobody's."""
        found = self._answers.pop(question, None)
        return None if found is _OPEN else found

    def end(self) -> None:
        """Asks it to finish what it has, and to end."""
        self._ending = True
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """By force, at once. From a signal's handler, too: it waits for nothing."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()

    def wait(self, deadline: float) -> None:
        """Until it has ended, by force from then on, or once it stands still."""
        while self._process is not None:
            self.look()
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(_LOOK_SECONDS)

    def _first_words(self) -> Mapping[str, Any]:
        """The task, for one that begins with whatever set serves now."""
        serving = next(each for each in self._sets["sets"] if each["number"] == self._sets["serving"])
        settings = {**self._task["settings"], "serve.model": serving["model"]}
        return {**self._task, "settings": settings, "number": serving["number"]}

    def _take(self, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            self.is_ready, self._failure = True, ""
            self._progress(f"{self.name} ready")
        elif "failed" in message:
            self._failure = message["failed"]
        elif "answer" in message:
            if message["answer"] in self._answers:
                self._answers[message["answer"]] = message["value"]
        elif "wish" in message and self._wished is not None:
            self._wished(self, message["number"], message["wish"])

    def _look_alive(self, now: float) -> None:
        """Ends one that stands still: on the connections that it has accepted nothing would ever happen."""
        if now - self._looked_at > _STOOD_SECONDS:
            self._excused_at = now
        self._looked_at = now
        beaten_at = self._commons.pulses.last(self._index)
        silent_seconds = now - max(self._started_at, beaten_at, self._excused_at)
        if self._has_read():
            self._read_at = now
        if not beaten_at and silent_seconds > START_SECONDS:
            self._hung = f"it did not start within {START_SECONDS:g} s"
        elif beaten_at and silent_seconds > SILENT_SECONDS:
            self._hung = f"its event loop has stood still for {SILENT_SECONDS:g} s"
        elif now - max(self._read_at, self._excused_at) > _DEAF_SECONDS:
            self._hung = f"it has read nothing that it was told for {_DEAF_SECONDS:g} s"
        if self._hung and self._process is not None:
            self._process.kill()

    def _has_read(self) -> bool:
        """Whether all that it was told is out."""
        try:
            return self._lines is None or self._lines.flush()
        except OSError:
            return True  # it has hung up, as it ends

    def _bury(self, status: int) -> None:
        now = time.monotonic()
        self._early_deaths = 0 if now - self._started_at > _LONG_SECONDS else self._early_deaths + 1
        waits = _FIRST_WAIT_SECONDS * 2.0 ** min(self._early_deaths - 1, 10) if self._early_deaths else 0.0
        self._begins_at = now + min(waits, _LONGEST_WAIT_SECONDS)
        if not self.is_ready and not self._failure:
            self._failure = self._hung or f"its process ended with status {status}{self._last_words()}"
        reason = self._failure or self._hung or f"status {status}"
        self.is_ready, self._hung = False, ""
        self._commons.forget(self._index)
        self._answers.clear()
        self._process = None
        self._hang_up()
        if self._task["metrics_folder"]:
            mark_process_dead(self._index, self._task["metrics_folder"])  # type: ignore[no-untyped-call]
        if not self._ending:  # last: whoever watches may be gone, and telling fails
            self._progress(f"{self.name} is down ({reason}); another takes its place")

    def _last_words(self) -> str:
        """The last line of what it has logged, where that was not shown."""
        if self._log is None:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        end = os.pread(self._log.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace")
        return f": {end.strip().splitlines()[-1]}" if end.strip() else ""

    def _hang_up(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._lines is not None:
            with contextlib.suppress(OSError):  # it has died; the next `look` sees it
                self._lines.post(dict(message))


# Told of what an operator wants, with the number that its answer is to have.
Wished = Callable[[RouterSlot, int, Mapping[str, Any]], None]
