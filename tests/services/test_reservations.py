"""Reservations at a decode worker whose time is nearly up."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from tests.engine.sinks import Outcome
from triptych.cluster.roles import BUILDERS
from triptych.config import MIB, LanguageSettings, ServeSettings, Settings
from triptych.engine.jobs import Reserved
from triptych.errors import InvalidRecord, Overloaded, TriptychError
from triptych.journey import RequestId, Role, new_request_id
from triptych.services.decode.streams import RouterStream
from triptych.services.decode.worker import DecodeWorker
from triptych.services.host import Placement, WorkerHost
from triptych.services.site import RoleWorker

SETTINGS = Settings(serve=ServeSettings(model="tiny-vl", device="cpu"), language=LanguageSettings(kv_bytes=8 * MIB))
SECONDS = 30.0


@pytest.fixture
def decode() -> Iterator[DecodeWorker]:
    made: list[RoleWorker] = []

    def build(*arguments: object) -> RoleWorker:
        made.append(BUILDERS[Role.DECODE](*arguments))  # type: ignore[arg-type]
        return made[0]

    host = WorkerHost(Placement("d0", frozenset({Role.DECODE}), device="cpu"), {Role.DECODE: build}, SETTINGS)
    host.start()
    loop = asyncio.new_event_loop()
    (worker,) = made
    assert isinstance(worker, DecodeWorker)
    worker.attach("router", RouterStream(loop))
    yield worker
    host.stop()
    loop.close()


def reserve(worker: DecodeWorker, key: RequestId, seconds: float, on_done: object) -> None:
    deadline = time.monotonic() + seconds
    worker.reserve("router", key, 0, 5, 5, 1, deadline, deadline, on_done)  # type: ignore[arg-type]


def test_one_that_is_granted_after_its_deadline_is_refused_and_leaves_nothing(decode: DecodeWorker) -> None:
    """The engine tells the first of a turn, which takes longer than the second has."""
    is_busy, may_go_on = threading.Event(), threading.Event()

    def hold_up(outcome: Reserved | TriptychError) -> None:
        is_busy.set()
        may_go_on.wait(SECONDS)

    keys = [new_request_id() for _ in range(3)]
    reserve(decode, keys[0], SECONDS, hold_up)
    assert is_busy.wait(SECONDS)
    late = Outcome()
    reserve(decode, keys[1], SECONDS, lambda _: time.sleep(2.2))
    reserve(decode, keys[2], 2.0, late)
    may_go_on.set()
    with pytest.raises(Overloaded, match=r"1 KV blocks came free 0\.\d+ s after the deadline"):
        late.result()
    for key in keys[:2]:
        decode.cancel(key)
    deadline = time.monotonic() + SECONDS
    while not decode.idle():
        assert time.monotonic() < deadline, decode.gauges()
        time.sleep(0.01)
    decode.check()
    gauges = decode.gauges()
    assert gauges["kv_free_blocks"] == gauges["kv_blocks"]
    assert len(late.calls) == 1


def test_one_that_is_granted_in_time_is_held_until_its_deadline(decode: DecodeWorker) -> None:
    granted = Outcome()
    reserve(decode, new_request_id(), 0.5, granted)
    assert granted.result() == 1
    deadline = time.monotonic() + SECONDS
    while not decode.idle():
        assert time.monotonic() < deadline, "nobody came, and the blocks are still held"
        time.sleep(0.01)


def test_one_that_comes_again_while_it_is_decoded_is_refused_and_ends_nothing(decode: DecodeWorker) -> None:
    loop = asyncio.new_event_loop()
    stream, key = RouterStream(loop), new_request_id()
    decode.attach("router", stream)
    stream.add(key, 2)  # as the reservation did that is decoded now
    with pytest.raises(InvalidRecord, match="being decoded"):
        reserve(decode, key, SECONDS, lambda _: None)
    stream.finish(key, 1)
    assert stream.serves(key), "a branch is still to come"
    assert decode.gauges()["kv_free_blocks"] == decode.gauges()["kv_blocks"]
    stream.discard(key)
    loop.close()


def test_one_that_comes_again_before_its_kv_is_granted_again_and_stays(decode: DecodeWorker) -> None:
    keys = [new_request_id() for _ in range(2)]
    for key in (keys[0], keys[0], keys[1]):  # the last is granted behind all that the second has caused
        granted = Outcome()
        reserve(decode, key, SECONDS, granted)
        assert granted.result() == 1
    gauges = decode.gauges()
    assert gauges["kv_free_blocks"] == gauges["kv_blocks"] - 2
    for key in keys:
        decode.cancel(key)
    deadline = time.monotonic() + SECONDS
    while not decode.idle():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_waits_for_room_is_told_of_it_at_its_time_and_others_keep_what_they_have(decode: DecodeWorker) -> None:
    blocks = int(decode.gauges()["kv_blocks"])
    first, waiting = Outcome(), Outcome()
    keys, now = [new_request_id() for _ in range(2)], time.monotonic()
    deadline = now + SECONDS
    decode.reserve("router", keys[0], 0, 16 * (blocks - 1), 5, 1, deadline, deadline, first)
    assert first.result() >= blocks - 1
    decode.reserve("router", keys[1], 0, 100, 5, 1, deadline, now + 0.3, waiting)
    with pytest.raises(Overloaded, match="KV blocks are needed, "):
        waiting.result()
    assert 0.3 <= time.monotonic() - now < SECONDS / 2
    assert decode.gauges()["kv_free_blocks"] == blocks - first.result()
    decode.cancel(keys[0])
