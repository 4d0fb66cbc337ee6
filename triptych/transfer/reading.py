"""Does what a pull's rules (protocol/pulling.py) ask for, on the thread that called the reader."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from triptych.errors import Cancelled, InternalError, InvariantViolation, TransferFailed, TriptychError
from triptych.journey import ClaimId, Endpoint
from triptych.transfer.mapping import Mapping
from triptych.transfer.protocol.pulling import (
    AwaitReady,
    ClaimedUnits,
    Connect,
    Deliver,
    Fail,
    FreeDestination,
    HoldDestination,
    PullAction,
    PullActions,
    PullMachine,
    Release,
    StartCopy,
    Verify,
)
from triptych.transfer.pull import Copier, CopyAbandoned, IsWanted, Pull
from triptych.transfer.quarantine import Quarantine

GiveBack = Callable[[Endpoint, ClaimId], None]


class Errand(Protocol):
    """What a reader does for one claim, each time its machine has decided so. Called on one thread at a time."""

    def open(self, limit: float) -> Sequence[Pull]:
        """The checked copies that make up the claim; what they read from stays open until `close`.

        Raises a TriptychError when no path leads there, or when the claim does not fit.
        """

    def close(self) -> None:
        """Nothing reads the owner's memory any more."""

    def begin(self, pulls: Sequence[Pull]) -> None:
        """Ahead of the first byte."""

    def copied(self, pulls: Sequence[Pull]) -> None:
        """Behind the last one; nothing is verified."""

    def delivered(self, pulls: Sequence[Pull], seconds: float) -> None:
        """All is verified; seconds: from the wait for the owner's event to the end of the copy"""

    def checksum(self) -> bytes:
        """Of what has landed."""


class Reading:
    """One claim's pull on its way. `run` it once.

    copier_of:  who copies out of a mapping
    quarantine: takes a copy that was given up, with its release behind it
    is_wanted:  asked before each step; once it says no, nothing more is begun
    """

    def __init__(
        self,
        machine: PullMachine,
        errand: Errand,
        copier_of: Callable[[Mapping], Copier],
        quarantine: Quarantine,
        give_back: GiveBack,
        is_wanted: IsWanted,
    ) -> None:
        self._machine = machine
        self._errand = errand
        self._copier_of = copier_of
        self._quarantine = quarantine
        self._give_back = give_back
        self._is_wanted = is_wanted
        self._pulls: Sequence[Pull] = ()
        self._lost: CopyAbandoned | None = None
        self._lost_into: Tensor | None = None
        self._met: BaseException | None = None  # what the machine was told of last
        self._failure: BaseException | None = None
        self._began = 0.0
        self._seconds = 0.0

    def run(self) -> None:
        """Returns when the destination holds what was claimed. Raises what the pull failed with."""
        self._follow(self._machine.begin(time.monotonic()))
        if self._failure is not None:
            raise self._failure

    def _follow(self, actions: PullActions) -> None:
        waiting = deque(actions)
        while waiting:
            waiting.extend(self._do(waiting.popleft()))

    def _do(self, action: PullAction) -> PullActions:
        match action:
            case Connect() | AwaitReady() | StartCopy() if not self._is_wanted():
                return self._unwanted(action)
            case Connect():
                return self._connect()
            case AwaitReady():
                return self._await_ready()
            case StartCopy():
                return self._copy()
            case Verify():
                return self._machine.summed(time.monotonic(), self._errand.checksum())
            case Release(owner, claim):
                self._errand.close()
                self._give_back(owner, claim)
            case Deliver():
                self._errand.delivered(self._pulls, self._seconds)
            case Fail(_, kind, reason):
                self._failure = self._as_error(kind, reason)
            case HoldDestination():
                self._hold()
            case FreeDestination():
                pass  # that it left the quarantine was that
        return ()

    def _unwanted(self, action: PullAction) -> PullActions:
        now = time.monotonic()
        if isinstance(action, StartCopy):  # which has not begun
            return self._machine.copy_failed(now, "nobody waits for this claim any more", Cancelled)
        return self._machine.cancelled(now)

    def _connect(self) -> PullActions:
        try:
            self._pulls = self._errand.open(self._machine.deadline)
        except BaseException as error:
            return self._refused(error)
        infos = dict.fromkeys(f"{pull.source.info.kind} arena {pull.source.info.id}" for pull in self._pulls)
        claimed = ClaimedUnits(
            " and ".join(infos),
            tuple(unit for pull in self._pulls for unit in pull.units.tolist()),
            tuple(word for pull in self._pulls for word in pull.generations.tolist()),
        )
        path = "+".join(dict.fromkeys(pull.source.transport for pull in self._pulls))
        return self._machine.connected(time.monotonic(), path, claimed)

    def _await_ready(self) -> PullActions:
        try:
            self._errand.begin(self._pulls)
            self._began = time.monotonic()
            for pull in self._pulls:
                pull.source.wait_event(pull.event, self._machine.deadline)
        except BaseException as error:
            return self._refused(error)
        return self._machine.ready(time.monotonic())

    def _copy(self) -> PullActions:
        words: list[int] = []
        try:
            for pull in self._pulls:
                self._lost_into = pull.into
                words += self._copier_of(pull.source).copy(pull, self._machine.deadline).tolist()
            self._seconds = time.monotonic() - self._began
            self._errand.copied(self._pulls)
        except CopyAbandoned as error:
            self._lost = error
            return self._copy_failed(error, ended=False)
        except BaseException as error:
            return self._copy_failed(error, ended=True)
        return self._machine.copied(time.monotonic(), words)

    def _hold(self) -> None:
        if self._lost is None or self._lost_into is None:
            raise InvariantViolation("a pull is to be quarantined whose copy was not given up")
        self._quarantine.hold(self._lost.ended, self._lost_into, self._copy_ended)

    def _copy_ended(self) -> None:
        """From the quarantine, on whatever thread notices."""
        self._follow(self._machine.copy_ended(time.monotonic()))

    def _refused(self, error: BaseException) -> PullActions:
        return self._machine.refused(time.monotonic(), *self._told(error))

    def _copy_failed(self, error: BaseException, ended: bool) -> PullActions:
        kind, reason = self._told(error)
        return self._machine.copy_failed(time.monotonic(), reason, kind, ended)

    def _told(self, error: BaseException) -> tuple[type[TriptychError], str]:
        self._met = error
        return _named(error)

    def _as_error(self, kind: type[TriptychError], reason: str) -> BaseException:
        """What was met itself, where the machine's verdict is no other: it knows more than its kind and words."""
        if self._met is not None and _named(self._met) == (kind, reason):
            return self._met
        return kind(reason)


def _named(error: BaseException) -> tuple[type[TriptychError], str]:
    if isinstance(error, CopyAbandoned):
        return TransferFailed, error.message
    if isinstance(error, TriptychError):
        return type(error), error.message
    return InternalError, f"{type(error).__name__}: {error}"
