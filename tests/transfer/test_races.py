"""Owner and reader at full speed against each other: what is read without an error is never torn."""

import random
import time
from collections.abc import Callable

import torch

from tests.transfer.neighbours import CPU, HERE, Neighbour, blocks_ref, rows_ref, shared_counters
from triptych.config import TransferSettings
from triptych.errors import ClaimExpired
from triptych.transfer.host_slab import fence
from triptych.transfer.reader import Reader

SECONDS = 2.0
UNIT_BYTES = 96 * 1024
NUM_UNITS = 8


class _Tally:
    """What became of the reads."""

    def __init__(self) -> None:
        self.whole = self.expired = self.expired_and_torn = 0

    def count(self, read: Callable[[], None], is_whole: Callable[[], bool]) -> None:
        try:
            read()
        except ClaimExpired:
            self.expired += 1
            self.expired_and_torn += not is_whole()
            return
        assert is_whole(), "a read that was torn or stale passed for good"
        self.whole += 1

    def check(self) -> None:
        """Otherwise nothing was tried: reads must have met the writer in the middle, and must have got through."""
        assert self.whole > 10
        assert self.expired_and_torn > 0


def _reader(neighbour: Neighbour) -> Reader:
    return Reader(lambda endpoint: [neighbour.info], HERE, {}, CPU, TransferSettings())


def test_rows_overwritten_while_they_are_read_are_never_taken_for_good() -> None:
    published = shared_counters(1)
    into, tally = torch.zeros(NUM_UNITS, UNIT_BYTES // 8, dtype=torch.int64), _Tally()

    def read_once(reader: Reader) -> None:
        generation = published[0]
        fence()  # the generation was published behind its bytes
        if generation:
            ref = rows_ref(generation, NUM_UNITS, UNIT_BYTES // 8)
            tally.count(lambda: reader.read_rows(ref, into), lambda: bool((into == generation).all()))

    with Neighbour("embedding", UNIT_BYTES, NUM_UNITS, published) as neighbour:
        reader, end = _reader(neighbour), time.monotonic() + SECONDS
        neighbour.tell("rewrite_all", SECONDS)
        while time.monotonic() < end:
            read_once(reader)
        reader.close()
    tally.check()


def test_blocks_overwritten_while_they_are_read_are_never_taken_for_good() -> None:
    published, chance = shared_counters(NUM_UNITS), random.Random(2)
    into, tally = torch.zeros(NUM_UNITS, UNIT_BYTES, dtype=torch.uint8), _Tally()

    def read_once(reader: Reader) -> None:
        ids = chance.sample(range(NUM_UNITS), chance.choice([1, 2, 5]))
        generations = [published[block] for block in ids]
        fence()
        if all(generations):
            ref, places = blocks_ref(list(zip(ids, generations, strict=True))), chance.sample(range(8), len(ids))
            wanted = torch.tensor(generations).view(-1, 1)
            tally.count(
                lambda: reader.read_blocks(ref, into, places),
                lambda: bool((into.view(torch.int64)[places] == wanted).all()),
            )

    with Neighbour("kv", UNIT_BYTES, NUM_UNITS, published) as neighbour:
        reader, end = _reader(neighbour), time.monotonic() + SECONDS
        neighbour.tell("rewrite_some", SECONDS)
        while time.monotonic() < end:
            read_once(reader)
        reader.close()
    tally.check()
