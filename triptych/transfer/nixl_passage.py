"""One window on its way through the reads of one pull."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.arena import PAGE_BYTES, WORD_BYTES, ArenaInfo
from triptych.transfer.landing import Windows
from triptych.transfer.mapping import poll_until
from triptych.transfer.nixl_agent import NixlAgent, NixlRead
from triptych.transfer.nixl_pieces import Part
from triptych.transfer.pull import Copier, CopyAbandoned, Pull

_NONE: Int64Array = np.empty(0, dtype=np.int64)


class Passage:
    """A window that one pull's reads go through. Leaving the `with` gives it back.

    What a lost read or a lost copy may still touch is kept from others until it ended. While one half of the window is
    read into, what came into the other one is copied on.
    """

    def __init__(self, agent: NixlAgent, copier: Copier, windows: Windows, owner: str, deadline: float) -> None:
        """Raises TransferFailed when no window is free in time; everything else is due by then too."""
        self._agent = agent
        self._copier = copier
        self._windows = windows
        self._deadline = deadline
        self._owner = owner
        self._window = windows.take(owner, deadline)
        self._running: list[Callable[[], bool]] = []
        self.part_bytes = windows.window_bytes // 2 // PAGE_BYTES * PAGE_BYTES
        self._halves = (self._window.data[: self.part_bytes], self._window.data[self.part_bytes :][: self.part_bytes])

    def __enter__(self) -> "Passage":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ended():
            self._windows.give_back(self._window, self._owner)
        else:
            self._windows.lose(self._window, self._owner, self._ended)

    def bring(
        self, pull: Pull, parts: Iterator[Part], source: ArenaInfo, offset: int, behind: "Words | None" = None
    ) -> Int64Array:
        """All parts of a pull, read from an arena's data beyond an offset, into its destination.

        behind: words read once the last byte of data has been; with that byte they go on, and are what comes back
        """
        found = _NONE
        first = np.array([source.data_offset + offset, 0])
        under_way: deque[tuple[Part, NixlRead, Tensor]] = deque()
        halfway = pull.halfway
        for part, half in zip(parts, itertools.cycle(self._halves), strict=False):
            if len(under_way) == len(self._halves):
                self._land(pull, source, *under_way.popleft())
            under_way.append((part, self._read(source, part.pieces + first, half), half))
            if halfway is not None:
                halfway()
                halfway = None
        if not under_way and behind is not None:  # all of it is in place already
            return self.words(behind)
        while under_way:
            found = self._land(pull, source, *under_way.popleft(), None if under_way else behind)
        return found

    def words(self, words: "Words") -> Int64Array:
        """[places] int64 of the words that the pieces bring, read after everything that was brought before."""
        self._read_words(words)
        into = self._window.data[:0]
        return self._copy(Pull(_Seen(words.source, into, self._window.words), into, (), words.places, words.places, 0))

    def first_bytes(self, source: ArenaInfo, num_bytes: int) -> bytes:
        """The beginning of the slab, its probe."""
        places = np.arange(-(-num_bytes // WORD_BYTES), dtype=np.int64)
        found = self.words(Words(source, np.array([[0, num_bytes]], dtype=np.int64), places))
        return found.tobytes()[:num_bytes]

    def _land(
        self, pull: Pull, source: ArenaInfo, part: Part, read: NixlRead, half: Tensor, behind: "Words | None" = None
    ) -> Int64Array:
        self._wait(source, read)
        places = _NONE
        if behind is not None:
            self._read_words(behind)
            places = behind.places
        if part.scattered is not None:
            half = half[: (int(part.scattered[0].max()) + 1) * pull.scattered_bytes]
        seen = _Seen(pull.source.info, half, self._window.words)
        plain = replace(pull, source=seen, runs=part.runs, scattered=part.scattered, halfway=None)
        return self._copy(replace(plain, units=places, generations=places))

    def _read_words(self, words: "Words") -> None:
        target = self._window.words.view(torch.uint8)
        self._wait(words.source, self._read(words.source, words.pieces, target, words.notice))

    def _read(self, source: ArenaInfo, pieces: Int64Array, target: Tensor, notice: bytes = b"") -> NixlRead:
        if source.nixl is None:
            raise TransferFailed(f"{source.kind} arena {source.id} is not registered with NIXL")
        read = self._agent.read(source.nixl, pieces, target, notice)
        self._running.append(read.ended)
        return read

    def _wait(self, source: ArenaInfo, read: NixlRead) -> None:
        poll_until(read.done, self._deadline, f"reading {source.kind} arena {source.id} over NIXL")
        self._running.remove(read.ended)

    def _copy(self, pull: Pull) -> Int64Array:
        try:
            return self._copier.copy(pull, self._deadline)
        except CopyAbandoned as error:
            self._running.append(error.ended)
            raise

    def _ended(self) -> bool:
        self._running = [ended for ended in self._running if not ended()]
        return not self._running


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Words of a slab to be read, as many as a window has room for.

    pieces: [pieces, 2] int64 bytes from the slab's first, and lengths
    places: [words] int64 which of those that they bring are wanted
    notice: what the owner is told once they are read
    """

    source: ArenaInfo
    pieces: Int64Array
    places: Int64Array
    notice: bytes = b""


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
