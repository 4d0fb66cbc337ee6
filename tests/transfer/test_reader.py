import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from tests.transfer.neighbours import CPU, HERE, OWNER, Neighbour, blocks_ref, fill, rows_ref
from triptych.config import TransferSettings
from triptych.errors import ClaimExpired, TransferFailed, WrongIncarnation
from triptych.journey import Endpoint
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.checksum import checksum
from triptych.transfer.reader import Reader
from triptych.transfer.slab import Slab, create_slab

SETTINGS = TransferSettings(copy_timeout_seconds=10.0)
SECONDS = 5.0  # for what must not hang


@pytest.fixture(scope="module")
def encoder() -> Iterator[Neighbour]:
    with Neighbour("embedding", unit_bytes=4096, num_units=64) as neighbour:
        yield neighbour


@pytest.fixture(scope="module")
def prefill() -> Iterator[Neighbour]:
    with Neighbour("kv", unit_bytes=4096, num_units=64) as neighbour:
        yield neighbour


def _reader(*arenas: ArenaInfo, slabs: Sequence[Slab] = ()) -> Reader:
    own = {slab.describe().id: slab for slab in slabs}
    return Reader(lambda endpoint: arenas, HERE, own, CPU, SETTINGS)


def _rows(rows: int, width: int = 128) -> torch.Tensor:
    return torch.zeros(rows, width, dtype=torch.int64)


def _blocks(num_blocks: int = 64) -> torch.Tensor:
    return torch.zeros(num_blocks, 4096, dtype=torch.uint8)


def test_rows_of_a_neighbour_arrive_whole(encoder: Neighbour) -> None:
    encoder.ask("fill", range(8, 12), 30)
    reader, into = _reader(encoder.info), _rows(16)
    reader.read_rows(rows_ref(30, 16, 128, offset=8 * 4096), into)
    assert (into == 30).all()
    assert reader.transport_of(OWNER) == "shm"


def test_rows_keep_dtype_levels_and_order() -> None:
    slab = create_slab("embedding", 1, 256, 8, CPU)
    slab.stamp(range(1, 4), [2, 2, 2])
    sent = torch.randn(5, 3 * 10).to(torch.bfloat16)
    slab.data[256 : 256 + sent.nbytes] = sent.view(-1).view(torch.uint8)
    into = torch.zeros(5, 30, dtype=torch.bfloat16)
    ref = rows_ref(2, 5, 10, offset=256, levels=3, dtype="bfloat16", checksum=checksum(sent))
    _reader(slab.describe()).read_rows(ref, into)
    assert torch.equal(into, sent)


def test_a_destination_of_inference_mode_can_be_filled(encoder: Neighbour) -> None:
    encoder.ask("fill", range(4), 31)
    with torch.inference_mode():
        into = _rows(16)
    _reader(encoder.info).read_rows(rows_ref(31, 16, 128), into)
    assert (into == 31).all()


def test_scattered_blocks_land_where_they_should_and_nowhere_else(prefill: Neighbour) -> None:
    for generation, unit in enumerate((9, 3, 4, 5, 60), start=1):
        prefill.ask("fill", [unit], generation)
    into = _blocks()
    ref = blocks_ref([(9, 1), (3, 2), (4, 3), (5, 4), (60, 5)])
    _reader(prefill.info).read_blocks(ref, into, [40, 7, 8, 1, 0])
    landed = into.view(torch.int64)
    assert landed[:, 0].tolist() == [5, 4] + [0] * 5 + [2, 3] + [0] * 31 + [1] + [0] * 23
    assert (landed == landed[:, :1]).all()


