"""Preprocessing beside the device: what is prepared does not wait for what is not."""

import itertools
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tests.engine_encoder.rig import Front, picture, running
from triptych.config import EncoderSettings
from triptych.engine.encoder_jobs import MediaBytes
from triptych.journey import Grid, Item
from triptych.models.base import Prepared, VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer

STEP_SECONDS = 0.02
LATE_SECONDS = 0.005 + STEP_SECONDS  # how late a step may begin although there is work for it


@dataclass
class Record:
    """What an engine's trace tells, by stage, in order of the spans' ends."""

    spans: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"preprocess": [], "encode": []})
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, stage: str, began: float, ended: float) -> None:
        with self.lock:
            self.spans[stage].append((began, ended))


class Steady(Front):
    """Takes the same time for every batch, without the GIL, as a device does."""

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        time.sleep(STEP_SECONDS)
        return super().encode(patches, grids)


class Slow:
    """Prepares as the real one does, some items later than others."""

    def __init__(self, prepare: Preparer, seconds: dict[int, float]) -> None:
        """seconds: by item index; others take no longer than they must"""
        self.max_item_tokens, self.max_item_rows = prepare.max_item_tokens, prepare.max_item_rows
        self.token_bytes = prepare.token_bytes
        self._prepare = prepare
        self._seconds = seconds

    def __call__(self, data: MediaBytes, item: Item) -> Prepared:
        time.sleep(self._seconds.get(item.index, 0.0))
        return self._prepare(data, item)


def waits(record: Record, batch_sizes: Sequence[int]) -> list[float]:
    """How long, before each step, the device stood still although an item lay prepared."""
    prepared = sorted(ended for _, ended in record.spans["preprocess"])
    encoded = list(itertools.accumulate(batch_sizes, initial=0))
    steps = record.spans["encode"]
    assert len(steps) == len(batch_sizes)
    assert len(prepared) == encoded[-1]
    idle_since = [0.0, *(ended for _, ended in steps)]
    return [
        began - max(since, prepared[count])
        for (began, _), since, count in zip(steps, idle_since, encoded, strict=False)
    ]


def one_second_of_load(card: ModelCard, tower: VisionTower, prepare: Preparer) -> tuple[Record, list[int]]:
    """What became of a hundred items, which two threads prepare about as fast as the device encodes them."""
    record, steady = Record(), Steady(tower)
    settings = EncoderSettings(preprocess_threads=2, max_items_per_batch=2)
    with running(card, steady, Slow(prepare, dict.fromkeys(range(100), 0.02)), settings=settings) as rig:
        rig.engine.trace = record
        wishes = [rig.wish(picture(seed), index=seed) for seed in range(100)]
        assert all(wish.ref for wish in wishes)
        rig.eventually(lambda: len(record.spans["encode"]) == len(steady.batches))
    return record, [len(batch) for batch in steady.batches]


def test_the_device_never_waits_for_preprocessing_while_it_has_work(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    latest = math.inf
    for _ in range(5):  # other processes may keep any thread from the cores for a while: the rule shows without them
        record, batch_sizes = one_second_of_load(card, tower, prepare)
        spans, steps = record.spans["preprocess"], record.spans["encode"]
        assert max(ended for _, ended in spans) - min(began for began, _ in spans) >= 0.9
        beside = sum(any(b < ended and began < e for b, e in steps) for began, ended in spans)
        assert beside > len(spans) // 2
        latest = min(latest, max(waits(record, batch_sizes)))
        if latest < LATE_SECONDS:
            break
    assert latest < LATE_SECONDS


def test_what_is_prepared_is_encoded_while_an_image_before_it_is_still_being_decoded(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    class Stuck(Slow):
        def __call__(self, data: MediaBytes, item: Item) -> Prepared:
            if item.index == 0:
                assert go_on.wait(20)
            return super().__call__(data, item)

    go_on = threading.Event()
    with running(card, tower, Stuck(prepare, {}), settings=EncoderSettings(preprocess_threads=2)) as rig:
        first, *others = [rig.wish(picture(seed), index=seed) for seed in range(12)]
        assert all(wish.ref for wish in others)
        assert not first.answered.is_set()
        go_on.set()
        assert first.ref


def test_the_trace_tells_of_every_item_and_every_batch_and_agrees_with_the_gauges(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    record, front = Record(), Front(tower)
    with running(card, front, prepare) as rig:
        rig.engine.trace = record
        wishes = [rig.wish(picture(seed)) for seed in range(9)]
        assert all(wish.ref for wish in wishes)
        rig.eventually(lambda: len(record.spans["encode"]) == len(front.batches))
        for stage in ("preprocess", "encode"):
            spent = sum(ended - began for began, ended in record.spans[stage])
            assert abs(spent - rig.gauge(f"{stage}_seconds_total")) < 1e-6
        assert len(record.spans["preprocess"]) == 9
