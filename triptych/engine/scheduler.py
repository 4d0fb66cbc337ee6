"""What the next step computes, and who holds what memory meanwhile: counts and queues in, plan out. No torch, no clock.

A request goes one or both of two ways through here:

    prefill   waiting ─admit─▶ computing ─(every chunk planned and launched)─▶ drop_prefill
    decode    waiting ─admit─▶ reserved ─start_decode─▶ queued ─▶ running ─(each branch)─▶ finish_branch

and may leave earlier, from any place, by drop_prefill or drop_decode. Each place has one holder in the ledger; leaving
it frees exactly what that holder has. Not thread-safe: the engine calls it under its lock.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from triptych.engine.admission import Need, admit
from triptych.engine.blocks import BlockLedger, BlockPool
from triptych.engine.plan import Admitted, Announcement, Chunk, Limits, StepPlan
from triptych.engine.sequence import DecodeSequence, PrefillSequence, Reservation, blocks_for
from triptych.errors import ContextTooLong, InvariantViolation
from triptych.journey import BlockRef, RequestId


class Scheduler:
    """Continuous batching: one token of every running branch, and chunks of prompts in order of arrival, per step."""

    def __init__(self, limits: Limits, num_blocks: int) -> None:
        self.limits = limits
        self.ledger = BlockLedger(BlockPool(num_blocks))
        self._asks: deque[PrefillSequence | Reservation] = deque()  # waiting for room, in order of arrival
        self._prefills: dict[RequestId, PrefillSequence] = {}  # computing, in order of admission
        self._landing_bytes: dict[RequestId, int] = {}  # of those prefills
        self._reservations: dict[RequestId, Reservation] = {}  # until their branches start
        self._branches: dict[RequestId, list[DecodeSequence]] = {}  # unfinished, queued or running
        self._queued: deque[DecodeSequence] = deque()
        self._running: list[DecodeSequence] = []

    # Arrivals

    def add_prefill(self, sequence: PrefillSequence) -> None:
        """Raises ContextTooLong for a prompt that no empty pool could take."""
        self._require_pool(blocks_for(sequence.num_tokens, self.limits.block_size), f"{sequence.num_tokens} tokens")
        self._asks.append(sequence)

    def add_reservation(self, reservation: Reservation) -> None:
        """Raises ContextTooLong for one that no empty pool could take."""
        tokens = f"{reservation.prompt_tokens} + {reservation.branches} x {reservation.max_tokens} tokens"
        self._require_pool(reservation.num_blocks, tokens)
        self._asks.append(reservation)

    def admit(self) -> Admitted:
        """Give room to those waiting whose turn it is."""
        asks = tuple(self._asks)
        chosen = admit(map(self._need, asks), self._free_room())
        new_blocks: list[int] = []
        for index in chosen:
            new_blocks += self._settle(asks[index])
            self._asks.remove(asks[index])
        taken = [asks[index] for index in chosen]
        return Admitted(
            prefills=tuple(ask for ask in taken if isinstance(ask, PrefillSequence)),
            reservations=tuple(ask for ask in taken if isinstance(ask, Reservation)),
            new_blocks=tuple(BlockRef(id, self.ledger.pool.generation(id)) for id in new_blocks),
        )

    def start_decode(self, sequences: Sequence[DecodeSequence]) -> None:
        """Turn a reservation into branches; those that are not listed need no room any more.

        Their request must have a reservation. The branches' `blocks` are filled in.
        """
        request_id = sequences[0].request_id
        reservation = self._reservations.pop(request_id)
        for sequence in sequences:
            table = reservation.table(sequence.branch)
            self.ledger.share(_branch_key(sequence), table)
            sequence.blocks = np.array(table, dtype=np.int64)
        self.ledger.free(_reservation_key(request_id))
        self._branches[request_id] = list(sequences)
        self._queued.extend(sequences)

    # One step

    def plan(self) -> StepPlan:
        """The next step. Changes nothing but who is running."""
        while self._queued and len(self._running) < self.limits.max_sequences:
            self._running.append(self._queued.popleft())
        room = whole_room = self.limits.prefill_chunk_tokens
        chunks: list[Chunk] = []
        for sequence in self._prefills.values():
            end = sequence.chunk_end(max(room, 0), whole_room)
            if end > sequence.num_computed:
                chunks.append(Chunk(sequence, sequence.num_computed, end))
                room -= end - sequence.num_computed
        return StepPlan(tuple(self._running), tuple(chunks))

    def advance(self, chunk: Chunk) -> Announcement | None:
        """The chunk's work is launched: count it, and lend out the blocks that it completes."""
        sequence = chunk.sequence
        sequence.num_computed = chunk.end
        fresh = sequence.blocks_to_announce(self.limits.block_size)
        if not sequence.keep_kv or fresh is None:
            return None
        sequence.num_announced_blocks = fresh.end
        return Announcement(
            blocks=self.ledger.lend(sequence.blocks[fresh.start : fresh.end]),
            tokens_begin=fresh.start * self.limits.block_size,
            tokens_end=min(fresh.end * self.limits.block_size, sequence.num_tokens),
            last=sequence.is_computed,
        )

    def release_landing(self, request_id: RequestId, num_bytes: int) -> None:
        """Rows of that many bytes are fused, and their memory is free."""
        self._landing_bytes[request_id] -= num_bytes

    def finish_branch(self, sequence: DecodeSequence) -> None:
        siblings = self._branches[sequence.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._branches[sequence.request_id]
        self._running.remove(sequence)
        self.ledger.free(_branch_key(sequence))

    # Departures at any moment; both are idempotent

    def drop_prefill(self, request_id: RequestId) -> None:
        self._forget_asks(PrefillSequence, request_id)
        self._prefills.pop(request_id, None)
        self._landing_bytes.pop(request_id, None)
        self.ledger.free(_prefill_key(request_id))

    def drop_decode(self, request_id: RequestId) -> None:
        self._forget_asks(Reservation, request_id)
        self._reservations.pop(request_id, None)
        self.ledger.free(_reservation_key(request_id))
        for sequence in self._branches.pop(request_id, ()):
            self.ledger.free(_branch_key(sequence))
        self._queued = deque(sequence for sequence in self._queued if sequence.request_id != request_id)
        self._running = [sequence for sequence in self._running if sequence.request_id != request_id]

    # Questions

    @property
    def landing_bytes(self) -> int:
        """Reserved and not fused."""
        return sum(self._landing_bytes.values())

    def reservation(self, request_id: RequestId) -> Reservation | None:
        """Granted, and its decoding has not started."""
        return self._reservations.get(request_id)

    def prefill_ids(self) -> set[RequestId]:
        """Prompts waiting or computing."""
        return {ask.request_id for ask in self._asks if isinstance(ask, PrefillSequence)} | set(self._prefills)

    def is_decoding(self, request_id: RequestId) -> bool:
        """Whether a branch of the request is unfinished."""
        return request_id in self._branches

    def decode_ids(self) -> set[RequestId]:
        """Requests waiting for blocks, reserved or decoding."""
        waiting = {ask.request_id for ask in self._asks if isinstance(ask, Reservation)}
        return waiting | set(self._reservations) | set(self._branches)

    def gauges(self) -> dict[str, float]:
        """Names and units as in metrics.WORKER_GAUGES."""
        waiting = [ask for ask in self._asks if isinstance(ask, PrefillSequence)]
        prefills = [*waiting, *self._prefills.values()]
        return {
            "kv_blocks": self.ledger.pool.num_blocks,
            "kv_free_blocks": self.ledger.pool.num_free_blocks,
            "prefill_queued_tokens": sum(prompt.num_tokens - prompt.num_computed for prompt in prefills),
            "prefill_requests": len(prefills),
            "decode_sequences": len(self._running) + len(self._queued),
            "decode_reservations_queued": len(self._asks) - len(waiting),
            "landing_bytes": self.landing_bytes,
        }

    def is_idle(self) -> bool:
        """Nobody waits or runs, and every block is free."""
        return not (self._asks or self._prefills or self._reservations or self._branches) and self.ledger.is_empty

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        self.ledger.check(self._holders())
        if set(self._landing_bytes) != set(self._prefills):
            holders, running = len(self._landing_bytes), len(self._prefills)
            raise InvariantViolation(f"{holders} prompts hold landing memory, {running} are being computed")
        used = self.landing_bytes
        if not 0 <= used <= self.limits.landing_bytes or min(self._landing_bytes.values(), default=0) < 0:
            raise InvariantViolation(f"{used} of {self.limits.landing_bytes} landing bytes are reserved")
        if len(self._running) > self.limits.max_sequences:
            raise InvariantViolation(f"{len(self._running)} branches run, {self.limits.max_sequences} may")
        self._check_branches()
        for prompt in self._prefills.values():
            prompt.check()

    def _check_branches(self) -> None:
        listed = [id(branch) for branches in self._branches.values() for branch in branches]
        placed = [id(branch) for branch in (*self._running, *self._queued)]
        if sorted(listed) != sorted(placed):
            raise InvariantViolation(f"{len(listed)} branches are unfinished, {len(placed)} run or queue")
        for branch in (*self._running, *self._queued):
            branch.check(self.limits.block_size)
            if tuple(branch.blocks.tolist()) != self.ledger.held(_branch_key(branch)):
                raise InvariantViolation(f"branch {branch.choice} writes into blocks that it does not hold")

    def _holders(self) -> Iterator[Hashable]:
        yield from map(_prefill_key, self._prefills)
        yield from map(_reservation_key, self._reservations)
        for branches in self._branches.values():
            yield from map(_branch_key, branches)

    def _need(self, ask: PrefillSequence | Reservation) -> Need:
        if isinstance(ask, Reservation):
            return Need(ask.num_blocks, 0)
        blocks = 0 if self._reserved_for(ask) else blocks_for(ask.num_tokens, self.limits.block_size)
        return Need(blocks, ask.layout.num_rows * self.limits.row_bytes)

    def _free_room(self) -> Need:
        return Need(self.ledger.pool.num_free_blocks, self.limits.landing_bytes - self.landing_bytes)

    def _settle(self, ask: PrefillSequence | Reservation) -> list[int]:
        """Give the ask what it needs; the blocks that nobody held before."""
        if isinstance(ask, Reservation):
            blocks = self.ledger.reserve(_reservation_key(ask.request_id), ask.num_blocks)
            ask.blocks = tuple(blocks)
            self._reservations[ask.request_id] = ask
            return blocks
        self._prefills[ask.request_id] = ask
        self._landing_bytes[ask.request_id] = ask.layout.num_rows * self.limits.row_bytes
        ask.blocks = self._reserved_for(ask)
        if ask.blocks:
            self.ledger.share(_prefill_key(ask.request_id), ask.blocks)
            return []
        blocks = self.ledger.reserve(_prefill_key(ask.request_id), blocks_for(ask.num_tokens, self.limits.block_size))
        ask.blocks = tuple(blocks)
        return blocks

    def _reserved_for(self, sequence: PrefillSequence) -> tuple[int, ...]:
        """The prompt blocks of the request's own reservation here: computing into them saves the copy at hand-over."""
        reservation = self._reservations.get(sequence.request_id)
        if reservation is None or reservation.prompt_tokens != sequence.num_tokens:
            return ()  # a different length is a disagreement between tiers; start of decoding refuses it by name
        return reservation.prompt_blocks

    def _require_pool(self, num_blocks: int, what: str) -> None:
        pool = self.ledger.pool
        if num_blocks > pool.num_blocks:
            raise ContextTooLong(
                f"{what} need {num_blocks} KV blocks of {self.limits.block_size} tokens, there are {pool.num_blocks}"
            )

    def _forget_asks(self, kind: type, request_id: RequestId) -> None:
        self._asks = deque(ask for ask in self._asks if not (isinstance(ask, kind) and ask.request_id == request_id))


def _prefill_key(request_id: RequestId) -> Hashable:
    return ("prefill", request_id)


def _reservation_key(request_id: RequestId) -> Hashable:
    return ("reservation", request_id)


def _branch_key(sequence: DecodeSequence) -> Hashable:
    return ("branch", sequence.request_id, sequence.branch)
