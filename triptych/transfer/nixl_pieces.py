"""Which pieces of a neighbour's slab one read takes, and where they go out of the window they land in. Pure."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.pull import ByteRun, Pull, UnitRuns

# Reading a few words too many costs less than another piece.
_WORDS_GAP = 512
_PIECES_GAP_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One read of a pull, landing one piece behind the other from the window's beginning.

    pieces:    [pieces, 2] int64 bytes from the beginning of the slab's data, and lengths
    runs:      from where in the window to where in the pull's destination
    scattered: where all of it is whole units, also as (units in the window, target units); for a pull in pieces those,
               and no runs; else None
    """

    pieces: Int64Array
    runs: Sequence[ByteRun]
    scattered: tuple[Int64Array, Int64Array] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WordPart:
    """One read of generation words.

    pieces: [pieces, 2] int64 first word, and how many
    picked: which of the pull's units it brings the words of
    places: [picked] int64 where those are among the words read
    """

    pieces: Int64Array
    picked: Int64Array
    places: Int64Array


def data_parts(pull: Pull, room: int) -> Iterator[Part]:
    """The whole copy of a pull in reads of at most `room` bytes each."""
    unit_bytes = pull.scattered_bytes
    if pull.scattered is None or unit_bytes > room:
        runs = UnitRuns(*pull.scattered, unit_bytes) if pull.scattered is not None else pull.runs
        for cut in _cut(runs, room):
            yield _part(cut)
        return
    if pull.piece_bytes:
        yield from _piece_parts(*pull.scattered, pull.piece_bytes, room)
        return
    sources, targets = pull.scattered
    step = room // unit_bytes
    for begin in range(0, sources.size, step):
        yield unit_part(sources[begin : begin + step], targets[begin : begin + step], unit_bytes)


def unit_part(sources: Int64Array, targets: Int64Array, unit_bytes: int) -> Part:
    """Whole units in one read."""
    places = np.arange(sources.size, dtype=np.int64)
    begins = np.append(0, _breaks(sources))
    lengths = np.diff(np.append(begins, sources.size))
    pieces = np.stack((sources[begins], lengths), axis=1) * unit_bytes
    return Part(pieces, UnitRuns(places, targets, unit_bytes), (places, targets))


def word_parts(units: Int64Array, room: int) -> Iterator[WordPart]:
    """Reads of at most `room` words that together bring the words of all units; near ones come in one piece."""
    order = np.argsort(units, kind="stable")
    for begin, end, pieces, places in _near_parts(units[order], _WORDS_GAP, room):
        yield WordPart(pieces, order[begin:end], places)


