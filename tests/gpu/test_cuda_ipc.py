"""Slabs in GPU memory, read by another process: run where there is an NVIDIA GPU."""

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.gpu.gpu_neighbour import ACTIONS, numbers_of
from tests.gpu.rig import GPU, NUM_UNITS, NUMBERS, UNIT_BYTES, blocks, reader_of, rows
from tests.transfer.neighbours import CPU, HERE, OWNER, Neighbour, blocks_ref, fill, rows_ref, shared_counters
from triptych.errors import ClaimExpired, InvalidRecord, TransferFailed
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.block_copy import fused_copy
from triptych.transfer.checksum import checksum
from triptych.transfer.cuda_ipc import open_cuda_ipc
from triptych.transfer.reader import Reader
from triptych.transfer.slab import create_slab

pytestmark = pytest.mark.gpu


def test_rows_of_a_neighbour_on_the_same_gpu_arrive_whole(encoder: Neighbour, reader: Reader) -> None:
    event = encoder.ask("fill", range(8, 12), 30)
    into = rows(4)
    reader.read_rows(rows_ref(30, 4, NUMBERS, offset=8 * UNIT_BYTES, event=event), into)
    assert (into == 30).all()
    assert reader.transport_of(OWNER) == "cuda_ipc"


def test_rows_at_odd_offsets_and_of_other_dtypes_arrive_whole() -> None:
    slab = create_slab("embedding", 1, 512, 64, GPU)
    sent = torch.randn(33, 3 * 10, device=GPU).to(torch.bfloat16)
    slab.stamp(range(1, 10), [4] * 9)
    slab.data[514 : 514 + sent.nbytes] = sent.view(-1).view(torch.uint8)
    into = torch.zeros_like(sent)
    ref = rows_ref(
        4, 33, 10, 514, levels=3, dtype="bfloat16", checksum=checksum(sent), event=slab.record_event(), owner=HERE
    )
    reader_of(slabs=(slab,)).read_rows(ref, into)
    assert torch.equal(into, sent)


@pytest.mark.parametrize("count", [1, 5, 200])
def test_scattered_blocks_land_where_they_should_and_nowhere_else(
    prefill: Neighbour, reader: Reader, count: int
) -> None:
    """Few runs are copied one by one, many are gathered."""
    chance = random.Random(count)
    ids, places = chance.sample(range(NUM_UNITS), count), chance.sample(range(NUM_UNITS), count)
    generations = {block: 1000 * count + block for block in ids}
    event = prefill.ask("fill_each", generations)
    into = blocks()
    reader.read_blocks(blocks_ref([(block, generations[block]) for block in ids], event=event), into, places)
    landed = into.view(torch.int64)
    wanted = torch.zeros(NUM_UNITS, dtype=torch.int64)
    wanted[places] = torch.tensor([generations[block] for block in ids])
    assert torch.equal(landed[:, 0].cpu(), wanted)
    assert (landed == landed[:, :1]).all()


def test_the_kernel_for_scattered_blocks_works_on_this_gpu() -> None:
    """Else they are copied in two passes, at half the rate."""
    assert fused_copy(GPU) is not None


@pytest.mark.parametrize("block_bytes", [128, 32 << 10, 512 << 10, (896 << 10) + 128])
def test_blocks_of_any_wide_size_are_copied_by_the_kernel(block_bytes: int) -> None:
    copy = fused_copy(GPU)
    assert copy is not None
    blocks = torch.randint(0, 256, (40, block_bytes), dtype=torch.uint8, device=GPU)
    places, wanted = torch.zeros_like(blocks), torch.zeros_like(blocks)
    sources, targets = torch.randperm(40, device=GPU)[:17], torch.randperm(40, device=GPU)[:17]
    copy(blocks, places, sources, targets)
    wanted[targets] = blocks[sources]
    assert torch.equal(places, wanted)


