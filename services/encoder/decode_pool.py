"""Processes to decode in: what a stranger's file does to a decoder costs that file's request, and nothing else."""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from triptych.errors import Cancelled, ConfigError, InternalError, InvalidMedia, Overloaded
from triptych.multimodal.canonical import UInt8Array
from triptych.multimodal.header import MediaHeader
from triptych.services.encoder.decode_process import CHILD_MODULE, DecodeProcess, ProcessLost
from triptych.services.encoder.decode_wire import Allowance

log = logging.getLogger(__name__)

_START_SECONDS = 30.0
_LEAST_READY_SECONDS = 0.1  # for one that was got at the very end
_STARTS = 3  # that may fail for one image
_AGAIN_SECONDS = 1.0  # between attempts where the system has no room for another process
_CHANCES = 2  # processes that an image may cost: the first may have died of something else


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What images may take, by the pixels that their headers tell of and the bytes that they have.

    Ten times what the slowest of sound files was seen to take, a WebP without loss of smoothness: 0.06 s and 20 bytes
    a megapixel. The clock gives a busy machine five times as long.
    """

    cpu_seconds: float = 2.0
    cpu_seconds_per_megapixel: float = 0.5
    most_cpu_seconds: float = 30.0
    clock_factor: float = 5.0
    most_seconds: float = 90.0
    memory_bytes: int = 128 << 20
    memory_per_pixel: int = 48
    memory_per_byte: int = 4

    def of(self, pixels: int, num_bytes: int) -> Allowance:
        wanted = self.cpu_seconds + self.cpu_seconds_per_megapixel * (pixels + num_bytes) / 1e6
        cpu_seconds = min(wanted, self.most_cpu_seconds)
        memory = self.memory_bytes + self.memory_per_pixel * pixels + self.memory_per_byte * num_bytes
        return Allowance(cpu_seconds, min(cpu_seconds * self.clock_factor, self.most_seconds), memory)


class DecodePool:
    """A Decoder over so many processes. Called from any thread, of which as many get on at once."""

    def __init__(self, processes: int, limits: DecodeLimits | None = None, module: str = CHILD_MODULE) -> None:
        """Begins to start them; module: what they run"""
        self._limits = limits or DecodeLimits()
        self._module = module
        self._changed = threading.Condition()
        self._idle: deque[DecodeProcess] = deque()
        self._busy: set[DecodeProcess] = set()
        self._missing = processes
        self._num_lost = 0
        self._closed = False
        # One thread starts them all: a process ends with the thread that started it.
        self._keeper = threading.Thread(target=self._keep, name="decode-keeper", daemon=True)
        self._keeper.start()

    @contextlib.contextmanager
    def planes(self, data: bytes, header: MediaHeader) -> Iterator[UInt8Array]:
        """As Decoder.planes."""
        process, planes = self._decoded(data, header)
        try:
            yield planes
        finally:
            self._give_back(process)

    def await_started(self) -> None:
        """Raises ConfigError where a process cannot be had."""
        try:
            self._give_back(self._take())
        except (InternalError, Overloaded) as error:
            raise ConfigError(
                f"encoder.decode_isolation: {error}; threads does without processes, and without their protection"
            ) from error

    def gauges(self) -> Mapping[str, float]:
        with self._changed:
            running = len(self._idle) + len(self._busy)
            return {"encoder_decode_processes": running, "encoder_decode_lost_total": self._num_lost}

    def pids(self) -> list[int]:
        with self._changed:
            return [process.pid for process in (*self._idle, *self._busy)]

    def close(self) -> None:
        """End all of them; who waits for a picture is told Cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._keeper.join()
        with self._changed:
            idle, busy = [*self._idle], [*self._busy]
            self._idle.clear()
        for process in idle:
            process.end()
        for process in busy:  # its thread sees it end, and puts it away
            process.kill()

    def _decoded(self, data: bytes, header: MediaHeader) -> tuple[DecodeProcess, UInt8Array]:
        allowance = self._limits.of(header.pixels, len(data))
        for chance in range(1, _CHANCES + 1):
            process = self._take()
            try:
                return process, process.decode(data, header, allowance)
            except ProcessLost as lost:
                self._replace(process)
                log.warning("an image of %d bytes (%s) %s", len(data), header.format, lost)
                if lost.certain or chance == _CHANCES:
                    raise InvalidMedia(f"the image cannot be decoded: it {lost}") from lost
            except BaseException:
                self._give_back(process)
                raise
        raise AssertionError("the last chance returns or raises")

    def _take(self) -> DecodeProcess:
        """One that runs. Raises InternalError where they do not start, Overloaded where there is none in time."""
        deadline = time.monotonic() + _START_SECONDS
        why = ""
        for _ in range(_STARTS):
            process = self._next(deadline)
            try:
                process.await_ready(max(deadline - time.monotonic(), _LEAST_READY_SECONDS))
                return process
            except ProcessLost as lost:
                self._replace(process)
                why = str(lost)
            except BaseException:
                self._replace(process)
                raise
        raise InternalError(f"processes to decode in do not start: one {why}")

    def _next(self, deadline: float) -> DecodeProcess:
        with self._changed:
            while not self._closed:
                while self._idle:
                    process = self._idle.popleft()
                    if process.is_running:
                        self._busy.add(process)
                        return process
                    process.end()
                    self._lose()
                if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
                    raise Overloaded(f"no process to decode in became free in {_START_SECONDS:g} s")
        raise Cancelled("the encoder is stopping")

    def _give_back(self, process: DecodeProcess) -> None:
        with self._changed:
            self._busy.discard(process)
            if not self._closed:
                self._idle.append(process)
                self._changed.notify_all()
                return
        process.end()

    def _replace(self, process: DecodeProcess) -> None:
        with self._changed:
            self._busy.discard(process)
            closed = self._closed
            if not closed:
                self._lose()
        process.end()
        if closed:
            raise Cancelled("the encoder is stopping")

    def _lose(self) -> None:
        """Under the lock."""
        self._num_lost += 1
        self._missing += 1
        self._changed.notify_all()

    def _keep(self) -> None:
        """Starts what is missing, until all is over."""
        while True:
            with self._changed:
                while not self._missing and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            try:
                process = DecodeProcess(self._module)
            except OSError as error:
                log.error("a process to decode in cannot be started: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, _AGAIN_SECONDS)
                continue
            with self._changed:
                self._missing -= 1
                self._idle.append(process)
                self._changed.notify_all()
