"""Thousands of random steps through one scheduler: every rule holds on every step, and nothing is left over."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.engine.books import ROW_BYTES, branches, prompt, reservation, scheduler
from tests.multimodal.parts import random_parts, text
from triptych.engine.plan import Announcement, Chunk, StepPlan
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import PrefillSequence, Reservation
from triptych.journey import RequestId
from triptych.multimodal.layout import ItemPart, TextPart


@dataclass
class Driver:
    """Random requests through one scheduler; every rule of a plan is checked on every step."""

    rng: random.Random
    books: Scheduler
    number: int = 0
    prompts: dict[RequestId, PrefillSequence] = field(default_factory=dict)
    reserved: dict[RequestId, PrefillSequence] = field(default_factory=dict)  # with their prompts
    announced: dict[RequestId, int] = field(default_factory=dict)  # tokens
    lent: list[list[int]] = field(default_factory=list)
    open_items: dict[RequestId, set[int]] = field(default_factory=dict)  # granted and not fused
    finished: int = 0

    def make(self, parts: Sequence[TextPart | ItemPart], generated: tuple[int, ...], keep_kv: bool) -> PrefillSequence:
        return prompt(self.number, parts, generated, keep_kv)

    def draw_parts(self) -> Sequence[TextPart | ItemPart]:
        if self.rng.random() < 0.7:
            return random_parts(self.rng.randrange(10_000))
        return [text(self.rng.randrange(1, 60))]

    def arrive(self) -> None:
        self.number += 1
        generated = tuple(range(self.rng.randrange(5)))
        sequence = self.make(self.draw_parts(), generated, keep_kv=self.rng.random() < 0.8)
        if self.rng.random() < 0.6:
            count = self.rng.randrange(1, 4)
            held = reservation(self.number, sequence.num_tokens, self.rng.randrange(1, 20), count)
            self.name(held, sequence)
            if held.num_blocks > self.books.ledger.pool.num_blocks:
                return
            self.books.add_reservation(held)
            self.reserved[sequence.request_id] = sequence
        else:
            self.queue_prompt(sequence)

    def name(self, held: Reservation, sequence: PrefillSequence) -> None:
        """The reservation is of this prompt."""

    def queue_prompt(self, sequence: PrefillSequence) -> None:
        self.books.add_prefill(sequence)
        self.prompts[sequence.request_id] = sequence
        self.announced[sequence.request_id] = 0

    def admit(self) -> None:
        admitted = self.books.admit()
        for held in admitted.reservations:
            self.granted(held)
        for sequence in admitted.prefills:
            assert len(sequence.blocks) == -(-sequence.num_tokens // 4)
            self.begin(sequence)
        for sequence, window in admitted.windows:
            self.open_items.setdefault(sequence.request_id, set()).update(window.items)

    def granted(self, held: Reservation) -> None:
        self.queue_prompt(self.reserved[held.request_id])

    def begin(self, sequence: PrefillSequence) -> None:
        """The prompt has room."""

    def rows_arrive(self) -> None:
        for sequence in self.prompts.values():
            for index in self.open_items.get(sequence.request_id, ()):
                if self.rng.random() < 0.3:
                    sequence.mark_ready(index)

    def step(self) -> None:
        plan = self.books.plan()
        assert len(plan.decodes) <= self.books.limits.max_sequences
        self.check_budget(plan)
        for chunk in plan.chunks:
            self.check_chunk(chunk)
            self.compute(chunk)
            self.take(chunk, self.books.advance(chunk))
            self.books.check()
        for branch in plan.decodes:
            branch.tokens.append(0)
            if len(branch.tokens) >= branch.sampling.max_tokens or self.rng.random() < 0.1:
                self.books.finish_branch(branch)
                self.finished += 1

    def check_budget(self, plan: StepPlan) -> None:
        sizes = [chunk.end - chunk.begin for chunk in plan.chunks]
        if sum(sizes) > self.books.limits.prefill_chunk_tokens:
            (chunk,) = plan.chunks
            assert any((run.start, run.end) == (chunk.begin, chunk.end) for run in chunk.sequence.layout.atomic)

    def check_chunk(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        assert chunk.begin == sequence.num_computed < chunk.end <= sequence.num_tokens
        for run in sequence.layout.atomic:
            assert not run.start < chunk.end < run.end
        for piece in sequence.rows.pieces(chunk.begin, chunk.end):
            assert piece.item_index in sequence.ready_items

    def compute(self, chunk: Chunk) -> None:
        """The chunk's work is done."""

    def take(self, chunk: Chunk, announcement: Announcement | None) -> None:
        sequence = chunk.sequence
        if announcement is not None:
            assert announcement.tokens_begin == self.announced[sequence.request_id]
            assert announcement.tokens_end <= chunk.end
            self.announced[sequence.request_id] = announcement.tokens_end
            self.lent.append([block.id for block in announcement.blocks])
        self.release_fused(sequence)
        if not sequence.is_computed:
            return
        if sequence.keep_kv:
            assert self.announced[sequence.request_id] == sequence.num_tokens
        self.finish_prompt(sequence)

    def release_fused(self, sequence: PrefillSequence) -> None:
        waiting = self.open_items[sequence.request_id]
        fused = {index for index in waiting if sequence.layout.items[index].runs[-1].end <= sequence.num_computed}
        waiting -= fused
        rows = sum(sequence.layout.items[index].rows for index in fused)
        self.books.release_landing(sequence.request_id, rows * ROW_BYTES)

    def finish_prompt(self, sequence: PrefillSequence) -> None:
        del self.prompts[sequence.request_id]
        self.books.drop_prefill(sequence.request_id)
        held = self.books.reservation(sequence.request_id)
        if held is None:
            self.reserved.pop(sequence.request_id, None)
            self.finished += 1
            return
        self.start(held)

    def start(self, held: Reservation) -> None:
        """All KV of its prompt is there."""
        sequence = self.reserved.pop(held.request_id)
        self.books.prompt_landed(held)
        chosen = [branch for branch in range(held.branches) if self.rng.random() < 0.8]
        if chosen:
            self.books.start_decode(branches(held, sequence.layout, chosen))
            for copied in held.tail_copies(chosen):
                assert copied[1] not in held.prompt_blocks
        else:
            self.books.drop_decode(held.request_id)

    def leave(self) -> None:
        known = sorted(self.books.prefill_ids() | self.books.decode_ids())
        if known:
            gone = self.rng.choice(known)
            self.books.drop_prefill(gone)
            self.books.drop_decode(gone)
            self.open_items.pop(gone, None)
            self.prompts.pop(gone, None)
            self.reserved.pop(gone, None)

    def give_back(self, all: bool = False) -> None:
        while self.lent and (all or self.rng.random() < 0.5):
            self.books.take_back(self.lent.pop(self.rng.randrange(len(self.lent))))


