"""A claim made ready over a real channel: asked by one worker's peers, answered by another worker's service."""

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
import torch

from triptych import wire
from triptych.config import LanguageSettings, Settings, TransferSettings
from triptych.errors import Cancelled, ClaimExpired, InternalError, WorkerLost
from triptych.journey import ClaimId, Endpoint, RequestId
from triptych.models.card import load_card
from triptych.pb import worker_pb2_grpc
from triptych.services.guard import Door
from triptych.services.peers import Peers
from triptych.services.site import KV_ARENA, STAGING_ARENA, Site
from triptych.services.worker_service import WorkerService
from triptych.transfer.leases import Claimed, LeaseTable
from triptych.transfer.pull import HostCopier
from triptych.transfer.slab import Slab
from triptych.transfer.staging import packed_bytes, words_offset

UNIT_BYTES = 4096
INCARNATION = 7
CPU = torch.device("cpu")
SETTINGS = Settings(transfer=TransferSettings(nixl_staging_bytes=4 << 20), language=LanguageSettings())


@dataclass
class Owner:
    site: Site
    slab: Slab
    endpoint: Endpoint
    loop: asyncio.AbstractEventLoop  # what it answers on

    def grant(self, *units: int) -> ClaimId:
        return self.site.leases.grant(RequestId(bytes(20)), 30.0, lambda: None, Claimed(KV_ARENA, units, 0))


