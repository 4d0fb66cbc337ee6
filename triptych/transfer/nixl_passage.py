"""The memory that the reads of one pull land in, and how they go on from there.

    READ of a part ─▶ half of the window ─▶ copied on, while the next part is read into the other half
    READ of what vouches for it, once the last byte of data has been read ─▶ to the host, behind all copies

A pull that the window has room for is one part, on the host up to some megabytes. Reads and copies are begun and waited
for, never done one at a time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.arena import PAGE_BYTES, WORD_BYTES, ArenaInfo
from triptych.transfer.landing import Windows
from triptych.transfer.mapping import poll_until
from triptych.transfer.nixl_agent import NixlAgent, NixlRead, Take
from triptych.transfer.nixl_company import room_of
from triptych.transfer.nixl_pieces import Part, data_parts
from triptych.transfer.pull import CopyAbandoned, LandingCopier, Pull

_NONE: Int64Array = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Words of a slab to be read.

    pieces: [pieces, 2] int64 bytes from the slab's first, and lengths
    places: [words] int64 which of those that they bring are wanted
    notice: what the owner is told once they are read
    """

    source: ArenaInfo
    pieces: Int64Array
    places: Int64Array
    notice: bytes = b""

    @property
    def count(self) -> int:
        """How many the pieces bring."""
        return -(-int(self.pieces[:, 1].sum()) // WORD_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Words that are read in the same go as a pull's data.

    along:  with the data, in no set order
    behind: once the last byte of all the rest has been read
    Both may be missing; together they must not be more than a window has room for.
    """

    along: Words | None = None
    behind: Words | None = None


class Passage:
    """A window that one pull's reads go through. Leaving the `with` gives it back.

    What a lost read or a lost copy may still touch is kept from others until it ended.
    """

    def __init__(
        self, agent: NixlAgent, copier: LandingCopier, windows: Windows, owner: str, deadline: float, num_bytes: int = 0
    ) -> None:
        """num_bytes: of data to be read

        Raises TransferFailed when no window is free in time; everything else is due by then too.
        """
        self._agent = agent
        self._copier = copier
        self._windows = windows
        self._deadline = deadline
        self._owner = owner
        self._window = windows.take(owner, deadline, num_bytes)
        self._reads: list[NixlRead] = []  # not ended
        self._copies: list[Callable[[], bool]] = []  # begun, nobody knows yet whether they ended
        data = self._window.data
        half = min(data.numel() // 2, windows.most_of_one_read) // PAGE_BYTES * PAGE_BYTES
        is_one = num_bytes <= min(data.numel(), windows.most_of_one_read)
        self._rooms = (data,) if is_one else (data[:half], data[half:][:half])
        self.part_bytes = self._rooms[0].numel()
        self.most_together = min(data.numel(), windows.most_of_one_read)  # bytes of pulls that are brought at once

    def __enter__(self) -> "Passage":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ended():
            self._windows.give_back(self._window, self._owner)
        else:
            self._windows.lose(self._window, self._owner, self._ended)

    def bring(
        self, pull: Pull, parts: Iterator[Part], source: ArenaInfo, offset: int, beside: Beside
    ) -> tuple[Int64Array, Int64Array]:
        """All parts of a pull, read from an arena's data beyond an offset, into its destination.

        Gives the words along and behind it, none for those that were not asked for. Nothing is copied any more then.
        Raises CopyAbandoned where something still may be.
        """
        try:
            return self._bring(pull, parts, source, offset, beside)
        except BaseException as error:
            self._settle(error)
            raise

    def bring_together(
        self, pulls: Sequence[Pull], source: ArenaInfo, ahead: Words | None, behind: Words
    ) -> tuple[Int64Array, Int64Array]:
        """Several pulls of whatever size the window has room for altogether, in one READ, into their destinations.

        ahead: what has been read before the READ of data began, and is looked at with all the rest
        Gives the words ahead, none where there are none, and those behind. Otherwise as `bring`.
        """
        try:
            return self._bring_together(pulls, source, ahead, behind)
        except BaseException as error:
            self._settle(error)
            raise

    def words(self, words: Words) -> Int64Array:
        """[places] int64 of the words that the pieces bring, read after everything that was brought before."""
        try:
            self._wait(words.source, self._read(words.source, [self._take(words)], words.notice))
            return self._fetched(words.count)[words.places]
        except BaseException as error:
            self._settle(error)
            raise

    def first_bytes(self, source: ArenaInfo, num_bytes: int) -> bytes:
        """The beginning of the slab, its probe."""
        places = np.arange(-(-num_bytes // WORD_BYTES), dtype=np.int64)
        found = self.words(Words(source, np.array([[0, num_bytes]], dtype=np.int64), places))
        return found.tobytes()[:num_bytes]

    def _bring(
        self, pull: Pull, parts: Iterator[Part], source: ArenaInfo, offset: int, beside: Beside
    ) -> tuple[Int64Array, Int64Array]:
        along, behind = beside.along, beside.behind
        first = np.array([source.data_offset + offset, 0])
        under_way: deque[tuple[Part, NixlRead, Tensor]] = deque()
        for place, (part, is_last) in enumerate(_with_last(parts)):
            if len(under_way) == len(self._rooms):
                self._copy_on(pull, *self._landed(source, under_way.popleft()))
                self._wait_for_copies()  # their room is the next to be read into
            room = self._rooms[place % len(self._rooms)]
            takes = [Take(part.pieces + first, room)]
            if is_last and along is not None:
                takes.append(self._take(along))
            under_way.append((part, self._read(source, takes), room))
            if place == 0 and pull.halfway is not None:
                pull.halfway()
        if not under_way and along is not None:  # all the data is in place already
            self._wait(along.source, self._read(along.source, [self._take(along)]))
        while len(under_way) > 1:
            self._copy_on(pull, *self._landed(source, under_way.popleft()))
        last = [self._landed(source, each) for each in under_way]
        # From here on no data is read: the words may be, and are on their way while the last part is copied on.
        begin = along.count if along is not None else 0
        reading = self._read(behind.source, [self._take(behind, begin)], behind.notice) if behind is not None else None
        for each in last:
            self._copy_on(pull, *each)
        if behind is not None and reading is not None:
            self._wait(behind.source, reading)
        found = self._fetched(begin + behind.count if behind is not None else begin)
        self._wait_for_copies()
        return (
            found[along.places] if along is not None else _NONE,
            found[begin + behind.places] if behind is not None else _NONE,
        )

    def _bring_together(
        self, pulls: Sequence[Pull], source: ArenaInfo, ahead: Words | None, behind: Words
    ) -> tuple[Int64Array, Int64Array]:
        begin = ahead.count if ahead is not None else 0
        # Fetching words takes as long as reading them: those ahead stay where they are until the others come.
        first_read = self._read(ahead.source, [self._take(ahead)]) if ahead is not None else None
        loads = list(self._loads(pulls, source))
        if ahead is not None and first_read is not None:
            self._wait(ahead.source, first_read)
        self._wait(source, self._read(source, [take for _, _, take in loads]))
        last_read = self._read(behind.source, [self._take(behind, begin)], behind.notice)
        for pull, part, take in loads:
            self._copy_on(pull, part, take.target)
        self._wait(behind.source, last_read)
        found = self._fetched(begin + behind.count)
        self._wait_for_copies()
        return found[ahead.places] if ahead is not None else _NONE, found[begin + behind.places]

    def _loads(self, pulls: Sequence[Pull], source: ArenaInfo) -> Iterator[tuple[Pull, Part, Take]]:
        """Each pull in one part, one behind the other in the window."""
        first, at = np.array([source.data_offset, 0]), 0
        for pull in pulls:
            (part,) = data_parts(pull, pull.num_bytes)
            yield pull, part, Take(part.pieces + first, self._window.data[at : at + pull.num_bytes])
            at += room_of(pull.num_bytes)

    def _take(self, words: Words, begin: int = 0) -> Take:
        return Take(words.pieces, self._window.words[begin:].view(torch.uint8))

    def _fetched(self, count: int) -> Int64Array:
        """[count] int64 of the window's words, behind all copies that were begun."""
        return self._copier.numbers(self._window.words[:count], self._deadline) if count else _NONE

    def _read(self, source: ArenaInfo, takes: Sequence[Take], notice: bytes = b"") -> NixlRead:
        if source.nixl is None:
            raise TransferFailed(f"{source.kind} arena {source.id} is not registered with NIXL")
        read = self._agent.read(source.nixl, takes, notice)
        self._reads.append(read)
        return read

    def _wait(self, source: ArenaInfo, read: NixlRead) -> None:
        poll_until(read.done, self._deadline, f"reading {source.kind} arena {source.id} over NIXL")
        self._reads.remove(read)

    def _landed(self, source: ArenaInfo, under_way: tuple[Part, NixlRead, Tensor]) -> tuple[Part, Tensor]:
        part, read, room = under_way
        self._wait(source, read)
        return part, room

    def _copy_on(self, pull: Pull, part: Part, room: Tensor) -> None:
        if part.scattered is not None:
            room = room[: (int(part.scattered[0].max()) + 1) * pull.scattered_bytes]
        seen = _Seen(pull.source.info, room, self._window.words)
        plain = replace(pull, source=seen, runs=part.runs, scattered=part.scattered, halfway=None)
        self._copies.append(self._copier.begin(plain, self._deadline))

    def _wait_for_copies(self) -> None:
        poll_until(self._have_copies_ended, self._deadline, "copying on what was read over NIXL")

    def _have_copies_ended(self) -> bool:
        self._copies = [ended for ended in self._copies if not ended()]
        return not self._copies

    def _settle(self, error: BaseException) -> None:
        """Raises CopyAbandoned unless all copies end in time: until then nobody else may have the destination."""
        if isinstance(error, CopyAbandoned):  # all copies of this thread are before its end
            self._copies.append(error.ended)
            return
        try:
            self._wait_for_copies()
        except TransferFailed as late:
            raise CopyAbandoned(f"{error}; and {late.message}", self._have_copies_ended) from error

    def _ended(self) -> bool:
        self._reads = [read for read in self._reads if not read.ended()]
        return self._have_copies_ended() and not self._reads


class _Seen:
    """A window as what the plain copiers read from."""

    transport = "nixl"

    def __init__(self, info: ArenaInfo, data: Tensor, words: Tensor) -> None:
        self.info = info
        self.device = data.device
        self.data = data
        self.words = words

    def wait_event(self, index: int, deadline: float) -> None:
        """What was read is there."""

    def close(self) -> None:
        """The window stays its passage's."""


def _with_last(parts: Iterator[Part]) -> Iterator[tuple[Part, bool]]:
    """Each part, and whether none comes behind it."""
    part = next(parts, None)
    while part is not None:
        following = next(parts, None)
        yield part, following is None
        part = following
