"""One copy out of a neighbour's slab: what goes where, and whose generation vouches for it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.checksum import checksum
from triptych.transfer.host_slab import fence
from triptych.transfer.mapping import Mapping
from triptych.transfer.slab import Slab

Bytes = npt.NDArray[np.uint8]

_GATHERED_BYTES = 4 << 20  # memory that pieces pass through; stays in a cache


IsWanted = Callable[[], bool]


def always() -> bool:
    """For claims that nobody gives up."""
    return True


class ByteRun(NamedTuple):
    """Consecutive bytes: from where in the slab's data, to where in the destination, how many."""

    source: int
    target: int
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Pull:
    """A checked copy: everything lies inside its memory.

    into:        [bytes] uint8 on the reader's device
    runs:        the whole copy as runs of bytes, unless it is in pieces; none when the data is in place already
    units:       [units] int64 source units the claim covers; their words are read after the data
    generations: [units] int64 what those words must say
    scattered:   for copies of whole units, also as (source units, target units), [moved] int64 each; else None
    piece_bytes: where not 0, the whole copy is in pieces of so many bytes, and `scattered` numbers those on both sides;
                 source unit and destination are a number of pieces each, and there are no runs
    home:        the slab of this worker that `into` lies in, if any: its stamps come before the copy's first byte
    claim:       of whom the bytes are; empty where nobody asks
    is_wanted:   asked while its owner is waited for; once it says no, the copy may end with Cancelled
    alone:       no other pull belongs to the claim: the owner may take the last word's being read for a release
    halfway:     for tests: called while some of the bytes are there and some are not, where a thread does the copy
    """

    source: Mapping
    into: Tensor
    runs: Sequence[ByteRun]
    units: Int64Array
    generations: Int64Array
    event: int
    scattered: tuple[Int64Array, Int64Array] | None = None
    home: Slab | None = None
    claim: bytes = b""
    is_wanted: IsWanted = always
    alone: bool = True
    halfway: Callable[[], None] | None = None
    piece_bytes: int = 0

    @property
    def scattered_bytes(self) -> int:
        """What one number of `scattered` stands for."""
        return self.piece_bytes or self.source.info.unit_bytes

    @property
    def num_bytes(self) -> int:
        """Of the whole copy."""
        if self.scattered is not None:
            return self.scattered[0].size * self.scattered_bytes
        return sum(run.num_bytes for run in self.runs)


class CopyAbandoned(TransferFailed):
    """A copy that was queued, is overdue, and may still write into its destination.

    ended: tells whether it has stopped; holding it keeps alive what the copy reads and writes.
    """

    def __init__(self, message: str, ended: Callable[[], bool]) -> None:
        super().__init__(message)
        self.ended = ended


class Copier(Protocol):
    """Does pulls into memory of one device. Thread-safe; no pull waits for one of another slab."""

    def copy(self, pull: Pull, deadline: float) -> Int64Array:
        """The words of the pull's units, read after its data has been copied.

        The owner's event has completed. Raises TransferFailed at the deadline (time.monotonic), CopyAbandoned when
        the copy had been queued by then.
        """

    def checksum(self, tensor: Tensor, rows: Sequence[int] | None = None) -> bytes:
        """Of the tensor or some of its rows, as the function of that name, without touching anybody else's stream."""


class LandingCopier(Copier, Protocol):
    """A copier whose copies of data can go on while their caller does something else."""

    def begin(self, pull: Pull, deadline: float) -> Callable[[], bool]:
        """Starts copying a pull's data alone; tells whether that has ended, and keeps alive what it touches.

        On one thread, copies and `numbers` happen in the order in which they were asked for. Raises as `copy`.
        """

    def numbers(self, words: Tensor, deadline: float) -> Int64Array:
        """[count] int64, a copy of the device's words on the host. Raises as `copy`."""

    def pack(self, pull: Pull, words: Tensor, deadline: float) -> None:
        """Copies a pull's data, then its units' words, as they are behind it, and ids into `words` [2 * units] int64.

        Raises as `copy`.
        """


def _has_ended() -> bool:
    return True


