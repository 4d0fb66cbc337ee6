"""Two workers meet: KV that can be repacked is welcome, other KV is refused with the reason, whoever notices first."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch

from triptych import wire
from triptych.config import Settings
from triptych.errors import TransferFailed
from triptych.journey import Endpoint
from triptych.models.card import load_card
from triptych.pb import worker_pb2, worker_pb2_grpc
from triptych.services.guard import Door
from triptych.services.peers import Peers, kv_format_from_pb, kv_format_to_pb
from triptych.services.site import Site
from triptych.services.worker_service import WorkerService
from triptych.transfer.kv_format import KVFormat
from triptych.transfer.leases import LeaseTable

CPU = torch.device("cpu")
THEIRS = KVFormat(28, 16, 2, 128, "bfloat16", 2, 4)
CARD = load_card("tiny-vl", "auto")


class _Older(worker_pb2_grpc.WorkerServicer):
    """A worker that leaves the judgement to whoever asks."""

    async def Connect(self, request: worker_pb2.ConnectRequest, context: Any) -> worker_pb2.ConnectReply:
        return worker_pb2.ConnectReply(protocol=wire.PROTOCOL, kv_format=kv_format_to_pb(THEIRS))


@pytest.fixture(params=["the owner judges", "the consumer judges"])
def owner(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[Endpoint, grpc.aio.Server]:
        server = grpc.aio.server(options=wire.CHANNEL_OPTIONS)
        endpoint = Endpoint(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", 7)
        door = Door(endpoint.incarnation, CARD.fingerprint, 300.0)
        site = Site("p0", endpoint, CARD, CPU, torch.float32, Settings(), door)
        service = WorkerService(site, [], THEIRS) if request.param == "the owner judges" else _Older()
        worker_pb2_grpc.add_WorkerServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        await server.start()
        return endpoint, server

    endpoint, server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    yield endpoint
    asyncio.run_coroutine_threadsafe(server.stop(grace=0), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)


def meet(owner: Endpoint, mine: KVFormat | None) -> KVFormat | None:
    peers = Peers(Endpoint("127.0.0.1:1", 3), CARD.fingerprint, mine, LeaseTable())
    try:
        peers.connect(owner)
        return peers.kv_format(owner)
    finally:
        peers.close()


@pytest.mark.parametrize("form", [THEIRS, replace(THEIRS, dtype="float8_e4m3fn", scaling="0123456789abcdef")], ids=str)
def test_a_format_survives_the_wire(form: KVFormat) -> None:
    assert kv_format_from_pb(kv_format_to_pb(form)) == form


@pytest.mark.parametrize(
    "mine",
    [THEIRS, replace(THEIRS, block_size=24), replace(THEIRS, heads=4, first_head=0), None],
    ids=["equal", "other blocks", "all heads", "none, as it takes rows"],
)
def test_workers_whose_kv_can_be_repacked_know_of_each_other(owner: Endpoint, mine: KVFormat | None) -> None:
    assert meet(owner, mine) == THEIRS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float8_e4m3fn"}, "dtypes bfloat16 there and float8_e4m3fn here"),
        ({"layers": 36, "head_size": 64}, "layers 28 there and 36 here, head sizes 128 there and 64 here"),
        ({"total_heads": 8}, "heads of the model 4 there and 8 here"),
        ({"scaling": "b1ec"}, "scales none there and b1ec here"),
    ],
    ids=["dtype", "layers and head size", "heads", "scales"],
)
def test_workers_whose_kv_cannot_be_repacked_refuse_each_other(
    owner: Endpoint, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TransferFailed, match=f"KV cannot be repacked: {reason}"):
        meet(owner, replace(THEIRS, **change))
