"""Which path leads to each neighbour, why no nearer one does, and how much has come by it. For status and metrics.

Thread-safe, no torch. What is kept is bounded: one entry for each arena of the neighbours met last, one set of counts
for each edge and transport.
"""

import bisect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from triptych.journey import Endpoint, Role
from triptych.metrics import COPY_BYTES_BUCKETS, COPY_SECONDS_BUCKETS
from triptych.transfer.arena import ArenaInfo

log = logging.getLogger(__name__)

NO_TRANSPORT = "none"

# What lies in an arena says who made it and who reads it.
ROLES_BY_KIND = {"embedding": (Role.ENCODE, Role.PREFILL), "kv": (Role.PREFILL, Role.DECODE)}

_MOST_ARENAS = 256


@dataclass(frozen=True, slots=True)
class TransferPath:
    """How this worker reads one arena of one neighbour; transport `none` where no path leads there."""

    owner: Endpoint
    kind: str  # embedding, kv
    transport: str
    refused: tuple[str, ...]  # nearer transports, each with its reason


@dataclass(slots=True)
class CopyCounts:
    """Finished copies out of arenas of one kind by one transport, as a histogram of seconds and one of bytes.

    Counts are not cumulative; the last of each is of what is beyond the largest bucket.
    """

    kind: str
    transport: str
    by_seconds: list[int] = field(default_factory=lambda: [0] * (len(COPY_SECONDS_BUCKETS) + 1))
    by_bytes: list[int] = field(default_factory=lambda: [0] * (len(COPY_BYTES_BUCKETS) + 1))
    seconds: float = 0.0  # of all copies together
    num_bytes: int = 0

    def add(self, num_bytes: int, seconds: float) -> None:
        self.by_seconds[bisect.bisect_left(COPY_SECONDS_BUCKETS, seconds)] += 1
        self.by_bytes[bisect.bisect_left(COPY_BYTES_BUCKETS, num_bytes)] += 1
        self.seconds += seconds
        self.num_bytes += num_bytes


class TransferFigures:
    """One reader's. Told of neighbours met, arenas opened or not, copies finished."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: OrderedDict[bytes, Endpoint] = OrderedDict()  # by the arena's probe, which no two arenas share
        self._paths: dict[bytes, TransferPath] = {}
        self._copies: dict[tuple[str, str], CopyCounts] = {}
        self.num_failed = 0  # copies that a neighbour or the way to it is to blame for
        # Copies that were given up and have not ended; asking also lets go of those that have. The reader's to answer.
        self.num_lost: Callable[[], int] = lambda: 0

    def met(self, owner: Endpoint, arenas: Sequence[ArenaInfo]) -> None:
        """These are the neighbour's arenas; whoever had its address before is gone."""
        with self._lock:
            for probe, other in list(self._owners.items()):
                if other.address == owner.address and other.incarnation != owner.incarnation:
                    self._drop(probe)
            for arena in arenas:
                self._owners[arena.probe] = owner
                self._owners.move_to_end(arena.probe)
            while len(self._owners) > _MOST_ARENAS:
                self._drop(next(iter(self._owners)))

    def tried(self, arena: ArenaInfo, transport: str, refused: Sequence[str]) -> None:
        """The path taken to an arena, `none` if there is none; logged when it is news, not again with every request."""
        with self._lock:
            owner = self._owners.get(arena.probe)
            if owner is None:
                return
            path = TransferPath(owner, arena.kind, transport, tuple(refused))
            news = self._paths.get(arena.probe) != path
            self._paths[arena.probe] = path
        if news:
            log_path(arena, transport, refused, of=f" of {owner.address}")

    def forgotten(self, owner: Endpoint) -> None:
        """Its arenas are closed. That no path leads to one stays known until a path does, or another owner comes."""
        with self._lock:
            for probe, path in list(self._paths.items()):
                if path.owner == owner and path.transport != NO_TRANSPORT:
                    self._drop(probe)

    def copied(self, kind: str, transport: str, num_bytes: int, seconds: float) -> None:
        """A copy came whole and was true to its claim."""
        if kind not in ROLES_BY_KIND:
            return
        with self._lock:
            key = kind, transport
            counts = self._copies.get(key)
            if counts is None:
                counts = self._copies[key] = CopyCounts(kind, transport)
            counts.add(num_bytes, seconds)

    def failed(self) -> None:
        """A copy did not come, or not whole: its owner is gone, or the way to it broke."""
        with self._lock:
            self.num_failed += 1

    def paths(self) -> list[TransferPath]:
        """To arenas that tiers read, in the order in which the neighbours were met."""
        with self._lock:
            found = [self._paths[probe] for probe in self._owners if probe in self._paths]
        return [path for path in found if path.kind in ROLES_BY_KIND]

    def copies(self) -> list[CopyCounts]:
        with self._lock:
            return [
                replace(counts, by_seconds=list(counts.by_seconds), by_bytes=list(counts.by_bytes))
                for counts in self._copies.values()
            ]

    def _drop(self, probe: bytes) -> None:
        self._owners.pop(probe, None)
        self._paths.pop(probe, None)


def log_path(arena: ArenaInfo, transport: str, refused: Sequence[str], of: str = "") -> None:
    """The path taken to an arena, or none, and what was tried before it."""
    reasons = "; ".join(refused) or "first choice"
    if transport == NO_TRANSPORT:
        log.warning("no transport reaches %s arena %d%s: %s", arena.kind, arena.id, of, reasons)
    else:
        log.info("%s arena %d opened by %s%s (%s)", arena.kind, arena.id, transport, of, reasons)
