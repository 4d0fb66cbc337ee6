"""What a worker's Status tells of the ways to its neighbours: for /v1/cluster and for metrics."""

from collections import Counter
from typing import Any

from triptych.metrics import COPY_BYTES_BUCKETS, COPY_SECONDS_BUCKETS, PairCounts
from triptych.pb import worker_pb2


def describe_paths(status: worker_pb2.StatusReply) -> list[dict[str, Any]]:
    """Each neighbour it reads from, as JSON values."""
    return [
        {
            "owner": path.owner,
            "owner_role": path.owner_role,
            "consumer_role": path.consumer_role,
            "transport": path.transport,
            "refused": list(path.refused),
        }
        for path in status.paths
    ]


def pair_counts(status: worker_pb2.StatusReply) -> list[PairCounts]:
    """Neighbours and copies by roles and transport. Histograms of another version's buckets are left out."""
    neighbours = Counter((path.owner_role, path.consumer_role, path.transport) for path in status.paths)
    copies = {(each.owner_role, each.consumer_role, each.transport): each for each in status.copies}
    counts = []
    for key in dict.fromkeys([*neighbours, *copies]):
        pair = PairCounts(*key, num_neighbours=neighbours[key])
        each = copies.get(key)
        if each is not None and _fits(each):
            pair = PairCounts(
                *(*key, neighbours[key], tuple(each.by_seconds), tuple(each.by_bytes), each.seconds, each.num_bytes)
            )
        counts.append(pair)
    return counts


def _fits(copies: worker_pb2.TransferCopies) -> bool:
    wanted = len(COPY_SECONDS_BUCKETS) + 1, len(COPY_BYTES_BUCKETS) + 1
    return (len(copies.by_seconds), len(copies.by_bytes)) == wanted
