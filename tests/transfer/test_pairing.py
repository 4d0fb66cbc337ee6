from dataclasses import replace

import pytest
import torch

from tests.transfer.neighbours import CPU, Neighbour
from triptych.errors import TransferFailed
from triptych.transfer.arena import CudaIpcInfo
from triptych.transfer.cuda_runtime import concrete_device
from triptych.transfer.pairing import open_mapping
from triptych.transfer.slab import create_slab


def test_a_slab_of_this_process_is_used_as_it_is() -> None:
    slab = create_slab("kv", 2, 64, 4, CPU)
    mapping = open_mapping(slab.describe(), CPU, {2: slab})
    assert mapping.transport == "local"
    assert mapping.data.data_ptr() == slab.data.data_ptr()
    mapping.close()
    assert slab.data.numel() == 256  # closing the mapping is not closing the slab


def test_another_worker_of_this_process_is_reached_by_shared_memory() -> None:
    """Two workers in one process, each with its own arena 2, must not read each other's for their own."""
    mine, theirs = create_slab("kv", 2, 64, 4, CPU), create_slab("kv", 2, 64, 4, CPU)
    theirs.data.fill_(8)
    mapping = open_mapping(theirs.describe(), CPU, {2: mine})
    assert mapping.transport == "shm"
    assert (mapping.data == 8).all()


def test_a_neighbour_of_this_host_is_reached_by_shared_memory() -> None:
    with Neighbour("kv", 64, 4) as neighbour:
        assert open_mapping(neighbour.info, CPU, {}).transport == "shm"


def test_an_arena_that_nothing_reaches_gets_every_reason() -> None:
    info = create_slab("kv", 2, 64, 4, CPU).describe()
    assert info.shm is not None
    far = replace(info, shm=replace(info.shm, host_id="elsewhere"))
    with pytest.raises(TransferFailed) as failure:
        open_mapping(far, CPU, {})
    assert "no transport reaches kv arena 2" in failure.value.message
    for reason in ("local: not an arena", "cuda_ipc: the arena is not in GPU memory", "shm: the owner is on host else"):
        assert reason in failure.value.message


def test_gpu_memory_is_refused_to_a_reader_on_the_cpu() -> None:
    info = create_slab("kv", 2, 64, 4, CPU).describe()
    remote = replace(info, shm=None, cuda_ipc=CudaIpcInfo(bytes(64), (), "uuid", info.num_bytes))
    with pytest.raises(TransferFailed, match="cuda_ipc: the arena is in GPU memory, the reader on cpu"):
        open_mapping(remote, CPU, {})


def test_a_device_with_its_index_stays_what_it_is() -> None:
    assert concrete_device(CPU) == CPU
    assert concrete_device(torch.device("cuda", 3)) == torch.device("cuda", 3)
