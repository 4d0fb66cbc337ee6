"""Whether requests are served as well as their classes of service promise, counted as they end.

What counts is what the server is to blame for: an answer that was given to the end is held against the limits, one that
failed is a miss, also where it was refused for want of room. A request that its client has to change, or that the
client left, counts nowhere; nor does one that would have been in time but for the hosts of its images, which the client
has chosen.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from triptych.config import Settings
from triptych.config.slo import ServiceClass
from triptych.errors import Cancelled, ConfigError, InvalidRequest, RequestError
from triptych.metrics import BUDGET_WINDOW, WINDOWS, RouterMetrics
from triptych.router.observe.rolling import RollingCounts

HEADER = "x-triptych-slo"


class ServiceLevels:
    """All methods belong to the router's event loop."""

    def __init__(self, settings: Settings, metrics: RouterMetrics, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings.slo
        self._metrics = metrics
        self._now = now
        self._began = now()
        self._windows = {
            each.name: {
                **{name: RollingCounts(seconds) for name, seconds in WINDOWS.items()},
                BUDGET_WINDOW: RollingCounts(each.window_seconds),
            }
            for each in self._settings.classes
        }
        for each in self._settings.classes:
            self._tell_class(each)

    def choose(self, told: str, of_key: str = "") -> ServiceClass:
        """What the header says, else what the key has, else the default. Raises InvalidRequest."""
        try:
            return self._settings.of(told or of_key or self._settings.default)
        except ConfigError as error:
            raise InvalidRequest(f"{HEADER}: {error.message}") from None

    def answered(
        self, name: str, ttft: float, tpot: float, e2e: float, num_tokens: int, hosts_seconds: float = 0.0
    ) -> None:
        """An answer was given to the end, in so many seconds.

        num_tokens: of its output; hosts_seconds: that the hosts of its images took, before the first token
        """
        service = self._settings.of(name)
        missed = service.missed(ttft, tpot, e2e)
        if missed:
            missed = service.missed(ttft - hosts_seconds, tpot, e2e - hosts_seconds)
            if not missed:
                return
        for limit in missed:
            self._metrics.count("triptych:request_slo_violations_total", slo=name, limit=limit)
        if not missed:
            self._metrics.count("triptych:slo_attained_tokens_total", num_tokens, slo=name)
        self._count(name, attained=not missed)

    def failed(self, name: str, error: BaseException) -> None:
        """There was no answer, or not all of it."""
        if isinstance(error, RequestError | Cancelled | asyncio.CancelledError):
            return
        self._metrics.count("triptych:request_slo_violations_total", slo=name, limit="failed")
        self._count(name, attained=False)

    def describe(self) -> list[dict[str, Any]]:
        """Each class as JSON values, the default one first. windows: all requests, and the good ones."""
        now = self._now()
        return [
            {
                "name": each.name,
                "limits": {name: seconds for name, seconds in each.limits.items() if seconds},
                "target": each.target,
                "windows": {name: list(counts.counts(now)) for name, counts in self._windows[each.name].items()},
            }
            for each in sorted(self._settings.classes, key=lambda each: each.name != self._settings.default)
        ]

    def refresh(self) -> None:
        """Let the windows' gauges say what is so now; whoever counts nothing has to tell that as well."""
        now = self._now()
        for name, windows in self._windows.items():
            for window, counts in windows.items():
                total, attained = counts.counts(now)
                labels = {"slo": name, "window": window}
                seconds = min(WINDOWS.get(window, self._settings.of(name).window_seconds), now - self._began)
                self._metrics.set("triptych:slo_window_requests", total, **labels)
                self._metrics.set("triptych:slo_window_attained_requests", attained, **labels)
                rate = attained / seconds if seconds > 0 else 0.0
                self._metrics.set("triptych:slo_goodput_requests_per_second", rate, **labels)

    def _count(self, name: str, attained: bool) -> None:
        self._metrics.count("triptych:slo_requests_total", slo=name)
        if attained:
            self._metrics.count("triptych:slo_attained_requests_total", slo=name)
        now = self._now()
        for counts in self._windows[name].values():
            counts.add(now, attained)

    def _tell_class(self, each: ServiceClass) -> None:
        """Also counters at 0: a class that has had no request is no class that nobody knows.

        And what begins with its first miss has had no increase that Prometheus sees.
        """
        limits = {limit: seconds for limit, seconds in each.limits.items() if seconds}
        for limit, seconds in limits.items():
            self._metrics.set("triptych:slo_limit_seconds", seconds, slo=each.name, limit=limit)
        for limit in (*limits, "failed"):
            self._metrics.count("triptych:request_slo_violations_total", 0, slo=each.name, limit=limit)
        self._metrics.set("triptych:slo_target_ratio", each.target, slo=each.name)
        self._metrics.set("triptych:slo_window_seconds", each.window_seconds, slo=each.name)
        for counter in ("requests", "attained_requests", "attained_tokens"):
            self._metrics.count(f"triptych:slo_{counter}_total", 0, slo=each.name)