def test_blocks_of_an_odd_size_are_gathered_too() -> None:
    slab, into = create_slab("kv", 2, 1002, 64, GPU), torch.zeros(64, 1002, dtype=torch.uint8, device=GPU)
    slab.stamp(range(64), [1] * 64)
    slab.data.view(64, 1002).copy_(torch.arange(64, device=GPU).view(-1, 1))
    ids = list(range(0, 64, 2))
    ref = blocks_ref([(block, 1) for block in ids], event=slab.record_event(), owner=HERE)
    reader_of(slabs=(slab,)).read_blocks(ref, into, ids[::-1])
    assert into[ids[::-1], 1001].tolist() == ids
    assert not into[1::2].any()


def test_a_copy_waits_for_the_owners_event(encoder: Neighbour, reader: Reader) -> None:
    reader.open(OWNER)
    event = encoder.ask("fill_later", 0, 16, 40, 0.5)
    into, began = rows(16), time.monotonic()
    reader.read_rows(rows_ref(40, 16, NUMBERS, event=event), into)
    assert (into == 40).all()
    assert time.monotonic() - began > 0.1  # it did have to wait


def test_an_overdue_owner_fails_the_read_and_touches_nothing(encoder: Neighbour, reader: Reader) -> None:
    reader.open(OWNER)
    event = encoder.ask("fill_later", 0, 16, 41, 1.0)
    into = rows(16)
    with pytest.raises(TransferFailed, match=r"event \d+ .* is overdue"):
        reader.read_rows(rows_ref(41, 16, NUMBERS, event=event), into, deadline=time.monotonic() + 0.1)
    assert not reader.still_writing(into)  # nothing had been queued
    assert not into.any()
    reader.read_rows(rows_ref(41, 16, NUMBERS, event=event), into)
    assert (into == 41).all()


def test_an_event_outside_the_ring_is_refused(encoder: Neighbour, reader: Reader) -> None:
    encoder.ask("fill", [0], 42)
    with pytest.raises(TransferFailed, match="event 9999"):
        reader.read_rows(rows_ref(42, 1, NUMBERS, event=9999), rows(1))


def test_one_overwritten_unit_expires_the_whole_claim(encoder: Neighbour, prefill: Neighbour, reader: Reader) -> None:
    encoder.ask("fill", range(4), 50)
    event = encoder.ask("fill", [3], 51)
    with pytest.raises(ClaimExpired, match=r"1 of 4 units .* unit 3 has generation 51"):
        reader.read_rows(rows_ref(50, 4, NUMBERS, event=event), rows(4))
    generations = {unit: 60 + unit for unit in range(0, 100, 3)}
    event = prefill.ask("fill_each", generations)
    stale = [(unit, generation - (unit == 33)) for unit, generation in generations.items()]
    with pytest.raises(ClaimExpired, match="unit 33 has generation 93, the claim 92"):
        reader.read_blocks(blocks_ref(stale, event=event), blocks(), list(generations))


def test_rows_overwritten_while_they_are_read_are_never_taken_for_good() -> None:
    published, whole, expired = shared_counters(1), 0, 0
    with Neighbour("embedding", 1 << 20, 64, published, GPU, ACTIONS) as neighbour:
        reader, into = reader_of(neighbour.info), torch.zeros(64, 1 << 17, dtype=torch.int64, device=GPU)
        reader.open(OWNER)
        neighbour.tell("rewrite", 4.0)
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            generation, event = published[0] >> 16, published[0] & 0xFFFF
            if not generation:
                continue
            try:
                reader.read_rows(rows_ref(generation, 64, 1 << 17, event=event), into)
            except ClaimExpired:
                expired += 1
                continue
            assert bool((into == generation).all()), "a read that was torn or stale passed for good"
            whole += 1
        reader.close()
    assert whole > 10
    assert expired > 10


def test_checksums_are_verified(prefill: Neighbour, reader: Reader) -> None:
    event = prefill.ask("fill", [5, 6], 70)
    right = checksum(torch.full((2, NUMBERS), 70))
    reader.read_blocks(blocks_ref([(5, 70), (6, 70)], event=event, checksum=right), blocks(), [1, 0])
    with pytest.raises(TransferFailed, match="checksum"):
        reader.read_blocks(blocks_ref([(5, 70), (6, 70)], event=event, checksum=bytes(16)), blocks(), [1, 0])


# ---------------------------------------------------------------------------------------------- slabs and mappings


