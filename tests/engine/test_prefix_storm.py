"""Thousands of random steps with the prefix cache on, over blocks whose tokens remember what they were computed from.

The judge knows nothing of keys: it compares, for every chunk, the whole history of every token in the block table with
the history the prompt would have if it had computed all of it itself.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.engine.books import BLOCK_SIZE, ROW_BYTES, cached, scheduler
from tests.engine.test_scheduler_storm import Driver, run
from tests.multimodal.parts import random_parts, text
from triptych.engine.plan import Chunk
from triptych.engine.sequence import PrefillSequence, Reservation
from triptych.journey import RequestId
from triptych.multimodal.layout import ItemPart, TextPart
from triptych.multimodal.rope import rope_positions

SALTS = (b"", b"", b"", b"tenant")


@dataclass(frozen=True, slots=True)
class Cell:
    """One token's KV. makers: the prompt that wrote it, and all whose KV it was computed from."""

    history: int
    makers: frozenset[RequestId]


@dataclass
class PrefixDriver(Driver):
    """Prompts that often begin alike, over a memory of histories."""

    memory: dict[tuple[int, int], Cell] = field(default_factory=dict)  # by block and slot
    numbers: dict[object, int] = field(default_factory=dict)  # of histories: a token and the number of the one before
    histories: dict[RequestId, list[int]] = field(default_factory=dict)
    failed: set[RequestId] = field(default_factory=set)
    poisoned: set[tuple[int, int]] = field(default_factory=set)  # blocks, with their generations, of failed steps
    away: dict[RequestId, Reservation] = field(default_factory=dict)  # whose prompts are computed by another worker
    hit_tokens: int = 0
    kept_tokens: int = 0  # hits of reservations
    failed_decodes: int = 0
    covered_items: int = 0

    def make(self, parts: Sequence[TextPart | ItemPart], generated: tuple[int, ...], keep_kv: bool) -> PrefillSequence:
        salt = self.rng.choice(SALTS)
        sequence = cached(self.number, parts, generated, keep_kv, salt)
        self.histories[sequence.request_id] = self.history(sequence, salt)
        return sequence

    def draw_parts(self) -> Sequence[TextPart | ItemPart]:
        """One of a few conversations, cut somewhere, perhaps with an image exchanged, and something new behind it."""
        parts = [text(self.rng.randrange(2) * 6 + 1), *random_parts(self.rng.randrange(5)), text(8)]
        parts = parts[: self.rng.randrange(1, len(parts) + 1)]
        place = self.rng.randrange(len(parts))
        part = parts[place]
        if isinstance(part, ItemPart) and self.rng.random() < 0.3:
            parts[place] = replace(part, digest=bytes([99]) * 32)
        return [*parts, text(self.rng.randrange(1, 9), first=self.rng.randrange(3))]

    def history(self, sequence: PrefillSequence, salt: bytes) -> list[int]:
        """For each token, the number of everything up to it."""
        ids = [*sequence.layout.token_ids.tolist(), *sequence.generated]
        rope = rope_positions(sequence.layout, 0, len(ids)).T.tolist()
        rows: dict[int, tuple[bytes, int]] = {}
        for piece in sequence.rows.pieces(0, sequence.layout.num_tokens):
            for offset, position in enumerate(piece.positions.tolist()):
                rows[position] = (sequence.layout.items[piece.item_index].digest, piece.row_begin + offset)
        out: list[int] = []
        before: object = salt
        for position, id in enumerate(ids):
            token = (before, id, *rope[position], rows.get(position))
            before = self.numbers.setdefault(token, len(self.numbers))
            out.append(before)
        return out

    def name(self, held: Reservation, sequence: PrefillSequence) -> None:
        if self.rng.random() < 0.8:
            held.keys = sequence.keys

    def admit(self) -> None:
        for request_id in self.books.baseless():
            self.forget(request_id)
        super().admit()

    def granted(self, held: Reservation) -> None:
        sequence, num_cached = self.reserved[held.request_id], held.num_cached_blocks * BLOCK_SIZE
        self.check_found(sequence, held.blocks, num_cached)
        self.kept_tokens += num_cached
        if self.rng.random() < 0.5:
            self.away[held.request_id] = held
        else:
            super().granted(held)

    def begin(self, sequence: PrefillSequence) -> None:
        self.check_found(sequence, sequence.blocks, sequence.num_cached)
        held = self.books.reservation(sequence.request_id)
        if held is not None and held.prompt_blocks == sequence.blocks:
            assert sequence.num_cached >= held.num_cached_blocks * BLOCK_SIZE
        self.hit_tokens += sequence.num_cached
        self.covered_items += len(sequence.ready_items)

    def check_found(self, sequence: PrefillSequence, blocks: Sequence[int], end: int) -> None:
        found = [self.memory[blocks[at // BLOCK_SIZE], at % BLOCK_SIZE] for at in range(end)]
        self.check_history(sequence, found)
        for cell in found:
            assert not cell.makers & self.failed, "KV of a failed prompt, or computed from it, was found"
        for block in blocks[: end // BLOCK_SIZE]:
            assert self.named(block) not in self.poisoned, "KV that a failed step had read was found"
        assert end < sequence.num_tokens
        for span in sequence.layout.atomic:
            assert not span.start < end < span.end

    def named(self, block: int) -> tuple[int, int]:
        return block, self.books.ledger.pool.generation(block)

    def rows_arrive(self) -> None:
        """KV, too, of prompts that are computed elsewhere."""
        super().rows_arrive()
        for held in [held for held in self.away.values() if self.rng.random() < 0.3]:
            self.land(self.away.pop(held.request_id))

    def land(self, held: Reservation) -> None:
        """The other worker computed all of it itself."""
        sequence = self.reserved[held.request_id]
        for at in range(held.num_cached_blocks * BLOCK_SIZE, sequence.num_tokens):
            block = held.prompt_blocks[at // BLOCK_SIZE]
            assert self.books.ledger.pool.shares(block) == 1, "KV lands where somebody else may read"
            assert block not in self.books.ledger.pool.kept, "KV lands in a block that can be found"
            cell = Cell(self.histories[held.request_id][at], frozenset({held.request_id}))
            self.memory[block, at % BLOCK_SIZE] = cell
        self.start(held)

    def compute(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        read = self.read(sequence, chunk.begin)
        self.check_history(sequence, read)
        makers = frozenset({sequence.request_id}).union(*(cell.makers for cell in read))
        held = self.books.reservation(sequence.request_id)
        holders = 1 + (held is not None and held.prompt_blocks == sequence.blocks)
        for at in range(chunk.begin, chunk.end):
            block = sequence.blocks[at // BLOCK_SIZE]
            assert self.books.ledger.pool.shares(block) == holders, "a block is written that somebody else may read"
            self.memory[block, at % BLOCK_SIZE] = Cell(self.histories[sequence.request_id][at], makers)

    def read(self, sequence: PrefillSequence, end: int) -> list[Cell]:
        return [self.memory[sequence.blocks[at // BLOCK_SIZE], at % BLOCK_SIZE] for at in range(end)]

    def check_history(self, sequence: PrefillSequence, read: Sequence[Cell]) -> None:
        wanted = self.histories[sequence.request_id][: len(read)]
        assert [cell.history for cell in read] == wanted, "a prompt reads what it would not have computed"

    def leave(self) -> None:
        """Two thirds of those who leave early are being computed or decoded, and leave because a step has failed."""
        computing = [request_id for request_id, sequence in self.prompts.items() if sequence.blocks]
        decoding = sorted(filter(self.books.is_decoding, self.books.decode_ids()))
        draw = self.rng.random()
        if draw < 0.33 and computing:
            gone = self.rng.choice(computing)
            self.failed.add(gone)
            self.poisoned.update(map(self.named, self.prompts[gone].blocks))
            self.books.drop_prefill(gone, spoiled=True)
            self.forget(gone)
        elif draw < 0.67 and decoding:
            gone = self.rng.choice(decoding)
            self.failed.add(gone)
            self.failed_decodes += 1
            running = [branch for branch in self.books.plan().decodes if branch.request_id == gone]
            self.poisoned.update(self.named(block) for branch in running for block in branch.blocks.tolist())
            self.books.drop_decode(gone, spoiled=True)
            self.forget(gone)
        else:
            super().leave()
            self.away = {id: held for id, held in self.away.items() if self.books.reservation(id) is held}

    def forget(self, request_id: RequestId) -> None:
        self.books.drop_prefill(request_id)
        self.books.drop_decode(request_id)
        for known in (self.prompts, self.open_items, self.reserved, self.away):
            known.pop(request_id, None)


@pytest.mark.parametrize("seed", range(6))
def test_no_prompt_ever_reads_what_it_would_not_have_computed(seed: int) -> None:
    rng = random.Random(seed)
    books = scheduler(
        num_blocks=rng.choice([40, 90]),
        prefill_chunk_tokens=rng.choice([5, 17, 64]),
        max_sequences=16,
        landing_bytes=32 * ROW_BYTES,
    )
    driver = PrefixDriver(rng, books)
    run(driver, turns=4000)
    assert driver.hit_tokens > 1500
    assert driver.covered_items > 20
    assert driver.kept_tokens > 500
    assert len(driver.failed) - driver.failed_decodes > 10
    assert driver.failed_decodes > 10
