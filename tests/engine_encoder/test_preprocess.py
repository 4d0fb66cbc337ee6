"""How far preprocessing runs ahead of the device, and on how many threads."""

import threading

import pytest
import torch

from tests.engine_encoder.rig import Gate, item_of, picture, running
from tests.engine_encoder.test_encoder_trace import Slow
from triptych.config import EncoderSettings
from triptych.engine.encoder_jobs import MediaBytes
from triptych.engine.encoder_preprocess import preprocess_threads
from triptych.errors import ConfigError
from triptych.journey import Item
from triptych.models.base import Prepared, VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer


def test_pixels_wait_in_memory_up_to_three_batches(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    tokens = item_of(card, picture(0)).encoder_tokens
    settings = EncoderSettings(max_items_per_batch=2, max_encoder_tokens_per_batch=2 * tokens)
    gate = Gate(tower)
    with running(card, gate, prepare, settings=settings) as rig:
        wishes = [rig.wish(picture(seed)) for seed in range(20)]
        assert gate.reached.wait(20)
        rig.eventually(lambda: rig.gauge("prepared_tokens") == 6 * tokens)
        assert rig.gauge("prepared_bytes") == 6 * tokens * 3 * 14 * 14
        assert rig.gauge("preprocess_queued_items") >= 20 - 6 - 2
        gate.open.set()
        assert all(wish.ref for wish in wishes)
        assert rig.gauge("prepared_bytes") == 0


def test_an_item_larger_than_that_is_prepared_alone(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    settings = EncoderSettings(max_encoder_tokens_per_batch=1)
    with running(card, tower, prepare, settings=settings) as rig:
        wishes = [rig.wish(picture(seed, 224, 224)) for seed in range(4)]
        assert all(wish.ref for wish in wishes)


def test_no_more_items_are_prepared_at_once_than_there_are_threads(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    class Counting(Slow):
        now = most = 0

        def __call__(self, data: MediaBytes, item: Item) -> Prepared:
            with lock:
                self.now += 1
                self.most = max(self.most, self.now)
            try:
                return super().__call__(data, item)
            finally:
                with lock:
                    self.now -= 1

    lock = threading.Lock()
    counting = Counting(prepare, dict.fromkeys(range(30), 0.005))
    with running(card, tower, counting, settings=EncoderSettings(preprocess_threads=3)) as rig:
        wishes = [rig.wish(picture(seed), index=seed) for seed in range(30)]
        assert all(wish.ref for wish in wishes)
    assert counting.most == 3


@pytest.mark.parametrize(
    ("configured", "device", "cores", "expected"),
    [
        (0, "cpu", 64, 2),
        (0, "cuda", 64, 8),
        (0, "cuda", 6, 3),
        (0, "cuda", 1, 1),
        (5, "cpu", 2, 5),
        (12, "cuda", 2, 12),
    ],
)
def test_threads_follow_the_cores_unless_they_are_set(configured: int, device: str, cores: int, expected: int) -> None:
    assert preprocess_threads(configured, torch.device(device), cores) == expected


def test_fewer_threads_than_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.preprocess_threads is -1"):
        EncoderSettings(preprocess_threads=-1)
