"""Captured blocks over an arena, with a recorder in place of CUDA graphs: the real tower throughout."""

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.checkpoints import EMBEDDED, random_checkpoint
from triptych.engine.capture import Recorder, Work, pointers
from triptych.engine.encoder_buckets import Bucket
from triptych.engine.encoder_graphs import BlockGraphs, arena_rows, buckets_for
from triptych.errors import ConfigError, LayoutMismatch
from triptych.journey import Grid, Int64Array
from triptych.models.base import GraphTower, StaticInput, VisionTower
from triptych.models.card import load_card
from triptych.models.loading import graph_tower, load_tower
from triptych.transfer.slab import Slab, create_slab

CPU = torch.device("cpu")
PATCH_NUMBERS = 1176
ROWS_PER_UNIT = 16
NUM_UNITS = 64


class Counting(Recorder):
    """Counts captures."""

    captures = 0

    def capture(self, work: Work) -> Work:
        self.captures += 1
        return super().capture(work)


class Bench:
    """A tower, an arena and what is captured over it."""

    def __init__(self, tower: VisionTower, buckets: Sequence[Bucket] | None = None) -> None:
        halves = graph_tower(tower)
        assert halves is not None
        self.tower = tower
        self.halves = halves
        row_numbers = tower.levels * tower.width
        unit_bytes = ROWS_PER_UNIT * row_numbers * tower.dtype.itemsize
        self.slab: Slab = create_slab("embedding", 1, unit_bytes, NUM_UNITS, CPU)
        self.rows, self.scratch = arena_rows(self.slab, row_numbers, tower.dtype)
        self.capture = Counting()
        self.graphs = BlockGraphs(halves, self.rows, self.scratch, buckets or buckets_for(halves, 400, 6), self.capture)
        self.graphs.capture_all()

    @torch.inference_mode()
    def run(self, patches: Tensor, grids: Sequence[Grid], row_numbers: Int64Array) -> bool:
        replay = self.graphs.prepare(patches, grids, row_numbers)
        if replay is not None:
            replay()
        return replay is not None


@pytest.fixture(scope="module")
def tower() -> VisionTower:
    return load_tower(load_card(str(random_checkpoint()), "float32"), CPU, "float32")


@pytest.fixture
def bench(tower: VisionTower) -> Iterator[Bench]:
    made = Bench(tower)
    yield made
    made.slab.close()


def patches_of(seed: int, grids: Sequence[Grid]) -> Tensor:
    tokens = sum(grid.patches for grid in grids)
    return torch.randn(tokens, PATCH_NUMBERS, generator=torch.Generator().manual_seed(seed))


def random_grids(numbers: random.Random, most_tokens: int, most_items: int) -> list[Grid]:
    grids: list[Grid] = []
    left = most_tokens
    for _ in range(numbers.randint(1, most_items)):
        grid = Grid(1, 2 * numbers.randint(1, 12), 2 * numbers.randint(1, 12))
        if grid.patches <= left:
            grids.append(grid)
            left -= grid.patches
    return grids or [Grid(1, 2, 2)]


def random_places(numbers: random.Random, rows: int) -> Int64Array:
    """Rows of the arena, scratch excluded, in no order."""
    return np.array(numbers.sample(range((NUM_UNITS - 1) * ROWS_PER_UNIT), rows), np.int64)


