"""What encoders have answered, counted; and which of their work was done before elsewhere."""

import time
from collections import OrderedDict
from collections.abc import Sequence

from triptych.errors import Cancelled, Draining, TriptychError
from triptych.journey import Item
from triptych.metrics import RouterMetrics
from triptych.pb import encoder_pb2

MOST_DIGESTS = 32_768  # of items encoded last: some megabytes


class EncodeBooks:
    """One router's: a duplicate is an item that one worker has encoded and then another, as far as the router knows.

    That the same worker encodes an item again, having had to make room or having been restarted, is none. What other
    routers have let encode is not known here, and of very many items only the latest are.
    """

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics
        self._encoded_by: OrderedDict[bytes, str] = OrderedDict()  # who encoded an item last, by its digest

    def answered(self, worker_id: str, items: Sequence[Item], reply: encoder_pb2.EncodeReply, asked_at: float) -> None:
        """items: of the request; asked_at: on time.perf_counter"""
        if reply.item_index >= len(items):
            return
        item = items[reply.item_index]
        modality = item.modality
        if reply.HasField("failure"):
            self._metrics.count("triptych:encoder_requests_total", modality=modality, status="failed")
            return
        status = "cached" if reply.cached else "encoded"
        self._metrics.count("triptych:encoder_requests_total", modality=modality, status=status)
        lasted = time.perf_counter() - asked_at
        self._metrics.observe("triptych:encoder_request_e2e_latency_seconds", lasted, modality=modality)
        if not reply.cached:
            self._note(worker_id, item.digest)

    def held(self, items: Sequence[Item], indexes: Sequence[int]) -> None:
        """Items of a request whose rows the prefill worker had itself: no encoder was asked."""
        for index in indexes:
            self._metrics.count("triptych:encoder_requests_total", modality=items[index].modality, status="cached")

    def unanswered(self, items: Sequence[Item], error: TriptychError) -> None:
        """An encoder's call has failed without a word of these items; one that drains has not begun with them."""
        if not isinstance(error, Draining | Cancelled):
            for item in items:
                self._metrics.count("triptych:encoder_requests_total", modality=item.modality, status="failed")

    def failed(self, error: TriptychError) -> None:
        """An encoder's failure, whether or not another try mends it."""
        self._metrics.count("triptych:stage_errors_total", stage="encode", error=type(error).__name__)

    def _note(self, worker_id: str, digest: bytes) -> None:
        last = self._encoded_by.get(digest, worker_id)
        self._encoded_by[digest] = worker_id
        self._encoded_by.move_to_end(digest)
        if last != worker_id:
            self._metrics.count("triptych:encoder_duplicate_encodes_total")
        while len(self._encoded_by) > MOST_DIGESTS:
            self._encoded_by.popitem(last=False)
