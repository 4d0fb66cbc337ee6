"""A batch that fails: nothing of it is kept, nobody is blamed for a neighbour, and what can be made is made."""

import gc
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.engine_encoder.rig import Front, Gate, Saboteur, picture, running
from triptych.config import EncoderSettings
from triptych.engine.device_errors import DeviceLost
from triptych.engine.encoder_blame import check_rows, encode_in_parts
from triptych.engine.encoder_jobs import MediaBytes
from triptych.errors import InternalError, LayoutMismatch, Overloaded, WorkerLost
from triptych.journey import Grid, Item
from triptych.models.base import PreparedPixels, VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer
from triptych.transfer.slab import Slab

SMALL, WIDE = (56, 56), (112, 56)


@dataclass
class Device:
    """Encodes items, which are their own sizes: so much at once, and none of the guilty."""

    memory: int
    guilty: Sequence[int] = ()
    error: Exception = field(default_factory=lambda: ValueError("no such kernel"))
    batches: list[list[int]] = field(default_factory=list)

    def write(self, batch: Sequence[int]) -> list[str]:
        self.batches.append(list(batch))
        if sum(batch) > self.memory:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if set(batch) & set(self.guilty):
            raise self.error
        return [f"rows of {item}" for item in batch]


def test_a_batch_without_memory_is_tried_in_halves_once() -> None:
    device = Device(memory=10)
    assert encode_in_parts(device.write, [1, 2, 3, 4, 5]) == [f"rows of {item}" for item in (1, 2, 3, 4, 5)]
    assert device.batches == [[1, 2, 3, 4, 5], [1, 2, 3], [4, 5]]


def test_of_a_half_without_memory_only_the_item_fails_that_does_not_fit_alone() -> None:
    device = Device(memory=10)
    *made, failed = encode_in_parts(device.write, [1, 2, 3, 4, 50])
    assert made == [f"rows of {item}" for item in (1, 2, 3, 4)]
    assert isinstance(failed, Overloaded)
    assert failed.retryable
    assert device.batches == [[1, 2, 3, 4, 50], [1, 2, 3], [4, 50], [4], [50]]


def test_two_items_without_memory_for_both_are_tried_twice_each_at_most() -> None:
    device = Device(memory=10)
    done = encode_in_parts(device.write, [6, 50])
    assert done[0] == "rows of 6"
    assert isinstance(done[1], Overloaded)
    assert device.batches == [[6, 50], [6], [50]]


def test_a_batch_that_fails_otherwise_is_tried_singly() -> None:
    device = Device(memory=100, guilty=[3])
    done = encode_in_parts(device.write, [1, 2, 3, 4])
    assert isinstance(done[2], InternalError)
    assert [outcome for outcome in done if isinstance(outcome, str)] == [f"rows of {item}" for item in (1, 2, 4)]
    assert device.batches == [[1, 2, 3, 4], [1], [2], [3], [4]]


def test_errors_of_ours_reach_the_item_as_they_are() -> None:
    ours = LayoutMismatch("no such grid")
    assert encode_in_parts(Device(100, [1], ours).write, [1]) == [ours]


@pytest.mark.parametrize("batch", [[7], [1, 7], [1, 2, 7, 8]])
def test_a_broken_device_ends_everything_at_once(batch: list[int]) -> None:
    broken = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    device = Device(100, [7], broken)
    with pytest.raises(DeviceLost) as raised:
        encode_in_parts(device.write, batch)
    assert raised.value.__cause__ is broken
    assert device.batches == [batch]


