"""Where faults can be planted: a world without any uses the real parts, in the right order."""

from collections.abc import Callable, Sequence

from triptych.engine.embedding_store import EmbeddingStore
from triptych.journey import ClaimId, Endpoint
from triptych.transfer.leases import LeaseTable
from triptych.transfer.protocol.peering import Neighbourhood
from triptych.transfer.protocol.pulling import PullMachine
from triptych.transfer.protocol.renewing import Renewals
from triptych.transfer.protocol.takeover import Takeover

Kernel = Callable[[], None]
Piece = Callable[[], bool]


class Planted:
    """Nothing wrong."""

    checks_incarnation = True

    def store(self, num_units: int, unit_bytes: int) -> EmbeddingStore:
        return EmbeddingStore(num_units, unit_bytes)

    def neighbourhood(self) -> Neighbourhood:
        return Neighbourhood()

    def lease_table(self, clock: Callable[[], float], new_id: Callable[[], ClaimId]) -> LeaseTable:
        return LeaseTable(clock, new_id)

    def pull_machine(self, claim: ClaimId, owner: Endpoint, deadline: float, checksum: bytes) -> PullMachine:
        return PullMachine(claim, owner, deadline, checksum)

    def takeover(self, prompt_tokens: int) -> Takeover:
        return Takeover(prompt_tokens)

    def renewals(self) -> Renewals[Endpoint]:
        return Renewals()

    def order_of_writes(self, stamp: Kernel, halves: Sequence[Kernel]) -> Sequence[Kernel]:
        return [stamp, *halves]

    def order_of_reads(self, units: Sequence[Piece], words: Piece) -> Sequence[Piece]:
        return [*units, words]
