"""Virtual time: whatever is to happen, in order of when it is due. Nothing here ever waits."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

Run = Callable[..., None]


class Timer:
    """Something that is due once; cancelled ones cost no step."""

    __slots__ = ("args", "due", "live", "run")

    def __init__(self, due: float, run: Run, args: tuple[Any, ...]) -> None:
        self.due = due
        self.run = run
        self.args = args
        self.live = True

    def cancel(self) -> None:
        self.live = False


class Timeline:
    """The one true time of a simulated world, in seconds from its beginning; its processes have clocks of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._order = itertools.count()  # equal times: first come, first served, so that a seed is a run
        self._heap: list[tuple[float, int, Timer]] = []

    def after(self, seconds: float, run: Run, *args: Any) -> Timer:
        timer = Timer(self.now + seconds, run, args)
        heapq.heappush(self._heap, (timer.due, next(self._order), timer))
        return timer

    def step(self) -> bool:
        """Do the next thing that is due; False when nothing is."""
        while self._heap:
            due, _, timer = heapq.heappop(self._heap)
            if timer.live:
                self.now, timer.live = due, False
                self.steps += 1
                timer.run(*timer.args)
                return True
        return False

    def run_until(self, time: float) -> None:
        """Do all that is due by then."""
        while self._heap and self._heap[0][0] <= time:
            self.step()
        self.now = max(self.now, time)
