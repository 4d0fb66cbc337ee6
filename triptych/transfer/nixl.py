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
from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import ClaimId, Int64Array
from triptych.transfer.arena import WORD_BYTES, ArenaInfo, NixlInfo, probe_mismatch
from triptych.transfer.connections import OncePerKey
from triptych.transfer.landing import WORDS_BYTES, Windows
from triptych.transfer.mapping import poll_until
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_pieces import Part, as_packed, data_parts, scattered, word_parts
from triptych.transfer.pull import Copier, CopyAbandoned, Pull
from triptych.transfer.staging import Prepared, packed_bytes, words_offset

_MOST_WORDS = WORDS_BYTES // WORD_BYTES
_HOST_PIECES_ARE_CHEAPER = 16
_NONE: Int64Array = np.empty(0, dtype=np.int64)
_PROBE_SECONDS = 10.0  # the first read over a connection also makes the connection


# whether to pack, deadline (time.monotonic): where the claim was packed; None: it is ready where it says
PrepareClaim = Callable[[ClaimId, bool, float], Prepared | None]


class NixlMapping:
    """A neighbour's slab that is read over a network. Its bytes are never mapped: `data` and `words` are empty."""

    transport = "nixl"

    def __init__(
        self, info: ArenaInfo, nixl: NixlInfo, device: torch.device, agent: NixlAgent, prepare: PrepareClaim | None
    ) -> None:
        """Raises TransferFailed when the neighbour's agent cannot be joined."""
        self.info = info
        self.nixl = nixl
        self.device = device
        self.prepare = prepare
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

    def open(self, info: ArenaInfo, prepare: PrepareClaim | None = None) -> NixlMapping:
        """Raises TransferFailed with the reason why this arena cannot be read over NIXL.

        prepare: asks the owner to make a claim ready, for owners on a GPU and for claims in small pieces
        """
        if info.nixl is None:
            raise TransferFailed("the owner has no NIXL agent")
        deadline = time.monotonic() + _PROBE_SECONDS
        mapping = NixlMapping(info, info.nixl, self._device, self._agent, prepare)
        try:
            with self._passage(deadline) as passage:
                mismatch = probe_mismatch(info, passage.first_bytes(info, len(info.probe), deadline))
            if mismatch:
                raise TransferFailed(mismatch)
        except BaseException:
            mapping.close()
            raise
        return mapping

    def copy(self, pull: Pull, deadline: float) -> Int64Array:
        """As `Copier.copy`. A read that is overdue goes on into a window: the destination is untouched then."""
        prepared = self._prepare(pull, deadline)
        with self._passage(deadline) as passage:
            if prepared is not None:
                return _copy_packed(pull, prepared, passage, deadline)
            for data in data_parts(pull, passage.num_bytes):
                passage.bring(pull, data, pull.source.info, 0, deadline)
            return _words(pull.units, pull.source.info, pull.claim, passage, deadline)

    def checksum(self, tensor: Tensor, rows: Sequence[int] | None = None) -> bytes:
        return self._copier.checksum(tensor, rows)

    def num_lost_windows(self) -> int:
        """Windows held by reads that were given up and have not ended."""
        return sum(windows.num_lost() for windows in self._windows.values().values())

    def _prepare(self, pull: Pull, deadline: float) -> Prepared | None:
        """Where the owner packed the claim; None to read it where it lies, behind its event."""
        source = pull.source
        if not isinstance(source, NixlMapping):
            raise TransferFailed(f"an arena reached by {source.transport} is not read over NIXL")
        # Pieces cost the host a tenth of what they cost a GPU, and asking costs as much as some of them.
        limit = self._settings.nixl_pack_below_bytes
        pack = scattered(pull, limit if source.nixl.vram else limit // _HOST_PIECES_ARE_CHEAPER)
        if not pack and not source.nixl.vram:
            return None
        if source.prepare is None or not pull.claim:
            if source.nixl.vram:
                raise TransferFailed("the owner cannot be asked whether its GPU has written what is claimed")
            return None
        return source.prepare(ClaimId(pull.claim), pack, deadline)

    def _passage(self, deadline: float) -> "_Passage":
        make = lambda: Windows(self._agent, self._device, self._settings)  # noqa: E731
        return _Passage(self._agent, self._copier, self._windows.get("windows", make, deadline), deadline)


def _copy_packed(pull: Pull, prepared: Prepared, passage: "_Passage", deadline: float) -> Int64Array:
    """The pull out of its owner's pack. Raises ClaimExpired when the pack went away under it."""
    staging, packed = prepared.arena, prepared.packed
    num_units, unit_bytes = pull.units.size, pull.source.info.unit_bytes
    end = packed.offset + packed_bytes(num_units, unit_bytes)
    if packed.offset < 0 or packed.offset % staging.unit_bytes or end > staging.data_bytes:
        raise TransferFailed(f"a pack at bytes [{packed.offset}, {end}), the staging slab has {staging.data_bytes}")
    for part in data_parts(as_packed(pull), passage.num_bytes):
        passage.bring(pull, part, staging, packed.offset, deadline)
    found = np.empty(2 * num_units, dtype=np.int64)
    begin = packed.offset + words_offset(num_units, unit_bytes)
    for words in word_parts(np.arange(found.size, dtype=np.int64), _MOST_WORDS):
        pieces = words.pieces * WORD_BYTES + np.array([staging.data_offset + begin, 0])
        found[words.picked] = passage.words(staging, pieces, words.places, b"", deadline)
    units = np.arange(packed.offset // staging.unit_bytes, -(-end // staging.unit_bytes), dtype=np.int64)
    still = _words(units, staging, pull.claim, passage, deadline)
    if bool((still != packed.generation).any()):
        raise ClaimExpired(f"the pack of {num_units} units was gone before it was read")
    if bool((found[num_units:] != pull.units).any()):
        raise TransferFailed(f"the owner packed other units than the {num_units} that the claim names here")
    return found[:num_units]


def _words(units: Int64Array, info: ArenaInfo, notice: bytes, passage: "_Passage", deadline: float) -> Int64Array:
    """The units' generation words, behind all that was read before; with the last of them the owner gets the notice."""
    found = np.empty(units.size, dtype=np.int64)
    parts = list(word_parts(units, _MOST_WORDS))
    for part in parts:
        pieces = part.pieces * WORD_BYTES + np.array([info.words_offset, 0])
        told = notice if part is parts[-1] else b""
        found[part.picked] = passage.words(info, pieces, part.places, told, deadline)
    return found


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

    def bring(self, pull: Pull, part: Part, source: ArenaInfo, offset: int, deadline: float) -> None:
        """A part of the pull, read from an arena's data beyond an offset, into its destination."""
        first = np.array([source.data_offset + offset, 0])
        self._read(source, part.pieces + first, self._window.data, b"", deadline, pull.halfway)
        data = self._window.data
        if part.scattered is not None:
            data = data[: part.scattered[0].size * pull.source.info.unit_bytes]
        seen = _Seen(pull.source.info, data, self._window.words)
        copy = replace(
            pull,
            source=seen,
            runs=part.runs,
            scattered=part.scattered,
            units=_NONE,
            generations=_NONE,
            halfway=None,
        )
        self._copy(copy, deadline)

    def words(
        self, source: ArenaInfo, pieces: Int64Array, places: Int64Array, notice: bytes, deadline: float
    ) -> Int64Array:
        """[places] int64 of the words that the pieces bring, read after everything that was brought before."""
        self._read(source, pieces, self._window.words.view(torch.uint8), notice, deadline)
        into = self._window.data[:0]
        return self._copy(Pull(_Seen(source, into, self._window.words), into, (), places, places, 0), deadline)

    def first_bytes(self, source: ArenaInfo, num_bytes: int, deadline: float) -> bytes:
        """The beginning of the slab, its probe."""
        places = np.arange(-(-num_bytes // WORD_BYTES), dtype=np.int64)
        found = self.words(source, np.array([[0, num_bytes]], dtype=np.int64), places, b"", deadline)
        return found.tobytes()[:num_bytes]

    def _read(
        self,
        source: ArenaInfo,
        pieces: Int64Array,
        target: Tensor,
        notice: bytes,
        deadline: float,
        halfway: Callable[[], None] | None = None,
    ) -> None:
        if source.nixl is None:
            raise TransferFailed(f"{source.kind} arena {source.id} is not registered with NIXL")
        read = self._agent.read(source.nixl, pieces, target, notice)
        self._ended = read.ended
        if halfway is not None:
            halfway()
        poll_until(read.done, deadline, f"reading {source.kind} arena {source.id} over NIXL")

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
