"""Random moves over an arena and its host tier: every rule and every byte looked at after each."""

import random

import pytest
import torch

from tests.engine_encoder.tiers import Arena, key, rows_of
from triptych.engine.store_entry import Acquired, Entry, State


class Driver:
    """Random moves of many requests and an operator against one store, its arena and its host tier."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.arena = Arena(num_units=24, host_units=30)
        self.store = self.arena.store
        self.claims: list[Entry] = []  # one per claim
        self.writing: list[Entry] = []
        self.lost = 0
        moves = ((self.acquire, 6), (self.batch, 4), (self.publish, 4), (self.release, 4), (self.operate, 1))
        self.moves = [move for move, weight in moves for _ in range(weight)]

    def step(self) -> None:
        (self.release if len(self.claims) > 8 else self.chance.choice(self.moves))()
        self.store.check()
        for entry in self.claims:
            if entry.state is State.READY:
                assert torch.equal(self.arena.rows(entry), rows_of(entry.key))

    def acquire(self) -> None:
        entry, acquired = self.arena.acquire(self.chance.randint(0, 15))
        assert (acquired is Acquired.HIT) == (entry.state is State.READY)
        self.claims.append(entry)

    def batch(self) -> None:
        reserved = list(dict.fromkeys(entry for entry in self.claims if entry.state is State.RESERVED))
        self.chance.shuffle(reserved)
        placed = [entry for entry in reserved[:3] if self.store.place(entry)]
        if not placed:
            if reserved:
                self.store.make_way(reserved[0].units)
            return
        for _ in range(2):
            self.acquire()  # while the batch is on its way to the device
        failed = self.arena.write(placed, torn=self.chance.random() < 0.3)
        for entry in failed:
            self.lost += 1
            self.store.abandon(entry)
        self.writing += [entry for entry in placed if entry not in failed]
        self.claims = [entry for entry in self.claims if entry not in failed]

    def publish(self) -> None:
        if self.writing:
            entry = self.writing.pop(self.chance.randrange(len(self.writing)))
            if self.chance.random() < 0.05:
                self.store.abandon(entry)
                self.claims = [claimed for claimed in self.claims if claimed is not entry]
            else:
                self.store.publish(entry)

    def release(self) -> None:
        if self.claims:
            self.store.release(self.claims.pop(self.chance.randrange(len(self.claims))))

    def operate(self) -> None:
        digests = {key(self.chance.randint(0, 15)).digest}
        for entry in self.store.found(digests):
            if self.chance.random() < 0.3:
                self.store.clear(entry)
                self.arena.host.clear(digests)
            elif entry.state is State.READY and len(self.store.pinned) < 2:
                self.store.pin(entry)
        if self.chance.random() < 0.6:
            for entry in tuple(self.store.pinned):
                self.store.unpin(entry)

    def finish(self) -> None:
        for entry in tuple(self.store.pinned):
            self.store.unpin(entry)
        while self.claims:
            self.release()
        while self.writing:
            self.publish()


@pytest.mark.parametrize("seed", range(6))
def test_random_moves_never_lose_a_rule_or_a_byte(seed: int) -> None:
    driver = Driver(seed)
    for _ in range(10_000):
        driver.step()
    driver.finish()
    driver.store.check()
    assert driver.store.idle()
    host = driver.arena.host
    assert min(host.demotions, host.promotions, driver.store.evictions) > 100
    assert min(host.failures, driver.store.hits, driver.store.replacements) > 50
    assert driver.lost > 0
