"""How much each tenant may ask for. Pure: whoever asks tells the time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from triptych.errors import RateLimited

_MINUTE = 60.0
_SOON_SECONDS = 1.0  # when a request of the same tenant may have ended


@dataclass(frozen=True, slots=True)
class Limits:
    """0: no limit. A whole minute's worth may come at once after a quiet minute."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0

    def share(self, parts: int) -> "Limits":
        """What one of several processes grants that know nothing of each other's clients.

        Together they grant no more, but for what is rounded up to one each; a client whose connections reach few of
        them is granted less.
        """
        return Limits(*(math.ceil(each / parts) for each in self._all()))

    def __bool__(self) -> bool:
        return any(self._all())

    def _all(self) -> tuple[int, int, int]:
        return (self.requests_per_minute, self.tokens_per_minute, self.max_concurrent)


class Bucket:
    """Fills with time, up to a minute's worth; begins full. May be overdrawn, by what is known only afterwards."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._told_at = now

    def level(self, now: float) -> float:
        if now > self._told_at:  # it never runs backwards, whatever the clock does
            self._level = min(self.per_minute, self._level + (now - self._told_at) * self.per_minute / _MINUTE)
            self._told_at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        self._level = self.level(now) - amount

    def seconds_until(self, level: float, now: float) -> float:
        return max(0.0, level - self.level(now)) * _MINUTE / self.per_minute

    def resize(self, per_minute: int, now: float) -> None:
        """Keeps how much was used."""
        used = self.per_minute - self.level(now)
        self.per_minute = per_minute
        self._level = per_minute - used


class Meter:
    """One tenant's requests."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.running = 0
        self._limits = limits
        self._requests = Bucket(limits.requests_per_minute, now) if limits.requests_per_minute else None
        self._tokens = Bucket(limits.tokens_per_minute, now) if limits.tokens_per_minute else None

    def change(self, limits: Limits, now: float) -> None:
        """Other limits from now on, for requests in flight as well."""
        if limits != self._limits:
            self._requests = _resized(self._requests, limits.requests_per_minute, now)
            self._tokens = _resized(self._tokens, limits.tokens_per_minute, now)
            self._limits = limits

    def enter(self, now: float) -> None:
        """Takes a request in, until it leaves. Raises RateLimited, taking nothing."""
        most, requests, tokens = self._limits.max_concurrent, self._requests, self._tokens
        if most and self.running >= most:
            raise _limited(f"this key may have {most} requests in flight at once", _SOON_SECONDS)
        if requests is not None and (wait := requests.seconds_until(1, now)):
            raise _limited(f"this key may ask {requests.per_minute} times a minute", wait)
        if tokens is not None and (wait := tokens.seconds_until(1, now)):
            raise _limited(f"this key may use {tokens.per_minute} tokens a minute", wait)
        if requests is not None:
            requests.take(1, now)
        self.running += 1

    def leave(self, num_tokens: int, now: float) -> None:
        """A request has ended that had entered. num_tokens: of prompt and answer"""
        assert self.running > 0, "more requests left than entered"
        self.running -= 1
        if self._tokens is not None and num_tokens:
            self._tokens.take(num_tokens, now)

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """What is left, as OpenAI's clients read it; nothing of what has no limit."""
        headers: list[tuple[bytes, bytes]] = []
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                left = max(0, math.floor(bucket.level(now)))
                headers += [
                    (f"x-ratelimit-limit-{what}".encode(), str(bucket.per_minute).encode()),
                    (f"x-ratelimit-remaining-{what}".encode(), str(left).encode()),
                    (
                        f"x-ratelimit-reset-{what}".encode(),
                        duration(bucket.seconds_until(bucket.per_minute, now)).encode(),
                    ),
                ]
        return headers


class Limiter:
    """Meters by tenant. A tenant without limits has none; one that is gone leaves none behind."""

    def __init__(self, parts: int = 1) -> None:
        self._parts = parts
        self._meters: dict[str, Meter] = {}

    def update(self, limits_by_tenant: Mapping[str, Limits], now: float) -> None:
        """These from now on. What was used stays used."""
        kept: dict[str, Meter] = {}
        for tenant, limits in limits_by_tenant.items():
            share, meter = limits.share(self._parts), self._meters.get(tenant)
            if meter is not None:
                meter.change(share, now)
            if share:
                kept[tenant] = meter or Meter(share, now)
        self._meters = kept  # those in flight leave by the meter that they entered by

    def meter(self, tenant: str) -> Meter | None:
        return self._meters.get(tenant)


def duration(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < _MINUTE:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"


def _resized(bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
    if not per_minute:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    bucket.resize(per_minute, now)
    return bucket


def _limited(message: str, wait_seconds: float) -> RateLimited:
    error = RateLimited(f"{message}; try again in {duration(wait_seconds)}")
    error.retry_after_seconds = wait_seconds
    return error
