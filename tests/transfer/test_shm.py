import os
import signal
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.transfer.neighbours import CPU, PROCESSES, Neighbour
from triptych.errors import TransferFailed
from triptych.transfer.arena import ArenaInfo, ShmInfo
from triptych.transfer.shm import open_shm
from triptych.transfer.slab import create_slab


@pytest.fixture(scope="module")
def neighbour() -> Iterator[Neighbour]:
    with Neighbour("embedding", unit_bytes=4096, num_units=16) as neighbour:
        yield neighbour


def _elsewhere(info: ArenaInfo, **change: str | int) -> ArenaInfo:
    assert info.shm is not None
    return replace(info, shm=replace(info.shm, **change))  # type: ignore[arg-type]


def test_what_a_neighbour_writes_is_seen_at_once(neighbour: Neighbour) -> None:
    mapping = open_shm(neighbour.info, CPU)
    neighbour.ask("fill", range(16), 41)
    assert (mapping.data.view(torch.int64) == 41).all()
    assert (mapping.words == 41).all()
    neighbour.ask("fill", [7], 42)
    assert mapping.words.tolist() == [41] * 7 + [42] + [41] * 8
    assert (mapping.data.view(torch.int64).view(16, -1)[7] == 42).all()


def test_mapping_warns_of_nothing(neighbour: Neighbour) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapping = open_shm(neighbour.info, CPU)
        assert mapping.data.clone().numel() == 16 * 4096


def _write(info: ArenaInfo) -> None:
    open_shm(info, CPU).data[0] = 1


def test_writing_through_a_mapping_is_impossible(neighbour: Neighbour) -> None:
    writer = PROCESSES.Process(target=_write, args=(neighbour.info,))
    writer.start()
    writer.join(20)
    assert writer.exitcode == -signal.SIGSEGV


def test_tensors_outlive_the_mapping_they_came_from(neighbour: Neighbour) -> None:
    neighbour.ask("fill", range(16), 50)
    mapping = open_shm(neighbour.info, CPU)
    data = mapping.data
    mapping.close()
    mapping.close()
    assert mapping.data.numel() == 0
    assert (data.view(torch.int64) == 50).all()


def test_a_mapping_outlives_its_owner() -> None:
    with Neighbour("embedding", 4096, 16) as neighbour:
        neighbour.ask("fill", range(16), 6)
        mapping = open_shm(neighbour.info, CPU)
        neighbour.kill()
        assert (mapping.data.view(torch.int64) == 6).all()


def test_a_dead_owner_is_refused() -> None:
    with Neighbour("embedding", 4096, 16) as neighbour:
        neighbour.kill()
        with pytest.raises(TransferFailed, match=f"process {neighbour.process.pid}, is gone"):
            open_shm(neighbour.info, CPU)


def test_a_closed_slab_is_refused() -> None:
    with Neighbour("embedding", 4096, 16) as neighbour:
        neighbour.ask("close")
        with pytest.raises(TransferFailed, match=r"cannot open descriptor \d+ of process \d+: No such file"):
            open_shm(neighbour.info, CPU)


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        ("slab", "another arena than embedding arena 1"),
        ("pipe", "no memory file"),
        ("device", "no memory file"),
        ("unsealed", "may shrink"),
    ],
)
def test_a_reused_descriptor_number_is_refused(instead: str, reason: str) -> None:
    with Neighbour("embedding", 4096, 16) as neighbour:
        neighbour.ask("replace_descriptor", instead)
        with pytest.raises(TransferFailed, match=reason):
            open_shm(neighbour.info, CPU)


def test_a_process_that_was_given_the_owners_pid_is_refused(neighbour: Neighbour) -> None:
    """The pid names another process, in which the number is a slab too, even of the same sizes."""
    ours = create_slab("embedding", 1, 4096, 16, CPU).describe().shm
    assert ours is not None
    with pytest.raises(TransferFailed, match="another arena"):
        open_shm(_elsewhere(neighbour.info, pid=os.getpid(), fd=ours.fd), CPU)


def test_another_host_is_refused_without_looking(neighbour: Neighbour) -> None:
    with pytest.raises(TransferFailed, match="owner is on host some-other-boot"):
        open_shm(_elsewhere(neighbour.info, host_id="some-other-boot"), CPU)


@pytest.mark.parametrize("num_bytes", [4096, -4096])
def test_a_file_of_another_size_is_refused(neighbour: Neighbour, num_bytes: int) -> None:
    info = neighbour.info
    units = info.num_units - (1 if num_bytes < 0 else 0)
    wrong = replace(info, num_bytes=info.num_bytes + num_bytes, num_units=units)
    with pytest.raises(TransferFailed, match=f"holds {info.num_bytes} bytes, the arena has {wrong.num_bytes}"):
        open_shm(wrong, CPU)


def test_a_probe_that_reads_back_otherwise_is_refused(neighbour: Neighbour) -> None:
    probe = neighbour.info.probe
    with pytest.raises(TransferFailed, match="another arena"):
        open_shm(replace(neighbour.info, probe=probe[:-1] + bytes([probe[-1] ^ 1])), CPU)


def test_an_arena_elsewhere_than_in_host_memory_is_refused(neighbour: Neighbour) -> None:
    with pytest.raises(TransferFailed, match="not in host memory"):
        open_shm(replace(neighbour.info, shm=None), CPU)
    with pytest.raises(TransferFailed, match="the reader on cuda:0"):
        open_shm(neighbour.info, torch.device("cuda", 0))


def test_refusals_leave_no_descriptors_behind(neighbour: Neighbour) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(TransferFailed):
            open_shm(replace(neighbour.info, num_bytes=neighbour.info.num_bytes + 4096), CPU)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pid_that_nobody_has_is_refused(neighbour: Neighbour) -> None:
    nobody = replace(neighbour.info, shm=ShmInfo(neighbour.info.shm.host_id if neighbour.info.shm else "", 1 << 30, 3))
    with pytest.raises(TransferFailed, match="is gone"):
        open_shm(nobody, CPU)
