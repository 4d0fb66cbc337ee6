"""Copies out of GPU slabs: queued on streams of their own, waited for on the host, never without a deadline."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.block_copy import fits_kernel, fused_copy, gathered_copy
from triptych.transfer.checksum import checksum
from triptych.transfer.cuda_events import has_completed, new_stream
from triptych.transfer.cuda_ipc import CudaIpcMapping
from triptych.transfer.mapping import poll_until
from triptych.transfer.pull import CopyAbandoned, Pull

# Up to here each run is one memcpy; beyond, launching them costs more than moving all blocks by one kernel.
_MOST_RUNS_COPIED_SINGLY = 8
_COLUMNS = 5  # of pinned numbers: source blocks, target blocks, units, their words, the event's word


class DeviceCopier:
    """Does pulls between GPU memories. Each thread has streams and pinned memory of its own."""

    def __init__(self, device: torch.device) -> None:
        """Waits for the device the first time: the kernel is compiled now, not in a request."""
        self._device = device
        self._of_thread = threading.local()
        fused_copy(device)

    def copy(self, pull: Pull, deadline: float) -> Int64Array:
        """As `Copier.copy`. Data and words are queued on one stream of the owner's GPU, the words behind the data."""
        lane = self._lane()
        with self._queueing(lane, pull, deadline):
            found = queue_copies(pull, lane)
            ended = lane.record_end(pull)
        self._wait(ended, deadline, _copying(pull))
        return found.words(pull)

    def begin(self, pull: Pull, deadline: float) -> Callable[[], bool]:
        """As `LandingCopier.begin`."""
        lane = self._lane()
        with self._queueing(lane, pull, deadline):
            _order_after_stamps(pull)
            # Not the lane's: earlier copies of this thread may not have come to their numbers yet. Torch hands pinned
            # memory out again only once the device is done with it.
            _queue_data(pull, lambda count: torch.empty(2, count, dtype=torch.int64, pin_memory=True))
            return lane.record_end(pull)

    def numbers(self, words: Tensor, deadline: float) -> Int64Array:
        """As `LandingCopier.numbers`."""
        lane = self._lane()
        with torch.inference_mode(), lane.current(words.device):
            pinned = lane.pinned(1, max(1, words.numel()))[0, : words.numel()]
            pinned.copy_(words, non_blocking=True)
            ended = lane.record_end(words)
        self._wait(ended, deadline, f"fetching {words.numel()} words")
        return pinned.numpy().copy()

    def pack(self, pull: Pull, words: Tensor, deadline: float) -> None:
        """As `LandingCopier.pack`; nothing of it comes to the host."""
        lane, count = self._lane(), pull.units.size
        with self._queueing(lane, pull, deadline):
            _order_after_stamps(pull)
            pinned = _pinned_for(pull, lane)
            _queue_data(pull, lambda _: pinned)
            ids = _upload(pull.units, pinned[2], words.device)
            words[:count].copy_(pull.source.words.index_select(0, ids))
            words[count:].copy_(ids)
            ended = lane.record_end(pull)
        self._wait(ended, deadline, _copying(pull))

    def checksum(self, tensor: Tensor, rows: Sequence[int] | None = None) -> bytes:
        with torch.inference_mode(), self._lane().current(tensor.device):
            return checksum(tensor if rows is None else tensor[list(rows)])

    @contextmanager
    def _queueing(self, lane: "_Lane", pull: Pull, deadline: float) -> Iterator[None]:
        """The lane's streams are current. Where not all could be queued, what was is waited for."""
        with torch.inference_mode(), lane.current(pull.source.device):
            try:
                yield
            except Exception as error:
                # What had been queued by then may still write.
                self._wait(lane.record_end(pull), deadline, _copying(pull))
                if isinstance(error, torch.OutOfMemoryError):
                    raise TransferFailed(f"no GPU memory for copying {pull.units.size} units: {error}") from error
                raise

    def _wait(self, ended: Callable[[], bool], deadline: float, what: str) -> None:
        try:
            poll_until(ended, deadline, what)
        except TransferFailed as error:
            # The lane is busy with the lost copy for who knows how long: this thread's next pull gets a new one.
            del self._of_thread.lane
            raise CopyAbandoned(error.message, ended) from error

    def _lane(self) -> "_Lane":
        lane: _Lane | None = getattr(self._of_thread, "lane", None)
        if lane is None:
            lane = self._of_thread.lane = _Lane(self._device)
        return lane


