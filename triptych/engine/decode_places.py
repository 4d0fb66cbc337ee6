"""Requests that are decoded here, from the grant of their blocks to the end of their last branch.

    reserved ─start─▶ queued ─▶ running ─(each branch)─▶ finish
                        ▲          │
                        └─ aside ◀─┘   to make room: some of its blocks, or none, are on the host

Each place has one holder in the ledger; leaving it frees exactly what that holder has, on the host, too. Who makes room
when is preemption's to say. Not thread-safe: the engine calls it under its lock.
"""

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np

from triptych.engine.blocks import BlockLedger
from triptych.engine.host_slots import HostSlots
from triptych.engine.plan import Limits
from triptych.engine.sequence import DecodeSequence, Reservation
from triptych.errors import InvariantViolation
from triptych.journey import RequestId


class DecodePlaces:
    """Granted reservations, and the branches that came of them."""

    def __init__(self, ledger: BlockLedger, limits: Limits) -> None:
        self.slots = HostSlots(limits.num_swap_slots)
        self._ledger = ledger
        self._limits = limits
        self._reservations: dict[RequestId, Reservation] = {}  # until their branches start
        self._branches: dict[RequestId, list[DecodeSequence]] = {}  # unfinished, queued or running
        self._queued: list[DecodeSequence] = []  # by rank
        self._running: list[DecodeSequence] = []
        self._aside: list[DecodeSequence] = []  # by rank

    @property
    def is_empty(self) -> bool:
        return not (self._reservations or self._branches)

    @property
    def num_sequences(self) -> int:
        """Branches queued, running and set aside."""
        return len(self._running) + len(self._queued) + len(self._aside)

    @property
    def running(self) -> Sequence[DecodeSequence]:
        return self._running

    @property
    def queued(self) -> Sequence[DecodeSequence]:
        """By rank."""
        return self._queued

    @property
    def aside(self) -> Sequence[DecodeSequence]:
        """By rank."""
        return self._aside

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
        if reservation.keys is not None:  # else it takes no part in the cache, but its prompt does
            reservation.num_cached_blocks = end
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
            most = max(len(table), sequence.most_blocks(self._limits.block_size))
            sequence.table = np.zeros(most, dtype=np.int64)
            sequence.table[: len(table)] = table
            self._use(sequence, len(table))
            sequence.rank, sequence.is_alone = reservation.rank, reservation.branches == 1
            sequence.may_add = min(sequence.may_add, self._limits.max_model_len - sequence.prompt_tokens)
            insort(self._queued, sequence, key=_rank)
        self._ledger.free(_reservation_key(request_id))
        self._branches[request_id] = list(sequences)

    def run(self) -> Sequence[DecodeSequence]:
        """Fill the running places from the queue; all branches that run now."""
        while self._queued and len(self._running) < self._limits.max_sequences:
            branch = self._queued.pop(0)
            branch.is_running = True
            self._running.append(branch)
        return self._running

    def grow(self, sequence: DecodeSequence, count: int) -> list[int]:
        """So many more blocks, which must be free, for a branch; which ones."""
        new = self._ledger.reserve(_branch_key(sequence), count)
        begin = len(sequence.blocks)
        sequence.table[begin : begin + count] = new
        self._use(sequence, begin + count)
        return new

    def set_aside(self, sequence: DecodeSequence, keep: int, slots: Sequence[int] = ()) -> None:
        """It runs no more until it is brought back, and keeps its first so many blocks; what follows is in the slots.

        One that is aside already gives up more: the slots go ahead of those that it has.
        """
        for places in (self._running, self._queued):
            if sequence in places:  # dataclasses without eq are told apart by identity
                places.remove(sequence)
                insort(self._aside, sequence, key=_rank)
        self._ledger.shrink(_branch_key(sequence), keep)
        self._use(sequence, keep)
        sequence.is_running = False
        sequence.slots = (*slots, *sequence.slots)

    def bring_back(self, sequence: DecodeSequence, count: int) -> list[int]:
        """Into the queue, with so many more free blocks, of which the first take what was in its slots; which ones."""
        new = self.grow(sequence, count)
        self.slots.give_back(sequence.slots)
        sequence.slots = ()
        self._aside.remove(sequence)
        insort(self._queued, sequence, key=_rank)
        return new

    def is_decoding(self, request_id: RequestId) -> bool:
        """Whether a branch of the request is unfinished."""
        return request_id in self._branches

    def holds(self, sequence: DecodeSequence) -> bool:
        """Whether this very branch, not one of a later attempt, is unfinished."""
        return sequence in self._branches.get(sequence.request_id, ())  # branches are equal to themselves alone

    def finish(self, sequence: DecodeSequence) -> None:
        siblings = self._branches[sequence.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._branches[sequence.request_id]
        for places in (self._running, self._aside, self._queued):
            if sequence in places:  # one that was set aside may end by a token that was on its way
                places.remove(sequence)
        self._free(sequence)

    def drop(self, request_id: RequestId) -> None:
        """Free everything, at any moment. Idempotent."""
        self._reservations.pop(request_id, None)
        self._ledger.free(_reservation_key(request_id))
        for sequence in self._branches.pop(request_id, ()):
            self._free(sequence)
        for places in (self._queued, self._running, self._aside):
            places[:] = [sequence for sequence in places if sequence.request_id != request_id]

    def holders(self) -> Iterator[Hashable]:
        yield from map(_reservation_key, self._reservations)
        for branches in self._branches.values():
            yield from map(_branch_key, branches)

    def check(self, block_size: int) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        if len(self._running) > self._limits.max_sequences:
            raise InvariantViolation(f"{len(self._running)} branches run, {self._limits.max_sequences} may")
        for request_id, reservation in self._reservations.items():
            if sorted(reservation.blocks) != sorted(self._ledger.held(_reservation_key(request_id))):
                raise InvariantViolation("a reservation names blocks that it does not hold")
        listed = [id(branch) for branches in self._branches.values() for branch in branches]
        branches = (*self._running, *self._queued, *self._aside)
        placed = [id(branch) for branch in branches]
        if sorted(listed) != sorted(placed):
            raise InvariantViolation(f"{len(listed)} branches are unfinished, {len(placed)} run, queue or are aside")
        for branch in branches:
            branch.check(block_size)
            if tuple(branch.blocks.tolist()) != self._ledger.held(_branch_key(branch)):
                raise InvariantViolation(f"branch {branch.choice} writes into blocks that it does not hold")
        if any(branch.slots for branch in (*self._running, *self._queued)):
            raise InvariantViolation("a branch runs, or may, whose KV is on the host")
        self.slots.check([slot for branch in self._aside for slot in branch.slots])

    def _use(self, sequence: DecodeSequence, num_blocks: int) -> None:
        """The first so many of its table."""
        sequence.blocks, sequence.room = sequence.table[:num_blocks], num_blocks * self._limits.block_size

    def _free(self, sequence: DecodeSequence) -> None:
        self._ledger.free(_branch_key(sequence))
        self.slots.give_back(sequence.slots)
        sequence.slots, sequence.is_running = (), False


def _reservation_key(request_id: RequestId) -> Hashable:
    return ("reservation", request_id)


def _rank(sequence: DecodeSequence) -> tuple[int, int]:
    return sequence.rank


def _branch_key(sequence: DecodeSequence) -> Hashable:
    return ("branch", sequence.request_id, sequence.branch)
