"""Batches by number: the same whoever makes them, full, and of the right kinds."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

from tools.tiny_vl.batches import BatchDataset
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.feed import WorkerFailed, Workshop, stream
from tools.tiny_vl.packing import Batch, Caps
from tools.tiny_vl.tokenizer import build_tokenizer
from tools.tiny_vl.words import vocabulary

# The defaults, a sixteenth of everything.
CAPS = Caps(**{name: getattr(Caps(), name) // 16 for name in Caps.__slots__})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(vocabulary())


@pytest.fixture(scope="module")
def dataset(tokenizer: Tokenizer) -> BatchDataset:
    return BatchDataset(seed=1, caps=CAPS, total=100, tokenizer=tokenizer)


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(tensor, other.tensors()[name]) for name, tensor in one.tensors().items())


def test_a_batch_depends_on_seed_and_number_alone(dataset: BatchDataset, tokenizer: Tokenizer) -> None:
    resumed = [batch.copy() for batch in stream(dataset, range(60, 63), workers=2, pinned=False)]
    assert same(resumed[1], dataset[61])
    assert not same(resumed[0], resumed[1])
    assert not same(resumed[1], BatchDataset(2, CAPS, 100, tokenizer)[61])


def test_batches_are_full_once_the_curriculum_is_through(dataset: BatchDataset) -> None:
    batches = [dataset[step] for step in (60, 61)]
    assert sum(batch.num_patches for batch in batches) > 0.9 * len(batches) * CAPS.patches
    assert sum(batch.num_tokens for batch in batches) > 0.7 * len(batches) * CAPS.tokens


def test_there_is_no_batch_behind_the_last(dataset: BatchDataset) -> None:
    with pytest.raises(IndexError, match="batch 100, expected 0 to 99"):
        dataset[100]


@pytest.mark.parametrize("kind", KINDS)
def test_a_held_out_batch_asks_its_kind_in_every_sample(dataset: BatchDataset, kind: str) -> None:
    batch = dataset.held_out_batch(kind, 4)
    assert batch.num_samples == 4
    assert batch.turn_kind.tolist().count(list(KINDS).index(kind)) >= 4
    assert same(batch, dataset.held_out_batch(kind, 4))


def test_held_out_batches_keep_to_the_caps(tokenizer: Tokenizer) -> None:
    few = BatchDataset(1, replace(CAPS, turns=3), 100, tokenizer)
    assert few.held_out_batch("read", 9).num_samples == 3


def test_every_token_of_a_batch_is_known(dataset: BatchDataset, tokenizer: Tokenizer) -> None:
    assert int(dataset[50].token_ids.max()) < tokenizer.get_vocab_size() <= 1536


def test_a_batch_made_by_a_worker_has_its_counts(dataset: BatchDataset) -> None:
    (made,) = stream(dataset, [61], workers=1, pinned=False)
    expected = dataset[61]
    for name in ("num_samples", "num_patches", "num_tokens", "num_labels"):
        assert getattr(made, name) == getattr(expected, name)


def test_what_a_worker_raises_is_told(dataset: BatchDataset) -> None:
    with pytest.raises(WorkerFailed, match=r"batches-1: IndexError: batch 100, expected 0 to 99"):
        list(stream(dataset, [99, 100], workers=2, pinned=False))


def test_a_worker_that_dies_is_noticed(dataset: BatchDataset) -> None:
    workshop = Workshop(dataset, range(60, 100), workers=1, pinned=False)
    batches = workshop.batches()
    next(batches)
    workshop.kill()
    with pytest.raises(WorkerFailed, match="batches-0 died"):
        for _ in batches:
            pass


class Slow:
    """Batches that take longer than anybody would wait."""

    def __init__(self, dataset: BatchDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> Batch:
        time.sleep(60)
        return self.blank()

    def blank(self) -> Batch:
        return self._dataset.blank()


def test_workers_outlive_a_signal_to_the_group_and_nobody_waits_for_them_when_told_to_stop(
    dataset: BatchDataset,
) -> None:
    looks = 0

    def at_the_third_look() -> bool:
        nonlocal looks
        looks += 1
        for worker in workers:
            assert worker.is_alive()
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(worker.pid or 0, number)
        return looks == 3

    before = set(multiprocessing.active_children())
    batches = stream(Slow(dataset), range(9), workers=2, pinned=False, stop=at_the_third_look)
    workers = set(multiprocessing.active_children()) - before
    began = time.monotonic()
    assert list(batches) == []
    assert (len(workers), looks) == (2, 3)
    for worker in workers:
        worker.join(5)
        assert not worker.is_alive()
    assert time.monotonic() - began < 20