class HostCopier:
    """Copies between host memories on the calling thread."""

    def copy(self, pull: Pull, deadline: float) -> Int64Array:
        self.begin(pull, deadline)
        # The words must be loaded after the last byte of data. Even a torn load of a word would do: the owner fences
        # after the word, so whoever has seen one overwriting byte sees all eight bytes of the new word.
        fence()
        return pull.source.words.numpy()[pull.units]

    def begin(self, pull: Pull, deadline: float) -> Callable[[], bool]:
        """Has ended when this returns."""
        # numpy rather than torch: one memcpy on this thread, without the interpreter lock, and without a team of
        # OpenMP threads for every puller thread.
        data, into = pull.source.data.numpy(), pull.into.numpy()
        if pull.piece_bytes and pull.scattered is not None:
            _copy_pieces(data, into, pull, pull.scattered)
        for index, run in enumerate(halved(pull)):
            into[run.target : run.target + run.num_bytes] = data[run.source : run.source + run.num_bytes]
            if index == 0 and pull.halfway is not None:
                pull.halfway()
        return _has_ended

    def numbers(self, words: Tensor, deadline: float) -> Int64Array:
        fence()
        return words.numpy().copy()

    def pack(self, pull: Pull, words: Tensor, deadline: float) -> None:
        words.numpy()[:] = np.concatenate((self.copy(pull, deadline), pull.units))

    def checksum(self, tensor: Tensor, rows: Sequence[int] | None = None) -> bytes:
        return checksum(tensor if rows is None else tensor[list(rows)])


def _copy_pieces(data: Bytes, into: Bytes, pull: Pull, scattered: tuple[Int64Array, Int64Array]) -> None:
    pieces, places = data.reshape(-1, pull.piece_bytes), into.reshape(-1, pull.piece_bytes)
    step = max(1, min(_GATHERED_BYTES // pull.piece_bytes, -(-scattered[0].size // 2)))
    for begin in range(0, scattered[0].size, step):
        sources, targets = (ids[begin : begin + step] for ids in scattered)
        places[targets] = pieces[sources]
        if begin == 0 and pull.halfway is not None:
            pull.halfway()


def halved(pull: Pull) -> Sequence[ByteRun]:
    """The pull's runs; the first one in two halves when somebody waits for the moment between them."""
    if pull.halfway is None or not pull.runs:
        return pull.runs
    first, *rest = pull.runs
    half = first.num_bytes // 2
    return (
        first._replace(num_bytes=half),
        ByteRun(first.source + half, first.target + half, first.num_bytes - half),
        *rest,
    )


class UnitRuns(Sequence[ByteRun]):
    """Copies of whole units, sources[i] to targets[i], as few runs: neighbours on both sides are joined.

    Counted at once, made when somebody looks at them: a GPU copies hundreds of scattered blocks without.
    """

    def __init__(self, sources: Int64Array, targets: Int64Array, unit_bytes: int) -> None:
        self._sources, self._targets, self._unit_bytes = sources, targets, unit_bytes
        breaks = np.flatnonzero((np.diff(sources) != 1) | (np.diff(targets) != 1)) + 1
        self._begins = np.concatenate(([0], breaks)) if sources.size else breaks
        self._made: tuple[ByteRun, ...] | None = None

    def __len__(self) -> int:
        return self._begins.size

    @overload
    def __getitem__(self, place: int) -> ByteRun: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ByteRun]: ...
    def __getitem__(self, place: int | slice) -> ByteRun | Sequence[ByteRun]:
        return self._all()[place]

    def __iter__(self) -> Iterator[ByteRun]:
        return iter(self._all())

    def _all(self) -> tuple[ByteRun, ...]:
        if self._made is None:
            begins = self._begins
            lengths = np.diff(np.concatenate((begins, [self._sources.size])))
            # Lists first: one number at a time out of an array costs five times as much.
            columns = (self._unit_bytes * each for each in (self._sources[begins], self._targets[begins], lengths))
            self._made = tuple(map(ByteRun._make, zip(*(column.tolist() for column in columns), strict=True)))
        return self._made
