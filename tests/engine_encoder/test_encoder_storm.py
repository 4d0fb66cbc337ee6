"""Random requests from many threads, cancelled and released at random moments, until all is still again."""

import random
import threading
import time
from collections.abc import Mapping

import pytest
from torch import Tensor

from tests.engine_encoder.rig import Rig, Wish, item_of, picture, running
from triptych.config import EncoderSettings
from triptych.errors import Cancelled, DeadlineExceeded, InvalidMedia, Overloaded
from triptych.journey import EmbeddingRef, RequestId, new_request_id
from triptych.models.base import PreparedPixels, VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer

PICTURES = [picture(seed, *size) for seed in range(4) for size in ((56, 56), (112, 56), (112, 112), (224, 112))]
EXPECTED = (Cancelled, DeadlineExceeded, InvalidMedia, Overloaded)


def rows_alone(tower: VisionTower, prepared: PreparedPixels) -> Tensor:
    grids = (prepared.grid,)
    return tower.encode(tower.patches([prepared.pixels], grids), grids)


class Client(threading.Thread):
    """Asks for pictures, a few per request, and behaves as badly as clients do."""

    def __init__(self, rig: Rig, expected: Mapping[bytes, Tensor], seed: int, until: float) -> None:
        super().__init__()
        self.rig = rig
        self.expected = expected  # rows by item digest
        self.chance = random.Random(seed)
        self.until = until
        self.wishes: list[Wish] = []
        self.trouble: list[BaseException] = []

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                self.request()
        except BaseException as error:
            self.trouble.append(error)

    def request(self) -> None:
        request_id, wishes = new_request_id(), []
        for index in range(self.chance.randint(1, 3)):
            try:
                wishes.append(self._wish(request_id, index))
            except Overloaded:
                continue
        self.wishes += wishes
        time.sleep(self.chance.choice((0.0, 0.0, 0.002, 0.02)))
        cancelled = self.chance.random() < 0.4
        if cancelled:
            self.rig.engine.cancel(request_id)
        while wishes:
            # Each claim is given back as soon as it is had: kept until the next is there, it could lock both out.
            for wish in [wish for wish in wishes if wish.answered.is_set()]:
                wishes.remove(wish)
                self._finish(wish, cancelled)
            time.sleep(0.001)

    def _wish(self, request_id: RequestId, index: int) -> Wish:
        data = self.chance.choice(PICTURES)
        item = item_of(self.rig.card, data, index)
        return self.rig.wish(
            data[:60] if self.chance.random() < 0.1 else data,
            request_id=request_id,
            item=item,
            lease_seconds=self.chance.choice((0.02, 60.0)),
            seconds=self.chance.choice((0.005, 30.0, 30.0)),
        )

    def _finish(self, wish: Wish, cancelled: bool) -> None:
        result = wish.result
        if result.ref is None:
            assert isinstance(result.error, EXPECTED), result.error
            assert result.error.item_index == wish.job.item.index
        elif result.ref.lease_seconds < 1:
            pass  # never heard of again: the lease ends by itself
        else:
            if not cancelled:
                self._check_rows(result.ref)
            self.rig.leases.release([result.ref.claim_id] * self.chance.randint(1, 2))

    def _check_rows(self, ref: EmbeddingRef) -> None:
        expected = self.expected[ref.item_digest]
        assert (self.rig.rows(ref) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("seed", range(2))
def test_a_storm_of_cancels_leaves_nothing_behind(
    seed: int, card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    settings = EncoderSettings(max_items_per_batch=4, max_encoder_tokens_per_batch=256, max_queued_items=24)
    items = [(data, item_of(card, data)) for data in PICTURES]
    expected = {item.digest: rows_alone(tower, prepare(data, item)) for data, item in items}
    with running(card, tower, prepare, arena_rows=96, settings=settings) as rig:
        until = time.monotonic() + 1.5
        clients = [Client(rig, expected, 100 * seed + number, until) for number in range(6)]
        for client in clients:
            client.start()
        while any(client.is_alive() for client in clients):
            rig.engine.check()
            rig.leases.sweep()
            time.sleep(0.003)
        assert [error for client in clients for error in client.trouble] == []
        time.sleep(0.03)
        rig.leases.sweep()
        rig.settle()
        wishes = [wish for client in clients for wish in client.wishes]
        assert all(len(wish.answers) == 1 for wish in wishes)
        assert sum(wish.result.ref is not None for wish in wishes) > 20
        assert not rig.fatal
        _fill_the_whole_arena(rig)


def _fill_the_whole_arena(rig: Rig) -> None:
    """Whatever is cached can go: an item as large as the arena still fits."""
    whole = rig.wish(picture(50, 224, 336))
    assert whole.ref.rows == 96
    rig.release([whole])
    rig.settle()
