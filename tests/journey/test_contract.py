"""Tiers distrust one another: corrupted layouts and rows are refused, media arrive whole by either way."""

import io
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from blake3 import blake3
from PIL import Image

from tests.journey.clusters import Running, Variation
from tests.journey.conversations import picture, png
from tests.journey.messages import image, user
from triptych import wire
from triptych.config import TOPOLOGIES
from triptych.journey import Item, Layout, Modality, Role, new_request_id
from triptych.models.card import ModelCard, load_card
from triptych.multimodal.digest import item_digest, source_digest
from triptych.multimodal.layout import TextPart, lay_out
from triptych.pb import common_pb2, decode_pb2, encoder_pb2, prefill_pb2, worker_pb2
from triptych.pb.decode_pb2_grpc import DecodeStub
from triptych.pb.encoder_pb2_grpc import EncoderStub
from triptych.pb.prefill_pb2_grpc import PrefillStub
from triptych.pb.worker_pb2_grpc import WorkerStub
from triptych.sampling import Sampling

CALL_SECONDS = 20.0
PIXELS = picture(21, (112, 84))


class Caller:
    """Speaks to one worker as a router would."""

    def __init__(self, cluster: Running, role: Role, card: ModelCard) -> None:
        address = next(address for address in cluster.addresses() if role in address.roles)
        self.channel = cluster.membership.channel(address.endpoint.address)
        self.incarnation = address.endpoint.incarnation
        self.card = card
        self.request_id = new_request_id()

    def envelope(self, **changed: Any) -> Any:
        envelope = wire.envelope(
            self.request_id, 0, "test-router", self.incarnation, CALL_SECONDS, self.card.fingerprint
        )
        for name, value in changed.items():
            setattr(envelope, name, value)
        return envelope

    def encode(self, item: Item, data: bytes, digest: bytes | None = None, lease_ms: int = 5000) -> list[Any]:
        source = encoder_pb2.MediaSource(index=item.media, num_bytes=len(data), digest=digest or blake3(data).digest())
        start = encoder_pb2.EncodeStart(
            envelope=self.envelope(), items=[wire.item_to_pb(item)], media=[source], lease_ms=lease_ms
        )
        pieces = range(0, len(data), wire.MEDIA_CHUNK_BYTES)
        chunks = (
            encoder_pb2.EncodeRequest(
                chunk=encoder_pb2.MediaChunk(media=item.media, offset=at, data=data[at : at + wire.MEDIA_CHUNK_BYTES])
            )
            for at in pieces
        )
        requests = itertools.chain([encoder_pb2.EncodeRequest(start=start)], chunks)
        answers = EncoderStub(self.channel).Encode(requests, timeout=CALL_SECONDS)
        return [reply for answer in answers for reply in answer.replies]

    def prefill(self, layout: Any, items: Sequence[Any] = (), salt: bytes = b"", **changed: Any) -> list[Any]:
        start = prefill_pb2.PrefillStart(
            envelope=self.envelope(**changed),
            layout=layout,
            sampling=wire.sampling_to_pb(Sampling(temperature=0, max_tokens=1)),
            branches=1,
            lease_ms=5000,
            cache_salt=salt,
        )
        accepted = threading.Event()

        def requests() -> Iterator[Any]:
            yield prefill_pb2.PrefillRequest(start=start)
            if accepted.wait(CALL_SECONDS):
                for item in items:
                    yield prefill_pb2.PrefillRequest(items=[item])
            time.sleep(0.5)  # a router keeps the stream open while it waits

        replies = []
        try:
            for reply in PrefillStub(self.channel).Prefill(requests(), timeout=CALL_SECONDS):
                replies.append(reply)
                accepted.set()
        finally:
            accepted.set()
        return replies

    def release(self, claims: Sequence[bytes]) -> None:
        request = worker_pb2.ReleaseRequest(envelope=self.envelope(), claim_ids=claims)
        WorkerStub(self.channel).Release(request, timeout=CALL_SECONDS)


@pytest.fixture(scope="module")
def card(checkpoint_folders: dict[str, Path]) -> ModelCard:
    return load_card(str(checkpoint_folders["random"]), "auto")


