import fcntl
import mmap
import os
from pathlib import Path

import pytest
import torch

from tests.transfer.neighbours import CPU
from triptych.errors import InvalidRecord, TransferFailed
from triptych.transfer.host_slab import F_SEAL_FUTURE_WRITE
from triptych.transfer.slab import Slab, create_slab


def _slab(num_units: int = 8, unit_bytes: int = 512) -> Slab:
    return create_slab("embedding", 1, unit_bytes, num_units, CPU)


def _descriptor(slab: Slab) -> int:
    shm = slab.describe().shm
    assert shm is not None
    return shm.fd


def _num_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:triptych-embedding-1")


def test_a_fresh_slab_is_zero_and_of_no_generation() -> None:
    slab = _slab()
    assert slab.data.shape == (8 * 512,)
    assert slab.words.shape == (8,)
    assert slab.data.dtype == torch.uint8
    assert slab.words.dtype == torch.int64
    assert not slab.data.any()
    assert not slab.words.any()


def test_a_stamp_changes_the_words_of_its_units_alone() -> None:
    slab = _slab()
    slab.stamp([5, 2], [9, 4])
    assert slab.words.tolist() == [0, 0, 4, 0, 0, 9, 0, 0]
    slab.stamp([], [])
    assert slab.words.tolist() == [0, 0, 4, 0, 0, 9, 0, 0]


def test_a_row_of_units_is_stamped_alike_and_no_others_are() -> None:
    slab = _slab()
    slab.stamp_row(range(2, 5), 7)
    slab.stamp_row(range(3, 3), 9)
    assert slab.words.tolist() == [0, 0, 7, 7, 7, 0, 0, 0]


@pytest.mark.parametrize(
    ("units", "generation", "reason"),
    [(range(7, 9), 1, "units 0..7"), (range(-1, 2), 1, "units 0..7"), (range(0, 4, 2), 1, "units"), (range(2), 0, "0")],
)
def test_a_row_that_is_none_or_not_there_is_not_stamped(units: range, generation: int, reason: str) -> None:
    slab = _slab()
    with pytest.raises(InvalidRecord, match=reason):
        slab.stamp_row(units, generation)
    assert not slab.words.any()


def test_a_refused_stamp_changes_nothing() -> None:
    slab = _slab()
    with pytest.raises(InvalidRecord):
        slab.stamp([1, 8], [3, 3])
    assert not slab.words.any()


def test_the_description_finds_probe_words_and_data_in_the_file() -> None:
    slab = _slab()
    slab.stamp([3], [1 << 40])
    slab.data[512:1024] = 7
    info = slab.describe()
    file = _descriptor(slab)
    assert os.fstat(file).st_size == info.num_bytes
    assert os.pread(file, len(info.probe), 0) == info.probe
    assert os.pread(file, 8, info.words_offset + 3 * 8) == (1 << 40).to_bytes(8, "little")
    assert os.pread(file, 512, info.data_offset + 512) == bytes([7]) * 512


def test_nobody_can_resize_a_slab() -> None:
    slab = _slab()
    with pytest.raises(PermissionError):
        os.ftruncate(_descriptor(slab), 0)
    with pytest.raises(PermissionError):
        os.ftruncate(_descriptor(slab), slab.describe().num_bytes + 4096)


def test_nobody_can_map_a_slab_for_writing() -> None:
    slab = _slab()
    if not fcntl.fcntl(_descriptor(slab), fcntl.F_GET_SEALS) & F_SEAL_FUTURE_WRITE:
        pytest.skip("this kernel cannot forbid writable mappings")
    with open(f"/proc/self/fd/{_descriptor(slab)}", "r+b") as file, pytest.raises(PermissionError):
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    assert len(slab.data) == 8 * 512  # the owner's own mapping stays writable
    slab.data.fill_(3)


def test_closing_twice_is_fine_and_what_was_taken_before_stays_readable() -> None:
    slab = _slab()
    slab.data.fill_(5)
    data = slab.data
    descriptor = _descriptor(slab)
    slab.close()
    slab.close()
    assert data.sum() == 5 * 8 * 512
    assert slab.data.numel() == 0
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_closed_slabs_leave_neither_descriptors_nor_mappings() -> None:
    descriptors, mappings = len(os.listdir("/proc/self/fd")), _num_mappings()
    for _ in range(20):
        slab = _slab()
        slab.stamp([0], [1])
        slab.close()
    del slab
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert _num_mappings() == mappings


def test_host_memory_needs_no_events() -> None:
    slab = _slab()
    slab.order_after_stamps()
    assert slab.record_event() == 0
    assert slab.event_done(0)


def test_a_slab_made_under_inference_mode_can_be_written_outside_of_it() -> None:
    with torch.inference_mode():
        slab = _slab()
    slab.data.view(torch.float32).fill_(1.0)
    with torch.inference_mode():
        slab.data.view(torch.float32).fill_(2.0)


def test_other_devices_have_no_slabs() -> None:
    with pytest.raises(TransferFailed, match="meta"):
        create_slab("kv", 2, 512, 8, torch.device("meta"))


def test_a_slab_larger_than_any_file_is_refused() -> None:
    with pytest.raises(TransferFailed, match="embedding arena 1"):
        create_slab("embedding", 1, 1 << 40, 1 << 22, CPU)
