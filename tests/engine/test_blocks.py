"""Blocks: shares, generations, and a ledger whose books always balance."""

import random
from collections import Counter

import pytest

from triptych.engine.blocks import BlockLedger, BlockPool, OutOfBlocks
from triptych.errors import InvariantViolation
from triptych.journey import BlockRef


def test_released_blocks_serve_the_next_request() -> None:
    pool = BlockPool(num_blocks=2)
    first = pool.reserve(2)
    pool.release(first)
    assert sorted(pool.reserve(2)) == sorted(first)


def test_a_reservation_that_does_not_fit_takes_nothing() -> None:
    pool = BlockPool(num_blocks=3)
    pool.reserve(2)
    with pytest.raises(OutOfBlocks, match="2 blocks asked for, 1 of 3 are free"):
        pool.reserve(2)
    assert pool.num_free_blocks == 1
    pool.check()


def test_a_shared_block_is_free_after_its_last_share() -> None:
    pool = BlockPool(num_blocks=1)
    ids = pool.reserve(1)
    pool.share(ids)
    pool.release(ids)
    assert pool.num_free_blocks == 0
    pool.release(ids)
    assert pool.num_free_blocks == 1


def test_each_reservation_has_a_new_generation() -> None:
    pool = BlockPool(num_blocks=1)
    seen = []
    for _ in range(3):
        (id,) = pool.reserve(1)
        pool.share([id])
        seen.append(pool.generation(id))
        pool.release([id, id])
    assert seen == [1, 2, 3]


def test_the_block_that_has_rested_longest_is_reused_first() -> None:
    pool = BlockPool(num_blocks=3)
    a, b, c = pool.reserve(3)
    pool.release([b])
    pool.release([c, a])
    assert pool.reserve(3) == [b, c, a]


@pytest.mark.parametrize("ids", [[0, 0], [1], [7], [-1]])
def test_a_share_nobody_holds_cannot_be_released(ids: list[int]) -> None:
    pool = BlockPool(num_blocks=2)
    pool.reserve(1)
    with pytest.raises(InvariantViolation):
        pool.release(ids)
    assert (pool.num_free_blocks, pool.shares(0)) == (1, 1)


def test_a_free_block_cannot_be_shared() -> None:
    pool = BlockPool(num_blocks=2)
    (held,) = pool.reserve(1)
    with pytest.raises(InvariantViolation, match="free"):
        pool.share([held, 1 - held])
    assert pool.shares(held) == 1


def test_a_holder_gives_back_exactly_what_it_held_and_once() -> None:
    ledger = BlockLedger(BlockPool(num_blocks=4))
    ids = ledger.reserve("a", 3)
    ledger.share("b", ids[:2])
    ledger.free("a")
    assert ledger.pool.num_free_blocks == 2
    ledger.free("a")
    ledger.free("b")
    assert ledger.pool.num_free_blocks == 4
    assert ledger.is_empty


def test_lent_blocks_outlive_their_holder() -> None:
    ledger = BlockLedger(BlockPool(num_blocks=2))
    ids = ledger.reserve("a", 2)
    assert ledger.lend(ids) == (BlockRef(ids[0], 1), BlockRef(ids[1], 1))
    ledger.free("a")
    assert ledger.pool.num_free_blocks == 0
    ledger.check(holders=())
    ledger.take_back(ids)
    assert ledger.is_empty


def test_a_share_that_was_never_lent_cannot_be_given_back() -> None:
    ledger = BlockLedger(BlockPool(num_blocks=2))
    ids = ledger.reserve("a", 2)
    ledger.lend(ids[:1])
    with pytest.raises(InvariantViolation, match="0 are lent"):
        ledger.take_back(ids)
    ledger.check(holders=("a",))


def test_check_finds_a_holder_that_is_gone() -> None:
    ledger = BlockLedger(BlockPool(num_blocks=2))
    ledger.reserve("a", 1)
    with pytest.raises(InvariantViolation, match="a holds blocks and is gone"):
        ledger.check(holders=("b",))


def test_check_finds_shares_behind_the_ledgers_back() -> None:
    ledger = BlockLedger(BlockPool(num_blocks=2))
    ledger.pool.share(ledger.reserve("a", 1))
    with pytest.raises(InvariantViolation, match="block 0 has 2 shares, 1 are held or lent"):
        ledger.check(holders=("a",))


@pytest.mark.parametrize("seed", range(5))
def test_random_use_keeps_the_books_balanced(seed: int) -> None:
    rng = random.Random(seed)
    ledger = BlockLedger(BlockPool(num_blocks=40))
    holders: set[int] = set()
    lent: Counter[int] = Counter()
    for turn in range(1000):
        if holders and rng.random() < 0.3:
            ledger.share(turn, ledger.held(rng.choice(sorted(holders))))
            holders.add(turn)
        elif rng.random() < 0.5 and (n := rng.randrange(1, 6)) <= ledger.pool.num_free_blocks:
            ledger.reserve(turn, n)
            holders.add(turn)
        if holders and rng.random() < 0.3:
            ids = ledger.held(rng.choice(sorted(holders)))
            ledger.lend(ids)
            lent.update(ids)
        if lent and rng.random() < 0.5:
            ids = tuple(lent.elements())[:5]
            ledger.take_back(ids)
            lent -= Counter(ids)
        while holders and (rng.random() < 0.4 or len(holders) > 20):
            holders.discard(gone := rng.choice(sorted(holders)))
            ledger.free(gone)
        ledger.check(holders)
    for holder in holders:
        ledger.free(holder)
    ledger.take_back(tuple(lent.elements()))
    assert ledger.is_empty
    assert ledger.pool.num_free_blocks == 40