def test_a_fresh_slab_is_zero_and_stamps_are_checked() -> None:
    slab = create_slab("kv", 3, 4096, 1000, torch.device("cuda"))
    assert slab.device == slab.data.device == GPU
    assert not slab.data.any()
    assert not slab.words.any()
    with pytest.raises(InvalidRecord):
        slab.stamp([1000], [1])
    assert not slab.words.any()


def test_blocks_handed_over_in_place_are_vouched_for_but_not_copied() -> None:
    slab = create_slab("kv", 2, UNIT_BYTES, 8, GPU)
    reader, into = reader_of(slabs=(slab,)), slab.data.view(8, UNIT_BYTES)
    fill(slab, [2, 5], 1)
    ref = blocks_ref([(2, 1), (5, 1)], owner=HERE, event=slab.record_event())
    reader.read_blocks(ref, into, [2, 5])
    assert reader.transport_of(HERE) == "local"
    assert numbers_of(slab)[:, 0].tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    fill(slab, [5], 2)
    with pytest.raises(ClaimExpired):
        reader.read_blocks(replace(ref, event=slab.record_event()), into, [2, 5])


def test_closed_slabs_and_mappings_give_their_memory_back(encoder: Neighbour) -> None:
    open_cuda_ipc(encoder.info, GPU).close()
    create_slab("kv", 3, 1 << 20, 4, GPU).close()
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info(GPU)
    for _ in range(4):
        slab = create_slab("kv", 3, 1 << 20, 512, GPU)
        open_cuda_ipc(encoder.info, GPU).close()
        slab.close()
        slab.close()
    del slab
    assert torch.cuda.mem_get_info(GPU)[0] > free - (64 << 20)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda info: replace(info, probe=info.probe[:-1] + b"?"), "another arena"),
        (lambda info: replace(info, cuda_ipc=replace(info.cuda_ipc, device_uuid="none")), "none is not visible"),
        (lambda info: replace(info, cuda_ipc=replace(info.cuda_ipc, memory_handle=bytes(64))), "memory failed: cuda"),
        (lambda info: replace(info, cuda_ipc=None), "not in GPU memory"),
    ],
)
def test_an_arena_that_is_not_what_it_says_is_refused(
    encoder: Neighbour, change: Callable[[ArenaInfo], ArenaInfo], reason: str
) -> None:
    with pytest.raises(TransferFailed, match=reason):
        open_cuda_ipc(change(encoder.info), GPU)
    mapping = open_cuda_ipc(encoder.info, GPU)  # the refusal has broken nothing
    mapping.close()
    assert mapping.data.numel() == 0


def test_a_dead_owner_is_refused() -> None:
    with Neighbour("kv", UNIT_BYTES, 4, device=GPU, actions=ACTIONS) as neighbour:
        neighbour.kill()
        with pytest.raises(TransferFailed, match="no transport reaches kv arena 2"):
            reader_of(neighbour.info).open(OWNER)
    assert torch.ones(3, device=GPU).sum() == 3  # nor does it break the context


def test_a_neighbour_on_the_cpu_is_not_read_from_the_gpu() -> None:
    slab = create_slab("embedding", 1, 4096, 4, CPU)
    with pytest.raises(TransferFailed, match="in host memory, the reader on cuda:0"):
        reader_of(slab.describe()).open(OWNER)


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_neighbour_on_another_gpu_of_the_host_is_read() -> None:
    second = torch.device("cuda", 1)
    with Neighbour("kv", UNIT_BYTES, NUM_UNITS, device=second, actions=ACTIONS) as neighbour:
        reader, into = reader_of(neighbour.info), blocks()
        for count in (2, 100):
            generations = {2 * block: 100 * count + block for block in range(count)}
            event = neighbour.ask("fill_each", generations)
            reader.read_blocks(blocks_ref(list(generations.items()), event=event), into, list(generations)[::-1])
            landed = into.view(torch.int64)[list(generations)[::-1]]
            assert torch.equal(landed[:, 0].cpu(), torch.tensor(list(generations.values())))
            assert (landed == landed[:, :1]).all()
        reader.close()
