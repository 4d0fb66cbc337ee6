"""One reserved request while its KV is on its way here."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from triptych.errors import InternalError, TriptychError
from triptych.journey import ClaimId, KVRef, RequestId
from triptych.services.decode.streams import RouterStream
from triptych.transfer.protocol.takeover import Takeover, TakeoverActions

log = logging.getLogger(__name__)

Event = Callable[[Takeover, float], TakeoverActions]


@dataclass(slots=True, eq=False)
class Handover:
    """A reserved request whose KV is on its way here."""

    key: RequestId
    stream: RouterStream
    takeover: Takeover  # under the worker's lock
    claim: ClaimId | None = None  # the reservation's own lease: a router that dies before Decode leaves nothing
    sent_tokens: int = 0  # of refs from other workers
    refs: dict[ClaimId, KVRef] = field(default_factory=dict)
    pulls: dict[ClaimId, Future[None]] = field(default_factory=dict)
    settled: Future[TriptychError | None] = field(default_factory=Future)  # it can start, or has failed with that
    failure: TriptychError | None = None
    _met: list[TriptychError] = field(default_factory=list)

    def met(self, error: Exception) -> TriptychError:
        """The error as the router is told it."""
        if not isinstance(error, TriptychError):
            log.error("pulling KV failed", exc_info=error)
            error = InternalError(f"pulling KV failed: {type(error).__name__}")
        self._met.append(error)
        return error

    def fail(self, kind: type[TriptychError], reason: str) -> None:
        """Only the first failure counts. What a pull has met knows more than its kind and words."""
        if self.failure is None and not self.settled.done():
            known = (error for error in self._met if type(error) is kind and error.message == reason)
            self.failure = next(known, None) or kind(reason)
            self.settle(self.failure)

    def settle(self, failure: TriptychError | None = None) -> None:
        """Whoever waits for it goes on. Only the first time counts."""
        with suppress(InvalidStateError):
            self.settled.set_result(failure)
