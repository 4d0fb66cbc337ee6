"""This node's clock beside another's. No hand-over depends on it; certificates and reading two logs together do."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from triptych.doctor.finding import Asked, Finding, fail, ok, warn

_SECONDS = 3.0
_TICK_SECONDS = 1.5  # a Date counts whole seconds; by then it has moved on
_PAUSE_SECONDS = 0.05
_MUCH_SECONDS = 1.0
_LATE_SECONDS = 1.0  # by which a server may be with its Date: most write it once a second, at no set moment of it


@dataclass(frozen=True, slots=True)
class Offset:
    """How far the other clock is ahead of ours, and how well that is known."""

    seconds: float
    error_seconds: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer: the other's clock in whole seconds, and ours before and after."""

    theirs: float
    asked_at: float
    answered_at: float


def look_clock(asked: Asked) -> Finding:
    if not asked.peer:
        return ok("compared with no other; --peer names one")
    try:
        return judge_clock(offset_of(lambda: read_date(asked.peer)), asked.peer)
    except (OSError, HTTPException, ValueError) as error:
        advice = "name any HTTP server of the other node that sends a Date, as http://HOST:8000, and see the firewall"
        return fail(f"{asked.peer} tells no time: {error}", advice)


def judge_clock(offset: Offset, peer: str) -> Finding:
    seen = f"{peer} is {offset.seconds:+.1f} s from this node (± {offset.error_seconds:.1f})"
    if abs(offset.seconds) - offset.error_seconds > _MUCH_SECONDS:
        return warn(seen, "run chrony or systemd-timesyncd on both: requests are served, but logs do not fit together")
    return ok(seen)


def offset_of(read: Callable[[], Reading], now: Callable[[], float] = time.monotonic) -> Offset:
    """Asks until the other's Date changes: at that moment its clock is known to a second, else to two."""
    first = last = read()
    end = now() + _TICK_SECONDS
    while now() < end:
        time.sleep(_PAUSE_SECONDS)
        before, last = last, read()
        if last.theirs != first.theirs:
            # It changed after the one was asked and before the other was answered.
            earliest, latest = before.asked_at, last.answered_at
            return _between(last.theirs - latest, last.theirs + _LATE_SECONDS - earliest)
    return _between(last.theirs - last.answered_at, last.theirs + 1.0 + _LATE_SECONDS - last.asked_at)


def _between(least: float, most: float) -> Offset:
    return Offset((least + most) / 2, (most - least) / 2)


def read_date(peer: str) -> Reading:
    """Raises OSError or HTTPException where nobody answers, ValueError where there is no Date."""
    parts = urlsplit(peer if "://" in peer else f"http://{peer}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is no http:// address")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_SECONDS)
    try:
        asked_at = time.time()
        connection.request("HEAD", "/live")
        date = connection.getresponse().getheader("date")
        answered_at = time.time()
    finally:
        connection.close()
    if date is None:
        raise ValueError("its answer has no Date")
    return Reading(parsedate_to_datetime(date).timestamp(), asked_at, answered_at)
