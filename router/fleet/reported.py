"""What a worker's answers to Status mean to whoever places requests, and to whoever counts them."""

import math
from collections.abc import Collection, Mapping

from triptych.journey import Role
from triptych.metrics import PREFIX, WORKER_HISTOGRAMS, BucketCounts
from triptych.pb import worker_pb2
from triptych.router.fleet.link import WorkerLink

_NUM_COUNTS = {metric.name.removeprefix(PREFIX): len(metric.buckets) + 1 for metric in WORKER_HISTOGRAMS}


def tier(link: WorkerLink) -> str:
    return tier_of(link.roles)


def tier_of(roles: Collection[str]) -> str:
    """As Dynamo has its `worker_type`; what has some of the roles names them."""
    return "aggregated" if set(roles) >= set(Role) else "+".join(sorted(roles))


def histograms(status: worker_pb2.StatusReply) -> dict[str, BucketCounts]:
    """By name; those of another version's buckets are left out."""
    return {
        each.name: BucketCounts(tuple(each.counts), each.total)
        for each in status.histograms
        if len(each.counts) == _NUM_COUNTS.get(each.name)
    }


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