def run(driver: Driver, turns: int = 3000) -> None:
    """Five sixths of the turns with arrivals, then until everybody has gone."""
    for turn in range(turns):
        if turn < turns * 5 // 6 and len(driver.books.prefill_ids() | driver.books.decode_ids()) < 20:
            driver.arrive()
        driver.admit()
        driver.rows_arrive()
        driver.step()
        if driver.rng.random() < 0.05:
            driver.leave()
        driver.give_back()
        driver.books.check()
    while driver.books.prefill_ids() or driver.books.decode_ids():
        driver.admit()
        driver.rows_arrive()
        driver.step()
        driver.give_back(all=True)
        driver.books.check()
    driver.give_back(all=True)
    assert driver.books.is_idle()
    assert driver.books.ledger.pool.num_free_blocks == driver.books.ledger.pool.num_blocks
    assert driver.books.landing_bytes == 0
    assert driver.finished > 100, "the driver must get work done, or it proves nothing"


@pytest.mark.parametrize("seed", range(6))
def test_random_requests_and_departures_keep_every_rule(seed: int) -> None:
    rng = random.Random(seed)
    chunk, rows = rng.choice([3, 5, 17, 64]), rng.choice([16, 32, 200])  # the largest item has 16 rows
    books = scheduler(num_blocks=rng.choice([20, 60]), prefill_chunk_tokens=chunk, landing_bytes=rows * ROW_BYTES)
    run(Driver(rng, books))
