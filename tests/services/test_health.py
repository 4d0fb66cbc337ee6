"""What a worker says of itself to probes: by gRPC's health service, and by its state."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthStub, add_HealthServicer_to_server

from triptych.journey import Role
from triptych.services import canary
from triptych.services.canary import Canary, trifle_on
from triptych.services.guard import Door
from triptych.services.health import SERVICES, HealthService
from triptych.wire.membership import Membership

SECONDS = 5.0
SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Worker:
    """As far as its health goes: two roles, a door, a device that may hang."""

    def __init__(self) -> None:
        self.door = Door(7, bytes(32), 30.0)
        self.hung = False

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[HealthStub]:
        server = grpc.aio.server()
        service = HealthService({Role.ENCODE, Role.PREFILL}, self.door, lambda: self.hung)
        add_HealthServicer_to_server(service, server)
        port = Membership().listen(server, "127.0.0.1", 0)
        await server.start()
        async with Membership().aio_channel(f"127.0.0.1:{port}") as channel:
            yield HealthStub(channel)
        await server.stop(None)


async def status(stub: HealthStub, service: str) -> int:
    reply: pb.HealthCheckResponse = await stub.Check(pb.HealthCheckRequest(service=service), timeout=SECONDS)  # type: ignore[misc]
    return reply.status


async def test_a_worker_serves_its_roles_and_no_others() -> None:
    async with Worker().serve() as stub:
        for service in ("", "triptych.Worker", SERVICES[Role.ENCODE], SERVICES[Role.PREFILL]):
            assert await status(stub, service) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status(stub, SERVICES[Role.DECODE])
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_one_that_drains_lives_and_takes_nothing() -> None:
    worker = Worker()
    async with worker.serve() as stub:
        worker.door.draining = True
        assert await status(stub, "") == SERVING
        assert await status(stub, SERVICES[Role.PREFILL]) == NOT_SERVING


async def test_whoever_watches_is_told_of_a_device_that_hangs_and_of_its_return() -> None:
    worker = Worker()
    async with worker.serve() as stub, asyncio.timeout(SECONDS):
        watched = stub.Watch(pb.HealthCheckRequest(service=SERVICES[Role.ENCODE]))
        told = aiter(watched)  # type: ignore[call-overload]
        assert (await anext(told)).status == SERVING
        worker.hung = True
        assert (await anext(told)).status == NOT_SERVING
        worker.hung = False
        assert (await anext(told)).status == SERVING
        watched.cancel()


def test_a_device_that_does_not_answer_is_noticed_and_one_that_does_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "HUNG_SECONDS", 0.05)
    asked, answers, deadline = threading.Event(), threading.Event(), time.monotonic() + SECONDS
    trifle = trifle_on(torch.device("cpu"))

    def hanging() -> None:
        trifle()
        asked.set()
        answers.wait(SECONDS)

    looked_after = Canary(hanging, interval_seconds=0.001)
    try:
        assert asked.wait(SECONDS)
        while not looked_after.is_hung():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        answers.set()
        while looked_after.is_hung():
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        answers.set()
        looked_after.stop()


def test_a_device_that_fails_once_and_goes_on_is_well_again() -> None:
    fails, done = threading.Event(), threading.Event()
    fails.set()

    def trifle() -> None:
        if fails.is_set():
            raise RuntimeError("not now")
        done.set()

    looked_after, deadline = Canary(trifle, interval_seconds=0.001), time.monotonic() + SECONDS
    try:
        while (first := looked_after.silent_seconds()) == 0:
            assert time.monotonic() < deadline
        time.sleep(0.02)
        assert looked_after.silent_seconds() > first + 0.01, "silence is counted from the first failure on"
        fails.clear()
        assert done.wait(SECONDS)
        while looked_after.silent_seconds():
            assert time.monotonic() < deadline
    finally:
        looked_after.stop()


def test_a_loop_that_stays_at_one_step_is_noticed_then_ended_and_one_that_goes_on_in_time_is_not() -> None:
    turn, ended, deadline = [0.0], threading.Event(), time.monotonic() + SECONDS
    told: list[str] = []

    def end(what: str) -> None:
        told.append(what)
        ended.set()

    looked_after = Canary(lambda: None, 0.001, [lambda: 0.0, lambda: turn[0]], turn_seconds=0.1, end=end)
    try:
        turn[0] = 0.2
        assert looked_after.is_hung()
        turn[0] = 0.05
        assert not looked_after.is_hung()
        assert not ended.wait(0.2), "it was well again before it was to end"
        turn[0] = 3.0
        assert ended.wait(deadline - time.monotonic())
        assert told == ["the device loop has been at one step for 3 s"]
    finally:
        looked_after.stop()
