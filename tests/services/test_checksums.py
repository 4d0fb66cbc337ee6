"""Refs carry checksums where a request wants them, also of a worker that is not told to make any."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.conftest import SECRET
from triptych import wire
from triptych.journey import Endpoint, new_request_id
from triptych.models.card import load_card
from triptych.multimodal.digest import item_digest, source_digest
from triptych.multimodal.layout import TextPart, lay_out
from triptych.pb import common_pb2, encoder_pb2, prefill_pb2
from triptych.pb.encoder_pb2_grpc import EncoderStub
from triptych.pb.prefill_pb2_grpc import PrefillStub
from triptych.router.pipeline.self_test import picture
from triptych.sampling import Sampling
from triptych.wire.membership import Membership

SECONDS = 30.0
LEASE_MS = 1000
CARD = load_card("tiny-vl", "auto")


def envelope(worker: Endpoint, checksums: bool) -> common_pb2.Envelope:
    made = wire.envelope(new_request_id(), 0, "test-router", worker.incarnation, SECONDS, CARD.fingerprint)
    made.checksums = checksums
    return made


@pytest.mark.parametrize("wanted", [False, True])
def test_rows_are_summed_up_for_whoever_asks(worker: Endpoint, wanted: bool) -> None:
    data = picture()
    digest = source_digest(data)
    salt = bytes([wanted]) * 32  # or the second finds the rows of the first
    part = CARD.adapter.part(
        CARD.adapter.plan(112, 84, {}), item_digest(digest, {}, CARD.fingerprint, salt), 112, 84, 0
    )
    (item,) = lay_out([TextPart((11,)), part]).items
    start = encoder_pb2.EncodeStart(
        envelope=envelope(worker, wanted),
        items=[wire.item_to_pb(item)],
        media=[encoder_pb2.MediaSource(index=0, num_bytes=len(data), digest=digest)],
        lease_ms=LEASE_MS,
    )
    chunk = encoder_pb2.MediaChunk(media=0, data=data)
    requests = [encoder_pb2.EncodeRequest(start=start), encoder_pb2.EncodeRequest(chunk=chunk)]
    with Membership(SECRET).channel(worker.address) as channel:
        (replies,) = EncoderStub(channel).Encode(iter(requests), timeout=SECONDS)  # type: ignore[no-untyped-call]
    (reply,) = replies.replies
    assert reply.ref.rows == item.rows
    assert bool(reply.ref.checksum) is wanted


@pytest.mark.parametrize("wanted", [False, True])
def test_kv_is_summed_up_for_whoever_asks(worker: Endpoint, wanted: bool) -> None:
    start = prefill_pb2.PrefillStart(
        envelope=envelope(worker, wanted),
        layout=wire.layout_to_pb(lay_out([TextPart(tuple(range(11, 51)))])),
        sampling=wire.sampling_to_pb(Sampling(temperature=0, max_tokens=2)),
        branches=1,
        decode_follows=True,
        lease_ms=LEASE_MS,
    )
    done = threading.Event()

    def requests() -> Iterator[Any]:
        yield prefill_pb2.PrefillRequest(start=start)
        done.wait(SECONDS)  # a router keeps the stream open while it waits

    with Membership(SECRET).channel(worker.address) as channel:
        replies = list(PrefillStub(channel).Prefill(requests(), timeout=SECONDS))  # type: ignore[no-untyped-call]
        done.set()
    refs = [ref for reply in replies for ref in reply.kv]
    assert sum(len(ref.block_ids) for ref in refs) == 3
    assert {bool(ref.checksum) for ref in refs} == {wanted}
