"""The prefix index over a block pool: against a plain table of whole prefixes, and its two rules of safety."""

import random
from dataclasses import dataclass, field

import pytest

from tests.engine.books import request_id
from triptych.engine.block_keys import BlockKeys
from triptych.engine.blocks import BlockLedger, BlockPool
from triptych.engine.prefix_index import PrefixIndex
from triptych.errors import InvariantViolation
from triptych.multimodal.layout import TextPart, lay_out

ONE, TWO = request_id(1), request_id(2)


def keys_of(*ids: int) -> BlockKeys:
    """One block per id."""
    layout = lay_out([TextPart(ids)])
    return BlockKeys(layout, (), 1, b"root")


def publish(index: PrefixIndex, keys: BlockKeys, blocks: list[int], begin: int = 0) -> list[bool]:
    return [
        index.publish(keys[place], blocks[place - 1] if place else None, blocks[place])
        for place in range(begin, len(blocks))
    ]


def test_a_published_beginning_is_found_as_far_as_it_goes() -> None:
    index = PrefixIndex(pool := BlockPool(8))
    blocks = pool.reserve(3)
    assert publish(index, keys_of(1, 2, 3), blocks) == [True] * 3
    assert index.find(keys_of(1, 2, 3, 4), 4) == tuple(blocks)
    assert index.find(keys_of(1, 2, 3), 2) == tuple(blocks[:2])
    assert index.find(keys_of(1, 9, 3), 3) == tuple(blocks[:1])
    assert index.find(keys_of(2, 3), 2) == ()
    index.check()


def test_a_free_block_is_found_until_somebody_else_gets_it() -> None:
    index = PrefixIndex(pool := BlockPool(3))
    blocks = pool.reserve(3)
    publish(index, keys_of(1, 2, 3), blocks)
    pool.release(reversed(blocks))
    assert (pool.num_free_blocks, pool.num_cached_blocks) == (3, 3)
    generations = [pool.generation(id) for id in blocks]
    pool.revive(blocks[:2])
    assert [pool.generation(id) for id in blocks] == generations, "what is in it has not changed"
    assert pool.reserve(1) == [blocks[2]]
    assert index.find(keys_of(1, 2, 3), 3) == tuple(blocks[:2])
    index.check()
    pool.check()


def test_blocks_without_content_go_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    index = PrefixIndex(pool := BlockPool(6))
    ledger = BlockLedger(pool)
    blocks = ledger.reserve("a", 4)
    publish(index, keys_of(1, 2, 3), blocks[:3])
    ledger.free("a")
    assert ledger.reserve("b", 3) == [4, 5, blocks[3]]
    left = []
    while pool.num_free_blocks:
        ledger.reserve("b", 1)
        left.append(len(index.find(keys_of(1, 2, 3), 3)))
    assert left == [2, 1, 0]
    index.check()


def test_an_equal_block_is_not_published_a_second_time() -> None:
    index = PrefixIndex(pool := BlockPool(4))
    first, second = pool.reserve(2), pool.reserve(2)
    publish(index, keys_of(1, 2), first)
    assert publish(index, keys_of(1, 2), second) == [False, False]
    assert index.find(keys_of(1, 2), 2) == tuple(first)


def test_a_block_is_published_only_below_the_very_block_it_was_computed_behind() -> None:
    """Its twin, computed by somebody else, is not good enough: that one might be sound and this one's not."""
    index = PrefixIndex(pool := BlockPool(4))
    first, second = pool.reserve(1), pool.reserve(2)
    publish(index, keys_of(1), first)
    assert publish(index, keys_of(1, 2), second) == [False, False]
    assert index.find(keys_of(1, 2), 2) == tuple(first)


def test_what_was_computed_from_a_forgotten_block_is_never_found_again() -> None:
    index = PrefixIndex(pool := BlockPool(8))
    blocks = pool.reserve(3)
    publish(index, keys_of(1, 2, 3), blocks)
    (other,) = pool.reserve(1)
    index.publish(keys_of(1, 2, 4)[2], blocks[1], other)
    index.forget(blocks[1])
    assert index.find(keys_of(1, 2, 3), 3) == tuple(blocks[:1])
    sound = pool.reserve(1)
    assert publish(index, keys_of(1, 2), [blocks[0], *sound], begin=1) == [True]
    assert index.find(keys_of(1, 2, 3), 3) == (blocks[0], *sound)
    assert index.find(keys_of(1, 2, 4), 3) == (blocks[0], *sound)
    (late,) = pool.reserve(1)
    assert not index.publish(keys_of(1, 2, 3)[2], blocks[1], late), "it was computed behind the forgotten one"
    index.check()


