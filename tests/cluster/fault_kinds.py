"""What may happen to a cluster under load: each kind strikes where it hurts, and says what it has struck."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from tests.cluster.fault_hang import hang
from tests.cluster.fault_load import LONG, FaultLoad
from tests.cluster.fault_server import LIVENESS_SECONDS, FaultServer, Worker
from triptych.journey import Role

ANSWER_SECONDS = 1.0
BUSY_SECONDS = 5.0  # for which a worker is looked for that has something to do
PROBES = 3  # with as many streams, each of two decode workers has one
STRUCK_AT_TOKEN = 30

_WORK = {Role.ENCODE: "encoder_queued_items", Role.PREFILL: "prefill_requests", Role.DECODE: "decode_sequences"}


@dataclass(frozen=True)
class Struck:
    """at:          the moment
    back:        each says whether what has gone is back, or another in its place; asked again and again until it is
    encoded:     items that encoders had encoded when they were struck, by address
    lost_items:  whose rows have gone, so that they may have to be encoded again
    settle:      called once all is back
    """

    at: float
    back: Sequence[Callable[[], bool]] = ()
    encoded: Mapping[str, int] = field(default_factory=dict)
    lost_items: int = 0
    settle: Sequence[Callable[[], None]] = ()


Strike = Callable[[FaultServer, FaultLoad], Struck]


@dataclass(frozen=True)
class Kind:
    """may_break: whether clients whose connection ends with the process get an error

    retried: stages at which what was in flight may have to be tried again
    """

    name: str
    strike: Strike
    may_break: bool = False
    retried: frozenset[str] = frozenset()


def _nothing(server: FaultServer, load: FaultLoad) -> Struck:
    return Struck(time.monotonic())


def _signal(role: Role, server: FaultServer, load: FaultLoad, *, number: int) -> Struck:
    worker, gauges = _busy(server, role)
    at = time.monotonic()
    os.kill(worker.pid, number)
    return _struck(at, server, worker, gauges, (partial(_go_on, worker.pid),) if number == signal.SIGSTOP else ())


def _hang(role: Role, server: FaultServer, load: FaultLoad) -> Struck:
    """The device loop alone: everything else in the process goes on."""
    worker, _ = _busy(server, role)
    # Soon enough that whoever keeps the worker does not take the whole of it for one that stands still.
    tracer = hang(worker.pid, partial(server.answers, worker, ANSWER_SECONDS))
    return _struck(time.monotonic(), server, worker, server.gauges(worker), (partial(_end, tracer),))


def _struck(
    at: float,
    server: FaultServer,
    worker: Worker,
    gauges: Mapping[str, float],
    settle: Sequence[Callable[[], None]] = (),
) -> Struck:
    back = (partial(_replaced, server, worker),)
    if worker.role is not Role.ENCODE:
        return Struck(at, back, settle=settle)
    # What is queued may be done, and claimed, by the time that it is struck.
    lost = int(gauges["encoder_claims"] + gauges["encoder_waiting_jobs"] + gauges["encoder_queued_items"])
    return Struck(at, back, {worker.address: int(gauges["encoder_items_encoded_total"])}, lost, settle)


def _replaced(server: FaultServer, worker: Worker) -> bool:
    return worker.address not in {each.address for each in server.workers()}


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
    server.wait(lambda: all(len(each.ids) >= STRUCK_AT_TOKEN or each.error for each in probes), "token 30", every=0.01)
    server.clear_embeddings()
    num_lost = sum(len(each.question.pictures) for each in load.in_flight())
    worker, _ = _busy(server, Role.DECODE)
    at = time.monotonic()
    os.kill(worker.pid, signal.SIGKILL)
    return Struck(at, (partial(_replaced, server, worker),), lost_items=num_lost)


def _router(server: FaultServer, load: FaultLoad, *, number: int) -> Struck:
    pids, since = server.router_pids(), server.log_length

    def back() -> bool:
        """As many as there were, the new one among them, and it has said that it listens."""
        told = [line for line in server.log(since).splitlines() if line.startswith("router-")]
        return pids[0] not in server.router_pids() and " ready" in "".join(told)

    at = time.monotonic()
    os.kill(pids[0], number)
    return Struck(at, (back,))


def _leave(server: FaultServer, load: FaultLoad) -> Struck:
    load.leave()
    return Struck(time.monotonic())


def _together(strikes: Sequence[Strike], server: FaultServer, load: FaultLoad) -> Struck:
    """One after the other, at once; each at another tier."""
    struck = [strike(server, load) for strike in strikes]
    return Struck(
        min(each.at for each in struck),
        [back for each in struck for back in each.back],
        {address: count for each in struck for address, count in each.encoded.items()},
        sum(each.lost_items for each in struck),
        [settle for each in struck for settle in each.settle],
    )


def _end(tracer: "subprocess.Popen[str]") -> None:
    """It has done so by itself, as what it traced has ended."""
    tracer.wait(LIVENESS_SECONDS)


def _go_on(pid: int) -> None:
    """Lets a stopped process go on, if it is still there, and waits for its end."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + LIVENESS_SECONDS
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def _of_role(role: Role, what: str, strike: Callable[..., Struck], *, retried: bool = True) -> Kind:
    return Kind(f"{role} worker {what}", partial(strike, role), retried=frozenset({str(role)} if retried else ()))


_KILLED = [_of_role(role, "killed", partial(_signal, number=signal.SIGKILL)) for role in Role]
_STOPPED = [_of_role(role, "stopped", partial(_signal, number=signal.SIGSTOP)) for role in Role]
_HUNG = [_of_role(role, "stays at one step", _hang) for role in Role]
_ASKED = [_of_role(role, "gets SIGTERM", partial(_signal, number=signal.SIGTERM), retried=False) for role in Role]
_CLEARED = Kind(
    "decode worker killed at token 30, encoders' caches cleared",
    _decode_behind_cleared_caches,
    retried=frozenset({"decode"}),
)

KINDS = (
    Kind("nothing", _nothing),
    *(*_KILLED, *_STOPPED, *_HUNG, *_ASKED, _CLEARED),
    Kind("router killed, one of two", partial(_router, number=signal.SIGKILL), may_break=True),
    Kind("router process stopped, one of two", partial(_router, number=signal.SIGSTOP), may_break=True),
    Kind("clients leave", _leave),
)


def all_at_once(*kinds: Kind) -> Kind:
    """Faults of different tiers in one go: none of them may cost more than it does alone."""
    return Kind(
        " + ".join(kind.name for kind in kinds),
        partial(_together, [kind.strike for kind in kinds]),
        retried=frozenset().union(*(kind.retried for kind in kinds)),
    )
