"""Owner and consumer are processes on one GPU, or on GPUs of one host: the owner's device memory, opened by handle."""

import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.transfer.arena import ArenaInfo, CudaIpcInfo, probe_mismatch
from triptych.transfer.cuda_events import has_completed, new_stream, open_event
from triptych.transfer.cuda_runtime import device_by_uuid, open_memory
from triptych.transfer.mapping import poll_until


class CudaIpcMapping:
    """A neighbour's slab in GPU memory. `device` is the owner's GPU: copies and events belong to its streams."""

    transport = "cuda_ipc"

    def __init__(self, info: ArenaInfo, whole: Tensor, events: tuple[torch.cuda.Event, ...]) -> None:
        words_end = info.words_offset + 8 * info.num_units
        self.info = info
        self.device = whole.device
        self.data = whole[info.data_offset : info.data_offset + info.data_bytes]
        self.words = whole[info.words_offset : words_end].view(torch.int64)
        self._events = events
        self._event_words = _event_words(info, whole)

    def wait_event(self, index: int, deadline: float) -> None:
        # On the host, not by a stream wait: a stream that waits for a hung producer can never be taken back.
        if index < 1 or not self._events:
            raise TransferFailed(f"the claim names event {index}, events are counted from 1")
        event = self._events[index % len(self._events)]
        what = f"event {index} of {self.info.kind} arena {self.info.id}"
        poll_until(lambda: has_completed(event), deadline, what)

    def event_word(self, index: int) -> Tensor:
        """[1] int64 in the slab: at least `index` once all before that event is written, whoever has died since."""
        slot = index % self._event_words.numel()
        return self._event_words[slot : slot + 1]

    def close(self) -> None:
        empty = torch.empty(0, dtype=torch.uint8)
        self.data, self.words, self._events = empty, empty.view(torch.int64), ()
        self._event_words = self.words


def _event_words(info: ArenaInfo, whole: Tensor) -> Tensor:
    if info.cuda_ipc is None:
        return whole[:0].view(torch.int64)
    begin = info.cuda_ipc.event_words_offset
    return whole[begin : begin + 8 * len(info.cuda_ipc.event_handles)].view(torch.int64)


def open_cuda_ipc(info: ArenaInfo, device: torch.device) -> CudaIpcMapping:
    """Raises TransferFailed with the reason why this arena cannot be read through CUDA IPC."""
    handles = info.cuda_ipc
    if handles is None:
        raise TransferFailed(info.no_cuda_ipc or "the arena is not in GPU memory")
    if device.type != "cuda":
        raise TransferFailed(f"the arena is in GPU memory, the reader on {device}")
    home = device_by_uuid(handles.device_uuid)
    if home is None:
        raise TransferFailed(f"the owner's GPU {handles.device_uuid} is not visible to this process")
    whole = open_memory(home, handles.memory_handle, info.num_bytes).tensor()
    try:
        mismatch = probe_mismatch(info, _first_bytes(whole, len(info.probe)))
    except RuntimeError as error:  # mapped, and not to be read
        raise TransferFailed(f"reading the owner's GPU memory failed: {error}") from error
    if mismatch:
        raise TransferFailed(mismatch)
    return CudaIpcMapping(info, whole, _open_events(handles, home))


def _first_bytes(whole: Tensor, num_bytes: int) -> bytes:
    stream = new_stream(whole.device)
    with torch.cuda.stream(stream):
        return whole[:num_bytes].cpu().numpy().tobytes()


def _open_events(handles: CudaIpcInfo, home: torch.device) -> tuple[torch.cuda.Event, ...]:
    try:
        return tuple(open_event(home, handle) for handle in handles.event_handles)
    except RuntimeError as error:
        raise TransferFailed(f"opening the owner's events failed: {error}") from error
