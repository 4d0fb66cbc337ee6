"""`python -m tests.page.worker`: a worker in a process of its own, so that it can be killed, which computes nothing.

Its command line is that of triptych.cluster.worker. Whatever it is asked, the answer is a red circle.
"""

import argparse
import asyncio

from tests.router.loopback import LoopbackWorker
from triptych.journey import Role
from triptych.models.card import load_card
from triptych.router.pipeline.prompt import PromptBuilder

ANSWER = "red circle"
_GAUGES = {
    Role.ENCODE: {
        "encoder_arena_bytes": 100.0,
        "encoder_arena_free_bytes": 64.0,
        "encoder_queued_items": 2.0,
        "encoder_cache_hits_total": 3.0,
        "encoder_cache_joins_total": 0.0,
        "encoder_items_encoded_total": 9.0,
    },
    Role.PREFILL: {
        "prefill_requests": 1.0,
        "prefix_lookup_tokens_total": 100.0,
        "prefix_hit_tokens_total": 41.0,
        "kv_free_blocks": 700.0,
        "kv_cached_blocks": 200.0,
    },
    Role.DECODE: {
        "decode_sequences": 4.0,
        "decode_reservations_queued": 0.0,
        "preempted_sequences": 0.0,
        "kv_free_blocks": 450.0,
        "kv_cached_blocks": 90.0,
    },
}


async def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.page.worker", description=__doc__)
    for name in ("roles", "model", "device", "dtype", "worker-id", "config"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    roles = frozenset(Role(name) for name in options.roles.split(","))
    card = load_card(options.model, options.dtype)
    gauges = {name: value for role in roles for name, value in _GAUGES[role].items()}
    worker = LoopbackWorker(options.worker_id, roles, card.fingerprint, token_pause_seconds=0.02, gauges=gauges)
    worker.says = PromptBuilder(card).encode_text(ANSWER)
    await worker.start()
    print(f"ready {worker.endpoint.address} {worker.incarnation}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
