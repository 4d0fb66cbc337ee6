"""What the next step computes, and who holds what memory meanwhile: counts and queues in, plan out. No torch, no clock.

A request goes one or both of two ways through here:

    prefill   waiting ─admit─▶ computing ─(every chunk planned and launched)─▶ drop_prefill
    decode    waiting ─admit─▶ reserved ─start_decode─▶ queued ─▶ running ─(each branch)─▶ finish_branch

with a way aside and back for branches that make room for others, which `admit` decides (preemption.py). Requests
and may leave earlier, from any place, by drop_prefill or drop_decode. Each place has one holder in the ledger; leaving
it frees exactly what that holder has. Not thread-safe: the engine calls it under its lock.
"""

from collections import deque
from collections.abc import Sequence

from triptych.engine.admission import Need, Room
from triptych.engine.blocks import BlockLedger, BlockPool
from triptych.engine.decode_places import DecodePlaces
from triptych.engine.giving import Ask, Giving, prefill_key
from triptych.engine.jobs import Window
from triptych.engine.landing_books import LandingBooks
from triptych.engine.margins import AnswerLengths
from triptych.engine.plan import Admitted, Announcement, Chunk, Limits, StepPlan
from triptych.engine.preemption import Preemption, Settled
from triptych.engine.prefixes import Prefixes
from triptych.engine.sequence import DecodeSequence, PrefillSequence, Reservation, blocks_for
from triptych.errors import ContextTooLong
from triptych.journey import BlockRef, RequestId


