"""What one line of the list of metrics says, and the buckets that several lines share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

PREFIX = "triptych:"
OTHER = "other"  # what a label says in place of a value that the list does not know

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
# From a step of the router to a stage of the longest request that its whole time is told of, above.
STAGE_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1920.0, 7680.0),
)
COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
BATCH_ITEMS_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
BATCH_ROWS_BUCKETS = tuple(float(4**power) for power in range(2, 9))  # 16 to 65,536
TOKEN_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))[:16]  # 1 to 100,000
COPY_SECONDS_BUCKETS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
)
COPY_BYTES_BUCKETS = tuple(float(4**power) for power in range(5, 16))  # 1 KiB to 1 GiB


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the list.

    kind: counter, gauge or histogram
    values: what a label may say, where that is a closed set; anything else is told as `other`
    among_routers: what a gauge is where several processes have it: the sum of those that live, or what was said last
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    among_routers: str = "livesum"


@dataclass(frozen=True, slots=True)
class WorkerMetric:
    """One line of what workers tell in StatusReply.gauges, each for itself.

    name: as the worker tells it
    exposed_as: the metric's name without the prefix, where it is another
    """

    name: str
    kind: str
    help: str
    exposed_as: str = ""

    @property
    def exposed_name(self) -> str:
        return PREFIX + (self.exposed_as or self.name)
