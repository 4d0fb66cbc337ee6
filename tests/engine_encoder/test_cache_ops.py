"""What requests find in the cache's tiers, and what operators do with it."""

import pytest
import torch

from tests.engine_encoder.rig import Front, item_of, picture, running
from triptych.config import MIB, EncoderSettings
from triptych.engine.cache_control import CacheAction, CacheFound, control
from triptych.engine.embedding_store import EmbeddingStore
from triptych.engine.host_tier import HostTier
from triptych.engine.store_entry import Acquired, Entry, ItemKey, State
from triptych.errors import InvalidRequest, Overloaded
from triptych.journey import Grid, new_request_id
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer

UNIT = 64  # bytes
WITH_HOST = EncoderSettings(host_cache_bytes=MIB)


def key(name: int, rows: int = 4) -> ItemKey:
    return ItemKey(name.to_bytes(32, "big"), rows, Grid(1, 4, 4), 56, 56)


def digests(*names: int) -> list[bytes]:
    return [key(name).digest for name in names]


def cached(store: EmbeddingStore, name: int, units: int, rows: int = 4) -> Entry:
    """An entry that is ready and unclaimed."""
    entry, acquired = store.acquire(key(name, rows), units * UNIT)
    assert acquired is Acquired.NEW
    assert store.place(entry)
    store.publish(entry)
    store.release(entry)
    return entry


def with_host(num_units: int) -> EmbeddingStore:
    host = HostTier(num_units, UNIT, torch.zeros(num_units * UNIT, dtype=torch.uint8))
    return EmbeddingStore(num_units, UNIT, host)


