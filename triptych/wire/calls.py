"""What every call between processes shares: protocol version, channel options and the envelope."""

import math

from triptych import journey
from triptych.errors import InvalidRecord
from triptych.journey import RequestId
from triptych.pb import common_pb2 as pb

PROTOCOL = 2
MAX_MESSAGE_BYTES = 16 << 20  # the longest Layout, with room; media travel in chunks
MEDIA_CHUNK_BYTES = 1 << 20

# HTTP/2 pings notice a peer that hangs without closing its socket.
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long setting up a connection may take, in spite of its name: a worker that is busy for a moment, or far away,
    # is not lost. One that refuses is asked again as the other two say.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

# Whoever connects to a worker and says nothing, or never ends a TLS or HTTP/2 handshake, holds a descriptor and a
# handshake for the 120 s that gRPC allows by default. A member gives up after 2 s itself (above), so this cuts none.
# The time ends with the peer's first SETTINGS frame: a connection that is idle later is the keepalive's to judge, not
# a maximal age's or idleness's, which would cut a router's that has nothing to ask just now.
SERVER_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.server_handshake_timeout_ms", 5_000))


def envelope(
    request_id: bytes,
    attempt: int,
    router_id: str,
    incarnation: int,
    deadline_seconds: float,
    fingerprint: bytes,
) -> pb.Envelope:
    """What every call carries; a deadline below a millisecond is sent as one, an endless one is refused."""
    if not math.isfinite(deadline_seconds):
        raise InvalidRecord("an envelope needs a finite deadline")
    return pb.Envelope(
        request_id=request_id,
        attempt=attempt,
        router_id=router_id,
        worker_incarnation=incarnation,
        deadline_ms=max(1, int(deadline_seconds * 1000)),
        model_fingerprint=fingerprint,
    )


def request_id_from_pb(message: pb.Envelope) -> RequestId:
    if len(message.request_id) != journey.ID_BYTES:
        raise InvalidRecord(f"request id has {len(message.request_id)} bytes, expected {journey.ID_BYTES}")
    return RequestId(message.request_id)
