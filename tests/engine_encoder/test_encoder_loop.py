"""Items encoded once for all who ask, kept while room lasts, and given room in turn."""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tests.engine_encoder.rig import Front, Gate, Wish, item_of, picture, running
from triptych.config import EncoderSettings
from triptych.engine.encoder_loop import EncodeJob
from triptych.errors import (
    ClaimExpired,
    InvalidRecord,
    MediaTooLarge,
)
from triptych.journey import new_request_id
from triptych.metrics import WORKER_GAUGES
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer
from triptych.stages import StageSpan

ROWS = 4  # of a picture of 56x56 pixels


def test_the_same_picture_from_eight_requests_at_once_is_encoded_once(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    front = Front(tower)
    reads: list[int] = []
    data = picture(1, 224, 224)
    with running(card, front, prepare) as rig:
        barrier = threading.Barrier(8)
        wishes = []

        def ask(number: int) -> None:
            def read() -> bytes:
                reads.append(number)
                return data

            barrier.wait()
            wishes.append(rig.wish(data, index=number, read=read))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refs = [wish.ref for wish in wishes]
        assert front.items_encoded == 1
        assert len(reads) == 1
        assert len({ref.claim_id for ref in refs}) == 8
        assert len({ref.shards for ref in refs}) == 1
        assert sorted(wish.result.item_index for wish in wishes) == list(range(8))
        assert [wish.result.cached for wish in wishes].count(False) == 1
        assert rig.gauge("cache_joins_total") + rig.gauge("cache_hits_total") == 7
        assert rig.gauge("claims") == 8
        rig.release(wishes)
        rig.settle()


def test_rows_that_are_ready_are_answered_while_the_device_is_busy(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate = Gate(tower)
    gate.open.set()
    with running(card, gate, prepare) as rig:
        first = rig.wish(picture(1))
        assert not first.result.cached
        gate.open.clear()
        rig.wish(picture(2))
        again = rig.wish(picture(1), index=3, read=_never)
        assert again.result.cached
        assert again.result.item_index == 3
        assert again.ref.shards == first.ref.shards
        assert again.ref.claim_id != first.ref.claim_id


def test_stage_times_add_up_and_joiners_count_only_what_they_waited_for(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate = Gate(tower)
    with running(card, gate, prepare) as rig:
        began = time.monotonic()
        first = rig.wish(picture(1))
        assert gate.reached.wait(20)
        late = rig.wish(picture(1))
        time.sleep(0.05)
        gate.open.set()
        spans = first.result.times
        times = seconds_by_stage(spans)
        assert set(times) == {"encode_queue", "preprocess", "encode"}
        assert [span.end for span in spans[:-1]] == [span.begin for span in spans[1:]]
        assert sum(times.values()) <= time.monotonic() - began
        assert times["encode"] >= 0.05
        assert times["preprocess"] > 0
        of_late = seconds_by_stage(late.result.times)
        assert "preprocess" not in of_late
        assert 0.05 <= of_late["encode"] <= times["encode"]


def seconds_by_stage(spans: Sequence[StageSpan]) -> Mapping[str, float]:
    seconds: Counter[str] = Counter()
    for span in spans:
        seconds[span.stage] += span.end - span.begin
    return seconds


def test_items_that_wait_together_are_encoded_together(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    gate = Gate(tower)
    with running(card, gate, prepare, settings=EncoderSettings(max_items_per_batch=3)) as rig:
        wishes = [rig.wish(picture(0))]
        assert gate.reached.wait(20)
        wishes += [rig.wish(picture(seed)) for seed in range(1, 6)]
        rig.await_prepared(5)
        assert rig.gauge("queued_items") == 6
        assert rig.gauge("queued_tokens") == 6 * 16
        gate.open.set()
        assert all(wish.ref for wish in wishes)
        assert [len(batch) for batch in gate.batches] == [1, 3, 2]


def test_an_item_above_the_batch_budget_is_encoded_alone(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    front = Front(tower)
    with running(card, front, prepare, settings=EncoderSettings(max_encoder_tokens_per_batch=20)) as rig:
        wishes = [rig.wish(picture(1)), rig.wish(picture(2, 224, 224)), rig.wish(picture(3))]
        assert [wish.ref.rows for wish in wishes] == [4, 64, 4]
        assert all(len(batch) == 1 for batch in front.batches)


def test_the_least_recently_used_rows_go_when_room_is_needed(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    front = Front(tower)
    with running(card, front, prepare, arena_rows=3 * ROWS) as rig:
        for seed in (1, 2, 3, 1):
            rig.release([rig.wish(picture(seed))])
        assert front.items_encoded == 3
        assert rig.gauge("arena_free_bytes") == 0
        rig.release([rig.wish(picture(4))])  # 2 has not been used for longest
        assert rig.gauge("cache_evictions_total") == 1
        for seed, cached in ((1, True), (3, True), (4, True), (2, False)):
            wish = rig.wish(picture(seed))
            assert wish.result.cached == cached
            rig.release([wish])
        rig.settle()


def test_a_ref_to_rows_that_were_overwritten_is_never_read_as_data(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare, arena_rows=ROWS) as rig:
        old = rig.wish(picture(1))
        before = rig.rows(old.ref)
        rig.release([old])
        new = rig.wish(picture(2))
        assert new.ref.shards == old.ref.shards
        assert new.ref.generation != old.ref.generation
        with pytest.raises(ClaimExpired):
            rig.rows(old.ref)
        assert not rig.rows(new.ref).equal(before)


def test_an_item_waits_for_room_and_gets_it_from_a_claim_that_expires(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare, arena_rows=ROWS) as rig:
        holder = rig.wish(picture(1), lease_seconds=0.05)
        assert holder.ref
        waiting = rig.wish(picture(2))
        time.sleep(0.1)
        assert not waiting.answered.is_set()
        assert rig.leases.sweep() == 1
        assert waiting.ref.rows == ROWS
        rig.release([waiting])
        rig.settle()


def test_popular_small_items_do_not_keep_a_large_one_out(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare, arena_rows=64) as rig:
        held: list[Wish] = [rig.wish(picture(1))]
        assert held[0].ref
        large = rig.wish(picture(2, 224, 224))
        limit = time.monotonic() + 20
        while not large.answered.wait(0.01):
            assert time.monotonic() < limit
            successor = rig.wish(picture(1), seconds=0.1)  # claimed again before the old claim ends
            found = successor.result.ref is not None
            rig.release(held)
            held = [successor] if found else []
        assert large.ref.rows == 64


def test_what_can_never_fit_is_refused_with_both_numbers(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare, arena_rows=ROWS) as rig:
        assert rig.engine.max_item_tokens == 16
        wish = rig.wish(picture(1, 224, 224), index=5, read=_never)
        assert isinstance(wish.error, MediaTooLarge)
        assert "256" in wish.error.message
        assert "16" in wish.error.message
        assert wish.error.item_index == 5
        rig.settle()


def test_a_large_arena_leaves_the_model_to_say_what_is_too_large(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare, arena_rows=1 << 19) as rig:
        assert rig.engine.max_item_tokens == card.adapter.max_item_tokens


def test_gauges_are_those_of_the_metrics_list(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    known = {metric.name for metric in WORKER_GAUGES}
    with running(card, tower, prepare) as rig:
        assert set(rig.engine.snapshot()) <= known
        assert {name for name in known if name.startswith("encoder_")} <= set(rig.engine.snapshot())


def test_a_lease_without_a_duration_is_refused(card: ModelCard) -> None:
    job = EncodeJob(new_request_id(), item_of(card, picture(1)), _never, 1.0, 0.0)
    with pytest.raises(InvalidRecord):
        replace(job, lease_seconds=0.0)


def _never() -> bytes:
    raise AssertionError("nobody should have to read this")
