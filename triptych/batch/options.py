"""What a batch is told."""

from dataclasses import dataclass
from pathlib import Path

from triptych.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchOptions:
    source: Path
    target: Path
    errors: Path | None = None  # where lines without an answer go; None: into the target with the others
    url: str = "http://127.0.0.1:8000"  # server root, with or without /v1
    api_key: str = ""
    concurrency: int = 16  # requests in flight
    timeout_seconds: float = 600.0  # for one request, with all its attempts
    max_retries: int = 5

    def __post_init__(self) -> None:
        _require(self.concurrency >= 1, "concurrency", self.concurrency, "at least 1")
        _require(self.timeout_seconds > 0, "timeout", self.timeout_seconds, "above 0")
        _require(self.max_retries >= 0, "max-retries", self.max_retries, "at least 0")
        _require(self.url.startswith(("http://", "https://")), "url", self.url, "an http or https URL")
        files = [path.resolve() for path in (self.source, self.target, self.errors) if path is not None]
        _require(len(set(files)) == len(files), "output", str(self.target), "a file other than the rest")

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}, expected {wanted}")
