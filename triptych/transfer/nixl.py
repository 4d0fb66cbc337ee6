"""Owner and consumer share no memory: READs by the consumer, over whatever network UCX finds.

    READ of data ─▶ window ─▶ copied on to where it belongs     (again while there is more than a window holds)
    READ of the generation words behind it, whose end also tells the owner that the claim has been read

The owner computes nothing for it: its network card or its progress thread serves the bytes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from triptych.config import TransferSettings
from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.arena import WORD_BYTES, ArenaInfo, NixlInfo, probe_mismatch
from triptych.transfer.connections import OncePerKey
from triptych.transfer.landing import WORDS_BYTES, Windows
from triptych.transfer.mapping import poll_until
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_pieces import Part, WordPart, data_parts, word_parts
from triptych.transfer.pull import Copier, CopyAbandoned, Pull

_PROBE_SECONDS = 10.0  # the first read over a connection also makes the connection


class NixlMapping:
    """A neighbour's slab that is read over a network. Its bytes are never mapped: `data` and `words` are empty."""

    transport = "nixl"

    def __init__(self, info: ArenaInfo, nixl: NixlInfo, device: torch.device, agent: NixlAgent) -> None:
        """Raises TransferFailed when the neighbour's agent cannot be joined."""
        self.info = info
        self.nixl = nixl
        self.device = device
        self.data, self.words = torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
        agent.join(nixl)
        self._leave: Callable[[], None] | None = lambda: agent.leave(nixl.agent)

    def wait_event(self, index: int, deadline: float) -> None:
        """Host memory is written before it is announced; for a GPU's, the answer to Prepare comes behind the event."""

    def close(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class NixlCopier:
    """Opens neighbours' slabs and does pulls out of them. Thread-safe; as many pulls at once as there are windows."""

    def __init__(self, agent: NixlAgent, device: torch.device, copier: Copier, settings: TransferSettings) -> None:
        """copier: takes bytes from a window to their place on the device."""
        self._agent = agent
        self._device = device
        self._copier = copier
        self._settings = settings
        self._windows: OncePerKey[str, Windows] = OncePerKey()

    def open(self, info: ArenaInfo) -> NixlMapping:
        """Raises TransferFailed with the reason why this arena cannot be read over NIXL."""
        if info.nixl is None:
            raise TransferFailed("the owner has no NIXL agent")
        deadline = time.monotonic() + _PROBE_SECONDS
        mapping = NixlMapping(info, info.nixl, self._device, self._agent)
        try:
            with self._passage(deadline) as passage:
                mismatch = probe_mismatch(info, passage.first_bytes(mapping, len(info.probe), deadline))
            if mismatch:
                raise TransferFailed(mismatch)
        except BaseException:
            mapping.close()
            raise
        return mapping

    def copy(self, pull: Pull, deadline: float) -> Int64Array:
        """As `Copier.copy`. A read that is overdue goes on into a window: the destination is untouched then."""
        with self._passage(deadline) as passage:
            for data in data_parts(pull, passage.num_bytes):
                passage.bring(pull, data, deadline)
            found = np.empty(pull.units.size, dtype=np.int64)
            parts = list(word_parts(pull.units, WORDS_BYTES // WORD_BYTES))
            for part in parts:
                notice = pull.claim if part is parts[-1] else b""
                found[part.picked] = passage.bring_words(pull, part, notice, deadline)
        return found

    def checksum(self, tensor: Tensor, rows: Sequence[int] | None = None) -> bytes:
        return self._copier.checksum(tensor, rows)

    def num_lost_windows(self) -> int:
        """Windows held by reads that were given up and have not ended."""
        return sum(windows.num_lost() for windows in self._windows.values().values())

    def _passage(self, deadline: float) -> "_Passage":
        make = lambda: Windows(self._agent, self._device, self._settings)  # noqa: E731
        return _Passage(self._agent, self._copier, self._windows.get("windows", make, deadline), deadline)


class _Passage:
    """A window that one pull's reads go through, one behind the other. Leaving the `with` gives it back.

    What a lost read or a lost copy may still touch is kept from others until it ended.
    """

    def __init__(self, agent: NixlAgent, copier: Copier, windows: Windows, deadline: float) -> None:
        """Raises TransferFailed when no window is free in time."""
        self._agent = agent
        self._copier = copier
        self._windows = windows
        self._window = windows.take(deadline)
        self._ended: Callable[[], bool] = lambda: True
        self.num_bytes = windows.window_bytes

    def __enter__(self) -> "_Passage":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ended():
            self._windows.give_back(self._window)
        else:
            self._windows.lose(self._window, self._ended)

    def bring(self, pull: Pull, part: Part, deadline: float) -> None:
        """A part of the pull's data, into its destination."""
        source = source_of(pull)
        first = np.array([source.info.data_offset, 0])
        self._read(source, part.pieces + first, self._window.data, b"", deadline)
        data = self._window.data
        if part.scattered is not None:
            data = data[: part.scattered[0].size * source.info.unit_bytes]
        seen = _Seen(source.info, data, self._window.words)
        units = np.empty(0, dtype=np.int64)
        copy = replace(pull, source=seen, runs=part.runs, scattered=part.scattered, units=units, generations=units)
        self._copy(copy, deadline)

    def bring_words(self, pull: Pull, part: WordPart, notice: bytes, deadline: float) -> Int64Array:
        """[picked] int64 words, read after everything that was brought before."""
        source = source_of(pull)
        pieces = part.pieces * WORD_BYTES + np.array([source.info.words_offset, 0])
        self._read(source, pieces, self._window.words.view(torch.uint8), notice, deadline)
        return self._words_at(source.info, part.places, deadline)

    def first_bytes(self, source: NixlMapping, num_bytes: int, deadline: float) -> bytes:
        """The beginning of the slab, its probe."""
        piece = np.array([[0, num_bytes]], dtype=np.int64)
        self._read(source, piece, self._window.words.view(torch.uint8), b"", deadline)
        words = self._words_at(source.info, np.arange(-(-num_bytes // WORD_BYTES), dtype=np.int64), deadline)
        return words.tobytes()[:num_bytes]

    def _read(self, source: NixlMapping, pieces: Int64Array, target: Tensor, notice: bytes, deadline: float) -> None:
        read = self._agent.read(source.nixl, pieces, target, notice)
        self._ended = read.ended
        poll_until(read.done, deadline, f"reading {source.info.kind} arena {source.info.id} over NIXL")

    def _words_at(self, info: ArenaInfo, places: Int64Array, deadline: float) -> Int64Array:
        into = self._window.data[:0]
        return self._copy(Pull(_Seen(info, into, self._window.words), into, (), places, places, 0), deadline)

    def _copy(self, pull: Pull, deadline: float) -> Int64Array:
        try:
            return self._copier.copy(pull, deadline)
        except CopyAbandoned as error:
            self._ended = error.ended
            raise


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


def source_of(pull: Pull) -> NixlMapping:
    if not isinstance(pull.source, NixlMapping):
        raise TransferFailed(f"an arena reached by {pull.source.transport} is not read over NIXL")
    return pull.source
