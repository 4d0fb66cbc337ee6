"""A process of the simulated world: it has a clock and a device of its own, and can be stopped and killed."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.transfer.model.clock import Run, Timeline, Timer
from tests.transfer.model.faults import Faults
from tests.transfer.model.memory import Device
from triptych.journey import Endpoint


class Process:
    """Everything a process does goes through `_do`, where it may be found dead, stopped, or about to be either."""

    def __init__(self, timeline: Timeline, random: Random, faults: Faults, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.alive = True
        self.paused = False
        self.device = Device(timeline, random, faults)
        self.after_step: Callable[[str], None] = lambda step: None  # the oracles', after all that this process does
        self.on_killed: Callable[[], None] = lambda: None
        self.on_isolated: Callable[[float], None] = lambda seconds: None
        self._timeline = timeline
        self._random = random
        self.faults = faults
        self._held: deque[tuple[str, Run, tuple[Any, ...]]] = deque()
        self._clock_offset = random.uniform(-5000.0, 5000.0)

    @property
    def name(self) -> str:
        return f"{self.endpoint.address}#{self.endpoint.incarnation}"

    def clock(self) -> float:
        """Its monotonic clock: hours away from all others."""
        return self._timeline.now + self._clock_offset

    def later(self, seconds: float, step: str, run: Run, *args: Any) -> Timer:
        return self._timeline.after(seconds, self.do, step, run, *args)

    def do(self, step: str, run: Run, *args: Any) -> None:
        """Now, once it goes on, or never."""
        if not self.alive:
            return
        if self.paused:
            self._held.append((step, run, args))
            return
        if self.faults.strikes_process("kill", step):
            before = self._random.random() < 0.5
            if not before:
                run(*args)
            self.kill()
            return
        if self.faults.strikes_process("pause", step):
            self.pause(self.faults.pause_seconds())
            self._held.append((step, run, args))
            return
        if self.faults.strikes_process("isolate", step):
            self.on_isolated(self.faults.pause_seconds())
        run(*args)
        self.after_step(step)

    def pause(self, seconds: float) -> None:
        """As SIGSTOP: its device goes on."""
        self.paused = True
        self._timeline.after(seconds, self.resume)

    def resume(self) -> None:
        """What has piled up happens at once, in order."""
        if not self.paused or not self.alive:
            return
        self.paused = False
        while self._held and not self.paused and self.alive:
            self.do(*_flat(self._held.popleft()))

    def kill(self) -> None:
        if self.alive:
            self.alive = self.device.alive = False
            self._held.clear()
            self.on_killed()


def _flat(held: tuple[str, Run, tuple[Any, ...]]) -> tuple[Any, ...]:
    step, run, args = held
    return (step, run, *args)
