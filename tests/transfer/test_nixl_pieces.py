"""What one read takes and where it goes: every byte once, nothing beyond the room, whatever the pull."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from tests.transfer.neighbours import CPU
from triptych.errors import TransferFailed
from triptych.transfer.local import LocalMapping
from triptych.transfer.nixl_pieces import as_packed, data_parts, scattered, word_parts
from triptych.transfer.pull import ByteRun, Pull, UnitRuns
from triptych.transfer.slab import create_slab

UNIT = 64
UNITS = 40


def pull_of(runs: tuple[ByteRun, ...], into: torch.Tensor, units: list[int], **more: Any) -> Pull:
    slab = create_slab("kv", 2, UNIT, UNITS, CPU)
    slab.data.copy_(torch.arange(UNIT * UNITS) % 251)
    named = np.array(units, dtype=np.int64)
    return Pull(LocalMapping(slab), into, runs, named, named, 0, **more)


def carried(pull: Pull, room: int, source: torch.Tensor | None = None) -> torch.Tensor:
    """What reading all parts and copying them on leaves in the destination."""
    into = torch.full_like(pull.into, 255)
    source = pull.source.data if source is None else source
    for part in data_parts(pull, room):
        window = torch.cat([source[begin : begin + count] for begin, count in part.pieces.tolist()])
        assert window.numel() <= room
        for run in part.runs:
            into[run.target : run.target + run.num_bytes] = window[run.source : run.source + run.num_bytes]
        if part.scattered is not None:
            places, targets = part.scattered
            again = torch.full_like(pull.into, 255).view(-1, UNIT)
            again[targets] = window.view(-1, UNIT)[places]
            assert (again.view(-1)[again.view(-1) != 255] == into[again.view(-1) != 255]).all()
    return into


@pytest.mark.parametrize("seed", range(20))
def test_scattered_units_arrive_as_a_plain_copy_would_bring_them(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, UNITS)
    sources = np.array(chance.sample(range(UNITS), count), dtype=np.int64)
    targets = np.array(chance.sample(range(UNITS), count), dtype=np.int64)
    into = torch.zeros(UNIT * UNITS, dtype=torch.uint8)
    runs = UnitRuns(sources, targets, UNIT)
    pull = pull_of(runs, into, sources.tolist(), scattered=(sources, targets))
    wanted = torch.full_like(into, 255).view(-1, UNIT)
    wanted[targets] = pull.source.data.view(-1, UNIT)[sources]
    assert (carried(pull, chance.choice([40, 64, 200, 640, 10_000])) == wanted.view(-1)).all()
    pack = pull.source.data.view(-1, UNIT)[sources].reshape(-1)
    assert (carried(as_packed(pull), 300, pack) == wanted.view(-1)).all()


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_any_length_arrive_whole(seed: int) -> None:
    chance = random.Random(seed)
    runs, target = [], 0
    for _ in range(chance.randint(1, 9)):
        length = chance.randint(1, 200)
        runs.append(ByteRun(chance.randint(0, UNIT * UNITS - length), target, length))
        target += length + chance.randint(0, 5)
    into = torch.zeros(target + 8, dtype=torch.uint8)
    order = chance.sample(range(UNITS), UNITS)
    pull = pull_of(tuple(runs), into, order)
    wanted = torch.full_like(into, 255)
    for run in runs:
        wanted[run.target : run.target + run.num_bytes] = pull.source.data[run.source : run.source + run.num_bytes]
    assert (carried(pull, chance.choice([7, 64, 1000])) == wanted).all()
    pack = pull.source.data.view(-1, UNIT)[order].reshape(-1)
    assert (carried(as_packed(pull), 100, pack) == wanted).all()


@pytest.mark.parametrize("seed", range(20))
def test_words_of_any_units_are_read_once_within_the_room(seed: int) -> None:
    chance = random.Random(seed)
    words = np.arange(1_000_000, dtype=np.int64) * 7
    units = np.array(chance.sample(range(chance.choice([600, 5000, 1_000_000])), 500), dtype=np.int64)
    room = chance.choice([1, 3, 600, 8192])
    found = np.zeros(units.size, dtype=np.int64)
    for part in word_parts(units, room):
        read = np.concatenate([words[first : first + count] for first, count in part.pieces.tolist()])
        assert read.size <= room
        found[part.picked] = read[part.places]
    assert (found == units * 7).all()


def test_neighbours_are_one_piece_and_one_piece_is_not_scattered() -> None:
    into = torch.zeros(UNIT * UNITS, dtype=torch.uint8)
    joined = pull_of((ByteRun(0, 640, 64), ByteRun(64, 0, 64), ByteRun(128, 64, 10)), into, [0, 1, 2])
    (part,) = data_parts(joined, 10_000)
    assert part.pieces.tolist() == [[0, 138]]
    assert not scattered(joined, 1 << 30)
    apart = pull_of((ByteRun(0, 0, 64), ByteRun(128, 64, 64)), into, [0, 2])
    assert scattered(apart, 65)
    assert not scattered(apart, 64)


def test_bytes_outside_of_what_is_claimed_are_in_no_pack() -> None:
    into = torch.zeros(UNIT * UNITS, dtype=torch.uint8)
    with pytest.raises(TransferFailed, match="unit 3 is not among those claimed"):
        as_packed(pull_of((ByteRun(3 * UNIT, 0, 8),), into, [1, 2]))


@pytest.mark.parametrize("seed", range(20))
def test_pieces_arrive_with_near_ones_in_one_read(seed: int) -> None:
    chance = random.Random(seed)
    piece = chance.choice([4, 16, 64])
    num_pieces = UNIT * UNITS // piece
    count = chance.randint(1, num_pieces)
    sources = np.array(chance.sample(range(num_pieces), count), dtype=np.int64)
    targets = np.array(chance.sample(range(num_pieces), count), dtype=np.int64)
    units = chance.sample(range(UNITS), UNITS)
    pull = pull_of(
        (), torch.zeros(UNIT * UNITS, dtype=torch.uint8), units, scattered=(sources, targets), piece_bytes=piece
    )
    wanted = torch.full_like(pull.into, 255).view(-1, piece)
    wanted[targets] = pull.source.data.view(-1, piece)[sources]
    pack = pull.source.data.view(-1, UNIT)[units].reshape(-1)
    room = chance.choice([64, 200, 640, 10_000])
    for one, source in ((pull, pull.source.data), (as_packed(pull), pack)):
        into = torch.full_like(pull.into, 255).view(-1, piece)
        for part in data_parts(one, room):
            window = torch.cat([source[begin : begin + length] for begin, length in part.pieces.tolist()])
            assert window.numel() <= room
            assert part.scattered is not None
            places, goals = part.scattered
            into[goals] = window.view(-1, piece)[places]
        assert torch.equal(into, wanted)
    assert not scattered(pull, 1 << 30), "all of this slab is nearer than a read is dear"


def test_pieces_that_are_far_from_each_other_are_read_apart() -> None:
    slab = create_slab("kv", 2, 1 << 20, 8, CPU)
    sources = np.array([0, 1, 3, 5 << 14, (5 << 14) + 1], dtype=np.int64)  # pieces of 64 bytes
    named = np.arange(8, dtype=np.int64)
    into = torch.zeros(1 << 20, dtype=torch.uint8)
    pull = Pull(LocalMapping(slab), into, (), named, named, 0, (sources, named[:5]), piece_bytes=64)
    (part,) = data_parts(pull, 1 << 20)
    assert part.pieces.tolist() == [[0, 4 * 64], [5 << 20, 2 * 64]]
    assert part.scattered is not None
    assert part.scattered[0].tolist() == [0, 1, 3, 4, 5]
    assert scattered(pull, 1 << 20)
