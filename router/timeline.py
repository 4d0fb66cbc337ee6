"""Where the time of one request went, by stage."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from triptych.pb import common_pb2


class Timeline:
    """Seconds by stage, in the order in which the stages were first told."""

    def __init__(self) -> None:
        self.started_at = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        return self._seconds

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - began)

    def add(self, stage: str, seconds: float) -> None:
        """One part after another: parts of a stage add up."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def add_parallel(
        self, times: Iterable[common_pb2.StageTime], rename: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Parts side by side, such as a request's items: the longest counts."""
        for part in times:
            stage = rename.get(part.stage, part.stage)
            self._seconds[stage] = max(self._seconds.get(stage, 0.0), part.seconds)

    def since_start(self) -> float:
        return time.perf_counter() - self.started_at

    def server_timing(self) -> str:
        """The value of a Server-Timing header; durations in milliseconds."""
        return ", ".join(f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in self._seconds.items())
