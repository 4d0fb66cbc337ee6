"""Which pieces of a neighbour's slab one read takes, and where they go out of the window they land in. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
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
    joined = UnitRuns(sources, places, unit_bytes)
    return Part(_pieces(joined), UnitRuns(places, targets, unit_bytes), (places, targets))


def word_parts(units: Int64Array, room: int) -> Iterator[WordPart]:
    """Reads of at most `room` words that together bring the words of all units; near ones come in one piece."""
    order = np.argsort(units, kind="stable")
    ordered = units[order]
    begin = 0
    while begin < ordered.size:
        end, pieces, places = _word_pieces(ordered, begin, room)
        yield WordPart(np.array(pieces, dtype=np.int64), order[begin:end], np.array(places, dtype=np.int64))
        begin = end


def scattered(pull: Pull, below_bytes: int) -> bool:
    """Whether a pull reads several pieces that are shorter on average than this."""
    if pull.piece_bytes and pull.scattered is not None:
        near = max(1, _PIECES_GAP_BYTES // pull.piece_bytes)
        pieces = int(np.count_nonzero(np.diff(np.sort(pull.scattered[0])) > near)) + 1
    else:
        pieces = _num_pieces(pull.runs)
    return pieces > 1 and pull.num_bytes < pieces * below_bytes


def as_packed(pull: Pull) -> Pull:
    """The same pull out of a pack, where its units lie one behind the other in the order of `units`.

    Raises TransferFailed for bytes outside of the claimed units.
    """
    unit_bytes = pull.source.info.unit_bytes
    place_of = {int(unit): place for place, unit in enumerate(pull.units)}
    try:
        runs = tuple(moved for run in pull.runs for moved in _moved(run, place_of, unit_bytes))
        units = None
        if pull.scattered is not None:
            sources, targets = pull.scattered
            each = unit_bytes // pull.scattered_bytes
            claimed, which = np.unique(sources // each, return_inverse=True)
            there = np.array([place_of[int(unit)] for unit in claimed], dtype=np.int64)
            units = (there[which] * each + sources % each, targets)
    except KeyError as error:
        raise TransferFailed(f"unit {error} is not among those claimed") from error
    return replace(pull, runs=runs, scattered=units)


def _piece_parts(sources: Int64Array, targets: Int64Array, piece_bytes: int, room: int) -> Iterator[Part]:
    """Pieces with what lies between near ones, which is read and left in the window."""
    order = np.argsort(sources, kind="stable")
    sources, targets = sources[order], targets[order]
    steps = np.diff(sources)
    is_near = steps <= max(1, _PIECES_GAP_BYTES // piece_bytes)
    places = np.concatenate(([0], np.cumsum(np.where(is_near, steps, 1))))  # as if one window held them all
    begin = 0
    while begin < sources.size:
        end = int(np.searchsorted(places, places[begin] + room // piece_bytes))
        cuts = np.flatnonzero(~is_near[begin : end - 1]) + begin
        firsts, lasts = sources[np.append(begin, cuts + 1)], sources[np.append(cuts, end - 1)]
        pieces = np.stack((firsts, lasts - firsts + 1), axis=1) * piece_bytes
        yield Part(pieces, (), (places[begin:end] - places[begin], targets[begin:end]))
        begin = end


def _moved(run: ByteRun, place_of: Mapping[int, int], unit_bytes: int) -> Iterator[ByteRun]:
    done = 0
    while done < run.num_bytes:
        unit, inside = divmod(run.source + done, unit_bytes)
        length = min(run.num_bytes - done, unit_bytes - inside)
        yield ByteRun(place_of[unit] * unit_bytes + inside, run.target + done, length)
        done += length


def _word_pieces(units: Int64Array, begin: int, room: int) -> tuple[int, list[tuple[int, int]], list[int]]:
    """As many units from `begin` on as there is room for: where they end, their pieces, their places."""
    first, taken = int(units[begin]), 0
    pieces: list[tuple[int, int]] = []
    places: list[int] = []
    last = first - 1
    at = begin
    while at < units.size:
        unit = int(units[at])
        if unit - last > _WORDS_GAP:
            pieces.append((first, last - first + 1))
            taken += last - first + 1
            first = unit
        if taken + unit - first + 1 > room:
            break
        places.append(taken + unit - first)
        last = unit
        at += 1
    if last >= first:
        pieces.append((first, last - first + 1))
    return at, pieces, places


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


def _num_pieces(runs: Sequence[ByteRun]) -> int:
    return len(runs) - sum(left.source + left.num_bytes == right.source for left, right in itertools.pairwise(runs))
