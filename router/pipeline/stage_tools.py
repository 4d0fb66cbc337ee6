"""What every stage of the pipeline works with."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from triptych import wire
from triptych.journey import Role
from triptych.pb import common_pb2
from triptych.router.fleet.link import WorkerLink
from triptych.router.media.shelf import MediaShelf
from triptych.router.observe.encode_books import EncodeBooks
from triptych.router.pipeline.claims import ClaimKeeper
from triptych.router.pipeline.request import Request
from triptych.router.pipeline.retries import Retries


class Placing(Protocol):
    """Who chooses the workers, each without those to be avoided. Raises NoWorker."""

    async def encoders_for(
        self, encoder_tokens: Sequence[int], avoid: Collection[WorkerLink] = ()
    ) -> list[WorkerLink]: ...

    async def prefill_for(self, avoid: Collection[WorkerLink] = (), decodes: WorkerLink | None = None) -> WorkerLink:
        """decodes: has blocks for the request; where it takes prompts, too, nobody else may have this one.

        Else two workers that do both might each wait for room that the other's reservations take up.
        """
        ...

    async def decode_for(self, avoid: Collection[WorkerLink] = ()) -> WorkerLink: ...


@dataclass(frozen=True, slots=True)
class StageTools:
    """Of one attempt of one request.

    number:        of the attempt, 0 for the first
    num_generated: tokens that earlier attempts have made
    used:          workers that have been asked anything, to be told should the attempt end early
    encoders:      who was asked last for an item, by any attempt, by the item's digest
    seconds_left:  until the request's time is up
    stage_seconds: without progress that a request may take
    """

    request: Request
    number: int
    num_generated: int
    fleet: Placing
    shelf: MediaShelf
    claims: ClaimKeeper
    retries: Retries
    lease_seconds: float
    seconds_left: Callable[[], float]
    stage_seconds: float
    used: set[WorkerLink]
    encoders: dict[bytes, WorkerLink]
    encodes: EncodeBooks

    def ask(self, role: Role, link: WorkerLink) -> None:
        """Notes that the worker is asked for something, in this role."""
        self.used.add(link)
        self.request.workers[str(role)] = link.worker_id

    def envelope(self, link: WorkerLink) -> common_pb2.Envelope:
        message = link.envelope(self.request.id, self.number, self.seconds_left())
        message.checksums = self.request.prepared.checksums
        message.log_id, message.traceparent = self.request.log_id, self.request.traceparent
        return message

    @property
    def generated(self) -> bytes:
        """Tokens that earlier attempts have made, as the tiers want them; only a single choice is ever continued."""
        return wire.tokens_to_bytes(self.request.generated[0][: self.num_generated]) if self.num_generated else b""

    @property
    def prompt_tokens(self) -> int:
        """All that prefill computes: the prompt, and behind it what earlier attempts have made."""
        return self.request.prepared.layout.num_tokens + self.num_generated

    @property
    def tokens_to_come(self) -> int:
        """What may still be generated, per branch."""
        return self.request.prepared.sampling.max_tokens - self.num_generated

    @property
    def lease_ms(self) -> int:
        return int(self.lease_seconds * 1000)

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()
