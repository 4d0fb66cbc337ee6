"""The settings of clusters over two hosts: short times, so that what fails does so within a test."""

from typing import Any

from triptych.config import MIB

LEASE_SECONDS = 5.0
COPY_SECONDS = 4.0
STAGE_SECONDS = 8.0
REQUEST_SECONDS = 30.0
NEWS_SECONDS = 10.0  # until the router has asked the workers how they are


def tables(**transfer: Any) -> dict[str, dict[str, Any]]:
    """transfer: more settings of that table."""
    copies = {"lease_seconds": LEASE_SECONDS, "copy_timeout_seconds": COPY_SECONDS, "sweep_interval_seconds": 0.2}
    return {
        "router": {
            "status_interval_seconds": 0.2,
            "status_timeout_seconds": 1.0,
            "stage_timeout_seconds": STAGE_SECONDS,
            "request_timeout_seconds": REQUEST_SECONDS,
        },
        "encoder": {"arena_bytes": 32 * MIB},
        "language": {"kv_bytes": 64 * MIB, "prefill_chunk_tokens": 256, "landing_bytes": 16 * MIB},
        "transfer": {"checksums": True, **copies, **transfer},
    }
