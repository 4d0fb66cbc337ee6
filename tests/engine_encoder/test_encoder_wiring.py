"""What an encoder engine is handed reaches the parts that live by it."""

from dataclasses import replace

import pytest

from tests.engine_encoder.rig import OWNER, Front, Rig, picture, running
from triptych.config import MIB, EncoderSettings, TransferSettings
from triptych.engine.encoder_loop import EncoderEngine
from triptych.errors import ConfigError, InvalidMedia
from triptych.journey import Grid, Modality
from triptych.metrics import PREFIX, WORKER_HISTOGRAMS, BucketCounter
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer


def rows_of(grid: Grid) -> int:
    """The embedded model merges two by two patches."""
    return grid.patches // 4


def test_batches_keep_to_the_budgets_not_to_the_settings(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    front = Front(tower)
    rig = Rig(card, front, prepare, 4096, EncoderSettings(max_items_per_batch=3), True)
    try:
        assert rig.gauge("budget_items") == 3
        assert rig.gauge("budget_tokens") == rig.budgets.tokens
        assert rig.gauge("budget_output_bytes") == rig.budgets.output_bytes
        assert rig.gauge("budget_reuse_bytes") == rig.budgets.reuse_bytes
        assert rig.gauge("arena_bytes") == rig.budgets.arena_bytes
        assert rig.engine.max_item_tokens == rig.budgets.max_item_tokens
        wishes = [rig.wish(picture(seed)) for seed in range(9)]  # prepared before the engine starts
        rig.eventually(lambda: rig.gauge("preprocess_seconds_total") > 0 and rig.gauge("preprocess_queued_items") == 0)
        rig.engine.start()
        assert all(wish.ref for wish in wishes)
        assert max(len(batch) for batch in front.batches) == 3
        told = rig.engine.histograms()
        wanted = {
            "encoder_mm_items_per_batch": [len(batch) for batch in front.batches],
            "encoder_rows_per_batch": [sum(map(rows_of, batch)) for batch in front.batches],
        }
        for metric in WORKER_HISTOGRAMS:
            counter = BucketCounter(metric.buckets)
            for size in wanted.pop(metric.name.removeprefix(PREFIX)):
                counter.add(size)
            assert told[metric.name.removeprefix(PREFIX)] == counter.counts
        assert wanted == {}
    finally:
        rig.engine.stop()
        rig.slab.close()


def test_an_arena_too_small_for_the_budgets_is_refused_with_both_numbers(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare, arena_rows=64) as rig:
        units, larger = rig.slab.num_units, replace(rig.budgets, output_bytes=2 * rig.budgets.output_bytes)
        rest = (rig.leases, OWNER, EncoderSettings(), larger, TransferSettings(), rig.fatal.append)
        with pytest.raises(ConfigError, match=f"the arena has {units} units, expected {2 * units} and 0 of scratch"):
            EncoderEngine(tower, rig.slab, prepare, *rest)


def test_an_item_of_another_kind_than_the_budgets_tell_of_is_refused(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare) as rig:
        image = rig.wish(picture(1)).job.item
        refused = rig.wish(picture(1), item=replace(image, modality=Modality.VIDEO, index=5))
        assert isinstance(refused.error, InvalidMedia)
        assert refused.error.item_index == 5


def test_rows_copied_from_the_host_do_not_count_as_encoded(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    front, pictures = Front(tower), [picture(seed, 112, 112) for seed in range(3)]
    with running(card, front, prepare, arena_rows=32, settings=EncoderSettings(host_cache_bytes=MIB)) as rig:
        for data in pictures * 4:  # 16 rows each: two at a time fit the arena
            rig.release([rig.wish(data)])
        assert rig.gauge("host_promotions_total") > 0
        assert rig.gauge("items_encoded_total") == front.items_encoded == len(pictures)
        batches = rig.engine.histograms()["encoder_mm_items_per_batch"]
        assert (sum(batches.counts), batches.total) == (len(front.batches), len(pictures))
