"""A slab in GPU memory: plain device memory and a ring of events, each exported once. The owner's side."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.transfer.arena import PAGE_BYTES, ArenaInfo, CudaIpcInfo, check_row_stamp, check_stamp, new_arena
from triptych.transfer.cuda_events import export_event, has_completed, new_event, new_shared_event, new_stream
from triptych.transfer.cuda_runtime import DeviceMemory, allocate_or_borrow, device_uuid, export_memory

log = logging.getLogger(__name__)

_NUM_EVENTS = 256
_UNITS_PER_STAMP = 2048
_UPLOADS_AT_START = 4


class CudaSlab:
    """Owner's side of a slab on one GPU. Its memory lasts as long as any tensor over it does."""

    def __init__(self, kind: str, arena_id: int, unit_bytes: int, num_units: int, device: torch.device) -> None:
        """Raises TransferFailed when it cannot be allocated, InvalidRecord for sizes that cannot be.

        Where CUDA IPC is refused, the slab is made all the same: neighbours are told why, and may reach it otherwise.
        """
        plan = new_arena(kind, arena_id, unit_bytes, num_units)
        events_offset = plan.num_bytes
        plan = replace(plan, num_bytes=events_offset + PAGE_BYTES)
        self.device = device
        self.unit_bytes = unit_bytes
        self.num_units = num_units
        whole, memory = allocate_or_borrow(device, plan.num_bytes)
        self.words = whole[plan.words_offset : plan.words_offset + 8 * num_units].view(torch.int64)
        self.data = whole[plan.data_offset : plan.data_offset + plan.data_bytes]
        self._event_words = whole[events_offset : events_offset + 8 * _NUM_EVENTS].view(torch.int64)
        _clear(whole, plan.probe)
        self._events = tuple(new_shared_event() for _ in range(_NUM_EVENTS))
        exported, reason = export(memory, self._events, device, events_offset)
        if exported is None:
            log.warning("%s arena %d cannot be reached by CUDA IPC: %s", kind, arena_id, reason)
        self._info = replace(plan, cuda_ipc=exported, no_cuda_ipc=reason)
        self._lock = threading.Lock()
        self._num_events = 0  # recorded so far
        self._uploads = _Uploads(device)
        self._stamped = new_event()

    def describe(self) -> ArenaInfo:
        return self._info

    def stamp(self, units: Sequence[int], generations: Sequence[int]) -> None:
        """Queues the units' new generations on the current stream, ahead of what is queued there next."""
        check_stamp(self._info, units, generations)
        stream = torch.cuda.current_stream(self.device)
        with self._lock, torch.cuda.stream(stream):
            for begin in range(0, len(units), _UNITS_PER_STAMP):
                end = begin + _UNITS_PER_STAMP
                upload = self._uploads.take()
                pairs = upload.send(units[begin:end], generations[begin:end])
                self.words.index_copy_(0, pairs[0], pairs[1])
                self._uploads.give_back(upload)
            self._stamped.record(stream)

    def stamp_row(self, units: range, generation: int) -> None:
        """As `stamp`, of units in a row: nothing is uploaded for it."""
        check_row_stamp(self._info, units, generation)
        stream = torch.cuda.current_stream(self.device)
        with self._lock, torch.cuda.stream(stream):
            self.words[units.start : units.stop].fill_(generation)
            self._stamped.record(stream)

    def order_after_stamps(self) -> None:
        """Makes the current stream wait for the stamps queued so far, whichever stream they are on."""
        torch.cuda.current_stream(self.device).wait_event(self._stamped)

    def record_event(self) -> int:
        """Number of an event behind everything queued on the current stream, counted from 1."""
        stream = torch.cuda.current_stream(self.device)
        with self._lock, torch.cuda.stream(stream):
            self._num_events += 1
            number = self._num_events
            # On the device, behind what it vouches for: whoever reads the number here also reads all of that.
            self._event_words[number % _NUM_EVENTS : number % _NUM_EVENTS + 1].fill_(number)  # nothing once closed
            self._events[number % _NUM_EVENTS].record(stream)
        return number

    def event_done(self, index: int) -> bool:
        """Raises TransferFailed for an event that was not recorded."""
        if not 1 <= index <= self._num_events:
            raise TransferFailed(f"event {index} named, {self._num_events} were recorded")
        return has_completed(self._events[index % _NUM_EVENTS])

    def close(self) -> None:
        """Lets go of the memory; it is freed with the last tensor over it."""
        empty = torch.empty(0, dtype=torch.uint8)
        self.data, self.words = empty, empty.view(torch.int64)
        self._event_words = self.words


class _Upload:
    """Room for one batch of units and generations, on the host and on the device."""

    def __init__(self, device: torch.device) -> None:
        # Ordinary tensors: stamps come from inside and outside of inference mode.
        with torch.inference_mode(False):
            self._pinned = torch.empty(2 * _UNITS_PER_STAMP, dtype=torch.int64, pin_memory=True)
            self._on_device = torch.empty(2 * _UNITS_PER_STAMP, dtype=torch.int64, device=device)
        self.used = new_event()

    def send(self, units: Sequence[int], generations: Sequence[int]) -> Tensor:
        """[2, units] int64 on the device, in order on the current stream: units, generations."""
        count = 2 * len(units)
        self._pinned[:count].view(2, -1).numpy()[:] = np.array((units, generations), dtype=np.int64)
        self._on_device[:count].copy_(self._pinned[:count], non_blocking=True)
        return self._on_device[:count].view(2, -1)


class _Uploads:
    """Room for stamps on their way to the device. Not thread-safe.

    Room is used again only once the device is done with it; while all of it is in use, more is made: stamping never
    waits for the device. The first rooms are made at start, since the driver may wait when it hands out memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._uploads = deque(_Upload(device) for _ in range(_UPLOADS_AT_START))

    def take(self) -> _Upload:
        if has_completed(self._uploads[0].used):
            return self._uploads.popleft()
        return _Upload(self._device)

    def give_back(self, upload: _Upload) -> None:
        """After the last work that uses it has been queued on the current stream."""
        upload.used.record(torch.cuda.current_stream(self._device))
        self._uploads.append(upload)


def export(
    memory: DeviceMemory | None, events: Sequence[torch.cuda.Event], device: torch.device, event_words_offset: int
) -> tuple[CudaIpcInfo | None, str]:
    """How others open the memory and its events, or why they cannot. memory: None where it is not plain memory"""
    try:
        if memory is None:
            raise TransferFailed("the owner's memory is torch's: without cuda.bindings none can be exported")
        handle = export_memory(memory)
        with torch.cuda.device(device):
            handles = tuple(export_event(event) for event in events)
    except (TransferFailed, RuntimeError) as error:
        return None, str(error)
    return CudaIpcInfo(handle, handles, device_uuid(device), event_words_offset), ""


def _clear(whole: Tensor, probe: bytes) -> None:
    """Zeroes the slab, words above all, and writes its probe; done when this returns."""
    stream = new_stream(whole.device)
    with torch.cuda.stream(stream):
        whole.zero_()
        whole[: len(probe)].copy_(torch.frombuffer(bytearray(probe), dtype=torch.uint8))
    stream.synchronize()