def apart(rows: Tensor, expected: Tensor) -> float:
    assert rows.shape == expected.shape
    return ((rows - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize(
    ("folder", "batches"), [(random_checkpoint(), 170), (EMBEDDED, 30)], ids=["random", "embedded"]
)
def test_padded_rows_equal_eager_ones_for_200_random_batches(folder: Path, batches: int) -> None:
    bench = Bench(load_tower(load_card(str(folder), "float32"), CPU, "float32"))
    numbers = random.Random(1)
    for seed in range(batches):
        grids = random_grids(numbers, 400, 6)
        patches = patches_of(seed, grids)
        expected = bench.tower.encode(patches, tuple(grids))
        places = random_places(numbers, len(expected))
        assert bench.run(patches, grids, places)
        assert apart(bench.rows[torch.from_numpy(places)], expected) <= 1e-5
    assert bench.graphs.gauges() == {"encoder_graph_replays_total": batches, "encoder_graph_misses_total": 0}


def test_a_replay_writes_its_rows_and_scratch_and_nothing_else(bench: Bench) -> None:
    numbers = random.Random(2)
    for seed in range(20):
        bench.rows.copy_(torch.randn(bench.rows.shape, generator=torch.Generator().manual_seed(seed)))
        before = bench.rows.clone()
        grids = random_grids(numbers, 300, 4)
        places = random_places(numbers, sum(grid.patches for grid in grids) // 4)
        assert bench.run(patches_of(seed, grids), grids, places)
        touched = (bench.rows != before).any(dim=1).nonzero().flatten().tolist()
        assert set(places.tolist()) <= set(touched) <= set(places.tolist()) | set(bench.scratch)


def test_a_later_replay_leaves_the_rows_of_an_earlier_one_alone(bench: Bench) -> None:
    grids = [Grid(1, 10, 14), Grid(1, 4, 4)]
    rows = sum(grid.patches for grid in grids) // 4
    first, second = np.arange(rows), np.arange(100, 100 + rows)
    assert bench.run(patches_of(1, grids), grids, first)
    kept = bench.rows[:rows].clone()
    assert bench.run(patches_of(2, grids), grids, second)
    assert torch.equal(bench.rows[:rows], kept)
    assert not torch.equal(bench.rows[100 : 100 + rows], kept)


def test_the_same_batch_has_the_same_rows_whatever_ran_before_it(bench: Bench) -> None:
    """What an earlier batch left in the padding reaches no row."""
    grids = [Grid(1, 6, 18), Grid(1, 8, 2)]
    patches, places = patches_of(3, grids), np.arange(sum(grid.patches for grid in grids) // 4)
    assert bench.run(patches, grids, places)
    alone = bench.rows[: len(places)].clone()
    large = [Grid(1, 14, 18)]
    assert bench.run(patches_of(4, large) * 1e3, large, np.arange(200, 200 + 63))
    assert bench.run(patches, grids, places)
    assert torch.equal(bench.rows[: len(places)], alone)


def test_everything_is_captured_at_start_and_nothing_after(bench: Bench) -> None:
    captured = bench.capture.captures
    assert captured == len(buckets_for(bench.halves, 400, 6))
    numbers = random.Random(6)
    for seed in range(10):
        grids = random_grids(numbers, 400, 6)
        bench.run(patches_of(seed, grids), grids, random_places(numbers, sum(grid.patches for grid in grids) // 4))
    assert bench.capture.captures == captured
    with pytest.raises(AssertionError, match="captured already"):
        bench.graphs.capture_all()


def test_the_smallest_bucket_that_covers_is_replayed_also_with_fewer_contexts(tower: VisionTower) -> None:
    buckets = [Bucket(64, (1, 4)), Bucket(64, (3, 4)), Bucket(256, (1, 40)), Bucket(256, (4, 40))]
    bench = Bench(tower, buckets)
    replayed: list[Bucket] = []

    def noting(bucket: Bucket, replay: Work) -> Work:
        return lambda: (replayed.append(bucket), replay())[-1]

    for bucket, captured in bench.graphs.captured.items():
        captured.replay = noting(bucket, captured.replay)
    small = Grid(1, 4, 4)
    for grids in ([small], [small] * 2, [small] * 4, [Grid(1, 10, 8)]):
        patches = patches_of(1, grids)
        places = np.arange(len(patches) // 4)
        assert bench.run(patches, grids, places)
        assert apart(bench.rows[: len(places)], bench.tower.encode(patches, tuple(grids))) <= 1e-5
    assert replayed == [buckets[0], buckets[1], buckets[3], buckets[2]]


def test_a_batch_that_fits_no_bucket_is_left_alone_counted_and_told_once(
    tower: VisionTower, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tower, [Bucket(64, (2, 8))])
    with caplog.at_level(logging.WARNING):
        for grids in ([Grid(1, 10, 10)], [Grid(1, 2, 2)] * 3):
            patches = patches_of(1, grids)
            assert not bench.run(patches, grids, np.arange(len(patches) // 4))
    assert bench.graphs.gauges() == {"encoder_graph_replays_total": 0, "encoder_graph_misses_total": 2}
    assert not bench.rows[: bench.scratch.start].any()
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "a batch of 100 tokens and 1+4 contexts fits no captured shape and runs eagerly"
    ]


@pytest.mark.parametrize("name", ["hidden", "cos", "indices", "arena"])
def test_a_swapped_tensor_is_an_error_and_a_refilled_one_is_not(bench: Bench, name: str) -> None:
    grids = [Grid(1, 8, 8)]
    batch = (patches_of(1, grids), grids, np.arange(16))
    for captured in bench.graphs.captured.values():
        captured.inputs["hidden"].fill_(3)
    bench.graphs.check_pointers()
    assert bench.run(*batch)
    captured = bench.graphs.captured[min(bench.graphs.captured)]
    if name == "indices":
        captured.indices = captured.indices.clone()
    elif name == "arena":
        bench.graphs.arena_rows = bench.graphs.arena_rows.clone()
    else:
        captured.inputs[name] = captured.inputs[name].clone()
    with pytest.raises(RuntimeError, match=f"'{name}' was reallocated"):
        bench.graphs.check_pointers()
    with pytest.raises(RuntimeError, match=f"'{name}' was reallocated"):
        bench.run(*batch)


def test_only_tensors_have_addresses() -> None:
    with pytest.raises(TypeError, match="'hidden', which is a list, expected a tensor"):
        pointers({"hidden": [1.0]})


def test_a_static_input_puts_the_token_axis_where_it_says() -> None:
    assert StaticInput("mask", (16,), 0, torch.float32).tensor(128).shape == (128, 16)
    assert StaticInput("rope", (3, 16), 1, torch.float32).tensor(128).shape == (3, 128, 16)
    assert StaticInput("ids", (), 0, torch.int32).tensor(5).dtype == torch.int32


def test_rows_other_than_the_tower_makes_are_refused_before_anything_is_written(bench: Bench) -> None:
    grids = [Grid(1, 8, 8)]
    with pytest.raises(LayoutMismatch, match="makes 16 rows, expected 15"):
        bench.run(patches_of(1, grids), grids, np.arange(15))
    assert not bench.rows[: bench.scratch.start].any()


class Narrow:
    """A tower whose blocks make rows of another width than it tells."""

    def __init__(self, tower: GraphTower) -> None:
        self._tower = tower
        self.width, self.levels = tower.width, tower.levels
        self.dtype, self.device = tower.dtype, tower.device
        self.context_kinds = tower.context_kinds
        self.static_inputs = tower.static_inputs
        self.tokens_per_row = tower.tokens_per_row
        self.longest_contexts = tower.longest_contexts
        self.most_contexts = tower.most_contexts
        self.shape = tower.shape
        self.prelude = tower.prelude

    def blocks(self, inputs: Mapping[str, Tensor], boundaries: Sequence[Tensor], longest: Sequence[int]) -> Tensor:
        return self._tower.blocks(inputs, boundaries, longest)[:, 1:]


def test_blocks_that_make_other_rows_than_told_write_none_of_them(bench: Bench) -> None:
    narrow = Narrow(bench.halves)
    graphs = BlockGraphs(narrow, bench.rows, bench.scratch, buckets_for(narrow, 256, 1), Recorder())
    graphs.capture_all()
    with pytest.raises(LayoutMismatch, match="the tower's blocks make rows"):
        graphs.verify([Grid(1, 4, 4)])
    assert not bench.rows.any()


def test_units_that_rows_do_not_fill_are_refused() -> None:
    slab = create_slab("embedding", 1, 1024, 2, CPU)
    with pytest.raises(ConfigError, match="1024 bytes, expected a multiple of the 400 of a row"):
        arena_rows(slab, 100, torch.float32)
    slab.close()


def test_buckets_have_room_for_the_contexts_of_any_images(tower: VisionTower) -> None:
    halves = graph_tower(tower)
    assert halves is not None
    sides = [2 * side for side in (*range(1, 20), 31, 64, 127)]
    for height in sides:
        for width in sides:
            shape = halves.shape([Grid(1, height, width)])
            most = halves.most_contexts(shape.tokens, 1)
            assert all(len(lengths) <= room for lengths, room in zip(shape.contexts, most, strict=True))
            for lengths, longest in zip(shape.contexts, halves.longest_contexts, strict=True):
                assert longest is None or lengths.max() <= longest


def test_a_trial_tells_how_far_replayed_rows_are_from_eager_ones(bench: Bench) -> None:
    grids = [Grid(1, 10, 6), Grid(1, 2, 12)]
    assert bench.graphs.verify(grids) <= 1e-5
    assert not bench.rows.any()
    captured = bench.graphs.captured[min(bench.graphs.captured)]
    replay = captured.replay

    def broken() -> None:
        replay()
        bench.rows[3] += 1

    captured.replay = broken
    assert bench.graphs.verify(grids) > 0.05
    with pytest.raises(LayoutMismatch, match="no captured shape covers"):
        bench.graphs.verify([Grid(1, 40, 40)])
