"""What to send, how fast, and what counts as fast enough."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triptych.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One workload against one server. Equal workloads with equal seeds send equal bytes at equal times."""

    url: str = "http://127.0.0.1:8000"  # server root, with or without /v1
    model: str = ""  # empty: the first the server lists
    requests: int = 32
    images: int = 1  # per request
    width: int = 224  # pixels
    height: int = 224
    text_tokens: int = 32  # words per request, each one token in most vocabularies
    max_tokens: int = 32  # output tokens asked for, and expected
    concurrency: int = 1  # closed loop: requests in flight
    rate: float | None = None  # open loop: Poisson arrivals per second; takes the place of concurrency
    repeat_share: float = 0.0  # of the images: ones that were sent before
    warmup: int = 2  # requests sent before the clock starts, with pictures of their own
    seed: int = 0
    slo_ttft_seconds: float | None = None
    slo_tpot_seconds: float | None = None  # per output token
    slo_e2e_seconds: float | None = None
    slo_class: str = ""  # of the server's classes of service, as every request names it; empty: its default
    slo_target: float | None = None  # share of requests that has to be within all limits
    timeout_seconds: float = 300.0  # per request
    jpeg_quality: int = 85
    ignore_eos: bool = True  # ask for exactly max_tokens; switch off for servers that refuse the field
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # more fields of each request, as they are
    api_key: str = ""

    def __post_init__(self) -> None:
        for name in ("requests", "width", "height", "max_tokens", "concurrency"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("images", "text_tokens", "warmup", "seed"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        for name in ("rate", "slo_ttft_seconds", "slo_tpot_seconds", "slo_e2e_seconds"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, value, "above 0")
        _require(self.timeout_seconds > 0, "timeout_seconds", self.timeout_seconds, "above 0")
        _require(0 <= self.repeat_share < 1, "repeat_share", self.repeat_share, "in [0, 1)")
        _require(self.images + self.text_tokens > 0, "text_tokens", self.text_tokens, "at least 1 where images is 0")
        _require(1 <= self.jpeg_quality <= 95, "jpeg_quality", self.jpeg_quality, "in [1, 95]")
        _require(self.url.startswith(("http://", "https://")), "url", self.url, "an http or https URL")

    @property
    def has_limits(self) -> bool:
        return any(limit is not None for limit in (self.slo_ttft_seconds, self.slo_tpot_seconds, self.slo_e2e_seconds))

    @property
    def root(self) -> str:
        """The server's root, without a trailing slash or /v1."""
        return self.url.rstrip("/").removesuffix("/v1")

    def workload(self) -> dict[str, Any]:
        """Everything but where the server is and how to get in."""
        chosen = dataclasses.asdict(self)
        del chosen["url"], chosen["api_key"]
        if self.rate is not None:
            del chosen["concurrency"]
        return chosen


def _require(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}, expected {wanted}")