class _Lane:
    """One thread's way through the GPU: a copy stream per device, and pinned memory. One pull at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pinned = torch.empty(0, dtype=torch.int64)

    @contextmanager
    def current(self, home: torch.device) -> Iterator[None]:
        """Makes the lane's streams current on the reader's device and on `home`, and `home` the current device."""
        # A copy between two devices touches the current stream of both: neither may be anybody else's.
        with torch.cuda.stream(self._stream(self._device)):
            if home == self._device:
                yield
                return
            with torch.cuda.stream(self._stream(home)):
                yield

    def record_end(self, touched: object) -> Callable[[], bool]:
        """Tells whether all that is queued so far has ended; keeps lane and `touched` alive as long as it is held."""
        events = [stream.record_event() for stream in self._streams.values()]

        def ended(lane: "_Lane" = self, touched: object = touched) -> bool:
            return all(has_completed(event) for event in events)

        return ended

    def pinned(self, columns: int, count: int) -> Tensor:
        """[columns, count] int64 of pinned memory; what an earlier pull of the lane had in it is gone."""
        if self._pinned.numel() < columns * count:
            room = 1 << max(12, (columns * count - 1).bit_length())
            with torch.inference_mode(False):
                self._pinned = torch.empty(room, dtype=torch.int64, pin_memory=True)
        return self._pinned[: columns * count].view(columns, count)

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = new_stream(device)
        return self._streams[device]


class Pinned(Protocol):
    """Memory that the device copies numbers to and from while the host goes on."""

    def pinned(self, columns: int, count: int) -> Tensor:
        """[columns, count] int64; what was in it before is gone."""


class Found(NamedTuple):
    """Pinned memory of a queued copy: to be read once it has ended."""

    mark: Int64Array  # [1]: the event that the owner had come to before the first byte was copied
    generations: Int64Array  # [units]: as they were behind the last one

    def words(self, pull: Pull) -> Int64Array:
        """[units] a copy of the generation words. Raises TransferFailed when the data was not all written."""
        if self.mark[0] < pull.event:
            info = pull.source.info
            raise TransferFailed(
                f"the owner of {info.kind} arena {info.id} ended before it had written what it announced: it came to "
                f"event {self.mark[0]}, the claim stands behind event {pull.event}"
            )
        return self.generations.copy()


def queue_copies(pull: Pull, lane: Pinned) -> Found:
    """Queues the event's word, data, then generation words on the current streams."""
    _order_after_stamps(pull)
    pinned = _pinned_for(pull, lane)
    mark = pinned[4][:1]
    mark.fill_(pull.event)
    if isinstance(pull.source, CudaIpcMapping):
        mark.copy_(pull.source.event_word(pull.event), non_blocking=True)
    _queue_data(pull, lambda count: pinned)
    found = pinned[3][: pull.units.size]
    if pull.units.size:
        found.copy_(_words(pull, pinned[2]), non_blocking=True)
    return Found(mark.numpy(), found.numpy())


def _pinned_for(pull: Pull, lane: Pinned) -> Tensor:
    """[_COLUMNS, count] with room for all numbers of a pull."""
    moved = pull.scattered[0].size if pull.scattered is not None else 0
    return lane.pinned(_COLUMNS, max(1, pull.units.size, moved))


def _copying(pull: Pull) -> str:
    return f"copying {pull.units.size} units of {pull.source.info.kind} arena {pull.source.info.id}"


def _order_after_stamps(pull: Pull) -> None:
    if pull.home is not None:
        with torch.cuda.device(pull.home.device):
            pull.home.order_after_stamps()


def _queue_data(pull: Pull, room: Callable[[int], Tensor]) -> None:
    """room: [2 or more, count] int64 of pinned memory, asked for where a kernel has to be told so many blocks"""
    if pull.scattered is None or (not pull.piece_bytes and len(pull.runs) <= _MOST_RUNS_COPIED_SINGLY):
        for run in pull.runs:
            piece = pull.source.data[run.source : run.source + run.num_bytes]
            pull.into[run.target : run.target + run.num_bytes].copy_(piece, non_blocking=True)
    else:
        _scatter(pull, pull.scattered, room(pull.scattered[0].size))


def _scatter(pull: Pull, scattered: tuple[Int64Array, Int64Array], pinned: Tensor) -> None:
    """Scattered blocks or pieces in few kernels: one, where both memories are one GPU's, else packed on the owner's."""
    block_bytes = pull.scattered_bytes
    blocks, places = pull.source.data.view(-1, block_bytes), pull.into.view(-1, block_bytes)
    sources = _upload(scattered[0], pinned[0], blocks.device)
    targets = _upload(scattered[1], pinned[1], places.device)
    fused = fused_copy(blocks.device) if fits_kernel(blocks, places) else None
    (fused or gathered_copy)(blocks, places, sources, targets)


def _words(pull: Pull, pinned: Tensor) -> Tensor:
    """The pull's generation words, on the owner's GPU."""
    first, last = int(pull.units[0]), int(pull.units[-1])
    if last - first + 1 == pull.units.size and bool((np.diff(pull.units) == 1).all()):
        return pull.source.words[first : last + 1]
    return pull.source.words.index_select(0, _upload(pull.units, pinned, pull.source.device))


def _upload(ids: Int64Array, pinned: Tensor, device: torch.device) -> Tensor:
    pinned[: ids.size].numpy()[:] = ids
    return pinned[: ids.size].to(device, non_blocking=True)
