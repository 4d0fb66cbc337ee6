"""Brings batches to the trainer: worker processes that draw and pack, and the questions held back for exams."""

import atexit
import multiprocessing
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Semaphore
from random import Random
from typing import Protocol

import torch
from tokenizers import Tokenizer

from tools.tiny_vl.chat import ChatEncoder
from tools.tiny_vl.conversations import draw_sample
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.grids import Grids
from tools.tiny_vl.packer import Packer, SampleTooLong
from tools.tiny_vl.packing import PATCH_VALUES, Batch, Caps

_AHEAD = 2  # batches that each worker has ready or under way
_LOOK_SECONDS = 0.5  # how often both sides see whether the other still lives
_LONGEST_SECONDS = 300.0  # that a batch may take
_SHARED_MEMORY = "/dev/shm"
_WORTH_LOCKING = 1 << 20  # bytes


class Numbered(Protocol):
    """Batches by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Batch: ...

    def blank(self) -> Batch:
        """A batch without samples, of the shape they all have."""


class WorkerFailed(RuntimeError):
    """A process that makes batches raised or died; its message says why."""


class TooLittleSharedMemory(Exception):
    """The batches under way do not fit; its message says what to do."""


def never() -> bool:
    return False


class ExamBatches:
    """Held-out questions: `each` of every kind, a few kinds to a batch; the same at every call.

    Kinds take turns within a batch, so that what does not fit is missing from all of them alike.
    """

    def __init__(self, seed: int, caps: Caps, tokenizer: Tokenizer, each: int) -> None:
        self._seed, self._caps, self._each = seed, caps, each
        self._encoder, self._grids = ChatEncoder(tokenizer), Grids()
        at_once = max(1, caps.sequences // (2 * each))
        kinds = tuple(KINDS)
        self._groups = [kinds[start : start + at_once] for start in range(0, len(kinds), at_once)]

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, number: int) -> Batch:
        rngs = {kind: Random(f"exam {self._seed} {kind}") for kind in self._groups[number]}
        packer = self._packer()
        for _ in range(self._each):
            for kind, rng in rngs.items():
                try:
                    if not packer.add(draw_sample(kind, rng)):
                        return packer.finish()
                except SampleTooLong:
                    continue
        return packer.finish()

    def blank(self) -> Batch:
        return self._packer().finish()

    def _packer(self) -> Packer:
        return Packer(self._caps, self._encoder, self._grids, tuple(KINDS))


def stream(
    source: Numbered, numbers: Sequence[int], workers: int, pinned: bool, stop: Callable[[], bool] = never
) -> Iterator[Batch]:
    """The numbered batches in that order, made by worker processes (none: here and now).

    With workers, a batch lies in memory that the next but one may be written to: whoever wants to keep it copies it
    before asking for the next. Starts the workers before it returns: call it before the process has many threads.
    pinned: page-locked, so that copies to a GPU run at full speed
    stop: when it says so while a batch is waited for, none comes any more
    Raises WorkerFailed while iterating.
    """
    if workers == 0:
        return (source[number] for number in numbers)
    return Workshop(source, numbers, workers, pinned).batches(stop)


@dataclass(frozen=True, slots=True)
class _Counts:
    """What a batch has besides its tensors."""

    num_samples: int
    num_patches: int
    num_tokens: int
    num_labels: int


class Workshop:
    """Processes that make batches in memory which both sides have mapped for good.

    Handing each batch over in a file of its own, as torch's DataLoader does, costs the trainer a tenth of a second a
    batch for mapping 60 MB anew: more than the step.
    """

    def __init__(self, source: Numbered, numbers: Sequence[int], workers: int, pinned: bool) -> None:
        _allow_many_files()
        context = multiprocessing.get_context("fork")
        shape = source.blank()
        self._slots = [[_shared(shape) for _ in range(_AHEAD)] for _ in range(workers)]
        self._free: list[Semaphore] = [context.Semaphore(_AHEAD) for _ in range(workers)]
        self._total = len(numbers)
        self._results: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for worker in range(workers):
            receiving, sending = context.Pipe(duplex=False)
            work = (source, numbers[worker::workers], self._slots[worker], self._free[worker], sending)
            process = context.Process(target=_work, args=work, daemon=True, name=f"batches-{worker}")
            process.start()
            sending.close()
            self._results.append(receiving)
            self._processes.append(process)
        self._pinned = pinned
        # They ignore the signal by which multiprocessing ends its own at exit, and would be waited for.
        atexit.register(self.kill)

    def batches(self, stop: Callable[[], bool] = never) -> Iterator[Batch]:
        """Each once, in order, until stop() says so while one is waited for; ends the processes when it ends."""
        if self._pinned:
            for slot in (slot for slots in self._slots for slot in slots):
                _lock_pages(slot)
        try:
            for turn in range(self._total):
                worker, round_ = turn % len(self._processes), turn // len(self._processes)
                counts = self._wait_for(worker, stop)
                if counts is None:
                    return
                yield replace(
                    self._slots[worker][round_ % _AHEAD],
                    num_samples=counts.num_samples,
                    num_patches=counts.num_patches,
                    num_tokens=counts.num_tokens,
                    num_labels=counts.num_labels,
                )
                self._free[worker].release()
        finally:
            self.kill()
            atexit.unregister(self.kill)

    def kill(self) -> None:
        """End the processes without warning; whoever still waits for a batch gets WorkerFailed."""
        for process in self._processes:
            process.kill()

    def _wait_for(self, worker: int, stop: Callable[[], bool]) -> _Counts | None:
        results, process = self._results[worker], self._processes[worker]
        waited = 0.0
        while not results.poll(_LOOK_SECONDS):
            waited += _LOOK_SECONDS
            if stop():
                return None
            if not process.is_alive() and not results.poll():
                raise WorkerFailed(f"{process.name} died with exit code {process.exitcode}")
            if waited > _LONGEST_SECONDS:
                raise WorkerFailed(f"{process.name} made no batch in {_LONGEST_SECONDS:.0f} s")
        try:
            result = results.recv()
        except EOFError:
            raise WorkerFailed(f"{process.name} died before its batch was ready") from None
        if isinstance(result, _Counts):
            return result
        raise WorkerFailed(f"{process.name}: {result}")


def _work(source: Numbered, numbers: Sequence[int], slots: list[Batch], free: Semaphore, results: Connection) -> None:
    # The trainer decides when to stop, also where a signal goes to the whole group; its workers end with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    trainer = os.getppid()
    try:
        for turn, number in enumerate(numbers):
            while not free.acquire(timeout=_LOOK_SECONDS):
                if os.getppid() != trainer:
                    return
            batch = source[number]
            slot = slots[turn % len(slots)].tensors()
            for name, tensor in batch.tensors().items():
                slot[name].copy_(tensor)
            results.send(_Counts(batch.num_samples, batch.num_patches, batch.num_tokens, batch.num_labels))
    except BrokenPipeError:
        return
    except Exception as error:  # told to the trainer, which raises it there
        results.send(f"{type(error).__name__}: {error}")


def _shared(shape: Batch) -> Batch:
    copied = shape.copy()
    for tensor in copied.tensors().values():
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return copied


def _lock_pages(slot: Batch) -> None:
    for tensor in slot.tensors().values():
        size = tensor.numel() * tensor.element_size()
        if size >= _WORTH_LOCKING:
            # Not locked, copies are only slower: no reason to stop.
            torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), size, 0)  # type: ignore[no-untyped-call]


def check_shared_memory(caps: Caps, workers: int) -> None:
    """Raises TooLittleSharedMemory if the batches under way would not fit where processes share memory.

    Without this the workers die of SIGBUS, which says nothing.
    """
    if workers == 0 or not os.path.isdir(_SHARED_MEMORY):
        return
    wanted = workers * (_AHEAD + 1) * caps.patches * (PATCH_VALUES + 32)
    free = shutil.disk_usage(_SHARED_MEMORY).free
    if free < wanted:
        raise TooLittleSharedMemory(
            f"{_SHARED_MEMORY} has {free >> 20} MiB free, expected {wanted >> 20} for {workers} workers: "
            "use fewer workers or patches, or enlarge it (mount -o remount,size=8G)"
        )


def caps_for(patches: int) -> Caps:
    """Caps for a number of patches, all else in proportion, with room for the longest conversation."""
    usual = Caps()
    share = patches / usual.patches
    return Caps(
        patches=patches,
        tokens=max(2_048, _eighths(usual.tokens * share)),
        images=max(64, _eighths(usual.images * share)),
        windows=max(256, _eighths(usual.windows * share)),
        sequences=max(64, _eighths(usual.sequences * share)),
        labels=max(512, _eighths(usual.labels * share)),
        turns=max(128, _eighths(usual.turns * share)),
    )


def _eighths(count: float) -> int:
    return round(count / 8) * 8


def _allow_many_files() -> None:
    # Every shared tensor is an open file, and the usual limit is 1024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
