"""What encoders have answered, and which of their work was done elsewhere before."""

import pytest

from tests.metrics.test_books import samples
from triptych.errors import Draining, WorkerLost
from triptych.journey import Grid, Item, Modality, Run
from triptych.metrics import RouterMetrics
from triptych.pb import common_pb2, encoder_pb2
from triptych.router.observe import encode_books
from triptych.router.observe.encode_books import EncodeBooks


def item(number: int) -> Item:
    digest = number.to_bytes(32, "big")
    return Item(0, digest, Modality.IMAGE, 28, 28, Grid(1, 2, 2), 4, 1, (Run(1, 1),), Run(0, 3), 0)


def reply(*, cached: bool = False, failed: bool = False) -> encoder_pb2.EncodeReply:
    if failed:
        return encoder_pb2.EncodeReply(item_index=0, failure=common_pb2.Failure(error="InvalidMedia"))
    return encoder_pb2.EncodeReply(item_index=0, ref=common_pb2.EmbeddingRef(), cached=cached)


def duplicates(metrics: RouterMetrics) -> float:
    return samples(metrics.expose())["triptych:encoder_duplicate_encodes_total{}"]


def test_a_duplicate_is_what_another_worker_has_encoded_before() -> None:
    metrics = RouterMetrics()
    books = EncodeBooks(metrics)
    books.answered("encode-0", [item(1)], reply(), 0.0)
    books.answered("encode-0", [item(1)], reply(), 0.0)  # it had to make room meanwhile
    books.answered("encode-1", [item(1)], reply(cached=True), 0.0)
    books.answered("encode-1", [item(1)], reply(failed=True), 0.0)
    books.answered("encode-1", [item(2)], reply(), 0.0)
    assert duplicates(metrics) == 0
    for _ in range(2):  # the second time it has made room for others as well
        books.answered("encode-1", [item(1)], reply(), 0.0)
        assert duplicates(metrics) == 1
    found = samples(metrics.expose())
    counts = {
        status: found[f"triptych:encoder_requests_total{{modality=image,status={status}}}"] for status in STATUSES
    }
    assert counts == {"encoded": 5, "cached": 1, "failed": 1}


def test_whoever_drains_has_failed_nobody_and_whoever_dies_all_that_waited_for_it() -> None:
    metrics = RouterMetrics()
    books = EncodeBooks(metrics)
    books.unanswered([item(1), item(2)], Draining("it goes"))
    failed = "triptych:encoder_requests_total{modality=image,status=failed}"
    assert samples(metrics.expose())[failed] == 0
    books.unanswered([item(1), item(2)], WorkerLost("it is gone"))
    assert samples(metrics.expose())[failed] == 2


STATUSES = ("encoded", "cached", "failed")


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_books, "MOST_DIGESTS", 3)
    metrics = RouterMetrics()
    books = EncodeBooks(metrics)
    for number in range(4):
        books.answered("encode-0", [item(number)], reply(), 0.0)
    assert len(books._encoded_by) == 3
    books.answered("encode-1", [item(0)], reply(), 0.0)
    assert duplicates(metrics) == 0
    books.answered("encode-1", [item(2)], reply(), 0.0)
    assert duplicates(metrics) == 1
