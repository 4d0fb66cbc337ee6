"""What breaks takes with it whom it must, and nobody else."""

import io
from dataclasses import replace

import pytest
import torch
from PIL import Image

from tests.engine_encoder.rig import Front, Gate, Saboteur, item_of, picture, running
from triptych.engine.device_errors import is_device_lost, is_out_of_memory
from triptych.engine.encoder_jobs import MediaBytes
from triptych.errors import InternalError, InvalidMedia, LayoutMismatch, Overloaded, WorkerLost
from triptych.journey import Grid, Item, Run
from triptych.models.base import Prepared, VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer

SMALL, WIDE = (56, 56), (112, 56)


def grid_of(card: ModelCard, size: tuple[int, int]) -> Grid:
    return card.adapter.plan(*size, {}).grid


def test_an_image_of_another_size_than_announced_fails_alone(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate = Gate(tower)
    with running(card, gate, prepare) as rig:
        honest = item_of(card, picture(1, *SMALL), index=3)
        good = [rig.wish(picture(seed)) for seed in (5, 6)]
        liar = rig.wish(picture(1, *WIDE), item=honest)
        gate.open.set()
        assert isinstance(liar.error, InvalidMedia)
        assert "56x56" in liar.error.message
        assert "112x56" in liar.error.message
        assert liar.error.item_index == 3
        assert all(wish.ref for wish in good)


def test_a_lie_about_a_digest_does_not_reach_those_who_tell_the_truth(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    data = picture(1, *WIDE)
    truth = item_of(card, data)
    lie = replace(item_of(card, picture(2, *SMALL)), digest=truth.digest)
    with running(card, tower, prepare) as rig:
        liar, honest = rig.wish(data, item=lie), rig.wish(data, item=truth)
        assert isinstance(liar.error, InvalidMedia)
        assert honest.ref.rows == truth.rows
        again = rig.wish(data, item=lie)  # nor does the cache help it
        assert isinstance(again.error, InvalidMedia)


def test_a_corrupt_image_fails_for_all_who_joined_each_with_its_own_index(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    data = picture(1, 224, 224)
    broken, item = data[: len(data) // 2], item_of(card, data)
    with running(card, Front(tower), prepare) as rig:
        wishes = [rig.wish(broken, item=item_of(card, data, index)) for index in range(4)]
        assert all(isinstance(wish.error, InvalidMedia) for wish in wishes)
        assert [wish.error.item_index for wish in wishes] == [0, 1, 2, 3]
        assert rig.wish(data, item=item).ref.rows == 64  # a failure is not remembered
    with running(card, tower, prepare) as rig:
        assert isinstance(rig.wish(b"", item=item).error, InvalidMedia)
        assert isinstance(rig.wish(b"GIF89a?", item=item).error, InvalidMedia)
        rig.settle()


def test_a_layout_made_for_other_rows_fails_closed(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    data = picture(1, *SMALL)
    fewer = replace(item_of(card, data), rows=2, runs=(Run(0, 2),))
    with running(card, tower, prepare) as rig:
        wish = rig.wish(data, item=fewer)
        assert isinstance(wish.error, LayoutMismatch)
        assert "4 rows" in wish.error.message
        assert "and 2" in wish.error.message
        rig.settle()


def test_a_batch_that_fails_is_tried_item_by_item(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    bad = grid_of(card, WIDE)
    saboteur = Saboteur(tower, lambda grids: ValueError("no such kernel") if bad in grids else None)
    with running(card, saboteur, prepare) as rig:
        wishes = [rig.wish(picture(seed, *(WIDE if seed == 2 else SMALL)), index=seed) for seed in range(5)]
        assert isinstance(wishes[2].error, InternalError)
        assert wishes[2].error.item_index == 2
        good = [wish for wish in wishes if wish is not wishes[2]]
        assert all(torch.isfinite(rig.rows(wish.ref)).all() for wish in good)
        assert saboteur.items_encoded == 4
        rig.release(good)
        rig.settle()


def test_too_little_memory_for_a_batch_is_no_ones_fault(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    def plot(grids: tuple[Grid, ...]) -> Exception | None:
        return torch.OutOfMemoryError("CUDA out of memory") if len(grids) > 1 or grids[0].w > 4 else None

    with running(card, Saboteur(tower, plot), prepare) as rig:
        wishes = [rig.wish(picture(seed)) for seed in range(4)] + [rig.wish(picture(9, *WIDE), index=7)]
        assert all(wish.ref for wish in wishes[:4])
        assert isinstance(wishes[4].error, Overloaded)
        assert wishes[4].error.retryable
        assert wishes[4].error.item_index == 7
        assert not rig.fatal


def test_a_processor_that_fails_takes_one_item_with_it(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    class Clumsy:
        max_item_tokens, max_item_rows = prepare.max_item_tokens, prepare.max_item_rows
        token_bytes = prepare.token_bytes

        def __call__(self, data: MediaBytes, item: Item) -> Prepared:
            if item.index:
                raise MemoryError if item.index == 1 else IndexError("a bug")
            return prepare(data, item)

    with running(card, tower, Clumsy()) as rig:
        good, hungry, buggy = (rig.wish(picture(index), index=index) for index in range(3))
        assert good.ref
        assert isinstance(hungry.error, Overloaded)
        assert isinstance(buggy.error, InternalError)
        assert (hungry.error.item_index, buggy.error.item_index) == (1, 2)


def test_rows_of_another_shape_than_planned_are_never_handed_out(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    class Short(Front):
        def encode(self, patches: torch.Tensor, grids: tuple[Grid, ...]) -> torch.Tensor:
            return super().encode(patches, grids)[:-1]

    with running(card, Short(tower), prepare) as rig:
        assert isinstance(rig.wish(picture(1)).error, LayoutMismatch)
        rig.settle()


def test_a_broken_device_is_blamed_on_no_item_and_ends_the_engine(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    broken = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    gate = Gate(Saboteur(tower, lambda grids: broken))
    with running(card, gate, prepare) as rig:
        wishes = [rig.wish(picture(seed)) for seed in range(3)]
        gate.open.set()
        assert all(isinstance(wish.error, WorkerLost) for wish in wishes)
        assert rig.fatal == [broken]
        with pytest.raises(WorkerLost):
            rig.wish(picture(9))
        rig.settle()


def test_a_tower_that_raises_an_error_of_ours_is_quoted(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    saboteur = Saboteur(tower, lambda grids: LayoutMismatch("a grid that cannot be merged"))
    with running(card, saboteur, prepare) as rig:
        assert isinstance(rig.wish(picture(1)).error, LayoutMismatch)


@pytest.mark.parametrize(
    ("error", "lost", "memory"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), True, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False, True),
        (torch.AcceleratorError("CUDA error: out of memory"), False, True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), False, True),
        (MemoryError(), False, True),
        (RuntimeError("shape '[3]' is invalid for input of size 4"), False, False),
        (ValueError("CUDA error: in a text"), False, False),
    ],
)
def test_device_errors_are_told_apart(error: Exception, lost: bool, memory: bool) -> None:
    assert is_device_lost(error) == lost
    assert is_out_of_memory(error) == memory


def test_an_image_in_the_wrong_format_says_so(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    file = io.BytesIO()
    Image.new("RGB", SMALL).save(file, "BMP")
    with running(card, tower, prepare) as rig:
        error = rig.wish(file.getvalue(), item=item_of(card, picture(1, *SMALL), index=2)).error
        assert isinstance(error, InvalidMedia)
        assert error.media_code == "unsupported_image_format"
        assert error.item_index == 2


def test_how_long_a_batch_has_been_going_is_known_while_it_hangs(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    gate = Gate(tower)
    with running(card, gate, prepare) as rig:
        assert rig.engine.turn_seconds() == 0
        wish = rig.wish(picture(1))
        assert gate.reached.wait(20)
        before = rig.engine.turn_seconds()
        assert rig.engine.turn_seconds() > before > 0
        gate.open.set()
        assert wish.ref
        rig.eventually(lambda: rig.engine.turn_seconds() == 0)
