"""Requests that are decoded here, from the grant of their blocks to the end of their last branch.

    reserved ─start─▶ queued ─▶ running ─(each branch)─▶ finish

Each place has one holder in the ledger; leaving it frees exactly what that holder has. Not thread-safe: the engine
calls it under its lock.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np

from triptych.engine.blocks import BlockLedger
from triptych.engine.sequence import DecodeSequence, Reservation
from triptych.errors import InvariantViolation
from triptych.journey import RequestId


class DecodePlaces:
    """Granted reservations, and the branches that came of them."""

    def __init__(self, ledger: BlockLedger, max_sequences: int) -> None:
        self._ledger = ledger
        self._max_sequences = max_sequences
        self._reservations: dict[RequestId, Reservation] = {}  # until their branches start
        self._branches: dict[RequestId, list[DecodeSequence]] = {}  # unfinished, queued or running
        self._queued: deque[DecodeSequence] = deque()
        self._running: list[DecodeSequence] = []

    @property
    def is_empty(self) -> bool:
        return not (self._reservations or self._branches)

    @property
    def num_sequences(self) -> int:
        """Branches queued and running."""
        return len(self._running) + len(self._queued)

    @property
    def request_ids(self) -> set[RequestId]:
        return set(self._reservations) | set(self._branches)

    def grant(self, reservation: Reservation, cached: Sequence[int] = ()) -> list[int]:
        """Reserve its blocks, which must be free, behind those, kept, that its prompt begins with; the former."""
        key = _reservation_key(reservation.request_id)
        self._ledger.reuse(key, cached)
        blocks = self._ledger.reserve(key, reservation.num_blocks - len(cached))
        reservation.blocks = (*cached, *blocks)
        reservation.num_cached_blocks = len(cached)
        self._reservations[reservation.request_id] = reservation
        return blocks

    def begin_with(self, reservation: Reservation, cached: Sequence[int]) -> int:
        """Put these blocks, whose content is kept, in place of the first reserved ones; how many more are free now.

        Those that the reservation began with are the first of them.
        """
        pool = self._ledger.pool
        before = pool.num_free_blocks
        known, end = reservation.num_cached_blocks, len(cached)
        own = reservation.blocks[known:end]
        self._ledger.exchange(_reservation_key(reservation.request_id), own, cached[known:])
        reservation.blocks = (*cached, *reservation.blocks[end:])
        return pool.num_free_blocks - before

    def doubt(self, is_known: Callable[[int], bool]) -> None:
        """Blocks have been forgotten: mark the reservations that began with such."""
        for reservation in self._reservations.values():
            cached = reservation.blocks[: reservation.num_cached_blocks]
            reservation.is_baseless = reservation.is_baseless or not all(map(is_known, cached))

    def baseless(self) -> list[RequestId]:
        """Those whose reservations are marked."""
        return [request_id for request_id, held in self._reservations.items() if held.is_baseless]

    def blocks(self, request_id: RequestId) -> list[int]:
        """Of the request's reservation or branches, that its prompt's KV is in or its tokens', each once."""
        held = self._reservations.get(request_id)
        tables = [held.prompt_blocks] if held is not None else []
        tables += [tuple(branch.blocks.tolist()) for branch in self._branches.get(request_id, ())]
        return list(dict.fromkeys(block for table in tables for block in table))

    @property
    def reservations(self) -> Iterable[Reservation]:
        """Granted ones, whose decoding has not started."""
        return self._reservations.values()

    def reservation(self, request_id: RequestId) -> Reservation | None:
        """Granted, and its decoding has not started."""
        return self._reservations.get(request_id)

    def start(self, sequences: Sequence[DecodeSequence]) -> None:
        """Turn a reservation into branches; those that are not listed need no room any more.

        Their request must have a reservation. The branches' `blocks` are filled in.
        """
        request_id = sequences[0].request_id
        reservation = self._reservations.pop(request_id)
        for sequence in sequences:
            table = reservation.table(sequence.branch)
            self._ledger.share(_branch_key(sequence), table)
            sequence.blocks = np.array(table, dtype=np.int64)
        self._ledger.free(_reservation_key(request_id))
        self._branches[request_id] = list(sequences)
        self._queued.extend(sequences)

    def run(self) -> tuple[DecodeSequence, ...]:
        """Fill the running places from the queue; all branches that run now."""
        while self._queued and len(self._running) < self._max_sequences:
            self._running.append(self._queued.popleft())
        return tuple(self._running)

    def is_decoding(self, request_id: RequestId) -> bool:
        """Whether a branch of the request is unfinished."""
        return request_id in self._branches

    def holds(self, sequence: DecodeSequence) -> bool:
        """Whether this very branch, not one of a later attempt, is unfinished."""
        return any(branch is sequence for branch in self._branches.get(sequence.request_id, ()))

    def finish(self, sequence: DecodeSequence) -> None:
        siblings = self._branches[sequence.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._branches[sequence.request_id]
        self._running.remove(sequence)
        self._ledger.free(_branch_key(sequence))

    def drop(self, request_id: RequestId) -> None:
        """Free everything, at any moment. Idempotent."""
        self._reservations.pop(request_id, None)
        self._ledger.free(_reservation_key(request_id))
        for sequence in self._branches.pop(request_id, ()):
            self._ledger.free(_branch_key(sequence))
        self._queued = deque(sequence for sequence in self._queued if sequence.request_id != request_id)
        self._running = [sequence for sequence in self._running if sequence.request_id != request_id]

    def holders(self) -> Iterator[Hashable]:
        yield from map(_reservation_key, self._reservations)
        for branches in self._branches.values():
            yield from map(_branch_key, branches)

    def check(self, block_size: int) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        if len(self._running) > self._max_sequences:
            raise InvariantViolation(f"{len(self._running)} branches run, {self._max_sequences} may")
        for request_id, reservation in self._reservations.items():
            if sorted(reservation.blocks) != sorted(self._ledger.held(_reservation_key(request_id))):
                raise InvariantViolation("a reservation names blocks that it does not hold")
        listed = [id(branch) for branches in self._branches.values() for branch in branches]
        placed = [id(branch) for branch in (*self._running, *self._queued)]
        if sorted(listed) != sorted(placed):
            raise InvariantViolation(f"{len(listed)} branches are unfinished, {len(placed)} run or queue")
        for branch in (*self._running, *self._queued):
            branch.check(block_size)
            if tuple(branch.blocks.tolist()) != self._ledger.held(_branch_key(branch)):
                raise InvariantViolation(f"branch {branch.choice} writes into blocks that it does not hold")


def _reservation_key(request_id: RequestId) -> Hashable:
    return ("reservation", request_id)


def _branch_key(sequence: DecodeSequence) -> Hashable:
    return ("branch", sequence.request_id, sequence.branch)
