"""Every way in which CUDA IPC is refused says why, and the next transport carries the claim. Needs no GPU.

CUDA itself is played: what its calls answer where something is not allowed is known. The same refusals on a real GPU,
with NIXL carrying the rows there, are in tests/gpu/test_refusals_on_gpu.py.
"""

import contextlib
import enum
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.transfer.neighbours import CPU, OWNER, rows_ref
from tests.transfer.nixl_rig import NixlOwner, reading
from triptych.config import TransferSettings
from triptych.errors import TransferFailed
from triptych.services.peers import arena_from_pb, arena_to_pb
from triptych.transfer.arena import ArenaInfo, CudaIpcInfo, new_arena
from triptych.transfer.cuda_ipc import open_cuda_ipc
from triptych.transfer.cuda_runtime import BindingsMissing, DeviceMemory, allocate
from triptych.transfer.cuda_slab import export

GPU = torch.device("cuda", 0)
RUNTIME = "cuda.bindings.runtime"


class Status(enum.IntEnum):
    """As CUDA numbers them."""

    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMapBufferObjectFailed = 205
    cudaErrorPeerAccessUnsupported = 217
    cudaErrorNotPermitted = 800
    cudaErrorNotSupported = 801


class Cuda:
    """A CUDA runtime that refuses to share memory, for one reason."""

    cudaIpcMemLazyEnablePeerAccess = 1

    def __init__(self, refusal: Status) -> None:
        self.refusal = refusal
        self.cudaIpcCloseMemHandle = self.cudaFree = lambda address: (Status.cudaSuccess,)

    def cudaSetDevice(self, index: int) -> tuple[Status]:
        return (Status.cudaSuccess,)

    def cudaIpcMemHandle_t(self) -> Any:
        memory = torch.zeros(64, dtype=torch.uint8)
        return SimpleNamespace(getPtr=memory.data_ptr, memory=memory)

    def cudaIpcOpenMemHandle(self, handle: Any, flags: int) -> tuple[Status, int]:
        return self.refusal, 0

    def cudaIpcGetMemHandle(self, address: int) -> tuple[Status, None]:
        return self.refusal, None

    def cudaGetLastError(self) -> tuple[Status]:
        return (self.refusal,)

    def cudaGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return Status.cudaSuccess, f"as {status.name} says".encode()


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch sees it."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-here"))


def on_gpu(uuid: str = "GPU-here", **change: Any) -> ArenaInfo:
    plan = new_arena("embedding", 1, 4096, 16)
    handles = CudaIpcInfo(bytes(64), (), uuid, plan.num_bytes)
    return replace(plan, **({"cuda_ipc": handles} | change))


def refusal_of(info: ArenaInfo, device: torch.device = GPU) -> str:
    with pytest.raises(TransferFailed) as refused:
        open_cuda_ipc(info, device)
    return refused.value.message


REFUSALS = {
    "a container without privileges": Status.cudaErrorNotPermitted,
    "no peer access between the GPUs": Status.cudaErrorPeerAccessUnsupported,
    "a system without CUDA IPC": Status.cudaErrorNotSupported,
    "process namespaces that differ": Status.cudaErrorMapBufferObjectFailed,
    "memory of expandable segments": Status.cudaErrorInvalidValue,
}


@pytest.mark.parametrize("status", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_consumer_that_may_not_open_says_what_cuda_said(monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    monkeypatch.setitem(sys.modules, RUNTIME, Cuda(status))
    expected = f"opening a neighbour's GPU memory failed: {status.name}: as {status.name} says"
    assert refusal_of(on_gpu()) == expected


@pytest.mark.parametrize("status", REFUSALS.values(), ids=REFUSALS.keys())
def test_an_owner_that_may_not_export_tells_its_neighbours_why(monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    """Its slab exists all the same, and the reason comes with Connect."""
    monkeypatch.setitem(sys.modules, RUNTIME, Cuda(status))
    memory = DeviceMemory(GPU, 4096, 4096, lambda address: (Status.cudaSuccess,))
    exported, reason = export(memory, (), GPU, 8192)
    assert exported is None
    assert reason == f"exporting GPU memory failed: {status.name}: as {status.name} says"
    told = arena_from_pb(arena_to_pb(on_gpu(cuda_ipc=None, no_cuda_ipc=reason)))
    assert refusal_of(told) == reason


def test_a_consumer_without_the_bindings_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, RUNTIME, None)
    assert "cannot be shared without cuda.bindings" in refusal_of(on_gpu())


def test_an_owner_without_the_bindings_has_torchs_memory_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, RUNTIME, None)
    with pytest.raises(BindingsMissing):
        allocate(GPU, 4096)
    exported, reason = export(None, (), GPU, 8192)
    assert exported is None
    assert "without cuda.bindings" in reason


def test_a_gpu_that_this_process_does_not_see_is_named() -> None:
    assert refusal_of(on_gpu(uuid="GPU-elsewhere")) == "the owner's GPU GPU-elsewhere is not visible to this process"


def test_a_consumer_that_is_not_on_a_gpu_is_refused() -> None:
    assert refusal_of(on_gpu(), CPU) == "the arena is in GPU memory, the reader on cpu"


def test_an_arena_in_host_memory_is_not_said_to_have_been_refused() -> None:
    assert refusal_of(new_arena("kv", 2, 64, 4)) == "the arena is not in GPU memory"


def test_the_next_transport_carries_what_cuda_ipc_may_not(caplog: pytest.LogCaptureFixture) -> None:
    """The owner tells of GPU memory that this reader cannot open, and of a host that it is not on."""
    caplog.set_level("INFO")
    settings = TransferSettings(nixl_tls="tcp", nixl_pack_below_bytes=0)
    pytest.importorskip("nixl_cu13")
    with NixlOwner("embedding", 4096, 8, settings) as owner:
        owner.ask("fill", range(8), 5)
        info = owner.arenas[0]
        assert info.shm is not None
        far = replace(info.shm, host_id="elsewhere")
        owner.arenas[0] = replace(info, shm=far, cuda_ipc=CudaIpcInfo(bytes(64), (), "GPU-1", info.num_bytes))
        with reading(owner, settings) as (reader, _):
            into = torch.zeros(6, 512, dtype=torch.int64)
            reader.read_rows(rows_ref(5, 6, 512, offset=4096), into)
            assert bool((into == 5).all())
            assert reader.transport_of(OWNER) == "nixl"
    for reason in ("cuda_ipc: the arena is in GPU memory, the reader on cpu", "shm: the owner is on host elsewhere"):
        assert reason in caplog.text
