"""What may happen to a cluster under load: each kind strikes where it hurts, and says what it has struck."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tests.cluster.fault_load import LONG, FaultLoad
from tests.cluster.fault_server import LIVENESS_SECONDS, FaultServer, Worker
from triptych.journey import Role

BUSY_SECONDS = 5.0  # for which a worker is looked for that has something to do
PROBES = 3  # with as many streams, each of two decode workers has one
STRUCK_AT_TOKEN = 30

_WORK = {Role.ENCODE: "encoder_queued_items", Role.PREFILL: "prefill_requests", Role.DECODE: "decode_sequences"}


@dataclass(frozen=True)
class Struck:
    """at:          the moment
    pid:         of the process that goes, and whose place another takes; 0 for none
    encoded:     items it had encoded when it was struck, of an encoder
    lost_items:  whose rows have gone, so that they may have to be encoded again
    """

    at: float
    pid: int = 0
    encoded: int = 0
    lost_items: int = 0


@dataclass(frozen=True)
class Kind:
    """may_break: whether clients whose connection ends with the process get an error

    may_retry: whether what was in flight has to be tried again
    """

    name: str
    strike: Callable[[FaultServer, FaultLoad], Struck]
    is_stop: bool = False
    of_router: bool = False
    may_break: bool = False
    may_retry: bool = True


def _nothing(server: FaultServer, load: FaultLoad) -> Struck:
    return Struck(time.monotonic())


def _signal(role: Role, number: int, server: FaultServer, load: FaultLoad) -> Struck:
    worker, gauges = _busy(server, role)
    at = time.monotonic()
    os.kill(worker.pid, number)
    if role is not Role.ENCODE:
        return Struck(at, worker.pid)
    # What is queued may be done, and claimed, by the time that the signal is there.
    lost = int(gauges["encoder_claims"] + gauges["encoder_waiting_jobs"] + gauges["encoder_queued_items"])
    return Struck(at, worker.pid, int(gauges["encoder_items_encoded_total"]), lost)


def _busy(server: FaultServer, role: Role) -> tuple[Worker, dict[str, float]]:
    """The worker of the role that has most to do, as soon as one has anything."""
    workers = server.of(role)
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        told = [(worker, server.gauges(worker)) for worker in workers]
        worker, gauges = max(told, key=lambda each: each[1][_WORK[role]])
        if gauges[_WORK[role]] or time.monotonic() > deadline:
            return worker, server.gauges(worker)  # what counts is what it has now


def _decode_behind_cleared_caches(server: FaultServer, load: FaultLoad) -> Struck:
    """Streams that are at token 30: nothing is left of their images but what the routers hold."""
    probes = load.ask(LONG, PROBES)
    server.wait(lambda: all(len(each.ids) >= STRUCK_AT_TOKEN or each.error for each in probes), "token 30")
    server.clear_embeddings()
    num_lost = sum(len(each.question.pictures) for each in load.in_flight())
    worker, _ = _busy(server, Role.DECODE)
    at = time.monotonic()
    os.kill(worker.pid, signal.SIGKILL)
    return Struck(at, worker.pid, lost_items=num_lost)


def _router(server: FaultServer, load: FaultLoad) -> Struck:
    pid = server.router_pids()[0]
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return Struck(at, pid)


def _leave(server: FaultServer, load: FaultLoad) -> Struck:
    load.leave()
    return Struck(time.monotonic())


def go_on(pid: int) -> None:
    """Lets a stopped process go on, if it is still there, and waits for its end."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + LIVENESS_SECONDS
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


KINDS = (
    Kind("nothing", _nothing, may_retry=False),
    *(Kind(f"{role} worker killed", partial(_signal, role, signal.SIGKILL)) for role in Role),
    *(Kind(f"{role} worker stopped", partial(_signal, role, signal.SIGSTOP), is_stop=True) for role in Role),
    *(Kind(f"{role} worker gets SIGTERM", partial(_signal, role, signal.SIGTERM), may_retry=False) for role in Role),
    Kind("decode worker killed at token 30, encoders' caches cleared", _decode_behind_cleared_caches),
    Kind("router killed, one of two", _router, of_router=True, may_break=True, may_retry=False),
    Kind("clients leave", _leave, may_retry=False),
)
