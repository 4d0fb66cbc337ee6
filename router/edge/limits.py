"""How much each tenant may ask for. Pure: whoever asks tells the time."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from triptych.errors import RateLimited
from triptych.router.edge.limit_books import NAME_BYTES, LimitBooks, Use

_MINUTE = 60.0
_ROUNDING = 1e-6  # of sums of seconds since the machine was started
_SOON_SECONDS = 1.0  # when a request of the same tenant may have ended


@dataclass(frozen=True, slots=True)
class Limits:
    """0: no limit. A whole minute's worth may come at once after a quiet minute."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0

    def __bool__(self) -> bool:
        return any(self._all())

    def _all(self) -> tuple[int, int, int]:
        return (self.requests_per_minute, self.tokens_per_minute, self.max_concurrent)


class Meter:
    """One tenant's requests, in whichever process they are. Belongs to this process."""

    def __init__(self, books: LimitBooks, tenant: str, limits: Limits) -> None:
        self.limits = limits
        self._books = books
        self._name = hashlib.blake2b(tenant.encode(), digest_size=NAME_BYTES).digest()
        self._place = 0

    def enter(self, now: float) -> None:
        """Takes a request in, until it leaves. Raises RateLimited, taking nothing."""
        books, limits = self._books, self.limits
        with books.memory:
            place = self._place = books.place(self._name, now, self._place)
            use = self._use(now)
            most, requests, tokens = limits.max_concurrent, limits.requests_per_minute, limits.tokens_per_minute
            if most and books.running(place) >= most:
                raise _limited(f"this key may have {most} requests in flight at once", _SOON_SECONDS)
            if requests and (wait := _seconds_until_one(use.requests_full_at, requests, now)):
                raise _limited(f"this key may ask {requests} times a minute", wait)
            if tokens and (wait := _seconds_until_one(use.tokens_full_at, tokens, now)):
                raise _limited(f"this key may use {tokens} tokens a minute", wait)
            if requests:
                use.requests_full_at = _taken(use.requests_full_at, requests, 1, now)
            books.enter(place)
            books.set_use(place, use)

    def leave(self, num_tokens: int, now: float) -> None:
        """A request has ended that had entered, which has kept the place. num_tokens: of prompt and answer"""
        books, tokens = self._books, self.limits.tokens_per_minute
        with books.memory:
            if tokens and num_tokens:
                use = self._use(now)
                use.tokens_full_at = _taken(use.tokens_full_at, tokens, num_tokens, now)
                books.set_use(self._place, use)
            books.leave(self._place)

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """What is left, as OpenAI's clients read it; nothing of what has no limit."""
        with self._books.memory:
            self._place = self._books.place(self._name, now, self._place)
            use = self._use(now)
        headers: list[tuple[bytes, bytes]] = []
        for what, full_at, per_minute in (
            ("requests", use.requests_full_at, self.limits.requests_per_minute),
            ("tokens", use.tokens_full_at, self.limits.tokens_per_minute),
        ):
            if per_minute:
                left = max(0, math.floor(_level(full_at, per_minute, now) + _ROUNDING))
                headers += [
                    (f"x-ratelimit-limit-{what}".encode(), str(per_minute).encode()),
                    (f"x-ratelimit-remaining-{what}".encode(), str(left).encode()),
                    (f"x-ratelimit-reset-{what}".encode(), duration(max(0.0, full_at - now)).encode()),
                ]
        return headers

    def _use(self, now: float) -> Use:
        """So far; what was used under other limits stays used."""
        use, limits = self._books.use(self._place), self.limits
        if use.requests_per_minute != limits.requests_per_minute:
            use.requests_full_at = _resized(
                use.requests_full_at, use.requests_per_minute, limits.requests_per_minute, now
            )
            use.requests_per_minute = limits.requests_per_minute
        if use.tokens_per_minute != limits.tokens_per_minute:
            use.tokens_full_at = _resized(use.tokens_full_at, use.tokens_per_minute, limits.tokens_per_minute, now)
            use.tokens_per_minute = limits.tokens_per_minute
        return use


class Limiter:
    """Meters by tenant. A tenant without limits has none; one that is gone leaves none behind."""

    def __init__(self, books: LimitBooks | None = None) -> None:
        self._books = books or LimitBooks()
        self._meters: dict[str, Meter] = {}

    def update(self, limits_by_tenant: Mapping[str, Limits]) -> None:
        """These from now on. What was used stays used."""
        kept: dict[str, Meter] = {}
        for tenant, limits in limits_by_tenant.items():
            meter = self._meters.get(tenant)
            if meter is not None:
                meter.limits = limits  # for requests in flight as well
            if limits:
                kept[tenant] = meter or Meter(self._books, tenant, limits)
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


# Buckets fill with time, up to a minute's worth, and may be overdrawn, by what is known only afterwards.


def _level(full_at: float, per_minute: int, now: float) -> float:
    return per_minute - max(0.0, full_at - now) * per_minute / _MINUTE


def _seconds_until_one(full_at: float, per_minute: int, now: float) -> float:
    wait = full_at - now - (per_minute - 1) * _MINUTE / per_minute
    return wait if wait > _ROUNDING else 0.0


def _taken(full_at: float, per_minute: int, amount: int, now: float) -> float:
    return max(full_at, now) + amount * _MINUTE / per_minute


def _resized(full_at: float, per_minute: float, other: int, now: float) -> float:
    """Keeps how much was used."""
    return now + max(0.0, full_at - now) * per_minute / other if other else 0.0


def _limited(message: str, wait_seconds: float) -> RateLimited:
    error = RateLimited(f"{message}; try again in {duration(wait_seconds)}")
    error.retry_after_seconds = wait_seconds
    return error