def test_of_a_hit_a_miss_and_a_hit_the_tower_sees_the_miss_alone(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    front = Front(tower)
    first, missing, last = picture(1), picture(2, 112, 56), picture(3)
    with running(card, front, prepare) as rig:
        before = [rig.wish(first), rig.wish(last)]
        rig.release(before)
        front.batches.clear()
        request_id = new_request_id()
        wishes = [rig.wish(data, index, request_id) for index, data in enumerate((first, missing, last))]
        assert [wish.result.item_index for wish in wishes] == [0, 1, 2]
        assert [wish.result.cached for wish in wishes] == [True, False, True]
        assert front.batches == [(item_of(card, missing).grid,)]
        for wish, again in zip((wishes[0], wishes[2]), before, strict=True):
            assert wish.ref.item_digest == again.ref.item_digest
        rig.release(wishes)
        rig.settle()


def test_rows_that_had_to_leave_the_arena_come_back_without_the_tower(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    front = Front(tower)
    pictures = [picture(seed, 112, 112) for seed in range(3)]
    with running(card, front, prepare, arena_rows=32, settings=WITH_HOST) as rig:
        firsts = []
        for data in pictures:  # 16 rows each: the first makes way for the third
            firsts.append((wish := rig.wish(data), rig.rows(wish.ref)))
            rig.release([wish])
        made = front.items_encoded
        for data, (first, rows) in zip(pictures * 3, firsts * 3, strict=True):
            wish = rig.wish(data, read=_never)
            assert torch.equal(rig.rows(wish.ref), rows)
            assert wish.ref.checksum == first.ref.checksum
            assert wish.result.cached
            rig.release([wish])
        assert front.items_encoded == made == rig.gauge("items_encoded_total") == 3
        assert rig.gauge("host_promotions_total") > 3
        assert rig.gauge("host_demotions_total") == rig.gauge("host_promotions_total") + 1
        assert rig.gauge("host_free_bytes") < rig.gauge("host_bytes") <= MIB
        rig.settle()


def test_a_batch_mixes_rows_from_the_host_with_rows_to_make(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    pictures = [picture(seed, 112, 112) for seed in range(4)]
    expected = [tower_rows(tower, prepare, card, data) for data in pictures]
    with running(card, tower, prepare, arena_rows=48, settings=WITH_HOST) as rig:
        for _ in range(4):
            for group in (pictures[:2], pictures[1:3], pictures[2:], pictures[::3]):
                wishes = [rig.wish(data) for data in group]
                for wish, data in zip(wishes, group, strict=True):
                    wanted = expected[pictures.index(data)]
                    assert (rig.rows(wish.ref) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
                rig.release(wishes)
        assert rig.gauge("host_promotions_total") > 0
        rig.settle()


def test_a_pinned_item_stays_whatever_else_needs_room() -> None:
    store = EmbeddingStore(12, UNIT)
    cached(store, 1, 4)
    assert control(store, CacheAction.PIN, digests(1)) == CacheFound(1, 4 * UNIT)
    for name in range(2, 40):
        cached(store, name, 1 + name % 8)
        store.check()
    assert store.has_ready(key(1))
    large, _ = store.acquire(key(90), 9 * UNIT)
    assert not store.place(large)
    store.make_way(9)
    assert store.has_ready(key(1))
    store.release(large)
    assert store.idle()
    assert control(store, CacheAction.UNPIN, digests(1)) == CacheFound(1, 4 * UNIT)
    cached(store, 91, 12)
    assert not store.has_ready(key(1))


def test_pinning_again_changes_nothing_and_unpinning_what_is_not_pinned_neither() -> None:
    store = EmbeddingStore(12, UNIT)
    cached(store, 1, 4)
    for _ in range(3):
        assert control(store, CacheAction.PIN, digests(1)).items == 1
    assert (len(store.pinned), store.num_claims, store.pinned_bytes) == (1, 1, 4 * UNIT)
    assert control(store, CacheAction.UNPIN, digests(1, 2)).items == 1
    assert control(store, CacheAction.UNPIN, digests(1)) == CacheFound()
    assert (store.num_claims, store.pinned_bytes) == (0, 0)
    store.check()


def test_only_rows_that_are_ready_can_be_pinned() -> None:
    store = EmbeddingStore(12, UNIT)
    entry, _ = store.acquire(key(1), UNIT)
    assert control(store, CacheAction.PIN, digests(1, 2)) == CacheFound()
    assert store.place(entry)
    assert control(store, CacheAction.PIN, digests(1)) == CacheFound()
    store.publish(entry)
    assert control(store, CacheAction.PIN, digests(1)).items == 1


def test_pins_leave_what_is_to_come_in_one_piece() -> None:
    store = EmbeddingStore(12, UNIT, pins_leave_bytes=6 * UNIT)
    for name in (1, 2, 3):
        cached(store, name, 4)
    control(store, CacheAction.PIN, digests(1))
    with pytest.raises(Overloaded, match=r"256 bytes are pinned; with 256 more, less than 384 in a row"):
        control(store, CacheAction.PIN, digests(2))  # 4 units would be left, behind both
    with pytest.raises(Overloaded):
        control(store, CacheAction.PIN, digests(3))  # 4 between them
    assert [entry.key for entry in store.pinned] == [key(1)]
    store.check()
    cached(store, 4, 8)


def test_clearing_without_digests_forgets_all_that_nobody_reads() -> None:
    store = with_host(12)
    for name in range(4):
        cached(store, name, 6)
    store.take_demotions()
    control(store, CacheAction.PIN, digests(3))
    assert control(store, CacheAction.CLEAR, ()) == CacheFound(4, 24 * UNIT)
    assert store.host is not None
    assert (store.free_bytes, store.host.free_bytes, len(store.pinned)) == (12 * UNIT, 12 * UNIT, 0)
    assert store.acquire(key(3), 6 * UNIT)[1] is Acquired.NEW
    store.check()


def test_what_is_cleared_under_claims_is_found_no_more_and_goes_with_its_last_claim() -> None:
    store = with_host(12)
    entry = cached(store, 1, 4)
    store.acquire(key(1), 4 * UNIT)
    control(store, CacheAction.PIN, digests(1))
    assert control(store, CacheAction.CLEAR, digests(1)) == CacheFound(1, 4 * UNIT)
    assert entry.state is State.READY
    again, acquired = store.acquire(key(1), 4 * UNIT)
    assert acquired is Acquired.NEW
    assert again is not entry
    assert store.replacements == 1
    store.check()
    store.release(entry)
    assert entry.state is State.GONE
    assert store.take_demotions() == ()  # not even on the host
    store.release(again)
    assert store.idle()


def test_what_is_cleared_while_it_is_being_made_serves_those_who_wait_and_nobody_after() -> None:
    store = with_host(12)
    reserved, _ = store.acquire(key(1), 4 * UNIT)
    writing, _ = store.acquire(key(2), 4 * UNIT)
    assert store.place(writing)
    assert control(store, CacheAction.CLEAR, ()).items == 2
    store.check()
    assert store.place(reserved)
    for entry in (reserved, writing):
        store.publish(entry)
        assert entry.state is State.READY
        store.check()
        store.release(entry)
        assert entry.state is State.GONE
    assert store.take_demotions() == ()


def test_cleared_rows_do_not_come_back_from_the_host() -> None:
    store = with_host(8)
    cached(store, 1, 8)
    cached(store, 2, 8)
    entry, _ = store.acquire(key(1), 8 * UNIT)  # is to be copied from the host
    assert entry.host is not None
    assert control(store, CacheAction.CLEAR, digests(1)).items == 2
    store.check()
    other, _ = store.acquire(key(1), 8 * UNIT)
    assert other.host is None
    store.release(entry)
    store.release(other)
    store.check()


def test_one_digest_names_all_rows_that_were_made_of_it() -> None:
    store = EmbeddingStore(12, UNIT)
    cached(store, 1, 2)
    cached(store, 1, 3, rows=6)
    cached(store, 2, 2)
    assert control(store, CacheAction.CLEAR, digests(1)) == CacheFound(2, 5 * UNIT)
    assert store.has_ready(key(2))


@pytest.mark.parametrize("action", [CacheAction.PIN, CacheAction.UNPIN])
def test_an_action_for_nothing_is_refused_unless_it_clears(action: CacheAction) -> None:
    with pytest.raises(InvalidRequest, match=f"to {action.value} takes digests"):
        control(EmbeddingStore(12, UNIT), action, ())


def test_pins_keep_no_item_waiting_that_is_taken_here(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    with running(card, tower, prepare, arena_rows=64, output_rows=16) as rig:  # the largest item taken has 64 rows
        small = [rig.wish(picture(seed)) for seed in range(3)]
        rig.release(small)
        with pytest.raises(Overloaded, match="in a row would be left"):
            rig.engine.control(CacheAction.PIN, [wish.ref.item_digest for wish in small])
        assert rig.wish(picture(4, 224, 224), seconds=5.0).ref.rows == 64


def test_an_engine_clears_what_is_cached_and_says_how_much(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare) as rig:
        wishes = [rig.wish(picture(seed)) for seed in range(3)]
        rig.release(wishes)
        found = rig.engine.control(CacheAction.CLEAR, [wish.ref.item_digest for wish in wishes[:2]])
        assert found.items == 2
        assert rig.gauge("cached_items") == 1
        assert rig.engine.control(CacheAction.CLEAR, ()).items == 1
        assert rig.gauge("arena_free_bytes") == rig.gauge("arena_bytes")
        rig.settle()


def tower_rows(tower: VisionTower, prepare: Preparer, card: ModelCard, data: bytes) -> torch.Tensor:
    prepared = prepare(data, item_of(card, data))
    return tower.encode(tower.patches([prepared.pixels], [prepared.grid]), (prepared.grid,))


def _never() -> bytes:
    raise AssertionError("the source was read, though the rows were there")