def test_a_block_is_awaited_from_one_prompt_at_a_time() -> None:
    index = PrefixIndex(pool := BlockPool(4))
    keys = keys_of(1, 2)
    assert index.intend(keys[0], ONE)
    assert not index.intend(keys[0], TWO)
    assert index.is_awaited(keys[0])
    index.withdraw(ONE)
    index.withdraw(ONE)
    assert not index.is_awaited(keys[0])
    publish(index, keys, pool.reserve(1))
    assert not index.intend(keys[0], TWO), "it is there"
    assert index.intend(keys[1], TWO)
    assert index.intended(TWO) == keys[1]
    index.check()


def test_what_is_nobodys_cannot_be_published_or_revived() -> None:
    index = PrefixIndex(pool := BlockPool(4))
    with pytest.raises(InvariantViolation, match="belongs to nobody"):
        index.publish(keys_of(1)[0], None, 0)
    with pytest.raises(InvariantViolation, match="is not kept"):
        pool.revive([0])
    (block,) = pool.reserve(1)
    index.publish(keys_of(1)[0], None, block)
    with pytest.raises(InvariantViolation, match="published twice"):
        index.publish(keys_of(2)[0], None, block)
    pool.check()
    index.check()


def test_blocks_are_exchanged_for_kept_ones_in_their_place() -> None:
    index = PrefixIndex(pool := BlockPool(8))
    ledger = BlockLedger(pool)
    kept = ledger.reserve("a", 2)
    publish(index, keys_of(1, 2), kept)
    ledger.free("a")
    own = ledger.reserve("b", 3)
    ledger.exchange("b", own[:2], kept)
    assert ledger.held("b") == (*kept, own[2])
    assert pool.num_free_blocks == 5
    with pytest.raises(InvariantViolation, match="does not hold"):
        ledger.exchange("b", own[:1], kept[:1])
    ledger.check(["b"])


@dataclass
class Table:
    """Prompts of one-token blocks over a pool, and beside the index: what every block was computed from."""

    rng: random.Random
    pool: BlockPool = field(default_factory=lambda: BlockPool(24))
    held: list[tuple[tuple[int, ...], list[int]]] = field(default_factory=list)  # ids, blocks
    content: dict[int, tuple[int, ...]] = field(default_factory=dict)  # the whole prefix, by block

    def __post_init__(self) -> None:
        self.index = PrefixIndex(self.pool)

    def come(self) -> None:
        ids = tuple(self.rng.randrange(3) for _ in range(self.rng.randrange(1, 7)))
        keys = keys_of(*ids)
        found = self.index.find(keys, len(ids))
        for place, block in enumerate(found):
            assert self.content[block] == ids[: place + 1], "a hit is what the prompt would have computed"
        resting = sum(self.pool.shares(block) == 0 for block in found)
        if len(ids) - len(found) + resting > self.pool.num_free_blocks:
            return
        self.pool.revive(found)
        blocks = [*found, *self.pool.reserve(len(ids) - len(found))]
        for place in range(len(found), self.rng.randrange(len(found), len(ids) + 1)):
            self.content[blocks[place]] = ids[: place + 1]
            self.index.publish(keys[place], blocks[place - 1] if place else None, blocks[place])
        self.held.append((ids, blocks))

    def go(self) -> None:
        _, blocks = self.held.pop(self.rng.randrange(len(self.held)))
        if self.rng.random() < 0.1:
            self.index.forget(bad := self.rng.choice(blocks))
            assert bad not in self.index
        self.pool.release(reversed(blocks) if self.rng.random() < 0.8 else blocks)


@pytest.mark.parametrize("seed", range(6))
def test_random_prompts_find_exactly_what_they_would_compute(seed: int) -> None:
    table = Table(random.Random(seed))
    hits = 0
    for _ in range(3000):
        before = len(table.held)
        table.come()
        hits += len(table.held) > before and table.pool.shares(table.held[-1][1][0]) > 1
        while table.held and (table.rng.random() < 0.4 or len(table.held) > 5):
            table.go()
        table.index.check()
        table.pool.check()
    assert hits > 100