@pytest.fixture
def owner() -> Iterator[Owner]:
    """A worker without roles, answering on a port of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[Owner, grpc.aio.Server]:
        server = grpc.aio.server(options=wire.CHANNEL_OPTIONS)
        endpoint = Endpoint(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", INCARNATION)
        card = load_card("tiny-vl", "auto")
        door = Door(INCARNATION, card.fingerprint, 300.0)
        site = Site("p0", endpoint, card, CPU, torch.float32, SETTINGS, door)
        slab = site.add_slab("kv", KV_ARENA, UNIT_BYTES, 32, asked_by="the test")
        site.start_staging(packs=True)
        worker_pb2_grpc.add_WorkerServicer_to_server(WorkerService(site, [], None), server)  # type: ignore[no-untyped-call]
        await server.start()
        return Owner(site, slab, endpoint, loop), server

    made, server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    yield made
    asyncio.run_coroutine_threadsafe(server.stop(grace=0), loop).result()
    assert made.site.staging is not None
    made.site.staging.stop()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)


@pytest.fixture
def peers(owner: Owner) -> Iterator[Peers]:
    made = Peers(Endpoint("127.0.0.1:1", 3), owner.site.card.fingerprint, None, LeaseTable())
    yield made
    made.close()


def test_scattered_units_are_packed_where_connect_said_the_staging_is(owner: Owner, peers: Peers) -> None:
    units = (9, 3, 30)
    for unit in units:
        owner.slab.stamp([unit], [unit + 100])
        owner.slab.data.view(32, UNIT_BYTES)[unit] = unit
    arenas = peers.connect(owner.endpoint)
    assert [(arena.kind, arena.id) for arena in arenas] == [("kv", KV_ARENA), ("staging", STAGING_ARENA)]
    claim = owner.grant(*units)
    prepared = peers.prepare(owner.endpoint, claim, True, time.monotonic() + 5)
    assert prepared is not None
    assert prepared.arena == arenas[1]
    staging = owner.site.slabs[STAGING_ARENA].data[prepared.packed.offset :][: packed_bytes(3, UNIT_BYTES)]
    assert staging[: 3 * UNIT_BYTES].view(3, UNIT_BYTES)[:, 0].tolist() == list(units)
    assert staging[words_offset(3, UNIT_BYTES) :].view(torch.int64).tolist() == [109, 103, 130, 9, 3, 30]
    owner.site.leases.release([claim])
    assert owner.site.staging is not None
    assert owner.site.staging.idle()


def test_a_claim_that_needs_no_pack_is_ready_where_it_lies(owner: Owner, peers: Peers) -> None:
    peers.connect(owner.endpoint)
    assert peers.prepare(owner.endpoint, owner.grant(1, 5), False, time.monotonic() + 5) is None


def test_a_claim_that_is_over_is_said_to_be(owner: Owner, peers: Peers) -> None:
    claim = owner.grant(1, 5)
    owner.site.leases.release([claim])
    with pytest.raises(ClaimExpired, match="is over"):
        peers.prepare(owner.endpoint, claim, True, time.monotonic() + 5)


def test_an_owner_that_is_not_there_is_lost(peers: Peers) -> None:
    with pytest.raises(WorkerLost):
        peers.prepare(Endpoint("127.0.0.1:9", 1), ClaimId(bytes(16)), True, time.monotonic() + 2)


def test_an_owner_that_stands_still_holds_up_nobody_whose_claim_is_not_wanted_any_more(
    owner: Owner, peers: Peers
) -> None:
    peers.connect(owner.endpoint)
    claim = owner.grant(1, 5)
    owner.loop.call_soon_threadsafe(time.sleep, 3.0)
    began = time.monotonic()
    with pytest.raises(Cancelled):
        peers.prepare(owner.endpoint, claim, True, began + 30, lambda: time.monotonic() < began + 0.2)
    assert 0.2 <= time.monotonic() - began < 2


def test_nothing_is_kept_of_an_owner_that_is_gone(owner: Owner, peers: Peers) -> None:
    peers.connect(owner.endpoint)
    channel = weakref.ref(peers._channels[owner.endpoint.address])
    peers.forget(owner.endpoint)
    gc.collect()
    assert channel() is None
    assert not peers._channels
    assert not peers._stubs
    assert not peers._staging
    assert not peers._formats
    claim = owner.grant(1, 5)
    peers.connect(owner.endpoint)  # it was not gone after all
    assert peers.prepare(owner.endpoint, claim, True, time.monotonic() + 5) is not None


def test_a_worker_is_there_as_long_as_that_very_process_answers(owner: Owner, peers: Peers) -> None:
    assert peers.is_there(owner.endpoint)
    assert not peers.is_there(Endpoint(owner.endpoint.address, INCARNATION + 1))
    assert not peers.is_there(Endpoint("127.0.0.1:1", INCARNATION))


def test_one_that_was_called_again_after_it_was_forgotten_is_known_until_it_is_forgotten_too(
    owner: Owner, peers: Peers
) -> None:
    gone = Endpoint("127.0.0.1:9", 1)
    with pytest.raises(WorkerLost):
        peers.connect(gone)
    peers.connect(owner.endpoint)
    assert set(peers.known()) == {gone, owner.endpoint}
    peers.forget(gone)
    assert peers.known() == [owner.endpoint]
    assert [*peers._channels] == [owner.endpoint.address]
    peers.release(gone, ClaimId(bytes(16)))  # one that was on its way
    deadline = time.monotonic() + 5
    while gone.address not in peers._channels:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert set(peers.known()) == {gone, owner.endpoint}


@pytest.mark.parametrize("asker_stays", [True, False])
def test_a_device_that_is_found_lost_ends_the_worker_whether_or_not_its_asker_still_waits(
    owner: Owner, peers: Peers, monkeypatch: pytest.MonkeyPatch, asker_stays: bool
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    may_go_on = threading.Event()

    def lose(*_: object) -> None:
        may_go_on.wait(5)
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(HostCopier, "pack", lose)
    peers.connect(owner.endpoint)
    if asker_stays:
        may_go_on.set()
    began, claim = time.monotonic(), owner.grant(1, 5)
    with pytest.raises(InternalError if asker_stays else Cancelled):
        peers.prepare(owner.endpoint, claim, True, began + 30, lambda: asker_stays or time.monotonic() < began + 0.2)
    time.sleep(0.2)  # until its owner has heard of that
    may_go_on.set()
    while not ended:
        assert time.monotonic() < began + 10
        time.sleep(0.01)
    assert ended == [70]
