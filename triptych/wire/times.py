"""When a worker's stages went on, told without its clock: seconds since the call had reached it."""

from collections.abc import Iterable

from triptych.pb import common_pb2
from triptych.stages import StageSpan


def stage_times_to_pb(spans: Iterable[StageSpan], arrived: float) -> list[common_pb2.StageTime]:
    """arrived: when the call came, on the spans' clock"""
    return [
        common_pb2.StageTime(
            stage=span.stage,
            seconds=span.end - span.begin,
            begin=span.begin - arrived,
            item_index=span.item if span.item >= 0 else None,
        )
        for span in spans
    ]