def layout_with_image(card: ModelCard, data: bytes) -> Layout:
    width, height = PIXELS.size
    plan = card.adapter.plan(width, height, {})
    digest = item_digest(source_digest(data), {}, card.fingerprint)
    part = card.adapter.part(plan, digest, width, height, 0)
    return lay_out([TextPart((11, 12, 13)), part, TextPart((14, 15))])


def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def test_a_corrupted_layout_is_refused_by_prefill(cluster: Running, card: ModelCard) -> None:
    caller = Caller(cluster, Role.PREFILL, card)
    message = wire.layout_to_pb(lay_out([TextPart((11, 12, 13, 14))]))
    message.token_ids = wire.tokens_to_bytes([11, 12, 99, 14])
    code, words = refusal(lambda: caller.prefill(message))
    assert code is grpc.StatusCode.DATA_LOSS
    assert "layout" in words.lower()
    assert cluster.seconds_until_idle(5) < 5


def test_a_corrupted_layout_is_refused_by_decode(cluster: Running, card: ModelCard) -> None:
    caller = Caller(cluster, Role.DECODE, card)
    stub = DecodeStub(caller.channel)
    attached = stub.Attach(decode_pb2.AttachRequest(envelope=caller.envelope()), timeout=CALL_SECONDS)
    next(attached)
    request = decode_pb2.ReserveRequest(envelope=caller.envelope(), prompt_tokens=4, max_tokens=4, branches=1)
    stub.Reserve(request, timeout=CALL_SECONDS)
    message = wire.layout_to_pb(lay_out([TextPart((11, 12, 13, 14))]))
    message.rope[0].base_h = 7
    start = decode_pb2.DecodeStart(envelope=caller.envelope(), layout=message, branches=1)
    start.sampling.CopyFrom(wire.sampling_to_pb(Sampling(temperature=0, max_tokens=4)))
    token = common_pb2.Token(id=5)
    parts = [
        decode_pb2.DecodeRequest(start=start),
        decode_pb2.DecodeRequest(first=decode_pb2.FirstTokenList(tokens=[token])),
    ]
    code, words = refusal(lambda: stub.Decode(iter(parts), timeout=CALL_SECONDS))
    assert code is grpc.StatusCode.DATA_LOSS
    assert "layout" in words.lower()
    attached.cancel()
    cluster.seconds_until_idle(5)


def test_rows_that_do_not_fit_the_layout_are_refused(cluster: Running, card: ModelCard) -> None:
    data = png(PIXELS)
    layout = layout_with_image(card, data)
    encoder, prefill = Caller(cluster, Role.ENCODE, card), Caller(cluster, Role.PREFILL, card)
    (reply,) = encoder.encode(layout.items[0], data)
    ref = reply.ref
    assert ref.rows == layout.items[0].rows, reply.failure
    ref.rows -= 1
    item = prefill_pb2.ItemRef(item_index=0, ref=ref)
    code, words = refusal(lambda: prefill.prefill(wire.layout_to_pb(layout), [item]))
    assert code is grpc.StatusCode.DATA_LOSS
    assert str(ref.rows) in words
    assert str(layout.items[0].rows) in words
    encoder.release([ref.claim_id])
    cluster.seconds_until_idle(5)


def test_a_claim_that_was_released_is_an_error_not_data(cluster: Running, card: ModelCard) -> None:
    """Rows whose memory was given to another item in between must not be read as the old ones."""
    data = png(PIXELS)
    layout = layout_with_image(card, data)
    encoder, prefill = Caller(cluster, Role.ENCODE, card), Caller(cluster, Role.PREFILL, card)
    (reply,) = encoder.encode(layout.items[0], data)
    encoder.release([reply.ref.claim_id])
    reply.ref.generation += 1  # as if the extent had been given out once more
    item = prefill_pb2.ItemRef(item_index=0, ref=reply.ref)
    code, _ = refusal(lambda: prefill.prefill(wire.layout_to_pb(layout), [item]))
    assert code is grpc.StatusCode.ABORTED
    cluster.seconds_until_idle(5)


