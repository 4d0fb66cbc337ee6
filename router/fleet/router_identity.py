"""What a router is to all of its workers."""

from dataclasses import dataclass, field

from triptych.multimodal.memfd import MediaMemory
from triptych.wire.membership import Membership


@dataclass(frozen=True, slots=True)
class RouterIdentity:
    """Who asks, about which model, and how often for news."""

    router_id: str
    fingerprint: bytes
    status_interval_seconds: float
    probe: MediaMemory | None  # holds the router's nonce; None: media always travel in chunks
    nonce: bytes = b""
    status_timeout_seconds: float = 5.0
    membership: Membership = field(default_factory=Membership)
    self_test: bool = False  # a worker takes nothing before it is proven
