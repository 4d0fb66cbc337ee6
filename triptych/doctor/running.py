"""Runs checks in processes of their own: none can hang the doctor, and one that crashes is a finding."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from triptych.doctor.checks import Check
from triptych.doctor.finding import Asked, Finding, fail

_AT_ONCE = 2  # each loads what it needs, torch among it
_POLL_SECONDS = 0.01
_LAST_BYTES = 4096
_TELL = "to see whether it does so again: triptych doctor --only"


@dataclass(slots=True)
class _Running:
    """A check's process. Its output goes to files: nobody has to read for it to go on."""

    check: Check
    process: "subprocess.Popen[bytes]"
    result: IO[bytes]
    output: IO[bytes]
    deadline: float

    def finding(self) -> Finding | None:
        """None while it runs."""
        if self.process.poll() is None:
            if time.monotonic() < self.deadline:
                return None
            self.end()
            seen = f"no answer within {self.check.limit_seconds:g} s{self._last_words()}"
            return fail(seen, f"something it asks hangs; {_TELL} {self.check.name}")
        told = _all_of(self.result)
        try:
            return Finding.from_json(json.loads(told))
        except (ValueError, KeyError):
            seen = f"it {_ended(self.process.returncode)}{self._last_words()}"
            return fail(seen, f"{_TELL} {self.check.name}")

    def end(self) -> None:
        """Ends it and whatever it has started; closes its files when called at last."""
        if self.process.poll() is None or _has_group(self.process.pid):
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended between the two lines
        self.process.wait()

    def close(self) -> None:
        self.end()
        self.result.close()
        self.output.close()

    def _last_words(self) -> str:
        lines = [line.strip() for line in _all_of(self.output).decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1]}" if lines else ""


def run_checks(checks: Sequence[Check], asked: Asked) -> Iterator[tuple[Check, Finding]]:
    """Each check's finding, in order, as they are known. Two run at once."""
    waiting, running = list(checks), list[_Running]()
    known: dict[str, Finding] = {}
    told = 0
    try:
        while told < len(checks):
            while waiting and len(running) < _AT_ONCE:
                running.append(_start(waiting.pop(0), asked))
            for one in list(running):
                finding = one.finding()
                if finding is not None:
                    known[one.check.name] = finding
                    running.remove(one)
                    one.close()
            while told < len(checks) and checks[told].name in known:
                yield checks[told], known[checks[told].name]
                told += 1
            time.sleep(_POLL_SECONDS)
    finally:
        for one in running:
            one.close()


def _start(check: Check, asked: Asked) -> _Running:
    result, output, question = (tempfile.TemporaryFile() for _ in range(3))  # noqa: SIM115  # closed by `close`
    with question:
        question.write(json.dumps(asked.as_json()).encode())
        question.seek(0)
        command = [sys.executable, "-m", "triptych.doctor.child", check.function, str(result.fileno())]
        process = subprocess.Popen(
            command,
            stdin=question,
            stdout=output,
            stderr=output,
            pass_fds=[result.fileno()],
            start_new_session=True,  # so that all it starts can be ended with it
        )
    return _Running(check, process, result, output, time.monotonic() + check.limit_seconds)


def _ended(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status} and no finding"


def _has_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _all_of(file: IO[bytes]) -> bytes:
    """The end of what was written to it, by whichever process."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
