"""The encoder engine on a GPU: the same rows, never a wait on the host, refs that travel ahead of the device."""

import threading
import time

import pytest
import torch
from torch import Tensor

from tests.engine_encoder.rig import Front, picture, running
from tests.gpu.gpu_neighbour import sleep_on_device
from triptych.config import EncoderSettings
from triptych.journey import Grid
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard, load_card
from triptych.models.loading import load_tower
from triptych.services.encoder.prepare import Preparer

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
SIZES = ((56, 56), (224, 112), (30, 200), (300, 311), (640, 480))


@pytest.fixture(scope="module")
def card() -> ModelCard:
    return load_card("tiny-vl", "float32")


@pytest.fixture(scope="module")
def tower(card: ModelCard) -> VisionTower:
    return load_tower(card, GPU, "float32")


@pytest.fixture(scope="module")
def prepare(card: ModelCard) -> Preparer:
    return Preparer(card)


class Slow(Front):
    """Keeps the device busy for a while before every batch."""

    seconds = 0.4

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        sleep_on_device(self.seconds)
        return super().encode(patches, grids)


class Strict(Front):
    """Lets torch raise wherever the tower would make the host wait."""

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return super().encode(patches, grids)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_rows_are_those_of_the_cpu(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    host = load_tower(card, torch.device("cpu"), "float32")
    with running(card, tower, prepare) as rig:
        wishes = [rig.wish(picture(seed, *size)) for seed, size in enumerate(SIZES)]
        for seed, (size, wish) in enumerate(zip(SIZES, wishes, strict=True)):
            prepared = prepare(picture(seed, *size), wish.job.item)
            patches = host.patches([prepared.pixels], [prepared.grid])
            expected = host.encode(patches, (prepared.grid,))
            apart = (rig.rows(wish.ref).cpu() - expected).abs().max() / expected.abs().max()
            assert apart.item() <= 1e-3  # fp32 matrix products may take TF32-sized steps
        rig.release(wishes)
        rig.settle()


def test_a_batch_never_makes_the_host_wait(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    strict = Strict(tower)
    with running(card, strict, prepare, checksums=False) as rig:
        wishes = [rig.wish(picture(seed, *size)) for _ in range(3) for seed, size in enumerate(SIZES)]
        assert all(wish.ref for wish in wishes)


def test_a_ref_travels_before_its_rows_are_done_and_is_read_after(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare, checksums=False) as rig:
        expected = rig.rows(rig.wish(picture(1)).ref)
    with running(card, Slow(tower), prepare, checksums=False) as rig:
        began = time.monotonic()
        wish = rig.wish(picture(1))
        assert wish.ref
        answered = time.monotonic() - began
        assert not rig.slab.event_done(wish.ref.event)
        rows = rig.rows(wish.ref)
        assert time.monotonic() - began >= Slow.seconds * 0.9
        assert answered < Slow.seconds * 0.9
        assert torch.equal(rows, expected)


def test_the_host_is_two_batches_ahead_at_most(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    slow = Slow(tower)
    with running(card, slow, prepare, settings=EncoderSettings(max_items_per_batch=1), checksums=False) as rig:
        wishes = [rig.wish(picture(seed)) for seed in range(4)]
        assert wishes[1].ref
        assert not rig.slab.event_done(wishes[0].ref.event)
        assert not wishes[3].answered.is_set()
        assert wishes[3].ref


def test_rows_that_replace_others_are_never_mixed_with_them(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    """Requests over an arena of a few items, read by threads: each gets its own picture's rows."""
    pictures = [picture(seed, 224, 224) for seed in range(12)]
    with running(card, tower, prepare, arena_rows=12 * 64, checksums=False) as rig:
        expected = [rig.rows(wish.ref) for wish in [rig.wish(data) for data in pictures]]
    trouble: list[BaseException] = []

    def read(number: int) -> None:
        try:
            for step in range(60):
                chosen = (number * 5 + step) % len(pictures)
                wish = rig.wish(pictures[chosen])
                rows = rig.rows(wish.ref)
                rig.release([wish])
                assert ((rows - expected[chosen]).abs().max() / expected[chosen].abs().max()).item() <= 1e-3
        except BaseException as error:
            trouble.append(error)

    with running(card, tower, prepare, arena_rows=5 * 64, checksums=False) as rig:
        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trouble == []
        assert rig.gauge("cache_evictions_total") > 0
        rig.settle()
