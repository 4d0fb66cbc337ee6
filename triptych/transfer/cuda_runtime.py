"""The few CUDA calls torch does not offer: plain device memory, and opening a neighbour's. Optional hardware.

Nothing here runs, or imports CUDA, before a CUDA slab or mapping is asked for.
"""

import ctypes
import importlib
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.transfer.arena import IPC_HANDLE_BYTES

log = logging.getLogger(__name__)

# CUDA may carve small allocations out of one block, and IPC shares whole blocks: an allocation that is a multiple of
# this shares its block with nobody.
_ALLOCATION_STEP_BYTES = 2 << 20


class BindingsMissing(TransferFailed):
    """The optional package that allocates and shares plain GPU memory is not installed."""


class DeviceMemory:
    """Bytes on a GPU, given back once no tensor over them is left. At interpreter exit the driver takes them."""

    def __init__(self, device: torch.device, address: int, num_bytes: int, give_back: Callable[[int], Any]) -> None:
        self.device = device
        self.address = address
        # What torch.as_tensor reads; the tensor then holds this object, and with it the memory.
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
        }
        weakref.finalize(self, _give_back, device, address, give_back).atexit = False

    def tensor(self) -> Tensor:
        """[num_bytes] uint8 over the memory."""
        with torch.inference_mode(False), torch.cuda.device(self.device):
            return torch.as_tensor(self, device=self.device)


def allocate(device: torch.device, num_bytes: int) -> DeviceMemory:
    """Fresh memory outside torch's caching allocator, whose segments cannot always be exported. Not cleared.

    Raises TransferFailed when there is not enough, BindingsMissing where there is no way to ask for it.
    """
    whole = -(-num_bytes // _ALLOCATION_STEP_BYTES) * _ALLOCATION_STEP_BYTES
    with _on(device) as runtime:
        (address,) = _checked(f"allocating {whole} bytes on {device}", runtime.cudaMalloc(whole))
    return DeviceMemory(device, int(address), num_bytes, runtime.cudaFree)


def allocate_or_borrow(device: torch.device, num_bytes: int) -> tuple[Tensor, DeviceMemory | None]:
    """[num_bytes] uint8, not cleared, and the memory as it can be exported; torch's own, and None, without bindings.

    Raises TransferFailed when there is not enough.
    """
    try:
        memory = allocate(device, num_bytes)
    except BindingsMissing:
        try:
            with torch.inference_mode(False):
                return torch.empty(num_bytes, dtype=torch.uint8, device=device), None
        except torch.OutOfMemoryError as error:
            raise TransferFailed(f"allocating {num_bytes} bytes on {device} failed: {error}") from error
    return memory.tensor(), memory


def export_memory(memory: DeviceMemory) -> bytes:
    """The 64 bytes by which another process opens the memory. Raises TransferFailed where IPC is not allowed."""
    with _on(memory.device) as runtime:
        (handle,) = _checked("exporting GPU memory", runtime.cudaIpcGetMemHandle(memory.address))
    return ctypes.string_at(int(handle.getPtr()), IPC_HANDLE_BYTES)


def open_memory(device: torch.device, handle: bytes, num_bytes: int) -> DeviceMemory:
    """Another process's memory on a device of this one. Raises TransferFailed with CUDA's reason."""
    with _on(device) as runtime:
        opened = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(int(opened.getPtr()), handle, IPC_HANDLE_BYTES)
        flags = runtime.cudaIpcMemLazyEnablePeerAccess
        (address,) = _checked("opening a neighbour's GPU memory", runtime.cudaIpcOpenMemHandle(opened, flags))
    return DeviceMemory(device, int(address), num_bytes, runtime.cudaIpcCloseMemHandle)


def concrete_device(device: torch.device) -> torch.device:
    """The device with its index: cuda is not equal to cuda:0, which tensors report."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def device_uuid(device: torch.device) -> str:
    """Names a GPU alike in all processes, whatever number each gives it."""
    return str(torch.cuda.get_device_properties(device).uuid)


def device_by_uuid(uuid: str) -> torch.device | None:
    """The visible GPU of that name, if any."""
    devices = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
    return next((device for device in devices if device_uuid(device) == uuid), None)


@contextmanager
def _on(device: torch.device) -> Iterator[Any]:
    """The runtime, with the device current for it on this thread meanwhile."""
    runtime = _runtime()
    # The runtime here and torch's are two copies that share the driver's current context: torch's guard saves and
    # restores what selecting the device in ours changes.
    with torch.cuda.device(device):
        _checked(f"selecting {device}", runtime.cudaSetDevice(device.index))
        yield runtime


def _runtime() -> Any:
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise BindingsMissing(f"GPU memory cannot be shared without cuda.bindings: {error}") from error


def _checked(what: str, result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values behind the status. Raises TransferFailed naming what failed and why."""
    status, *values = result
    if int(status) == 0:
        return tuple(values)
    runtime = _runtime()
    runtime.cudaGetLastError()  # or the next call that asks would be blamed for this one
    (_, text) = runtime.cudaGetErrorString(status)
    raise TransferFailed(f"{what} failed: {status.name}: {text.decode(errors='replace')}")


def _give_back(device: torch.device, address: int, give_back: Callable[[int], Any]) -> None:
    try:
        with _on(device):
            _checked("giving GPU memory back", give_back(address))
    except (TransferFailed, RuntimeError) as error:  # the owner may have died under a mapping; there is nobody to tell
        log.warning("GPU memory at %#x is not given back: %s", address, error)