def test_a_device_that_breaks_while_halves_are_tried_is_not_blamed_on_an_item() -> None:
    device = Device(10, [7], torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(DeviceLost):
        encode_in_parts(device.write, [6, 7])


def test_what_a_failed_batch_had_allocated_is_free_before_the_next_try() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def write(batch: Sequence[int]) -> list[int]:
        assert all(tensor() is None for tensor in seen)
        workspace = torch.zeros(8)
        seen.append(weakref.ref(workspace))
        try:
            raise ValueError(f"no room for {workspace}")
        except ValueError as error:
            raise torch.OutOfMemoryError("CUDA out of memory") from error

    gc.disable()  # reference counts alone must do
    try:
        assert all(isinstance(outcome, Overloaded) for outcome in encode_in_parts(write, [1, 2, 3, 4]))
    finally:
        gc.enable()
    assert len(seen) == 7


@pytest.mark.parametrize("seed", range(6))
def test_for_any_batch_exactly_those_fail_who_fail_alone(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        batch = chance.sample(range(1, 100), chance.randint(1, 16))
        device = Device(chance.randint(1, 400), [item for item in batch if chance.random() < 0.1])
        done = encode_in_parts(device.write, batch)
        for item, outcome in zip(batch, done, strict=True):
            if item > device.memory:
                assert isinstance(outcome, Overloaded)
            elif item in device.guilty:
                assert isinstance(outcome, InternalError)
            else:
                assert outcome == f"rows of {item}"
        assert len(device.batches) <= 3 + len(batch)


# What a tower may make of three items of which the second is bad, of 4 rows each

BAD_ROWS: dict[str, Callable[[Tensor], object]] = {
    "rows": lambda rows: rows[:-1],
    "width": lambda rows: rows[:, :-1],
    "dtype": lambda rows: rows.double(),
    "rank": lambda rows: rows.flatten(),
    "none": lambda rows: None,
}


@pytest.mark.parametrize(
    ("way", "named"),
    [
        ("rows", r"\[11, 8\] of torch.float32, expected \[12, 8\]"),
        ("width", r"\[12, 7\] of torch.float32, expected \[12, 8\]"),
        ("dtype", r"\[12, 8\] of torch.float64, expected \[12, 8\] of torch.float32"),
        ("rank", r"\[96\] of rank 1, expected"),
        ("none", "NoneType and no tensor"),
    ],
)
def test_rows_that_are_not_as_planned_are_named(way: str, named: str) -> None:
    rows = torch.zeros(12, 8)
    assert check_rows(rows, 12, 8, torch.float32) is rows
    with pytest.raises(LayoutMismatch, match=named):
        check_rows(BAD_ROWS[way](rows), 12, 8, torch.float32)


class Faulty(Front):
    """Spoils its result for every batch with the grid; remembers how the arena looked before each batch."""

    def __init__(self, tower: VisionTower, bad: Grid, spoil: Callable[[Tensor], object]) -> None:
        super().__init__(tower)
        self.bad = bad
        self.spoil: Callable[[Tensor], object] | None = spoil
        self.slab: Slab | None = None
        self.touched: list[bool] = []

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        if self.slab is not None:
            self.touched.append(bool(self.slab.words.any() or self.slab.data.any()))
        rows = super().encode(patches, grids)
        if self.spoil is None or self.bad not in grids:
            return rows
        return self.spoil(rows)  # type: ignore[return-value]


@pytest.mark.parametrize("way", BAD_ROWS)
def test_one_bad_output_of_three_commits_nothing_of_the_batch_and_a_retry_makes_all_ready(
    way: str, card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    good, bad = (card.adapter.plan(*size, {}).grid for size in (SMALL, WIDE))
    faulty = Faulty(tower, bad, BAD_ROWS[way])
    gate = Gate(faulty)
    pictures = [picture(1, *SMALL), picture(2, *WIDE), picture(3, *SMALL)]
    with running(card, gate, prepare) as rig:
        blocker = rig.wish(picture(9, *SMALL))  # keeps the tower busy till all three wait
        assert gate.reached.wait(20)
        wishes = [rig.wish(data, index=index) for index, data in enumerate(pictures)]
        rig.await_prepared(3)
        gate.open.set()
        assert blocker.ref
        # The batch, then its items; the bad one fails in both, the others with nobody.
        assert isinstance(wishes[1].error, LayoutMismatch)
        assert wishes[1].error.item_index == 1
        assert [wishes[0].ref.rows, wishes[2].ref.rows] == [4, 4]
        assert faulty.batches[1:] == [(good, bad, good), (good,), (bad,), (good,)]
        free = rig.gauge("arena_free_bytes")
        assert free == rig.gauge("arena_bytes") - 3 * rig.slab.unit_bytes  # of the bad one nothing is kept
        faulty.spoil = None
        again = [rig.wish(data, index=index) for index, data in enumerate(pictures)]
        assert [wish.ref.rows for wish in again] == [4, 8, 4]
        assert [wish.result.cached for wish in again] == [True, False, True]
        rig.release([blocker, wishes[0], wishes[2], *again])
        rig.settle()


@pytest.mark.parametrize("way", BAD_ROWS)
def test_a_bad_output_does_not_touch_the_arena(
    way: str, card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    faulty = Faulty(tower, card.adapter.plan(*WIDE, {}).grid, BAD_ROWS[way])
    with running(card, faulty, prepare) as rig:
        faulty.slab = rig.slab
        assert isinstance(rig.wish(picture(2, *WIDE)).error, LayoutMismatch)
        assert rig.gauge("arena_free_bytes") == rig.gauge("arena_bytes")
        assert rig.wish(picture(1, *SMALL)).ref
        assert faulty.touched == [False, False]


def test_prepared_images_are_dropped_with_their_own_batch_and_no_sooner(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    made: list[weakref.ref[Tensor]] = []

    class Watched(Preparer):
        def __call__(self, data: MediaBytes, item: Item) -> PreparedPixels:
            prepared = super().__call__(data, item)
            made.append(weakref.ref(prepared.pixels))
            return prepared

    gate = Gate(tower)
    with running(card, gate, Watched(card), settings=EncoderSettings(max_items_per_batch=1)) as rig:
        first = rig.wish(picture(1))
        assert gate.reached.wait(20)
        others = [rig.wish(picture(seed)) for seed in (2, 3)]
        rig.await_prepared(2)
        assert [pixels() is not None for pixels in made] == [True] * 3
        gate.open.set()
        assert all(wish.ref for wish in [first, *others])
        rig.eventually(lambda: all(pixels() is None for pixels in made))
        assert rig.gauge("prepared_tokens") == 0


def test_a_producer_that_cannot_be_read_is_blamed_alone_and_its_follower_produces(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    def lost() -> bytes:
        raise WorkerLost("the router that held the image is gone")

    def slowly() -> bytes:
        assert joined.wait(20)
        return picture(5)

    joined, data = threading.Event(), picture(1)
    with running(card, tower, prepare, settings=EncoderSettings(preprocess_threads=1)) as rig:
        busy = rig.wish(picture(5), read=slowly)  # keeps the one thread busy
        producer = rig.wish(data, index=1, read=lost)
        follower = rig.wish(data, index=2)
        joined.set()
        assert isinstance(producer.error, WorkerLost)
        assert producer.error.item_index == 1
        assert follower.ref.rows == 4
        assert busy.ref
        assert rig.gauge("items_encoded_total") == 2


def test_a_bad_key_is_blamed_on_all_its_users_and_on_nobody_else(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    bad = card.adapter.plan(*WIDE, {}).grid
    gate = Gate(Saboteur(tower, lambda grids: ValueError("no such kernel") if bad in grids else None))
    with running(card, gate, prepare) as rig:
        wishes = [rig.wish(picture(1, *(WIDE if index in (2, 4) else SMALL)), index=index) for index in range(6)]
        gate.open.set()
        assert {wish.job.item.index for wish in wishes if wish.result.error is not None} == {2, 4}


def test_memory_for_one_half_at_a_time_costs_nobody_anything(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    def plot(grids: tuple[Grid, ...]) -> Exception | None:
        return torch.OutOfMemoryError("CUDA out of memory") if len(grids) > 2 else None

    saboteur = Saboteur(tower, plot)
    gate = Gate(saboteur)
    with running(card, gate, prepare) as rig:
        blocker = rig.wish(picture(9))
        assert gate.reached.wait(20)
        wishes = [rig.wish(picture(seed)) for seed in range(4)]
        rig.await_prepared(4)
        gate.open.set()
        assert all(wish.ref for wish in [blocker, *wishes])
        assert [len(batch) for batch in saboteur.batches] == [1, 2, 2]
