"""The tower's blocks as CUDA graphs: the rows of eager runs, no wait on the host, any number of contexts."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.checkpoints import EMBEDDED, random_checkpoint
from tests.gpu.waits import no_host_synchronisation
from triptych.config import EncoderSettings
from triptych.engine.encoder_graphs import SCRATCH_UNITS, BlockGraphs
from triptych.journey import Grid
from triptych.models.base import GraphTower, VisionTower
from triptych.models.card import load_card
from triptych.models.loading import graph_tower, load_tower
from triptych.services.encoder.graphs import capturable, capture
from triptych.transfer.slab import Slab, create_slab

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
ROWS_PER_UNIT = 16
NUM_UNITS = 128
SETTINGS = EncoderSettings(max_items_per_batch=6, max_encoder_tokens_per_batch=2048, graphs="on")
GRIDS = (Grid(1, 18, 10), Grid(1, 8, 24), Grid(1, 2, 60), Grid(1, 16, 16))


class Bench:
    def __init__(self, folder: Path) -> None:
        self.tower: VisionTower = load_tower(load_card(str(folder), "bfloat16"), GPU, "bfloat16")
        halves = capturable(self.tower, "auto")
        assert halves is not None
        self.halves: GraphTower = halves
        self.row_numbers = self.tower.levels * self.tower.width
        unit_bytes = ROWS_PER_UNIT * self.row_numbers * self.tower.dtype.itemsize
        self.slab: Slab = create_slab("embedding", 1, unit_bytes, NUM_UNITS + SCRATCH_UNITS, GPU)
        began = time.monotonic()
        graphs = capture(halves, self.slab, SETTINGS)
        self.capture_seconds = time.monotonic() - began
        assert graphs is not None
        self.graphs: BlockGraphs = graphs
        self.stream = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]

    def rows(self, num_rows: int) -> Tensor:
        return self.graphs.arena_rows[:num_rows].float()

    def run(self, patches: Tensor, grids: Sequence[Grid]) -> None:
        """On a stream of its own, as the runner does; not waited for."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            replay = self.graphs.prepare(patches, grids, np.arange(patches.shape[0] // 4))
            assert replay is not None
            replay()
        torch.cuda.current_stream().wait_stream(self.stream)


@pytest.fixture(scope="module", params=["random", "embedded"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(random_checkpoint() if request.param == "random" else EMBEDDED)


def patches_of(seed: int, grids: Sequence[Grid]) -> Tensor:
    tokens = sum(grid.patches for grid in grids)
    return torch.randn(tokens, 1176, generator=torch.Generator().manual_seed(seed)).to(GPU, torch.bfloat16)


def random_grids(numbers: random.Random) -> list[Grid]:
    grids: list[Grid] = []
    for _ in range(numbers.randint(1, 6)):
        grid = Grid(1, 2 * numbers.randint(1, 16), 2 * numbers.randint(1, 16))
        if sum(each.patches for each in grids) + grid.patches <= SETTINGS.max_encoder_tokens_per_batch:
            grids.append(grid)
    return grids


def test_replayed_rows_equal_eager_ones_for_random_batches(bench: Bench) -> None:
    numbers = random.Random(1)
    for seed in range(60):
        grids = random_grids(numbers)
        patches = patches_of(seed, grids)
        expected = bench.tower.encode(patches, tuple(grids)).float()
        bench.run(patches, grids)
        found = bench.rows(len(expected))
        assert ((found - expected).norm() / expected.norm()).item() < 2e-2
    assert bench.graphs.misses == 0


def test_the_same_batch_has_the_same_bits_whatever_ran_before_it(bench: Bench) -> None:
    patches = patches_of(1, GRIDS)
    num_rows = len(patches) // 4
    bench.run(patches, GRIDS)
    alone = bench.rows(num_rows)
    large = [Grid(1, 32, 32)]
    bench.run(patches_of(2, large) * 100, large)
    bench.run(patches, GRIDS)
    assert torch.equal(bench.rows(num_rows), alone)


def test_batches_launched_one_behind_the_other_keep_their_own_rows(bench: Bench) -> None:
    """The host runs ahead: inputs of the second batch are written behind the first replay."""
    batches = [([Grid(1, 10, 12)], patches_of(seed, [Grid(1, 10, 12)])) for seed in range(20)]
    expected = []
    for grids, patches in batches:
        bench.run(patches, grids)
        expected.append(bench.rows(30))
    found = []
    torch.cuda.synchronize()
    for grids, patches in batches:
        bench.run(patches, grids)
        found.append(bench.rows(30))
    for rows, wanted in zip(found, expected, strict=True):
        assert torch.equal(rows, wanted)


def test_a_replay_never_makes_the_host_wait(bench: Bench) -> None:
    patches = patches_of(1, GRIDS)
    bench.run(patches, GRIDS)
    with no_host_synchronisation():
        bench.run(patches, GRIDS)


def test_nothing_outside_the_rows_and_the_scratch_is_written(bench: Bench) -> None:
    bench.graphs.arena_rows.normal_()
    before = bench.graphs.arena_rows.clone()
    patches = patches_of(3, GRIDS)
    bench.run(patches, GRIDS)
    touched = (bench.graphs.arena_rows != before).any(dim=1).nonzero().flatten().tolist()
    scratch = range(NUM_UNITS * ROWS_PER_UNIT, (NUM_UNITS + SCRATCH_UNITS) * ROWS_PER_UNIT)
    assert set(range(len(patches) // 4)) <= set(touched) <= set(range(len(patches) // 4)) | set(scratch)


def test_the_gain_of_a_replay_over_an_eager_run(bench: Bench, record_property: Callable[[str, object], None]) -> None:
    """Recorded, not judged: what the host spends to launch one small batch, and what capturing cost at start."""
    grids = [Grid(1, 16, 16)]
    patches = patches_of(1, grids)
    for name, run in (
        ("eager", lambda: bench.tower.encode(patches, tuple(grids))),
        ("replay", lambda: bench.run(patches, grids)),
    ):
        run()
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(20):
            run()
        torch.cuda.synchronize()
        record_property(f"{name}_ms", round((time.monotonic() - began) / 20 * 1e3, 3))
    record_property("capture_seconds", round(bench.capture_seconds, 2))


def test_a_float32_tower_is_left_eager() -> None:
    tower = load_tower(load_card(str(random_checkpoint()), "float32"), GPU, "float32")
    assert graph_tower(tower) is None
    assert capturable(tower, "auto") is None