def test_one_overwritten_unit_expires_the_whole_claim(encoder: Neighbour, prefill: Neighbour) -> None:
    encoder.ask("fill", range(4), 100)
    encoder.ask("fill", [3], 101)
    with pytest.raises(ClaimExpired, match=r"1 of 4 units of embedding arena 1 .* unit 3 has generation 101, .* 100"):
        _reader(encoder.info).read_rows(rows_ref(100, 16, 128), _rows(16))
    prefill.ask("fill", [1, 2], 100)
    prefill.ask("fill", [2], 101)
    with pytest.raises(ClaimExpired, match=r"1 of 2 units of kv arena 2 .* unit 2 has generation 101"):
        _reader(prefill.info).read_blocks(blocks_ref([(1, 100), (2, 100)]), _blocks(), [0, 1])


def test_a_unit_stamped_but_not_yet_overwritten_expires_the_claim() -> None:
    slab = create_slab("embedding", 1, 4096, 4, CPU)
    fill(slab, range(4), 1)
    slab.stamp([0], [2])
    with pytest.raises(ClaimExpired):
        _reader(slab.describe()).read_rows(rows_ref(1, 4, 128), _rows(4))


def test_a_claim_of_a_future_generation_is_no_better(encoder: Neighbour) -> None:
    encoder.ask("fill", range(4), 110)
    with pytest.raises(ClaimExpired):
        _reader(encoder.info).read_rows(rows_ref(111, 16, 128), _rows(16))


def test_bytes_that_differ_from_the_checksum_are_refused(encoder: Neighbour, prefill: Neighbour) -> None:
    encoder.ask("fill", range(4), 120)
    right = torch.full((16, 128), 120)
    _reader(encoder.info).read_rows(rows_ref(120, 16, 128, checksum=checksum(right)), _rows(16))
    with pytest.raises(TransferFailed, match="checksum"):
        _reader(encoder.info).read_rows(rows_ref(120, 16, 128, checksum=checksum(right + 1)), _rows(16))
    prefill.ask("fill", [5, 6], 120)
    ref = blocks_ref([(6, 120), (5, 120)], checksum=checksum(torch.full((2, 512), 120)))
    _reader(prefill.info).read_blocks(ref, _blocks(), [9, 2])
    with pytest.raises(TransferFailed, match="checksum"):
        _reader(prefill.info).read_blocks(replace(ref, checksum=b"too short"), _blocks(), [9, 2])


def test_an_arena_the_owner_does_not_have_is_refused(encoder: Neighbour) -> None:
    reader = _reader(encoder.info)
    with pytest.raises(TransferFailed, match=r"127.0.0.1:7001 has no arena 9, it has 1 \(embedding\)"):
        reader.read_rows(rows_ref(1, 1, 128, arena=9), _rows(1))
    with pytest.raises(TransferFailed, match="this worker has no arena 9"):
        reader.read_rows(rows_ref(1, 1, 128, arena=9, owner=HERE), _rows(1))


def test_a_destination_on_another_device_is_refused(encoder: Neighbour) -> None:
    encoder.ask("fill", [0], 125)
    with pytest.raises(TransferFailed, match="the destination is on meta, this reader copies to cpu"):
        _reader(encoder.info).read_rows(rows_ref(125, 1, 128), torch.zeros(1, 128, dtype=torch.int64, device="meta"))


# ---------------------------------------------------------------------------------------------- within one process


def test_own_slabs_are_read_without_asking_anybody() -> None:
    def never(endpoint: Endpoint) -> Sequence[ArenaInfo]:
        raise AssertionError("a worker must not connect to itself")

    slabs: dict[int, Slab] = {}
    reader = Reader(never, HERE, slabs, CPU, SETTINGS)
    slabs[1] = create_slab("embedding", 1, 4096, 4, CPU)  # later than the reader: roles are built one after another
    fill(slabs[1], range(4), 5)
    into = _rows(4)
    reader.read_rows(rows_ref(5, 4, 128, owner=HERE), into)
    assert (into == 5).all()
    assert reader.transport_of(HERE) == reader.open(HERE) == "local"
    fill(slabs[1], [0], 6)
    with pytest.raises(ClaimExpired):
        reader.read_rows(rows_ref(5, 4, 128, owner=HERE), into)


