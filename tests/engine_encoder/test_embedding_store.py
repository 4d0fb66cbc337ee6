"""Entries of the arena: made once, kept while claimed, evicted only for room."""

import random
from dataclasses import replace

import pytest

from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.store_entry import Acquired, Entry, ItemKey, State
from triptych.errors import InvariantViolation, MediaTooLarge
from triptych.journey import Grid, Item, Modality, Run

UNIT = 64  # bytes


def key(name: int, rows: int = 4) -> ItemKey:
    return ItemKey(name.to_bytes(32, "big"), rows, Grid(1, 4, 4), 56, 56)


def ready(store: EmbeddingStore, name: int, units: int, keep: bool = False) -> Entry:
    """An entry that has been made; unclaimed unless kept."""
    entry, acquired = store.acquire(key(name), units * UNIT)
    assert acquired is Acquired.NEW
    assert store.place(entry)
    store.publish(entry)
    if not keep:
        store.release(entry)
    return entry


def found(store: EmbeddingStore, name: int, units: int) -> bool:
    return store.has_ready(key(name))


def test_the_first_produces_the_rest_join_and_later_ones_hit() -> None:
    store = EmbeddingStore(10, UNIT)
    entry, first = store.acquire(key(1), 3 * UNIT)
    _, second = store.acquire(key(1), 3 * UNIT)
    assert store.place(entry)
    _, third = store.acquire(key(1), 3 * UNIT)
    store.publish(entry)
    _, fourth = store.acquire(key(1), 3 * UNIT)
    assert [first, second, third, fourth] == [Acquired.NEW, Acquired.JOINED, Acquired.JOINED, Acquired.HIT]
    assert (store.joins, store.hits, store.num_claims) == (2, 1, 4)
    store.check()


def test_the_same_digest_with_other_rows_is_another_item() -> None:
    store = EmbeddingStore(10, UNIT)
    ready(store, 1, 3)
    _, acquired = store.acquire(key(1, rows=5), 3 * UNIT)
    assert acquired is Acquired.NEW


def test_the_same_claims_about_another_modality_or_size_are_another_item() -> None:
    store = EmbeddingStore(10, UNIT)
    entry = ready(store, 1, 3)
    for other in (
        replace(entry.key, modality=Modality.VIDEO),
        replace(entry.key, grid=Grid(2, 4, 4)),
        replace(entry.key, width=57),
        replace(entry.key, height=57),
    ):
        assert store.acquire(other, 3 * UNIT)[1] is Acquired.NEW
    assert store.acquire(replace(entry.key), 3 * UNIT)[1] is Acquired.HIT


def test_a_key_says_all_that_an_item_claims_but_its_place_in_the_prompt() -> None:
    item = Item(
        index=3,
        digest=bytes(32),
        modality=Modality.VIDEO,
        width=56,
        height=84,
        grid=Grid(2, 4, 6),
        encoder_tokens=48,
        rows=12,
        runs=(Run(5, 12),),
        span=Run(5, 12),
        media=1,
    )
    assert ItemKey.of(item) == ItemKey(bytes(32), 12, Grid(2, 4, 6), 56, 84, Modality.VIDEO)
    assert ItemKey.of(item) == ItemKey.of(replace(item, index=0, runs=(Run(0, 12),), span=Run(0, 12), media=0))


def test_bytes_are_rounded_up_to_units() -> None:
    store = EmbeddingStore(10, UNIT)
    assert [store.units_for(size) for size in (1, UNIT, UNIT + 1)] == [1, 1, 2]


def test_an_item_that_can_never_fit_is_told_both_numbers() -> None:
    store = EmbeddingStore(10, UNIT)
    with pytest.raises(MediaTooLarge, match=r"641.*640"):
        store.acquire(key(1), 10 * UNIT + 1)
    assert store.oversize == 1
    assert store.idle()
    store.check()


def test_ready_and_unclaimed_entries_stay_until_room_is_needed_and_the_oldest_goes_first() -> None:
    store = EmbeddingStore(9, UNIT)
    for name in (1, 2, 3):
        ready(store, name, 3)
    entry, _ = store.acquire(key(1), 3 * UNIT)  # used again: now the youngest
    store.release(entry)
    assert store.evictions == 0
    ready(store, 4, 3)
    assert store.evictions == 1
    assert [found(store, name, 3) for name in (1, 2, 3, 4)] == [True, False, True, True]
    store.check()


def test_claimed_entries_are_never_evicted() -> None:
    store = EmbeddingStore(9, UNIT)
    held = [ready(store, name, 3, keep=True) for name in (1, 2, 3)]
    entry, _ = store.acquire(key(4), 3 * UNIT)
    assert not store.place(entry)
    assert store.evictions == 0
    store.release(held[1])
    assert store.place(entry)
    assert entry.start == 3
    store.check()


def test_what_is_being_written_is_never_evicted() -> None:
    store = EmbeddingStore(9, UNIT)
    writing, _ = store.acquire(key(1), 9 * UNIT)
    assert store.place(writing)
    store.release(writing)  # its request has left; the device has not
    other, _ = store.acquire(key(2), UNIT)
    assert not store.place(other)
    store.publish(writing)
    assert store.place(other)
    assert writing.state is State.GONE