def test_rows_of_an_item_that_the_prompt_has_not_are_refused_and_given_back(cluster: Running, card: ModelCard) -> None:
    data = png(PIXELS)
    layout = layout_with_image(card, data)
    encoder, prefill = Caller(cluster, Role.ENCODE, card), Caller(cluster, Role.PREFILL, card)
    (reply,) = encoder.encode(layout.items[0], data)
    item = prefill_pb2.ItemRef(item_index=1, ref=reply.ref)
    code, words = refusal(lambda: prefill.prefill(wire.layout_to_pb(layout), [item]))
    assert code is grpc.StatusCode.DATA_LOSS
    assert words == "rows came for item 1, the prompt has 1 items"
    cluster.seconds_until_idle(2)  # the claim's lease is longer


def test_cached_kv_is_found_under_its_own_salt_alone_and_rows_sent_for_it_are_given_back(
    cluster: Running, card: ModelCard
) -> None:
    """The second picture is always new: until its rows are there the call cannot end, so it has read the first's."""
    encoder, prefill = Caller(cluster, Role.ENCODE, card), Caller(cluster, Role.PREFILL, card)

    def ask(pictures: Sequence[bytes], salt: bytes) -> tuple[list[int], int, int, int]:
        """Granted items, cached tokens of how many at most, and the first token. Rows of every item are sent."""
        parts = [
            card.adapter.part(
                card.adapter.plan(112, 84, {}), item_digest(source_digest(data), {}, card.fingerprint), 112, 84, index
            )
            for index, data in enumerate(pictures)
        ]
        text = TextPart(tuple(range(40, 80)))
        layout = lay_out([TextPart(tuple(range(11, 31))), parts[0], text, parts[1], text])
        refs = [encoder.encode(item, data)[0].ref for item, data in zip(layout.items, pictures, strict=True)]
        items = [prefill_pb2.ItemRef(item_index=index, ref=ref) for index, ref in enumerate(refs)]
        prefill.request_id = new_request_id()
        accepted, *_, last = prefill.prefill(wire.layout_to_pb(layout), items, salt)
        assert not accepted.accepted.more
        assert accepted.accepted.cached_tokens == last.first.cached_tokens
        shared = layout.items[1].runs[0].start // 16 * 16
        assert layout.items[0].runs[-1].end <= shared
        return list(accepted.accepted.items), last.first.cached_tokens, shared, last.first.tokens[0].id

    first = png(picture(22, (112, 84)))
    found, alone = [], []
    for number, salt in enumerate((b"one", b"one", b"two", b"", b"two")):
        pictures = (first, png(picture(30 + number, (112, 84))))
        found.append(ask(pictures, salt))
        alone.append(ask(pictures, b"alone %d" % number))
    shared = found[0][2]
    new, cached = ([0, 1], 0), ([1], shared)
    assert [entry[:2] for entry in found] == [new, cached, new, new, cached]
    assert [entry[:2] for entry in alone] == [new] * 5
    assert [entry[3] for entry in found] == [entry[3] for entry in alone]
    cluster.seconds_until_idle(2)  # a claim's lease is longer


@pytest.mark.parametrize("cluster", [Variation("epd")], indirect=True, ids=str)
def test_rows_that_the_same_process_has_are_asked_of_nobody(cluster: Running, card: ModelCard) -> None:
    """A prefill worker that encodes, too, says which of a window's items those are, and takes them by itself."""
    data = png(picture(41, (112, 84)))
    layout, told = layout_with_image(card, data), wire.layout_to_pb(layout_with_image(card, data))
    caller = Caller(cluster, Role.ENCODE, card)
    ref = caller.encode(layout.items[0], data)[0].ref
    given = caller.prefill(told, [prefill_pb2.ItemRef(item_index=0, ref=ref)], b"one", checksums=True)
    assert (list(given[0].accepted.items), list(given[0].accepted.held)) == ([0], [])
    caller.request_id = new_request_id()
    held = caller.prefill(told, (), b"two")
    assert (list(held[0].accepted.items), list(held[0].accepted.held)) == ([], [0])
    assert held[-1].first.tokens == given[-1].first.tokens
    cluster.seconds_until_idle(5)


