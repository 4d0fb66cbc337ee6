"""What goes back to the owners of claims: renewals while a pull is waited for, and the release behind it."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triptych.errors import FingerprintMismatch, TriptychError, WrongIncarnation
from triptych.journey import ClaimId, Endpoint
from triptych.transfer.faults import Faults
from triptych.transfer.protocol.renewing import Renew, Renewals

log = logging.getLogger(__name__)

# Both raise what the owner answers, or WorkerLost when it does not, in the seconds given last.
SendRelease = Callable[[Endpoint, Sequence[ClaimId], float], None]
SendRenewal = Callable[[Endpoint, Sequence[ClaimId], float, float], Sequence[ClaimId]]  # lease seconds; claims gone

_TRIES = 3
_LONGEST_TIMEOUT_SECONDS = 5.0
_SHORTEST_LEASE_SECONDS = 0.1  # that is renewed; of a shorter one so much is asked for
_IDLE_SECONDS = 60.0  # behind the last message, until an owner's thread ends


@dataclass(frozen=True, slots=True)
class _Given:
    """Claims to be released; tried so often in vain."""

    claims: tuple[ClaimId, ...]
    tries: int = 0


_WAKE = _Given(())


class ClaimPost:
    """Thread-safe; its methods return at once. Each owner has a thread of its own: one that hangs holds up no other."""

    def __init__(self, send_release: SendRelease, send_renewal: SendRenewal, faults: Faults) -> None:
        self._send_release = send_release
        self._send_renewal = send_renewal
        self._faults = faults
        self._lock = threading.Lock()
        self._lines: dict[Endpoint, _Line] = {}
        self._closed = False

    def __len__(self) -> int:
        """Claims kept alive."""
        with self._lock:
            return sum(len(line.renewals) for line in self._lines.values())

    def keep(self, owner: Endpoint, claim: ClaimId, lease_seconds: float) -> None:
        """Renew the claim, a third of its lease from now and every third, until it is released or the owner is lost."""
        with self._lock:
            line = self._line(owner)
            if line is not None:
                line.keep(claim, max(lease_seconds, _SHORTEST_LEASE_SECONDS))

    def keeps(self, owner: Endpoint, claim: ClaimId) -> bool:
        """Whether the claim is kept alive, so that somebody here will give it back."""
        with self._lock:
            line = self._lines.get(owner)
            return line is not None and line.renewals.keeps(owner, claim)

    def drop(self, owner: Endpoint, claim: ClaimId) -> None:
        """Renew it no longer."""
        with self._lock:
            line = self._lines.get(owner)
            if line is not None:
                line.renewals.drop(time.monotonic(), owner, [claim])

    def release(self, owner: Endpoint, claim: ClaimId) -> None:
        """Give it back. A claim whose release is lost ends with its lease."""
        with self._lock:
            line = self._line(owner)
            if line is not None:
                line.renewals.drop(time.monotonic(), owner, [claim])
                line.outbox.put(_Given((claim,)))

    def close(self, timeout_seconds: float) -> None:
        """What has been given back by now is still sent, once, as far as owners answer."""
        with self._lock:
            self._closed = True
            lines = list(self._lines.values())
            for line in lines:
                line.outbox.put(None)
        deadline = time.monotonic() + timeout_seconds
        for line in lines:
            line.thread.join(max(0.0, deadline - time.monotonic()))

    def _line(self, owner: Endpoint) -> "_Line | None":
        if self._closed:
            return None
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = _Line(owner, self._serve)
            line.thread.start()
        return line

    # ------------------------------------------------------------------------------------------ an owner's thread

    def _serve(self, line: "_Line") -> None:
        idle_since = time.monotonic()
        while True:
            with self._lock:
                seconds = line.seconds_to_wait()
            given, closed = line.gather(seconds)
            try:
                if self._send(line, given):
                    idle_since = time.monotonic()
            except Exception:  # else all that comes for this owner from now on would go nowhere
                log.exception("releasing or renewing at %s failed", line.owner.address)
            if closed or self._hangs_up(line, idle_since):
                return

    def _send(self, line: "_Line", given: Sequence[_Given]) -> bool:
        """Whether there was anything to say."""
        if given:
            self._release(line, given)
        with self._lock:
            renewals = line.renewals.due(time.monotonic())
        for message in renewals:
            self._renew(line, message)
        return bool(given or renewals)

    def _hangs_up(self, line: "_Line", idle_since: float) -> bool:
        """Whether the owner's thread has had nothing to do for long; the next message starts another one."""
        with self._lock:
            idle = len(line.renewals) == 0 and line.outbox.empty()
            if idle and time.monotonic() - idle_since >= _IDLE_SECONDS:
                del self._lines[line.owner]
                return True
            return False

    def _release(self, line: "_Line", given: Sequence[_Given]) -> None:
        claims = [claim for entry in given for claim in entry.claims]
        for owner, some in self._faults.messages("release.ask", (line.owner, claims)):
            try:
                self._send_release(owner, some, _LONGEST_TIMEOUT_SECONDS)
            except TriptychError as error:
                tries = max(entry.tries for entry in given) + 1
                if tries < _TRIES and error.retryable and not _is_another(error):
                    line.outbox.put(_Given(tuple(some), tries))  # behind renewals that have come due meanwhile
                else:
                    log.info("release at %s failed, its lease will end it: %s", owner.address, error)

    def _renew(self, line: "_Line", message: Renew[Endpoint]) -> None:
        timeout = min(_LONGEST_TIMEOUT_SECONDS, message.lease_seconds / 3)
        for owner, claims in self._faults.messages("renew.ask", (message.owner, message.claims)):
            try:
                gone = self._send_renewal(owner, claims, message.lease_seconds, timeout)
            except TriptychError as error:
                log.info("claims at %s were not renewed: %s", owner.address, error)
                with self._lock:
                    if _is_another(error):
                        line.renewals.drop(time.monotonic(), owner, claims)
                    else:
                        line.renewals.failed(time.monotonic(), owner)
            else:
                with self._lock:
                    line.renewals.answered(time.monotonic(), owner, gone)


