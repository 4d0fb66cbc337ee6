"""Brings batches to the trainer: worker processes that draw and pack, and the questions held back for exams."""

import os
import resource
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Protocol

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

from tools.tiny_vl.chat import ChatEncoder
from tools.tiny_vl.conversations import draw_sample
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.grids import Grids
from tools.tiny_vl.packer import Packer, SampleTooLong
from tools.tiny_vl.packing import PATCH_VALUES, Batch, Caps

_AHEAD = 2  # batches that each worker has ready or under way
_SHARED_MEMORY = "/dev/shm"


class Numbered(Protocol):
    """Batches by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Batch: ...


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
        packer = Packer(self._caps, self._encoder, self._grids, tuple(KINDS))
        for _ in range(self._each):
            for kind, rng in rngs.items():
                try:
                    if not packer.add(draw_sample(kind, rng)):
                        return packer.finish()
                except SampleTooLong:
                    continue
        return packer.finish()


def stream(source: Numbered, numbers: Sequence[int], workers: int, pinned: bool) -> Iterator[Batch]:
    """The numbered batches in that order, made by worker processes (none: here and now).

    Starts the workers before it returns: call it before the process has many threads.
    """
    if workers == 0:
        return (source[number] for number in numbers)
    _allow_many_files()
    loader: Iterable[Batch] = DataLoader(
        source,  # type: ignore[arg-type]
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        pin_memory=pinned,
        prefetch_factor=_AHEAD,
        worker_init_fn=_start_worker,
    )
    return iter(loader)


def check_shared_memory(caps: Caps, workers: int) -> None:
    """Raises RuntimeError if the batches under way would not fit where processes share memory.

    Without this the workers die of SIGBUS, which says nothing.
    """
    if workers == 0 or not os.path.isdir(_SHARED_MEMORY):
        return
    wanted = workers * (_AHEAD + 1) * caps.patches * (PATCH_VALUES + 32)
    free = shutil.disk_usage(_SHARED_MEMORY).free
    if free < wanted:
        raise RuntimeError(
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


def _start_worker(_: int) -> None:
    # The trainer decides when to stop; its workers end with it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _allow_many_files() -> None:
    # Every tensor under way from a worker is an open file, and the usual limit is 1024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
