"""How this worker reads from its neighbours, as messages for Status."""

from collections.abc import Iterable

from triptych.pb import worker_pb2 as pb
from triptych.transfer.figures import ROLES_BY_KIND, CopyCounts, TransferPath


def paths_to_pb(paths: Iterable[TransferPath]) -> list[pb.TransferPath]:
    return [
        pb.TransferPath(
            owner=path.owner.address,
            owner_role=ROLES_BY_KIND[path.kind][0].value,
            consumer_role=ROLES_BY_KIND[path.kind][1].value,
            transport=path.transport,
            refused=path.refused,
        )
        for path in paths
    ]


def copies_to_pb(counts: Iterable[CopyCounts]) -> list[pb.TransferCopies]:
    return [
        pb.TransferCopies(
            owner_role=ROLES_BY_KIND[each.kind][0].value,
            consumer_role=ROLES_BY_KIND[each.kind][1].value,
            transport=each.transport,
            by_seconds=each.by_seconds,
            by_bytes=each.by_bytes,
            seconds=each.seconds,
            num_bytes=each.num_bytes,
        )
        for each in counts
    ]