def test_blocks_handed_over_in_place_are_vouched_for_but_not_copied() -> None:
    slab = create_slab("kv", 2, 4096, 8, CPU)
    reader, into = _reader(slabs=[slab]), slab.data.view(8, 4096)
    fill(slab, [2, 5], 1)
    ref = blocks_ref([(2, 1), (5, 1)], owner=HERE)
    reader.read_blocks(ref, into, [2, 5])
    assert slab.words.tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert (into.view(torch.int64)[:, 0] == slab.words).all()
    fill(slab, [5], 2)
    with pytest.raises(ClaimExpired):
        reader.read_blocks(ref, into, [2, 5])


def test_blocks_move_within_a_slab() -> None:
    slab = create_slab("kv", 2, 4096, 8, CPU)
    fill(slab, [2, 5], 1)
    _reader(slabs=[slab]).read_blocks(blocks_ref([(2, 1), (5, 1)], owner=HERE), slab.data.view(8, 4096), [2, 0])
    assert slab.data.view(8, 4096).view(torch.int64)[:, 0].tolist() == [1, 0, 1, 0, 0, 1, 0, 0]


def test_a_claim_from_before_this_worker_restarted_is_refused() -> None:
    slab = create_slab("embedding", 1, 4096, 4, CPU)
    fill(slab, range(4), 5)
    before = replace(HERE, incarnation=HERE.incarnation - 1)
    with pytest.raises(WrongIncarnation, match=f"claim of incarnation {before.incarnation} at {HERE.address}"):
        _reader(slabs=[slab]).read_rows(rows_ref(5, 4, 128, owner=before), _rows(4))


# ---------------------------------------------------------------------------------------------- side by side


def test_readers_beside_each_other_and_beside_forgets_read_right(encoder: Neighbour) -> None:
    """Every read that returns is right, also while mappings come and go under the other threads."""
    generations = {unit: 200 + unit for unit in range(64)}
    for unit, generation in generations.items():
        encoder.ask("fill", [unit], generation)
    reader, end = _reader(encoder.info), time.monotonic() + 1.0

    def read(seed: int) -> int:
        chance, into, count = random.Random(seed), _rows(4), 0
        while time.monotonic() < end:
            unit = chance.randrange(64)
            reader.read_rows(rows_ref(generations[unit], 4, 128, offset=unit * 4096), into)
            assert (into == generations[unit]).all()
            count += 1
        return count

    def forget() -> None:
        while time.monotonic() < end:
            reader.forget(OWNER)
            time.sleep(2e-3)

    with ThreadPoolExecutor(13) as pool:
        forgetting = pool.submit(forget)
        counts = list(pool.map(read, range(12)))
        forgetting.result()
    assert min(counts) > 0


def test_nothing_is_ever_left_writing_into_host_memory(encoder: Neighbour) -> None:
    encoder.ask("fill", range(4), 140)
    reader, into = _reader(encoder.info), _rows(16)
    with pytest.raises(ClaimExpired):
        reader.read_rows(rows_ref(141, 16, 128), into)
    assert not reader.still_writing(into)
    assert reader.wait_until_quiet(into, 0.0)


def test_a_long_copy_does_not_hold_up_a_short_one() -> None:
    large = create_slab("kv", 2, 32 << 20, 4, CPU)
    small = create_slab("embedding", 1, 4096, 4, CPU)
    large.stamp(range(4), [1] * 4)
    fill(small, range(4), 1)
    reader = _reader(large.describe(), small.describe())
    into = torch.zeros(4, 32 << 20, dtype=torch.uint8)
    claim = blocks_ref([(block, 1) for block in range(4)])
    reader.open(OWNER)
    finished = threading.Event()

    def copy_large() -> None:
        reader.read_blocks(claim, into, [3, 2, 1, 0])
        finished.set()

    beside = 0
    copying = threading.Thread(target=copy_large)
    copying.start()
    while not finished.is_set():
        reader.read_rows(rows_ref(1, 4, 128), _rows(4))
        beside += not finished.is_set()
    copying.join()
    assert beside > 3