def test_a_reserved_entry_nobody_wants_is_gone() -> None:
    store = EmbeddingStore(9, UNIT)
    entry, _ = store.acquire(key(1), UNIT)
    store.acquire(key(1), UNIT)
    store.release(entry)
    store.check()
    assert not store.idle()
    store.release(entry)
    assert entry.state is State.GONE
    assert store.acquire(key(1), UNIT)[1] is Acquired.NEW


def test_an_abandoned_entry_gives_back_units_and_claims() -> None:
    store = EmbeddingStore(9, UNIT)
    entry, _ = store.acquire(key(1), 9 * UNIT)
    store.acquire(key(1), 9 * UNIT)
    assert store.place(entry)
    store.abandon(entry)
    assert store.idle()
    assert store.free_bytes == 9 * UNIT
    store.check()
    with pytest.raises(InvariantViolation):
        store.release(entry)


def test_generations_are_never_used_twice() -> None:
    store = EmbeddingStore(4, UNIT)
    generations = [ready(store, name, 4).generation for name in range(20)]
    assert len(set(generations)) == 20
    assert min(generations) > 0  # 0 is what fresh memory holds


def test_moves_out_of_order_are_refused() -> None:
    store = EmbeddingStore(4, UNIT)
    entry, _ = store.acquire(key(1), UNIT)
    with pytest.raises(InvariantViolation, match="published"):
        store.publish(entry)
    assert store.place(entry)
    with pytest.raises(InvariantViolation, match="placed"):
        store.place(entry)
    store.publish(entry)
    with pytest.raises(InvariantViolation, match="abandoned"):
        store.abandon(entry)


def test_popular_entries_cannot_keep_a_large_item_out_for_ever() -> None:
    store = EmbeddingStore(12, UNIT)
    ready(store, 1, 4)
    popular = ready(store, 2, 4, keep=True)
    ready(store, 3, 4)
    large, _ = store.acquire(key(9), 8 * UNIT)
    assert not store.place(large)
    store.make_way(8)
    newcomer, acquired = store.acquire(key(2), 4 * UNIT)  # finds nothing: popular drains
    assert acquired is Acquired.NEW
    assert newcomer is not popular
    assert store.replacements == 1
    store.make_way(8)
    store.check()
    store.release(popular)
    assert popular.state is State.GONE
    assert store.place(large)
    store.check()


def test_way_is_made_where_least_is_lost() -> None:
    store = EmbeddingStore(12, UNIT)
    ready(store, 1, 4, keep=True)
    ready(store, 2, 4, keep=True)
    cheap = ready(store, 3, 4)
    store.make_way(8)
    assert [found(store, name, 4) for name in (1, 2, 3)] == [True, False, True]
    assert cheap.state is State.READY


class Driver:
    """Random moves of many requests against one store."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = EmbeddingStore(40, UNIT)
        self.claims: list[Entry] = []  # one per claim
        self.generations: set[int] = set()

    def step(self) -> None:
        moves = (self.acquire, self.acquire, self.place, self.publish, self.release, self.abandon, self.make_way)
        (self.release if len(self.claims) > 8 else self.chance.choice(moves))()
        self.store.check()

    def acquire(self) -> None:
        name = self.chance.randint(0, 30)
        entry, acquired = self.store.acquire(key(name), (1 + name % 13) * UNIT)
        assert (acquired is Acquired.HIT) == (entry.state is State.READY)
        self.claims.append(entry)

    def place(self) -> None:
        if entry := self._some(State.RESERVED):
            before = {id(claimed): claimed.start for claimed in self.claims if claimed.state is State.READY}
            if self.store.place(entry):
                assert entry.generation not in self.generations
                self.generations.add(entry.generation)
            after = {id(claimed): claimed.start for claimed in self.claims if claimed.state is State.READY}
            assert before == after  # no claimed entry was touched

    def publish(self) -> None:
        if entry := self._some(State.WRITING):
            self.store.publish(entry)

    def release(self) -> None:
        if self.claims:
            self.store.release(self.claims.pop(self.chance.randrange(len(self.claims))))

    def abandon(self) -> None:
        if self.chance.random() < 0.3 and (entry := self._some(State.WRITING)):
            self.store.abandon(entry)
            self.claims = [claimed for claimed in self.claims if claimed is not entry]

    def make_way(self) -> None:
        if self.chance.random() < 0.1:
            self.store.make_way(self.chance.randint(1, 13))

    def finish(self) -> None:
        for entry in set(self.claims):
            if entry.state is State.RESERVED:
                self.store.abandon(entry)
                self.claims = [claimed for claimed in self.claims if claimed is not entry]
        while self.claims:
            self.release()
        for entry in self._writing():
            self.store.publish(entry)

    def _some(self, state: State) -> Entry | None:
        entries = [entry for entry in self.claims if entry.state is state]
        return self.chance.choice(entries) if entries else None

    def _writing(self) -> list[Entry]:
        return [entry for entry in self.store._placed.values() if entry.state is State.WRITING]


@pytest.mark.parametrize("seed", range(5))
def test_random_moves_keep_every_rule_and_end_idle(seed: int) -> None:
    driver = Driver(seed)
    for _ in range(2000):
        driver.step()
    driver.finish()
    driver.store.check()
    assert driver.store.idle()
    assert min(driver.store.evictions, driver.store.hits, driver.store.joins) > 50