class _Line:
    """One owner's outbox, renewals and thread; all but `gather` under the post's lock."""

    def __init__(self, owner: Endpoint, serve: Callable[["_Line"], None]) -> None:
        self.owner = owner
        self.outbox: queue.SimpleQueue[_Given | None] = queue.SimpleQueue()
        self.renewals: Renewals[Endpoint] = Renewals()
        self.thread = threading.Thread(target=serve, args=(self,), name=f"claims-{owner.address}", daemon=True)
        self._shortest_lease = _IDLE_SECONDS
        self._wakes_at = float("inf")

    def keep(self, claim: ClaimId, lease_seconds: float) -> None:
        now = time.monotonic()
        self.renewals.keep(now, self.owner, claim, lease_seconds)
        # The thread looks every third of the shortest lease, so most pulls need not wake it.
        self._shortest_lease = min(self._shortest_lease, lease_seconds)
        if self.renewals.next_due < self._wakes_at:
            self._wakes_at = self.renewals.next_due
            self.outbox.put(_WAKE)

    def seconds_to_wait(self) -> float:
        """Until there may be something to do, unless something comes in."""
        now = time.monotonic()
        self._wakes_at = min(self.renewals.next_due, now + self._shortest_lease / 3)
        return max(0.0, self._wakes_at - now)

    def gather(self, seconds: float) -> tuple[list[_Given], bool]:
        """Releases that have come, waiting so long for the first, and whether the post was closed."""
        given: list[_Given] = []
        try:
            entry = self.outbox.get(timeout=seconds)
            while entry is not None:
                if entry.claims:
                    given.append(entry)
                entry = self.outbox.get_nowait()
        except queue.Empty:
            return given, False
        return given, True


def _is_another(error: TriptychError) -> bool:
    """Whether another process answers there: the one that had granted the claims is gone, and they with it."""
    return isinstance(error, WrongIncarnation | FingerprintMismatch)
