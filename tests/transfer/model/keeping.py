"""Claims kept alive in the simulated world: the real machine, its messages sent, its timer set."""

from collections.abc import Callable, Iterable
from typing import Any

from tests.transfer.model.clock import Timer
from tests.transfer.model.owner import World
from tests.transfer.model.process import Process
from tests.transfer.model.values import Ref
from triptych.errors import TriptychError
from triptych.journey import ClaimId, Endpoint
from triptych.transfer.protocol.renewing import Renewals

_CALL_SECONDS = 1.0
_LEAST_SECONDS = 0.001


class Keeper:
    """Of one process, router or puller."""

    def __init__(self, world: World, process: Process) -> None:
        self.machine: Renewals[Endpoint] = world.planted.renewals()
        self._world = world
        self._process = process
        self._timer: Timer | None = None

    def keep(self, ref: Ref) -> None:
        self.machine.keep(self._process.clock(), ref.owner, ref.claim, ref.lease_seconds)
        self._set_timer()

    def drop(self, owner: Endpoint, claims: Iterable[ClaimId]) -> None:
        self.machine.drop(self._process.clock(), owner, claims)

    def lost(self, owner: Endpoint) -> None:
        self.machine.lost(self._process.clock(), owner)

    def _set_timer(self) -> None:
        due = self.machine.next_due
        if self._timer is not None:
            self._timer.cancel()
        if due < float("inf"):
            # Clocks that are far apart round differently: what is due in no time at all would never come to be.
            seconds = max(_LEAST_SECONDS, due - self._process.clock())
            self._timer = self._process.later(seconds, "renew-due", self._renew)

    def _renew(self) -> None:
        for message in self.machine.due(self._process.clock()):
            self._world.network.call(
                self._process,
                message.owner,
                "renew",
                "renew",
                message.claims,
                message.lease_seconds,
                answer=self._answered(message.owner),
                seconds=_CALL_SECONDS,
            )
        self.machine.check()
        self._set_timer()

    def _answered(self, owner: Endpoint) -> Callable[[Any], None]:
        def answered(outcome: Any) -> None:
            now = self._process.clock()
            if isinstance(outcome, TriptychError):
                self.machine.failed(now, owner)
            else:
                self.machine.answered(now, owner, outcome)
            self._set_timer()

        return answered
