"""What a worker's answers to Status mean to whoever places requests, and to whoever counts them."""

import math
from collections.abc import Mapping

from triptych.journey import Role
from triptych.router.fleet.link import WorkerLink


def tier(link: WorkerLink) -> str:
    """As Dynamo has its `worker_type`; what has some of the roles names them."""
    return "aggregated" if link.roles >= set(Role) else "+".join(sorted(link.roles))


def load(role: Role, gauges: Mapping[str, float]) -> tuple[float, float]:
    """What a worker has reported for a role, and what it has room for."""
    if role is Role.DECODE:
        blocks = gauges.get("kv_blocks", 0.0)
        return blocks - gauges.get("kv_free_blocks", 0.0), blocks
    name = "encoder_queued_tokens" if role is Role.ENCODE else "prefill_queued_tokens"
    return gauges.get(name, 0.0), math.inf


def token_limit(link: WorkerLink) -> float:
    """Tokens of prompt and answer that it takes; what is 0 counts as not told."""
    limits = (link.status.max_model_len, link.gauges.get("kv_blocks", 0) * link.status.block_size)
    return min((limit for limit in limits if limit > 0), default=math.inf)
