"""One process that decodes, from the encoder's side: started, asked, ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import numpy as np

from triptych.errors import InternalError, InvalidMedia, InvalidRecord
from triptych.multimodal.canonical import UInt8Array
from triptych.multimodal.header import MediaHeader
from triptych.services.encoder.decode_wire import (
    MAX_ANSWER_BYTES,
    Allowance,
    Answer,
    Order,
    Outcome,
    mapped,
    memory_bytes,
    new_memory,
    pixels_at,
)

CHILD_MODULE = "triptych.services.encoder.decode_child"

_MEMORY_BYTES = 16 << 20  # kept by each process, as far as it was ever written; larger images bring their own
_END_SECONDS = 5.0

# All that a child learns of our environment: what it may be robbed of by a stranger's file must be no secret.
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "PYTHONHOME", "VIRTUAL_ENV")


class ProcessLost(Exception):
    """It died, or had to be ended. certain: that is the image's doing, and would come again."""

    def __init__(self, reason: str, certain: bool = False) -> None:
        super().__init__(reason)
        self.certain = certain


class DecodeProcess:
    """Used by one thread at a time. Its process ends with the thread that made this."""

    def __init__(self, module: str = CHILD_MODULE) -> None:
        """Returns before it has started. Raises OSError where the system has no room for it."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._is_ready = False
        memory_fd = -1
        try:
            memory_fd = new_memory(_MEMORY_BYTES)
            self._memory = mapped(memory_fd)
            told = (theirs.fileno(), memory_fd, os.getpid())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", module, *(str(number) for number in told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory_fd),
                env=_environment(),
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
            if memory_fd >= 0:
                os.close(memory_fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def await_ready(self, seconds: float) -> None:
        """Raises ProcessLost when it does not start in time."""
        if not self._is_ready:
            self._answer(seconds)
            self._is_ready = True

    def decode(self, data: bytes, header: MediaHeader, allowance: Allowance) -> UInt8Array:
        """The picture [3, height, width], in memory that the next image is decoded into.

        Raises ProcessLost, behind which it can only be ended; InvalidMedia, where the process says so.
        """
        if memory_bytes(len(data), header) <= len(self._memory):
            memory, fd = self._memory, -1
        else:
            fd = new_memory(memory_bytes(len(data), header))
        order = Order(len(data), header, allowance, brings_memory=fd >= 0)
        try:
            if fd >= 0:
                memory = mapped(fd)
            memory[: len(data)] = data
            socket.send_fds(self._channel, [order.to_bytes()], [fd] if fd >= 0 else [])
        except (BrokenPipeError, ConnectionError) as error:
            raise self._lost(str(error)) from error
        finally:
            if fd >= 0:
                os.close(fd)
        _check(self._answer(allowance.seconds), allowance)
        numbers = np.frombuffer(memory, np.uint8, 3 * header.width * header.height, pixels_at(len(data)))
        return numbers.reshape(3, header.height, header.width)

    def kill(self) -> None:
        """At once, whatever it is at; the thread that waits for an answer sees it end."""
        self._process.kill()  # by its id while it has not been waited for: never another's

    def end(self) -> None:
        """As `kill`, and leaves nothing of it; again does nothing."""
        self.kill()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # stuck in the kernel; Popen waits for it when it starts others
            pass
        self._channel.close()
        # Errors that are kept refer to this; where pixels are still read the memory goes with them.
        with contextlib.suppress(BufferError):
            self._memory.close()

    def _answer(self, seconds: float) -> Answer:
        self._channel.settimeout(seconds)
        try:
            data = self._channel.recv(MAX_ANSWER_BYTES)
        except (TimeoutError, BlockingIOError):  # the latter where there was no time at all
            raise ProcessLost(f"took more than {seconds:g} s to decode") from None
        except ConnectionError as error:
            raise self._lost(str(error)) from error
        if not data:
            raise self._lost("it closed its end")
        try:
            return Answer.from_bytes(data)
        except InvalidRecord as error:
            raise ProcessLost(error.message) from None

    def _lost(self, reason: str) -> ProcessLost:
        """How it has ended."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return ProcessLost(f"left the process that decodes it without a word: {reason}")
        if -code == signal.SIGPROF:
            return ProcessLost("takes too much of a processor's time to decode", certain=True)
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        return ProcessLost(f"ended the process that decodes it ({how})")


def _check(answer: Answer, allowance: Allowance) -> None:
    if answer.outcome is Outcome.INVALID:
        raise InvalidMedia(answer.text, code=answer.code)
    if answer.outcome is Outcome.OVER_MEMORY:
        raise ProcessLost(f"takes more than {allowance.memory_bytes >> 20} MiB to decode", certain=True)
    if answer.outcome is not Outcome.PIXELS:
        raise InternalError(f"decoding failed: {answer.text}")


def _environment() -> dict[str, str]:
    """What the process needs to find the same modules as this one, computing on one thread."""
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**kept, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
