"""Nouns to messages and back. Besides servicers and stubs, nothing else touches the generated classes.

`<noun>_to_pb` never fails on a valid noun; `<noun>_from_pb` raises InvalidRecord for a message that breaks a noun's
rules, so that nothing malformed gets past a service's door.
"""

from triptych.wire.calls import (
    CHANNEL_OPTIONS,
    MAX_MESSAGE_BYTES,
    MEDIA_CHUNK_BYTES,
    PROTOCOL,
    SERVER_OPTIONS,
    envelope,
    request_id_from_pb,
)
from triptych.wire.claims import (
    claim_ids_from_pb,
    embedding_ref_from_pb,
    embedding_ref_to_pb,
    endpoint_from_pb,
    endpoint_to_pb,
    kv_ref_from_pb,
    kv_ref_to_pb,
)
from triptych.wire.failures import (
    FAILURE_METADATA,
    error_from_failure,
    error_from_rpc,
    failure_to_pb,
    failure_trailer,
    status_code,
)
from triptych.wire.layouts import (
    grid_from_pb,
    grid_to_pb,
    item_from_pb,
    item_to_pb,
    layout_from_pb,
    layout_to_pb,
    run_from_pb,
    run_to_pb,
    tokens_from_bytes,
    tokens_to_bytes,
)
from triptych.wire.times import stage_times_to_pb
from triptych.wire.tokens import (
    sampling_from_pb,
    sampling_to_pb,
    token_from_pb,
    token_to_pb,
)

__all__ = [
    "CHANNEL_OPTIONS",
    "FAILURE_METADATA",
    "MAX_MESSAGE_BYTES",
    "MEDIA_CHUNK_BYTES",
    "PROTOCOL",
    "SERVER_OPTIONS",
    "claim_ids_from_pb",
    "embedding_ref_from_pb",
    "embedding_ref_to_pb",
    "endpoint_from_pb",
    "endpoint_to_pb",
    "envelope",
    "error_from_failure",
    "error_from_rpc",
    "failure_to_pb",
    "failure_trailer",
    "grid_from_pb",
    "grid_to_pb",
    "item_from_pb",
    "item_to_pb",
    "kv_ref_from_pb",
    "kv_ref_to_pb",
    "layout_from_pb",
    "layout_to_pb",
    "request_id_from_pb",
    "run_from_pb",
    "run_to_pb",
    "sampling_from_pb",
    "sampling_to_pb",
    "stage_times_to_pb",
    "status_code",
    "token_from_pb",
    "token_to_pb",
    "tokens_from_bytes",
    "tokens_to_bytes",
]