class Scheduler:
    """Continuous batching: one token of every running branch, and chunks of prompts in order of arrival, per step."""

    def __init__(self, limits: Limits, num_blocks: int) -> None:
        self.limits = limits
        self.ledger = BlockLedger(BlockPool(num_blocks))
        self._prefixes = Prefixes(self.ledger.pool, limits.block_size)
        self._decodes = DecodePlaces(self.ledger, limits)
        self._lengths = AnswerLengths(limits.margin_tokens)
        self._preemption = Preemption(self.ledger, self._decodes, self._lengths, limits)
        self._asks: deque[Ask] = deque()  # waiting for room, in order of arrival
        self._prefills: dict[RequestId, PrefillSequence] = {}  # computing, in order of admission
        self._landing = LandingBooks(limits.row_bytes, limits.landing_bytes)
        self._giving = Giving(
            self.ledger, self._prefixes, self._decodes, self._landing, self._preemption, limits.block_size
        )

    # Arrivals

    def add_prefill(self, sequence: PrefillSequence) -> None:
        """Raises ContextTooLong for a prompt that no empty pool could take.

        Raises MediaTooLarge for one with an item that no empty landing memory could.
        """
        self._require_pool(blocks_for(sequence.num_tokens, self.limits.block_size), f"{sequence.num_tokens} tokens")
        self._landing.require(sequence.groups)
        self._asks.append(sequence)

    def add_reservation(self, reservation: Reservation) -> None:
        """It waits behind those before it by priority, then arrival; what it reserves for its answer is predicted now.

        Raises ContextTooLong for one that no empty pool could take with all that may follow.
        """
        tokens = f"{reservation.prompt_tokens} + {reservation.branches} x {reservation.max_tokens} tokens"
        self._require_pool(reservation.most_blocks, tokens)
        reservation.arrival = self._preemption.arrival(reservation.request_id)
        reservation.margin_tokens = self._lengths.margin()
        behind = (
            place
            for place, ask in enumerate(self._asks)
            if isinstance(ask, Reservation) and ask.rank > reservation.rank
        )
        self._asks.insert(next(behind, len(self._asks)), reservation)

    def admit(self) -> Admitted:
        """Give room to those whose turn it is: to branches that decode, then landing memory to prompts that go on, then
        all of it to those waiting. Ahead of every `plan`.

        One by one, because whoever gets room may take the blocks that the next would have found in the prefix cache.
        """
        taken: list[Ask] = []
        windows: list[tuple[PrefillSequence, Window]] = []
        settled = Settled()
        new_blocks = settled.new_blocks
        again = True
        while again:  # prompts that find their beginning in the cache free the blocks that were reserved for it
            self._preemption.settle(settled, is_shared=bool(self._prefills) or self.ledger.num_lent_shares > 0)
            windows += self._landing.grant()
            if not self._asks:
                break
            room = Room(self._free_room(), landing_open=not self._landing.num_waiting)
            waiting: deque[Ask] = deque()
            again = False
            for ask in self._asks:
                given = self._giving.give(ask, room)
                if given is None:
                    waiting.append(ask)
                    continue
                taken.append(ask)
                if isinstance(ask, PrefillSequence):
                    self._prefills[ask.request_id] = ask
                new_blocks += given.new_blocks
                windows += given.windows
                again = again or given.num_freed > 0
            self._asks = waiting
        windows += self._landing.grant()
        return Admitted(
            prefills=tuple(ask for ask in taken if isinstance(ask, PrefillSequence)),
            windows=tuple(windows),
            reservations=tuple(ask for ask in taken if isinstance(ask, Reservation)),
            new_blocks=tuple(BlockRef(id, self.ledger.pool.generation(id)) for id in new_blocks),
            moves=tuple(settled.moves),
            ended=tuple(settled.ended),
        )

    def start_decode(self, sequences: Sequence[DecodeSequence]) -> None:
        """Turn a reservation into branches; those that are not listed need no room any more.

        Their request must have a reservation. The branches' `blocks` are filled in.
        """
        self._decodes.start(sequences)

    def prompt_landed(self, reservation: Reservation) -> None:
        """The prompt's KV is whole, and verified, in the blocks of this granted reservation."""
        self._prefixes.settle(reservation)

    # One step

    def plan(self) -> StepPlan:
        """The next step; of the branches that run, those that have room for it. Changes nothing but who is running."""
        running = tuple([branch for branch in self._decodes.run() if branch.is_ready])
        limits = self.limits
        mixed = limits.mixed_chunk_tokens if running else 0
        room = whole_room = mixed or limits.prefill_chunk_tokens
        chunks: list[Chunk] = []
        for sequence in self._prefills.values():
            end = sequence.chunk_end(max(room, 0), whole_room)
            if end > sequence.num_computed:
                chunks.append(Chunk(sequence, sequence.num_computed, end))
                room -= end - sequence.num_computed
        return StepPlan(running, tuple(chunks))

    def advance(self, chunk: Chunk) -> Announcement | None:
        """The chunk's work is launched: count it, let its blocks be found, and lend out those that it completes."""
        sequence = chunk.sequence
        sequence.num_computed = chunk.end
        self._prefixes.publish(sequence)
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
        self._landing.release(request_id, num_bytes)

    def take_back(self, ids: Sequence[int]) -> None:
        """Lent blocks come back. Raises InvariantViolation when a share was never lent, and takes none back."""
        self.ledger.take_back(ids)
        self._prefixes.rest(ids)

    def finish_branch(self, sequence: DecodeSequence) -> None:
        """Its last token is known; it may have been set aside meanwhile."""
        self._lengths.record(len(sequence.tokens))
        self._decodes.finish(sequence)

    # Departures at any moment; all are idempotent

    def drop_prefill(self, request_id: RequestId, spoiled: bool = False) -> None:
        """spoiled: a step with this prompt went wrong; nobody may find its blocks, or any built upon them, again"""
        self._forget_asks(PrefillSequence, request_id)
        prompt = self._prefills.pop(request_id, None)
        self._prefixes.leave(request_id)
        if prompt is not None and spoiled:
            self._spoil(prompt.blocks)
        self._landing.drop(request_id)
        self.ledger.free(prefill_key(request_id))

    def drop_decode(self, request_id: RequestId, spoiled: bool = False) -> None:
        """spoiled: as in drop_prefill, of the prompt that is decoded behind"""
        self._forget_asks(Reservation, request_id)
        if spoiled:
            self._spoil(self._decodes.blocks(request_id))
        self._decodes.drop(request_id)

    # Questions

    @property
    def landing_bytes(self) -> int:
        """Reserved and not fused."""
        return self._landing.num_bytes

    def reservation(self, request_id: RequestId) -> Reservation | None:
        """Granted, and its decoding has not started."""
        return self._decodes.reservation(request_id)

    def baseless(self) -> list[RequestId]:
        """Requests whose reservations began with cached blocks that a failed step has taken part in since."""
        return self._decodes.baseless()

    def aside_ids(self) -> list[RequestId]:
        """Requests that make room for others, or stand still, until there are blocks again."""
        return [branch.request_id for branch in self._decodes.aside]

    def prefill_ids(self) -> set[RequestId]:
        """Prompts waiting or computing."""
        return {ask.request_id for ask in self._asks if isinstance(ask, PrefillSequence)} | set(self._prefills)

    def is_decoding(self, request_id: RequestId) -> bool:
        """Whether a branch of the request is unfinished."""
        return self._decodes.is_decoding(request_id)

    def holds_branch(self, sequence: DecodeSequence) -> bool:
        """Whether this very branch, not one of a later attempt, is unfinished."""
        return self._decodes.holds(sequence)

    def decode_ids(self) -> set[RequestId]:
        """Requests waiting for blocks, reserved or decoding."""
        return {ask.request_id for ask in self._asks if isinstance(ask, Reservation)} | self._decodes.request_ids

    def gauges(self) -> dict[str, float]:
        """Names and units as in metrics.WORKER_GAUGES."""
        waiting = [ask for ask in self._asks if isinstance(ask, PrefillSequence)]
        prefills = [*waiting, *self._prefills.values()]
        pool = self.ledger.pool
        return {
            "kv_blocks": pool.num_blocks,
            "kv_free_blocks": pool.num_free_blocks,
            "kv_cached_blocks": pool.num_cached_blocks,
            "prefix_lookup_tokens_total": self._prefixes.num_looked_up,
            "prefix_hit_tokens_total": self._prefixes.num_hit,
            "prefill_queued_tokens": sum(prompt.num_tokens - prompt.num_computed for prompt in prefills),
            "prefill_requests": len(prefills),
            "prefill_windows_waiting": self._landing.num_waiting,
            "decode_sequences": self._decodes.num_sequences,
            "decode_reservations_queued": len(self._asks) - len(waiting),
            "landing_bytes": self.landing_bytes,
            **self._preemption.gauges(),
        }

    def is_idle(self) -> bool:
        """Nobody waits or runs, and every block is free."""
        return not (self._asks or self._prefills) and self._decodes.is_empty and self.ledger.is_empty

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        self.ledger.check([*map(prefill_key, self._prefills), *self._decodes.holders()])
        self._prefixes.check()
        self._landing.check(self._prefills)
        self._decodes.check(self.limits.block_size)
        for held in self._decodes.reservations:
            self._prefixes.check_held(held)
        for prompt in self._prefills.values():
            prompt.check()

    # Room

    def _free_room(self) -> Need:
        free = self.ledger.pool.num_free_blocks - self._preemption.headroom()
        return Need(max(0, free), self._landing.num_free_bytes)

    def _spoil(self, blocks: Sequence[int]) -> None:
        self._prefixes.spoil(blocks)
        self._decodes.doubt(self._prefixes.knows)

    def _require_pool(self, num_blocks: int, what: str) -> None:
        pool = self.ledger.pool
        if num_blocks > pool.num_blocks:
            raise ContextTooLong(
                f"{what} need {num_blocks} KV blocks of {self.limits.block_size} tokens, there are {pool.num_blocks}"
            )

    def _forget_asks(self, kind: type, request_id: RequestId) -> None:
        self._asks = deque(ask for ask in self._asks if not (isinstance(ask, kind) and ask.request_id == request_id))
