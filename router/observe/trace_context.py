"""W3C trace context: which trace a request belongs to, and what its spans hang below."""

import random
import re
import secrets
from dataclasses import dataclass, replace

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Hexadecimal digits: 32 and 16.

    parent:     span of whoever asks; empty where the trace begins here
    span:       of the request in this server, below which the spans of its stages hang
    is_sampled: whether its spans are told to a collector
    """

    trace: str
    parent: str
    span: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """For the tiers behind: below the request's span."""
        return f"00-{self.trace}-{self.span}-{_SAMPLED if self.is_sampled else 0:02x}"

    def beside(self) -> "TraceContext":
        """Of another request of the same parent: no two spans have one id."""
        return replace(self, span=new_span_id())


def read_traceparent(told: str) -> TraceContext | None:
    """None for a header that is none, or breaks the rules: a new trace begins then."""
    match = _TRACEPARENT.fullmatch(told.strip())
    if match is None:
        return None
    version, trace, parent, flags, rest = match.groups()
    if version == "ff" or trace == _NO_TRACE or parent == _NO_SPAN or (version == "00" and rest):
        return None
    return TraceContext(trace, parent, new_span_id(), bool(int(flags, 16) & _SAMPLED))


def new_trace() -> TraceContext:
    return TraceContext(secrets.token_hex(16), "", new_span_id(), is_sampled=True)


def new_span_id() -> str:
    # No secret, and there are dozens of a request.
    return f"{random.getrandbits(64) or 1:016x}"
