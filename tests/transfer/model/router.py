"""A router: drives requests through the tiers, keeps claims alive meanwhile, tries again once, tidies up."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.transfer.model.clock import Timer
from tests.transfer.model.directory import Directory
from tests.transfer.model.keeping import Keeper
from tests.transfer.model.owner import World
from tests.transfer.model.process import Process
from tests.transfer.model.values import LEASE_SECONDS, Prompt, Ref
from triptych.errors import Cancelled, DeadlineExceeded, TriptychError, WorkerLost
from triptych.journey import Endpoint, RequestId

ATTEMPT_SECONDS = 30.0
RESERVE_SECONDS = 15.0
ACCEPT_SECONDS = 20.0
HOLD_SECONDS = 40.0
PATIENCE_SECONDS = 1.5
CALL_SECONDS = 2.0
MOST_AT_ONCE = 10


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of one request on one set of workers."""

    router: "Router"
    key: RequestId
    prompt: Prompt
    number: int
    encoders: tuple[Endpoint, ...]  # by picture
    prefill: Endpoint
    decode: Endpoint
    asked: dict[Endpoint, None] = field(default_factory=dict)
    refs: dict[int, Ref] = field(default_factory=dict)
    encoded_at: dict[int, float] = field(default_factory=dict)
    accepted: bool = False
    encodes: bool = False
    blocks_there: int = 0  # at the decode worker
    seen: set[bytes] = field(default_factory=set)  # claims on KV
    first: bool = False
    starting: bool = False
    over: bool = False
    timer: Timer | None = None