def test_no_claim_outlives_what_its_owner_is_willing_to_wait(cluster: Running, card: ModelCard) -> None:
    data = png(PIXELS)
    caller = Caller(cluster, Role.ENCODE, card)
    (reply,) = caller.encode(layout_with_image(card, data).items[0], data, lease_ms=2**32 - 1)
    assert reply.ref.lease_ms <= 10 * 1000 * cluster.settings.transfer.lease_seconds
    caller.release([reply.ref.claim_id])
    code, words = refusal(lambda: caller.encode(layout_with_image(card, data).items[0], data, lease_ms=0))
    assert code is not grpc.StatusCode.OK
    assert "lease" in words
    cluster.seconds_until_idle(5)


def test_a_caller_that_means_another_process_or_model_is_refused(cluster: Running, card: ModelCard) -> None:
    caller = Caller(cluster, Role.PREFILL, card)
    message = wire.layout_to_pb(lay_out([TextPart((11, 12))]))
    for changed in ({"worker_incarnation": 1}, {"model_fingerprint": bytes(32)}):
        code, _ = refusal(lambda changed=changed: caller.prefill(message, **changed))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
    code, _ = refusal(lambda: caller.prefill(message, deadline_ms=0))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_media_in_chunks_give_the_same_rows_and_wrong_bytes_are_refused(cluster: Running, card: ModelCard) -> None:
    data = png(PIXELS)
    item = layout_with_image(card, data).items[0]
    caller = Caller(cluster, Role.ENCODE, card)
    replies = [caller.encode(item, data)[0] for _ in range(2)]
    assert [reply.cached for reply in replies][1]
    caller.release([reply.ref.claim_id for reply in replies])
    other = Item(
        index=0,
        digest=blake3(b"another").digest(),
        modality=Modality.IMAGE,
        width=item.width,
        height=item.height,
        grid=item.grid,
        encoder_tokens=item.encoder_tokens,
        rows=item.rows,
        runs=item.runs,
        span=item.span,
        media=0,
    )
    (failed,) = caller.encode(other, data, digest=bytes(32))
    assert failed.failure.error == "TransferFailed"
    cluster.seconds_until_idle(5)


@pytest.mark.parametrize("cluster", [Variation(topology) for topology in TOPOLOGIES], indirect=True, ids=str)
def test_a_nineteen_megabyte_jpeg_goes_through(cluster: Running) -> None:
    data = big_jpeg(19_000_000)
    small = io.BytesIO()
    Image.open(io.BytesIO(data)).save(small, "PNG")
    big_answer = cluster.answers([user(image(data, "jpeg"), "What?")], 8)[0]
    small_answer = cluster.answers([user(image(small.getvalue()), "What?")], 8)[0]
    assert big_answer.token_ids == small_answer.token_ids


def big_jpeg(num_bytes: int) -> bytes:
    """A JPEG whose application segments make it as big as a camera's raw preview: few pixels, many bytes."""
    out = io.BytesIO()
    PIXELS.save(out, "JPEG", quality=95)
    jpeg = out.getvalue()
    filler = np.random.default_rng(3).integers(0, 255, 65_000, dtype=np.uint8).tobytes()
    segment = b"\xff\xef" + (len(filler) + 2).to_bytes(2, "big") + filler
    return jpeg[:2] + segment * (num_bytes // len(segment)) + jpeg[2:]


def test_the_router_has_neither_torch_nor_a_decoder(cluster: Running) -> None:
    cluster.answers([user(image(png(PIXELS)), "What?")], 4)
    loaded = cluster.supervisor.router_modules()
    assert not loaded & {"torch", "torchvision", "transformers", "PIL", "cv2"}


def test_only_the_weights_of_its_roles_are_in_a_worker(cluster: Running) -> None:
    gauges = {
        address.worker_id: {gauge.name for gauge in cluster.status(address).gauges} for address in cluster.addresses()
    }
    for worker_id, names in gauges.items():
        assert ("kv_blocks" in names) == ("encode" not in worker_id)
        assert ("encoder_arena_bytes" in names) == ("encode" in worker_id)
