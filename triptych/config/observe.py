"""`[observe]`: what is told of requests, and where to."""

from dataclasses import dataclass

from triptych.config.checks import require, require_choice
from triptych.config.sizes import MIB


@dataclass(frozen=True, slots=True)
class ObserveSettings:
    """Logs, timelines and traces. Nothing here ever tells prompts, answers, images or keys."""

    log_format: str = "text"  # json: one object a line, and one line for each request
    log_share: float = 1.0  # of ordinary requests that get such a line; those that fail or are slow always do
    slow_seconds: float = 10.0  # until the first token, from which on a request counts as slow
    timelines: int = 1000  # of the latest requests that each router keeps
    timeline_bytes: int = 16 * MIB  # that they take at most
    otlp_endpoint: str = ""  # http://host:4318 of a collector of OpenTelemetry ('triptych[otel]'); empty: no traces
    trace_share: float = 1.0  # of requests without a traceparent that are traced

    def __post_init__(self) -> None:
        require_choice("observe.log_format", self.log_format, ("text", "json"))
        for name in ("log_share", "trace_share"):
            require(0 <= getattr(self, name) <= 1, f"observe.{name}", getattr(self, name), "0 to 1")
        require(self.slow_seconds > 0, "observe.slow_seconds", self.slow_seconds, "above 0")
        for name in ("timelines", "timeline_bytes"):
            require(getattr(self, name) >= 0, f"observe.{name}", getattr(self, name), "0 (none) or more")
        told = self.otlp_endpoint
        is_url = told.startswith(("http://", "https://"))
        require(not told or is_url, "observe.otlp_endpoint", told, "http://HOST:PORT or https://HOST:PORT")
