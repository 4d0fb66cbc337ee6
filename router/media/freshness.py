"""What a server's headers say about keeping its answer (RFC 9111, as a cache that several clients share).

No heuristics: what has no lifetime is asked about again each time, and what has no validator either is not kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Self

_LONGEST_SECONDS = 365 * 86400.0
_LONGEST_VALIDATOR = 256
_NEVER_KEPT = ("no-store", "private")


@dataclass(frozen=True, slots=True)
class Freshness:
    """may_keep:      whether the body may be held beyond the request it was fetched for
    fresh_seconds: how long it may be used without asking again
    etag, modified: what to ask with; empty where there is none
    """

    may_keep: bool
    fresh_seconds: float
    etag: bytes = b""
    modified: bytes = b""

    @classmethod
    def of(cls, headers: Mapping[bytes, bytes]) -> Self:
        """headers: of the answer, names in lower case, several of a name joined by commas."""
        rules = _directives(headers.get(b"cache-control", b""))
        etag, modified = (_validator(headers.get(name, b"")) for name in (b"etag", b"last-modified"))
        seconds = 0.0 if "no-cache" in rules else max(0.0, _lifetime(rules, headers) - _seconds(headers.get(b"age")))
        return cls(not _forbids(headers) and bool(seconds or etag or modified), seconds, etag, modified)

    @property
    def conditions(self) -> tuple[tuple[bytes, bytes], ...]:
        """Request headers that ask for a new body only where it is another one."""
        asked = ((b"If-None-Match", self.etag), (b"If-Modified-Since", self.modified))
        return tuple((name, value) for name, value in asked if value)

    def renewed(self, headers: Mapping[bytes, bytes]) -> "Freshness":
        """Of the same body, by what a 304 says; what that leaves out stays as it was."""
        told = Freshness.of(headers)
        retold = b"cache-control" in headers or b"expires" in headers
        return Freshness(
            may_keep=not _forbids(headers),
            fresh_seconds=told.fresh_seconds if retold else self.fresh_seconds,
            etag=told.etag or self.etag,
            modified=told.modified or self.modified,
        )


def _forbids(headers: Mapping[bytes, bytes]) -> bool:
    rules = _directives(headers.get(b"cache-control", b""))
    return headers.get(b"vary", b"").strip() == b"*" or any(name in rules for name in _NEVER_KEPT)


def _validator(value: bytes) -> bytes:
    """As it came; empty where it is not what one looks like, and better not sent back."""
    return value if value.isascii() and len(value) <= _LONGEST_VALIDATOR else b""


def _directives(value: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for piece in value.decode("latin-1").lower().split(","):
        name, _, argument = piece.partition("=")
        found.setdefault(name.strip(), argument.strip().strip('"'))
    return found


def _lifetime(rules: Mapping[str, str], headers: Mapping[bytes, bytes]) -> float:
    for name in ("s-maxage", "max-age"):
        if name in rules:
            return _seconds(rules[name].encode("latin-1"))
    if b"expires" not in headers or b"date" not in headers:
        return 0.0
    try:
        expires, date = (parsedate_to_datetime(headers[name].decode("latin-1")) for name in (b"expires", b"date"))
        return min((expires - date).total_seconds(), _LONGEST_SECONDS)
    except (ValueError, TypeError, OverflowError):
        return 0.0  # a malformed date means that it has expired


def _seconds(value: bytes | None) -> float:
    """Whole seconds; anything else counts as none."""
    return min(float(value), _LONGEST_SECONDS) if value and value.isdigit() and len(value) < 12 else 0.0
