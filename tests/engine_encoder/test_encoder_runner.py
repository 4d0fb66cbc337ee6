"""The runner over a real slab: captured, eager and kept rows in one batch, and what a failure leaves behind."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_checkpoint
from tests.engine_encoder.rig import Saboteur
from tests.models.stock import stock_tower
from triptych.config import EncoderSettings
from triptych.engine.embedding_store import ItemKey
from triptych.engine.encoder_graphs import SCRATCH_UNITS, BlockGraphs
from triptych.engine.encoder_runner import EncoderRunner, PlacedItem, Written
from triptych.engine.host_tier import Demotion, HostTier
from triptych.errors import ConfigError, InternalError, LayoutMismatch, Overloaded
from triptych.journey import Grid
from triptych.models.base import PreparedPixels, VisionTower
from triptych.models.card import load_card
from triptych.models.loading import load_tower
from triptych.models.qwen2_5_vl.graph_tower import Qwen25VLGraphTower
from triptych.services.encoder.graphs import capturable, capture
from triptych.transfer.slab import Slab, create_slab

CPU = torch.device("cpu")
PATCH = 14
ROWS_PER_UNIT = 16
NUM_UNITS = 24
SETTINGS = EncoderSettings(max_items_per_batch=4, max_encoder_tokens_per_batch=320, graphs="on")


@pytest.fixture(scope="module")
def tower() -> VisionTower:
    return load_tower(load_card(str(random_checkpoint()), "float32"), CPU, "float32")


class Bench:
    def __init__(self, tower: VisionTower, with_graphs: bool, host_units: int = 0) -> None:
        self.unit_bytes = ROWS_PER_UNIT * tower.width * tower.levels * 4
        self.slab: Slab = create_slab("embedding", 1, self.unit_bytes, NUM_UNITS + SCRATCH_UNITS, CPU)
        self.graphs: BlockGraphs | None = None
        if with_graphs:
            halves = capturable(tower, "on")
            assert halves is not None
            self.graphs = capture(halves, self.slab, SETTINGS)
        self.host = HostTier.create(host_units * self.unit_bytes, self.unit_bytes, CPU)
        self.runner = EncoderRunner(tower, self.slab, with_checksums=True, host=self.host, graphs=self.graphs)

    def rows(self, item: PlacedItem) -> Tensor:
        begin = item.span.start * self.unit_bytes
        return self.slab.data[begin : begin + item.rows * self.runner.row_bytes].clone()

    def demote(self, item: PlacedItem, written: Written) -> Demotion:
        """What the store makes of an item's eviction."""
        assert self.host is not None
        slot = self.host.admit(key_of(item), len(item.span), written.checksum)
        assert slot is not None
        return Demotion(item.span, slot)


@pytest.fixture(params=[False, True], ids=["eager", "graphs"])
def bench(request: pytest.FixtureRequest, tower: VisionTower) -> Iterator[Bench]:
    made = Bench(tower, request.param, host_units=8)
    yield made
    made.slab.close()


