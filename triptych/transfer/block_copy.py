"""Copies of scattered blocks within one GPU's memory: one kernel where Triton works, else torch's two passes."""

import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor

from triptych.transfer.cuda_events import new_stream

try:
    from triptych.transfer.block_copy_kernel import copy_blocks
except ImportError as error:  # Triton comes with torch for GPUs alone
    _why_no_kernel: ImportError | None = error
else:
    _why_no_kernel = None

log = logging.getLogger(__name__)

# blocks, places [*, bytes] uint8; sources, targets [count] int64 on the device: places[targets[i]] = blocks[sources[i]]
BlockCopy = Callable[[Tensor, Tensor, Tensor, Tensor], None]

_GATHER_STEP_BYTES = 64 << 20  # memory a gather borrows at a time
_WIDE_BYTES = 128  # of which blocks must be a multiple for the kernel: 16 numbers, each load 16 bytes


def gathered_copy(blocks: Tensor, places: Tensor, sources: Tensor, targets: Tensor) -> None:
    """In two passes over memory, a step at a time; also between two GPUs. Blocks of any size.

    Raises torch.OutOfMemoryError where a step's memory cannot be had; what had been queued by then still runs.
    """
    number = _widest(blocks, places)
    blocks, places = blocks.view(number), places.view(number)
    step = max(1, _GATHER_STEP_BYTES // max(1, blocks.shape[1] * number.itemsize))
    for begin in range(0, sources.numel(), step):
        packed = blocks.index_select(0, sources[begin : begin + step])
        places.index_copy_(0, targets[begin : begin + step], packed.to(places.device, non_blocking=True))


def fits_kernel(blocks: Tensor, places: Tensor) -> bool:
    """Whether the kernel can copy between these: one device, and everything aligned for wide loads."""
    addresses = (blocks.data_ptr(), places.data_ptr())
    aligned = blocks.shape[1] % _WIDE_BYTES == 0 and all(address % 16 == 0 for address in addresses)
    return blocks.device == places.device and aligned


@functools.cache
def fused_copy(device: torch.device) -> BlockCopy | None:
    """The kernel, compiled and tried once for each device; None, with a warning, where it does not work.

    For what `fits_kernel` alone. Waits for the device the first time.
    """
    if device.type != "cuda":
        return None
    if _why_no_kernel is not None:
        log.warning("scattered blocks are copied in two passes, which costs time: %s", _why_no_kernel)
        return None

    def fused(blocks: Tensor, places: Tensor, sources: Tensor, targets: Tensor) -> None:
        copy_blocks(blocks.view(torch.int64), places.view(torch.int64), sources, targets)

    with torch.cuda.device(device), torch.cuda.stream(new_stream(device)):
        return trusted(fused, device)


def trusted(copy: BlockCopy, device: torch.device) -> BlockCopy | None:
    """The function, unless a trial on the device shows that it does not work; warns of that. Waits for the device."""
    try:
        right = _lands_right(copy, device)
    except Exception as error:  # a compiler may fail in any way
        log.warning("scattered blocks are copied in two passes, which costs time: %s", error)
        return None
    if not right:
        log.warning("scattered blocks are copied in two passes, which costs time: the kernel's copies are wrong")
    return copy if right else None


def _lands_right(copy: BlockCopy, device: torch.device) -> bool:
    """Whether a few blocks of two tiles and a bit land where they should, and nothing else is touched."""
    with torch.inference_mode():
        blocks = torch.randint(0, 256, (7, (64 << 10) + _WIDE_BYTES), dtype=torch.uint8, device=device)
        places, wanted = torch.zeros_like(blocks), torch.zeros_like(blocks)
        sources, targets = (torch.tensor(ids, device=device) for ids in ([5, 0, 3], [1, 6, 2]))
        copy(blocks, places, sources, targets)
        wanted[targets] = blocks[sources]
        return torch.equal(places, wanted)


def _widest(*tensors: Tensor) -> torch.dtype:
    """Kernels move one number at a time: the widest that blocks and both memories are aligned to."""
    for number in (torch.int64, torch.int32):
        offsets = [offset for each in tensors for offset in (each.shape[1], each.data_ptr(), each.storage_offset())]
        if all(offset % number.itemsize == 0 for offset in offsets):
            return number
    return torch.uint8
