"""Rows that leave the arena of a GPU and come back: in order, unchanged, and without making anybody wait."""

import pytest
import torch

from tests.gpu.gpu_neighbour import sleep_on_device
from tests.gpu.waits import no_host_synchronisation
from triptych.engine.host_tier import Demotion, HostTier
from triptych.engine.store_entry import HostSlot, ItemKey
from triptych.journey import Grid
from triptych.transfer.slab import Slab, create_slab

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
UNIT = 16 * 3584 * 2  # 16 rows of a 7B model's width in bfloat16
UNITS = 64


class Bench:
    """An arena, its host tier, and a stream that all of it happens on."""

    def __init__(self) -> None:
        self.slab: Slab = create_slab("embedding", 1, UNIT, UNITS, GPU)
        tier = HostTier.create(UNITS * UNIT, UNIT, GPU)
        assert tier is not None
        self.tier = tier
        self.stream = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]

    def slot(self, name: int, units: int) -> HostSlot:
        slot = self.tier.admit(ItemKey(name.to_bytes(32, "big"), 16 * units, Grid(1, 2, 2), 56, 56), units, b"")
        assert slot is not None
        return slot

    def piece(self, span: range) -> torch.Tensor:
        return self.slab.data[span.start * UNIT : span.stop * UNIT]


def test_rows_come_back_unchanged_though_all_is_queued_behind_a_busy_device() -> None:
    bench = Bench()
    rows = torch.randint(0, 256, (8 * UNIT,), dtype=torch.uint8, device=GPU)
    bench.piece(range(8)).zero_()  # kernels are loaded at their first use, which may wait
    slot = bench.slot(1, 8)
    torch.cuda.synchronize()
    with torch.inference_mode(), torch.cuda.stream(bench.stream), no_host_synchronisation():
        sleep_on_device(1.0)
        bench.piece(range(8)).copy_(rows)  # an item is made,
        bench.tier.copy_out(bench.slab, [Demotion(range(8), slot)])  # makes way,
        bench.piece(range(8)).zero_()  # for another in its place,
        bench.tier.copy_in(bench.slab, range(20, 28), slot)  # and comes back elsewhere
    assert not slot.dead
    assert not bench.stream.query()  # nobody has waited for any of it
    bench.stream.synchronize()
    assert torch.equal(bench.piece(range(20, 28)), rows)
    assert not bench.piece(range(8)).any()


def test_a_slot_given_to_others_is_overwritten_only_behind_the_copy_from_it() -> None:
    bench = Bench()
    first = torch.randint(0, 256, (UNITS // 2 * UNIT,), dtype=torch.uint8, device=GPU)
    second = torch.randint(0, 256, (UNITS // 2 * UNIT,), dtype=torch.uint8, device=GPU)
    lower, upper = range(UNITS // 2), range(UNITS // 2, UNITS)
    bench.piece(lower).copy_(first)
    bench.piece(upper).copy_(second)
    slot = bench.slot(1, UNITS // 2)
    torch.cuda.synchronize()
    with torch.inference_mode(), torch.cuda.stream(bench.stream):
        bench.tier.copy_out(bench.slab, [Demotion(lower, slot)])
        sleep_on_device(1.0)
        bench.tier.copy_in(bench.slab, lower, slot)
        bench.tier.drop(slot)
        again = bench.slot(2, UNITS // 2)
        assert again.start == slot.start
        bench.tier.copy_out(bench.slab, [Demotion(upper, again)])
    bench.stream.synchronize()
    assert torch.equal(bench.piece(lower), first)
    with torch.cuda.stream(bench.stream):
        bench.tier.copy_in(bench.slab, lower, again)
    bench.stream.synchronize()
    assert torch.equal(bench.piece(lower), second)