class Router:
    """Answers to what workers tell it; makes requests as long as it is told to."""

    def __init__(self, world: World, process: Process, directory: Directory, seconds_between: float) -> None:
        self.world = world
        self.process = process
        self.keeper = Keeper(world, process)
        self.busy = True  # clients come
        self._directory = directory
        self._attempts: dict[RequestId, Attempt] = {}
        self._seconds_between = seconds_between
        self._next()

    # Clients

    def _next(self) -> None:
        if self.busy:
            self.process.later(self.world.random.expovariate(1 / self._seconds_between), "client", self._client)

    def _client(self) -> None:
        if self.busy and len(self._attempts) < MOST_AT_ONCE:
            self.world.oracle.counts["requests"] += 1
            self._try(self.world.random.choice(self._directory.prompts), 1)
        self._next()

    def _try(self, prompt: Prompt, number: int) -> None:
        random = self.world.random
        chosen = self._directory.choose(random, len(prompt.pictures))
        if chosen is None:
            self.world.oracle.counts["no worker"] += 1
            return
        key = RequestId(random.randbytes(16))
        attempt = Attempt(self, key, prompt, number, *chosen)
        self._attempts[key] = attempt
        overdue = DeadlineExceeded("the request is overdue")
        attempt.timer = self.process.later(ATTEMPT_SECONDS, "attempt-deadline", self._fail, attempt, overdue)
        if self.process.faults.strikes("leave", "client"):
            self.process.later(random.uniform(0, PATIENCE_SECONDS), "leave", self._leave, attempt)
        self._call(attempt, attempt.decode, "reserve", self._reserved, self.process.endpoint, prompt, HOLD_SECONDS,
                   seconds=RESERVE_SECONDS)  # fmt: skip

    def leave_all(self) -> None:
        """Every client goes away."""
        self.busy = False
        for attempt in list(self._attempts.values()):
            self._leave(attempt)

    def _leave(self, attempt: Attempt) -> None:
        attempt.number = 2
        self._fail(attempt, Cancelled("the client left"))

    # Answers

    def _call(
        self, attempt: Attempt, target: Endpoint, step: str, then: Any, *args: Any, seconds: float = CALL_SECONDS
    ) -> None:
        def answered(outcome: Any) -> None:
            if attempt.over:
                return
            if isinstance(outcome, TriptychError):
                self._fail(attempt, outcome)
            else:
                then(attempt, outcome)

        attempt.asked[target] = None
        self.world.network.call(self.process, target, step, step, attempt.key, *args, answer=answered, seconds=seconds)

    def _reserved(self, attempt: Attempt, cached: int) -> None:
        attempt.blocks_there = cached
        args = (self.process.endpoint, attempt.prompt, cached, ATTEMPT_SECONDS)
        self._call(attempt, attempt.prefill, "prefill", self._accepted, *args, seconds=ACCEPT_SECONDS)
        if self.world.random.random() < 0.5:
            self._encode(attempt)

    def _encode(self, attempt: Attempt) -> None:
        if attempt.encodes:
            return
        attempt.encodes = True
        for index, (encoder, picture) in enumerate(zip(attempt.encoders, attempt.prompt.pictures, strict=True)):
            then = partial(self._encoded, index)
            self._call(attempt, encoder, "encode", then, self.process.endpoint, picture, seconds=ACCEPT_SECONDS)

    def _encoded(self, index: int, attempt: Attempt, ref: Ref) -> None:
        attempt.refs[index] = ref
        attempt.encoded_at[index] = self.process.clock()
        self.keeper.keep(ref)
        if attempt.accepted:
            self._send_rows(attempt, index)

    def _accepted(self, attempt: Attempt, outcome: Any) -> None:
        attempt.accepted = True
        self._encode(attempt)
        for index in list(attempt.refs):
            if not attempt.over:
                self._send_rows(attempt, index)

    def _send_rows(self, attempt: Attempt, index: int) -> None:
        ref = attempt.refs[index]

        def taken(attempt: Attempt, outcome: Any) -> None:
            self.keeper.drop(ref.owner, [ref.claim])
            waited = (self.process.clock() - attempt.encoded_at[index]) / LEASE_SECONDS
            counts = self.world.oracle.counts
            counts["leases waited"] = max(counts["leases waited"], int(waited))

        self._call(attempt, attempt.prefill, "rows", taken, index, ref)

    # What workers tell

    def kv(self, key: RequestId, ref: Ref) -> None:
        """A chunk is computed: the decode worker pulls it. One that comes again is sent again, as a network would."""
        attempt = self._attempts.get(key)
        if attempt is None:
            return  # cancelled: its claim has ended with the request, or will by itself

        def taken(attempt: Attempt, outcome: Any) -> None:
            if ref.claim not in attempt.seen:
                attempt.seen.add(ref.claim)
                attempt.blocks_there += len(ref.units)
                self._start(attempt)

        self._call(attempt, attempt.decode, "kv", taken, ref)

    def first(self, key: RequestId) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.first = True
            self._start(attempt)

    def _start(self, attempt: Attempt) -> None:
        if attempt.first and attempt.blocks_there == attempt.prompt.num_blocks and not attempt.starting:
            attempt.starting = True
            self._call(attempt, attempt.decode, "start", lambda attempt, outcome: None, seconds=ACCEPT_SECONDS)

    def failed(self, key: RequestId, kind: type[TriptychError], reason: str) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._fail(attempt, kind(reason))

    def finished(self, key: RequestId) -> None:
        attempt = self._attempts.get(key)
        if attempt is not None:
            self.world.oracle.counts["finished"] += 1
            self._over(attempt)

    def lost(self, endpoint: Endpoint) -> None:
        self.keeper.lost(endpoint)
        for attempt in list(self._attempts.values()):
            if endpoint in (attempt.prefill, attempt.decode, *attempt.encoders):
                self._fail(attempt, WorkerLost(endpoint.address))

    # Ends

    def _fail(self, attempt: Attempt, error: TriptychError) -> None:
        if attempt.over:
            return
        self._over(attempt)
        for worker in attempt.asked:
            self.world.network.tell(self.process, worker, "cancel", "cancel", attempt.key)
        if attempt.number == 1 and self.busy:
            self._try(attempt.prompt, 2)
        else:
            self.world.oracle.counts["request failed: " + type(error).__name__] += 1

    def _over(self, attempt: Attempt) -> None:
        attempt.over = True
        del self._attempts[attempt.key]
        if attempt.timer is not None:
            attempt.timer.cancel()
        for ref in attempt.refs.values():
            self.keeper.drop(ref.owner, [ref.claim])

    # State

    def is_idle(self) -> bool:
        return not self._attempts and not len(self.keeper.machine)

    def check(self) -> None:
        self.keeper.machine.check()