def placed(seed: int, grid: Grid, start: int, generation: int = 1) -> PlacedItem:
    size = (3, grid.h * PATCH, grid.w * PATCH)
    pixels = torch.randint(0, 256, size, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    rows = grid.patches // 4
    return PlacedItem(PreparedPixels(pixels, grid, rows), range(start, start - (-rows // ROWS_PER_UNIT)), generation)


def key_of(item: PlacedItem) -> ItemKey:
    assert item.prepared is not None
    return ItemKey(bytes([item.span.start]) * 32, item.rows, item.prepared.grid, 56, 56)


def written(outcome: object) -> Written:
    assert isinstance(outcome, Written), outcome
    return outcome


def test_rows_are_the_same_captured_and_eager(tower: VisionTower) -> None:
    items = [placed(1, Grid(1, 4, 4), 3), placed(2, Grid(1, 10, 8), 7), placed(3, Grid(1, 2, 6), 0)]
    with_graphs, eagerly = Bench(tower, with_graphs=True), Bench(tower, with_graphs=False)
    for bench in (with_graphs, eagerly):
        assert all(isinstance(outcome, Written) for outcome in bench.runner.encode(items))
    for item in items:
        captured, eager = (bench.rows(item).view(torch.float32) for bench in (with_graphs, eagerly))
        assert (captured - eager).abs().max() <= 1e-5 * eager.abs().max()
    assert with_graphs.graphs is not None
    assert with_graphs.graphs.gauges() == {"encoder_graph_replays_total": 1, "encoder_graph_misses_total": 0}


def test_a_batch_above_every_captured_shape_runs_eagerly_and_is_counted(tower: VisionTower) -> None:
    bench, eagerly = Bench(tower, with_graphs=True), Bench(tower, with_graphs=False)
    large = placed(1, Grid(1, 20, 18), 2)
    assert written(bench.runner.encode([large])[0]).checksum == written(eagerly.runner.encode([large])[0]).checksum
    assert torch.equal(bench.rows(large), eagerly.rows(large))
    assert bench.graphs is not None
    assert bench.graphs.gauges() == {"encoder_graph_replays_total": 0, "encoder_graph_misses_total": 1}


def test_rows_go_to_the_host_before_they_are_overwritten_and_come_back_as_they_were(bench: Bench) -> None:
    first = placed(1, Grid(1, 8, 10), 4)
    made = written(bench.runner.encode([first])[0])
    kept = bench.rows(first)
    demotion = bench.demote(first, made)
    usurper = placed(2, Grid(1, 8, 10), 4, generation=2)
    assert written(bench.runner.encode([usurper], [demotion])[0])
    assert not torch.equal(bench.rows(usurper), kept)
    back = PlacedItem(None, range(9, 9 + len(first.span)), 3, demotion.slot)
    other = placed(5, Grid(1, 4, 4), 0, generation=4)
    restored, fresh = bench.runner.encode([back, other])
    assert written(restored).checksum == made.checksum
    assert written(fresh).checksum != made.checksum
    assert torch.equal(bench.rows(back), kept)
    assert set(bench.slab.words[9 : 9 + len(first.span)].tolist()) == {3}


def test_rows_that_never_reached_the_host_fail_their_item_alone(bench: Bench) -> None:
    first = placed(1, Grid(1, 4, 4), 4)
    demotion = bench.demote(first, written(bench.runner.encode([first])[0]))
    demotion.slot.dead = True
    back = PlacedItem(None, range(9, 10), 2, demotion.slot)
    outcomes = bench.runner.encode([placed(2, Grid(1, 4, 4), 0, 3), back, placed(3, Grid(1, 4, 4), 1, 4)])
    assert [type(outcome) for outcome in outcomes] == [Written, Overloaded, Written]


def test_without_a_host_tier_nothing_can_come_from_one(tower: VisionTower) -> None:
    bench = Bench(tower, with_graphs=False, host_units=2)
    first = placed(1, Grid(1, 4, 4), 4)
    demotion = bench.demote(first, written(bench.runner.encode([first])[0]))
    without = EncoderRunner(tower, bench.slab, with_checksums=True)
    with pytest.raises(InternalError, match="no host tier"):
        without.encode([placed(2, Grid(1, 4, 4), 5)], [demotion])


def test_a_batch_with_a_bad_item_leaves_the_arena_to_the_others(bench: Bench) -> None:
    good, bad = placed(1, Grid(1, 4, 4), 0), placed(2, Grid(1, 4, 4), 5)
    assert bad.prepared is not None
    bad = replace(bad, prepared=replace(bad.prepared, rows=bad.rows + 1))
    outcomes = bench.runner.encode([good, bad])
    assert [type(outcome) for outcome in outcomes] == [Written, LayoutMismatch]
    assert np.flatnonzero(bench.slab.words.numpy()).tolist() == [0]
    assert not bench.rows(bad).any()


def test_a_capture_that_fails_is_an_error_or_left_out_as_the_setting_says(
    tower: VisionTower, caplog: pytest.LogCaptureFixture
) -> None:
    halves = capturable(tower, "on")
    assert halves is not None
    slab = create_slab("embedding", 1, 1000, 4, CPU)  # whose units no row fills
    with pytest.raises(ConfigError, match=r"encoder\.graphs is on, but the tower cannot be captured: arena units"):
        capture(halves, slab, SETTINGS)
    assert capture(halves, slab, replace(SETTINGS, graphs="auto")) is None
    assert "runs eagerly" in caplog.text
    slab.close()


def test_a_tower_that_is_not_cut_in_two_is_captured_only_on_pain_of_an_error(tower: VisionTower) -> None:
    whole = Saboteur(tower, lambda grids: None)
    assert capturable(whole, "auto") is None
    assert capturable(tower, "auto") is None  # on the CPU nothing is gained
    assert capturable(tower, "off") is None
    with pytest.raises(ConfigError, match=r"encoder\.graphs is on"):
        capturable(whole, "on")


class Confused(Qwen25VLGraphTower):
    """Takes empty contexts amiss, as an attention kernel might."""

    def blocks(self, inputs: Mapping[str, Tensor], boundaries: Sequence[Tensor], longest: Sequence[int]) -> Tensor:
        rows = super().blocks(inputs, boundaries, longest)
        return rows.flip(0) if any((bounds.diff() == 0).any() for bounds in boundaries) else rows


def test_a_tower_whose_replays_differ_from_eager_rows_is_not_captured(tower: VisionTower) -> None:
    confused, bench = (
        Confused(stock_tower(load_card(str(random_checkpoint()), "float32"))),
        Bench(tower, with_graphs=False),
    )
    with pytest.raises(ConfigError, match=r"replayed rows are .* of the largest number apart"):
        capture(confused, bench.slab, SETTINGS)
    assert capture(confused, bench.slab, replace(SETTINGS, graphs="auto")) is None
    assert not bench.slab.data.any()