def scattered(pull: Pull, below_bytes: int) -> bool:
    """Whether a pull reads several pieces that are shorter on average than this."""
    if pull.piece_bytes and pull.scattered is not None:
        near = max(1, _PIECES_GAP_BYTES // pull.piece_bytes)
        pieces = int(np.count_nonzero(np.diff(np.sort(pull.scattered[0])) > near)) + 1
    elif pull.scattered is not None:
        pieces = _breaks(pull.scattered[0]).size + 1
    else:
        pieces = _num_pieces(pull.runs)
    return pieces > 1 and pull.num_bytes < pieces * below_bytes


def as_packed(pull: Pull) -> Pull:
    """The same pull out of a pack, where its units lie one behind the other in the order of `units`.

    Raises TransferFailed for bytes outside of the claimed units.
    """
    unit_bytes = pull.source.info.unit_bytes
    place_of = _Places(pull.units)
    if pull.scattered is None:
        return replace(pull, runs=tuple(moved for run in pull.runs for moved in _moved(run, place_of, unit_bytes)))
    sources, targets = pull.scattered
    each = unit_bytes // pull.scattered_bytes
    there = place_of.all(sources // each) * each + sources % each
    runs = () if pull.piece_bytes else UnitRuns(there, targets, unit_bytes)
    return replace(pull, runs=runs, scattered=(there, targets))


class _Places:
    """Where in a pull's units each of them is."""

    def __init__(self, units: Int64Array) -> None:
        self._order = np.argsort(units, kind="stable")
        self._units = units[self._order]

    def all(self, units: Int64Array) -> Int64Array:
        """[*] int64 for units of any order and number. Raises TransferFailed for one that is not there."""
        found = np.minimum(np.searchsorted(self._units, units), self._units.size - 1)
        missing = units[self._units[found] != units]
        if missing.size:
            raise TransferFailed(f"unit {missing[0]} is not among those claimed")
        places: Int64Array = self._order[found]
        return places

    def one(self, unit: int) -> int:
        return int(self.all(np.array([unit], dtype=np.int64))[0])


def _piece_parts(sources: Int64Array, targets: Int64Array, piece_bytes: int, room: int) -> Iterator[Part]:
    """Pieces with what lies between near ones, which is read and left in the window."""
    order = np.argsort(sources, kind="stable")
    sources, targets = sources[order], targets[order]
    gap = max(1, _PIECES_GAP_BYTES // piece_bytes)
    for begin, end, pieces, places in _near_parts(sources, gap, room // piece_bytes):
        yield Part(pieces * piece_bytes, (), (places, targets[begin:end]))


def _near_parts(numbers: Int64Array, gap: int, room: int) -> Iterator[tuple[int, int, Int64Array, Int64Array]]:
    """Ascending numbers cut into parts that take at most `room` of them, those between near ones included.

    gap: up to which steps are near
    Each: first of its numbers, end of them, pieces [pieces, 2] of (number, how many), places [numbers] among what
    the pieces bring.
    """
    steps = np.diff(numbers)
    is_near = steps <= gap
    places = np.concatenate(([0], np.cumsum(np.where(is_near, steps, 1))))  # as if one part held them all
    begin = 0
    while begin < numbers.size:
        end = int(np.searchsorted(places, places[begin] + room))
        cuts = np.flatnonzero(~is_near[begin : end - 1]) + begin
        firsts, lasts = numbers[np.append(begin, cuts + 1)], numbers[np.append(cuts, end - 1)]
        yield begin, end, np.stack((firsts, lasts - firsts + 1), axis=1), places[begin:end] - places[begin]
        begin = end


def _moved(run: ByteRun, place_of: _Places, unit_bytes: int) -> Iterator[ByteRun]:
    done = 0
    while done < run.num_bytes:
        unit, inside = divmod(run.source + done, unit_bytes)
        length = min(run.num_bytes - done, unit_bytes - inside)
        yield ByteRun(place_of.one(unit) * unit_bytes + inside, run.target + done, length)
        done += length


def _cut(runs: Sequence[ByteRun], room: int) -> Iterator[list[ByteRun]]:
    """The runs in order, cut so that each list has at most `room` bytes."""
    taken: list[ByteRun] = []
    left = room
    for run in runs:
        done = 0
        while done < run.num_bytes:
            length = min(left, run.num_bytes - done)
            taken.append(ByteRun(run.source + done, run.target + done, length))
            done, left = done + length, left - length
            if not left:
                yield taken
                taken, left = [], room
    if taken:
        yield taken


def _part(runs: Sequence[ByteRun]) -> Part:
    placed, at = [], 0
    for run in runs:
        placed.append(ByteRun(at, run.target, run.num_bytes))
        at += run.num_bytes
    return Part(_pieces(runs), tuple(placed))


def _pieces(runs: Sequence[ByteRun]) -> Int64Array:
    """[pieces, 2] int64 of the runs' sources, one that goes on where the last ended joined to it."""
    pieces: list[list[int]] = []
    for run in runs:
        if pieces and pieces[-1][0] + pieces[-1][1] == run.source:
            pieces[-1][1] += run.num_bytes
        else:
            pieces.append([run.source, run.num_bytes])
    return np.array(pieces, dtype=np.int64)


def _breaks(numbers: Int64Array) -> Int64Array:
    """Where a number does not follow on the one before it."""
    return np.flatnonzero(np.diff(numbers) != 1) + 1


def _num_pieces(runs: Sequence[ByteRun]) -> int:
    return len(runs) - sum(left.source + left.num_bytes == right.source for left, right in itertools.pairwise(runs))
