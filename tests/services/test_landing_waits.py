"""Requests whose KV does not come wait at a decode worker without holding up what others ask of it."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from triptych import wire
from triptych.cluster.roles import BUILDERS
from triptych.config import MIB, LanguageSettings, ServeSettings, Settings
from triptych.journey import BlockRef, Endpoint, KVRef, Role, Shard, Token, new_claim_id, new_request_id
from triptych.models.card import load_card
from triptych.multimodal.layout import TextPart, lay_out
from triptych.pb import decode_pb2, worker_pb2
from triptych.pb.common_pb2 import Envelope
from triptych.pb.decode_pb2_grpc import DecodeStub
from triptych.pb.worker_pb2_grpc import WorkerServicer, WorkerStub, add_WorkerServicer_to_server
from triptych.sampling import Sampling
from triptych.services.host import Placement, WorkerHost

LAYOUT = lay_out([TextPart(tuple(range(5, 13)))])
SETTINGS = Settings(serve=ServeSettings(model="tiny-vl", device="cpu"), language=LanguageSettings(kv_bytes=32 * MIB))
MOST_THREADS = min(32, (os.cpu_count() or 1) + 4)  # of an event loop's own pool
SECONDS = 60.0


@pytest.fixture
def decode() -> Iterator[Endpoint]:
    host = WorkerHost(Placement("d0", frozenset({Role.DECODE}), device="cpu"), BUILDERS, SETTINGS)
    yield host.start()
    host.stop()


class _Silent(WorkerServicer):
    """Takes calls and says nothing."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def Connect(self, request: worker_pb2.ConnectRequest, context: Any) -> worker_pb2.ConnectReply:
        self.over.wait(SECONDS)
        return worker_pb2.ConnectReply()


@pytest.fixture
def silent() -> Iterator[Endpoint]:
    server, servicer = grpc.server(ThreadPoolExecutor(4)), _Silent()
    add_WorkerServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Endpoint(f"127.0.0.1:{port}", 9)
    servicer.over.set()
    server.stop(grace=None).wait()


def test_a_silent_owner_does_not_take_up_the_threads_of_a_decode_worker(decode: Endpoint, silent: Endpoint) -> None:
    fingerprint = load_card("tiny-vl", "auto").fingerprint

    def envelope() -> Envelope:
        return wire.envelope(new_request_id(), 1, "r0", decode.incarnation, SECONDS, fingerprint)

    with grpc.insecure_channel(decode.address) as channel:
        stub = DecodeStub(channel)  # type: ignore[no-untyped-call]
        attached = stub.Attach(decode_pb2.AttachRequest(envelope=envelope()))
        next(attached)
        given = [threading.Event() for _ in range(MOST_THREADS)]
        waiting = [stub.Decode.future(_requests(stub, envelope(), silent, event)) for event in given]
        assert all(event.wait(SECONDS) for event in given)
        status = WorkerStub(channel).Status  # type: ignore[no-untyped-call]
        assert status(worker_pb2.StatusRequest(check_invariants=True), timeout=2.0).violation == ""
        for call in waiting:
            assert not call.done()
            call.cancel()
        attached.cancel()


def _requests(
    stub: DecodeStub, envelope: Envelope, owner: Endpoint, given: threading.Event
) -> Iterator[decode_pb2.DecodeRequest]:
    tokens = LAYOUT.num_tokens
    stub.Reserve(decode_pb2.ReserveRequest(envelope=envelope, prompt_tokens=tokens, max_tokens=4, branches=1))
    start = decode_pb2.DecodeStart(
        envelope=envelope, layout=wire.layout_to_pb(LAYOUT), sampling=wire.sampling_to_pb(Sampling()), branches=1
    )
    yield decode_pb2.DecodeRequest(start=start)
    ref = KVRef(
        claim_id=new_claim_id(),
        owner=owner,
        blocks=(BlockRef(0, 1),),
        tokens_begin=0,
        tokens_end=tokens,
        shards=(Shard(rank=0, arena=2, offset=0),),
        dtype="float32",
        kv_layout=bytes(32),
        lease_seconds=30.0,
    )
    yield decode_pb2.DecodeRequest(kv=[wire.kv_ref_to_pb(ref)])
    first = wire.token_to_pb(Token(id=7, logprob=0.0, choice=0, position=0))
    yield decode_pb2.DecodeRequest(first=decode_pb2.FirstTokenList(tokens=[first]))
    given.set()
