"""What a GPU copy queues, with host memory in the GPU's place: streams and events are for tests/gpu."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from triptych.errors import TransferFailed
from triptych.transfer.arena import CudaIpcInfo, new_arena
from triptych.transfer.cuda_copy import queue_copies
from triptych.transfer.cuda_ipc import CudaIpcMapping
from triptych.transfer.pull import Pull, UnitRuns

UNIT_BYTES = 24
NUM_UNITS = 40
EVENTS = 4


class HostMemory:
    """Numbers of the host's, which no copy needs to be waited for."""

    def pinned(self, columns: int, count: int) -> torch.Tensor:
        return torch.full((columns, count), -1, dtype=torch.int64)


def mapped(came_to: int) -> CudaIpcMapping:
    """A slab whose unit i holds the byte i and has generation 100 + i; its owner has come to event `came_to`."""
    plan = new_arena("kv", 2, UNIT_BYTES, NUM_UNITS)
    num_bytes = plan.num_bytes + 4096
    ipc = CudaIpcInfo(bytes(64), (bytes(64),) * EVENTS, "uuid", plan.num_bytes)
    info = replace(plan, num_bytes=num_bytes, cuda_ipc=ipc)
    whole = torch.zeros(num_bytes, dtype=torch.uint8)
    words = whole[info.words_offset : info.words_offset + 8 * NUM_UNITS].view(torch.int64)
    words.copy_(100 + torch.arange(NUM_UNITS))
    data = whole[info.data_offset : info.data_offset + info.data_bytes].view(NUM_UNITS, UNIT_BYTES)
    data.copy_(torch.arange(NUM_UNITS, dtype=torch.uint8)[:, None].expand(-1, UNIT_BYTES))
    for event in range(1, came_to + 1):
        whole[plan.num_bytes : plan.num_bytes + 8 * EVENTS].view(torch.int64)[event % EVENTS] = event
    return CudaIpcMapping(info, whole, ())


def pull_of(source: CudaIpcMapping, units: list[int], targets: list[int], into: torch.Tensor, event: int) -> Pull:
    sources, places = np.array(units, dtype=np.int64), np.array(targets, dtype=np.int64)
    runs = UnitRuns(sources, places, UNIT_BYTES)
    return Pull(source, into.view(-1), runs, sources, 100 + sources, event, (sources, places))


@pytest.mark.parametrize("count", [1, 8, 30])
def test_blocks_come_with_the_words_that_vouch_for_them(count: int) -> None:
    source, into = mapped(came_to=6), torch.full((NUM_UNITS, UNIT_BYTES), 99, dtype=torch.uint8)
    units, targets = torch.randperm(NUM_UNITS)[:count].tolist(), torch.randperm(NUM_UNITS)[:count].tolist()
    found = queue_copies(pull_of(source, units, targets, into, event=6), HostMemory())
    assert found.words(pull_of(source, units, targets, into, event=6)).tolist() == [100 + unit for unit in units]
    wanted = torch.full((NUM_UNITS,), 99, dtype=torch.uint8)
    wanted[targets] = torch.tensor(units, dtype=torch.uint8)
    assert torch.equal(into, wanted[:, None].expand(-1, UNIT_BYTES))


@pytest.mark.parametrize(("came_to", "event"), [(0, 1), (5, 6), (5, 9)])
def test_an_owner_that_died_before_its_event_vouches_for_nothing(came_to: int, event: int) -> None:
    """Whatever its CUDA event says, and though the generations are those of the claim."""
    source, into = mapped(came_to), torch.zeros(NUM_UNITS, UNIT_BYTES, dtype=torch.uint8)
    pull = pull_of(source, [3], [4], into, event)
    with pytest.raises(TransferFailed, match=f"ended before .* stands behind event {event}"):
        queue_copies(pull, HostMemory()).words(pull)


def test_a_later_event_in_the_same_slot_vouches_for_earlier_ones() -> None:
    source, into = mapped(came_to=2 + 3 * EVENTS), torch.zeros(NUM_UNITS, UNIT_BYTES, dtype=torch.uint8)
    pull = pull_of(source, [3], [4], into, event=2)
    assert queue_copies(pull, HostMemory()).words(pull).tolist() == [103]


def test_a_copy_without_units_of_its_own_reads_no_words() -> None:
    """What came over a network is copied on like this; its words come by themselves."""
    source, into = mapped(came_to=1), torch.zeros(NUM_UNITS, UNIT_BYTES, dtype=torch.uint8)
    none, sources = np.empty(0, dtype=np.int64), np.arange(0, NUM_UNITS, 2)
    pull = Pull(source, into.view(-1), UnitRuns(sources, sources, UNIT_BYTES), none, none, 1, (sources, sources))
    assert queue_copies(pull, HostMemory()).words(pull).size == 0
    assert into[::2, 0].tolist() == list(range(0, NUM_UNITS, 2))
    assert not into[1::2].any()


def test_pieces_find_their_places_with_the_words_of_all_claimed_units() -> None:
    source, into = mapped(came_to=6), torch.full((NUM_UNITS * UNIT_BYTES,), 99, dtype=torch.uint8)
    pieces, places = torch.randperm(NUM_UNITS * 3)[:50], torch.randperm(NUM_UNITS * 3)[:50]
    units = np.array([7, 3, 30], dtype=np.int64)
    where = (pieces.numpy(), places.numpy())
    pull = Pull(source, into, (), units, 100 + units, 6, where, piece_bytes=8)
    assert pull.num_bytes == 400
    assert queue_copies(pull, HostMemory()).words(pull).tolist() == [107, 103, 130]
    wanted = torch.full((NUM_UNITS * 3, 8), 99, dtype=torch.uint8)
    wanted[places] = source.data.view(-1, 8)[pieces]
    assert torch.equal(into.view(-1, 8), wanted)
