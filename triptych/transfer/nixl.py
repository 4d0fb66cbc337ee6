"""Owner and consumer share no memory: READs by the consumer, over whatever network UCX finds.

    READ of data ─▶ window ─▶ copied on to where it belongs     (again while there is more than a window holds)
    READ of the generation words behind it, whose end also tells the owner that the claim has been read

The owner computes nothing for it: its network card or its progress thread serves the bytes.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from triptych.config import TransferSettings
from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import ClaimId, Int64Array
from triptych.transfer.arena import WORD_BYTES, ArenaInfo, NixlInfo, probe_mismatch
from triptych.transfer.connections import OncePerKey
from triptych.transfer.cuda_events import bind_context
from triptych.transfer.landing import WORDS_BYTES, Windows, most_of_one_read, window_bytes
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_company import Company, NotRead
from triptych.transfer.nixl_passage import Beside, Passage, Words
from triptych.transfer.nixl_pieces import as_packed, data_parts, scattered, word_parts
from triptych.transfer.pull import CopyAbandoned, IsWanted, LandingCopier, Pull
from triptych.transfer.staging import Prepared, packed_bytes, words_offset

_MOST_WORDS = WORDS_BYTES // WORD_BYTES
_HOST_PIECES_ARE_CHEAPER = 16
_SMALL_BYTES = 16 << 20  # pulls of no more are read together: some images' rows
_PROBE_SECONDS = 10.0  # the first read over a connection also makes the connection


Asked = tuple[Int64Array, Words]  # which of the words that are wanted one read brings

# `Prepare` of one owner
PrepareClaim = Callable[[ClaimId, bool, float, IsWanted], Prepared | None]


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
        self.company = Company()
        self._came_to = 0  # the latest of the owner's events that is known to have come to pass
        agent.join(nixl)
        self._leave: Callable[[], None] | None = lambda: agent.leave(nixl.agent)

    def is_written(self, pull: Pull, passage: Passage) -> bool:
        """Whether a pull's event has come to pass, as its word in the slab says: asking the owner would take longer."""
        if not self.is_known(pull.event):
            word = self.event_word(pull.event)
            if word is None:
                return False
            self.has_come_to(int(passage.words(word)[0]))
        return self.is_known(pull.event)

    def is_known(self, event: int) -> bool:
        """Whether an event is known to have come to pass; events are of one stream: one vouches for those before it."""
        if not self.nixl.vram:  # host memory is written before it is announced
            return True
        return 1 <= event <= self._came_to

    def event_word(self, event: int) -> Words | None:
        """The word that says whether an event has come to pass; None where there is none."""
        ipc = self.info.cuda_ipc
        if ipc is None or not ipc.event_handles or event < 1:
            return None
        at = ipc.event_words_offset + WORD_BYTES * (event % len(ipc.event_handles))
        return Words(self.info, np.array([[at, WORD_BYTES]], dtype=np.int64), np.zeros(1, dtype=np.int64))

    def has_come_to(self, event: int) -> None:
        """Some event's word said so."""
        self._came_to = max(self._came_to, event)

    def wait_event(self, index: int, deadline: float) -> None:
        """Host memory is written before it is announced; for a GPU's, the answer to Prepare comes behind the event."""

    def close(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class NixlCopier:
    """Opens neighbours' slabs and does pulls out of them. Thread-safe; as many pulls at once as there are windows."""

    def __init__(
        self, agent: NixlAgent, device: torch.device, copier: LandingCopier, settings: TransferSettings
    ) -> None:
        """copier: takes bytes from a window to their place on the device."""
        self._agent = agent
        self._device = device
        self._copier = copier
        self._settings = settings
        self._windows: OncePerKey[str, Windows] = OncePerKey()
        self._small_bytes = min(_SMALL_BYTES, window_bytes(device, settings), most_of_one_read(device))

    def open(self, info: ArenaInfo, prepare: PrepareClaim | None = None) -> NixlMapping:
        """Raises TransferFailed with the reason why this arena cannot be read over NIXL.

        prepare: asks the owner to make a claim ready, for owners on a GPU and for claims in small pieces
        """
        if info.nixl is None:
            raise TransferFailed("the owner has no NIXL agent")
        deadline = time.monotonic() + min(_PROBE_SECONDS, self._settings.copy_timeout_seconds)
        mapping = NixlMapping(info, info.nixl, self._device, self._agent, prepare)
        try:
            with self._passage(info.nixl.agent, deadline) as passage:
                mismatch = probe_mismatch(info, passage.first_bytes(info, len(info.probe)))
            if mismatch:
                raise TransferFailed(mismatch)
        except BaseException:
            mapping.close()
            raise
        return mapping

    def copy(self, pull: Pull, deadline: float) -> Int64Array:
        """As `Copier.copy`. A read that is overdue goes on into a window: the destination is untouched by it."""
        source = _source_of(pull)
        pack = self._is_packed(pull, source)
        found = self._copy_from_its_place(pull, source, deadline) if not pack else None
        if found is not None:
            return found
        prepared = self._prepare(pull, pack, deadline)
        with self._passage(source.nixl.agent, deadline, pull.num_bytes) as passage:
            return _copy_plain(pull, passage) if prepared is None else _copy_packed(pull, prepared, passage)

    def _copy_from_its_place(self, pull: Pull, source: NixlMapping, deadline: float) -> Int64Array | None:
        """The pull from where it lies; None where its owner has to be asked whether it is written."""
        words = _words(pull.units, source.info, pull)
        is_small = 0 < pull.num_bytes <= self._small_bytes and len(words) == 1
        if is_small and not pull.piece_bytes and pull.halfway is None:
            found = self._copy_in_company(pull, source, deadline, words[0][1].count)
            if not isinstance(found, NotRead):
                return found
            if found.unwritten:
                return None
        with self._passage(source.nixl.agent, deadline, pull.num_bytes) as passage:
            return _copy_plain(pull, passage) if source.is_written(pull, passage) else None

    def _copy_in_company(
        self, pull: Pull, source: NixlMapping, deadline: float, num_words: int
    ) -> Int64Array | NotRead:
        """The words of a small pull, read along with others. Raises as `copy`."""
        turn = source.company.enter(pull, deadline, num_words)
        outcome = source.company.wait(turn)
        if isinstance(outcome, CopyAbandoned):
            raise outcome
        if outcome is not None:
            return outcome
        with (
            source.company.leading(turn),
            self._passage(source.nixl.agent, deadline, pull.num_bytes) as passage,
        ):
            read = partial(_read_together, source, passage)
            return source.company.read(turn, passage.most_together, _MOST_WORDS - 1, read)  # one word is an event's

    def checksum(self, tensor: Tensor, rows: Sequence[int] | None = None) -> bytes:
        return self._copier.checksum(tensor, rows)

    def num_lost_windows(self) -> int:
        """Windows held by reads that were given up and have not ended."""
        return sum(windows.num_lost() for windows in self._windows.values().values())

    def _is_packed(self, pull: Pull, source: NixlMapping) -> bool:
        """Whether the owner is to be asked for a pack."""
        # Pieces cost the host a tenth of what they cost a GPU, and asking costs as much as some of them.
        limit = self._settings.nixl_pack_below_bytes
        return pull.alone and scattered(pull, limit if source.nixl.vram else limit // _HOST_PIECES_ARE_CHEAPER)

    def _prepare(self, pull: Pull, pack: bool, deadline: float) -> Prepared | None:
        """Where the owner packed the claim; None to read it where it lies, behind its event."""
        source = _source_of(pull)
        if not pack and not source.nixl.vram:
            return None
        if source.prepare is None or not pull.claim:
            if source.nixl.vram:
                raise TransferFailed("the owner cannot be asked whether its GPU has written what is claimed")
            return None
        return source.prepare(ClaimId(pull.claim), pack, deadline, pull.is_wanted)

    def _passage(self, owner: str, deadline: float, num_bytes: int = 0) -> Passage:
        bind_context(self._device)
        make = lambda: Windows(self._agent, self._device, self._settings)  # noqa: E731
        windows = self._windows.get("windows", make, deadline)
        return Passage(self._agent, self._copier, windows, owner, deadline, num_bytes)


def _source_of(pull: Pull) -> NixlMapping:
    if not isinstance(pull.source, NixlMapping):
        raise TransferFailed(f"an arena reached by {pull.source.transport} is not read over NIXL")
    return pull.source


def _copy_plain(pull: Pull, passage: Passage) -> Int64Array:
    """The pull from where it lies."""
    info = pull.source.info
    asked = _words(pull.units, info, pull)
    parts = data_parts(pull, passage.part_bytes)
    if len(asked) == 1:
        picked, words = asked[0]
        return _in_order(picked, passage.bring(pull, parts, info, 0, Beside(behind=words))[1])
    passage.bring(pull, parts, info, 0, Beside())
    return _taken(asked, passage)


def _read_together(source: NixlMapping, passage: Passage, pulls: Sequence[Pull]) -> list[Int64Array | NotRead]:
    """Small pulls from where they lie; an event that is not known to have come to pass is looked up ahead of them."""
    info, ahead = source.info, None
    if not all(source.is_known(pull.event) for pull in pulls):
        ahead = source.event_word(max(pull.event for pull in pulls))
        if ahead is None:
            return [NotRead(unwritten=True)] * len(pulls)
    asked = [_words(pull.units, info, pull)[0] for pull in pulls]
    begins = np.cumsum([0, *(words.count for _, words in asked)])
    behind = Words(
        info,
        np.concatenate([words.pieces for _, words in asked]),
        np.concatenate([words.places + begin for (_, words), begin in zip(asked, begins[:-1], strict=True)]),
        # Who has read what was not written yet has not read it: no owner must take such claims for over.
        b"".join(words.notice for _, words in asked) if ahead is None else b"",
    )
    reached, found = passage.bring_together(pulls, info, ahead, behind)
    if reached.size:
        source.has_come_to(int(reached[0]))
    parts = np.split(found, np.cumsum([picked.size for picked, _ in asked])[:-1])
    return [
        _in_order(picked, part) if source.is_known(pull.event) else NotRead(unwritten=True)
        for pull, (picked, _), part in zip(pulls, asked, parts, strict=True)
    ]


def _in_order(picked: Int64Array, words: Int64Array) -> Int64Array:
    found = np.empty(picked.size, dtype=np.int64)
    found[picked] = words
    return found


def _copy_packed(pull: Pull, prepared: Prepared, passage: Passage) -> Int64Array:
    """The pull out of its owner's pack. Raises ClaimExpired when the pack went away under it."""
    staging, packed = prepared.arena, prepared.packed
    num_units, unit_bytes = pull.units.size, pull.source.info.unit_bytes
    end = packed.offset + packed_bytes(num_units, unit_bytes)
    if packed.offset < 0 or packed.offset % staging.unit_bytes or end > staging.data_bytes:
        raise TransferFailed(f"a pack at bytes [{packed.offset}, {end}), the staging slab has {staging.data_bytes}")
    inside = _packed_words(staging, packed.offset + words_offset(num_units, unit_bytes), num_units)
    units = np.arange(packed.offset // staging.unit_bytes, -(-end // staging.unit_bytes), dtype=np.int64)
    guards = _words(units, staging, pull)
    parts = data_parts(as_packed(pull), passage.part_bytes)
    if len(inside) == len(guards) == 1 and inside[0][1].count + guards[0][1].count <= _MOST_WORDS:
        # The ids and words in the pack are guarded by its generation like its data, and come along in any order.
        found, still = passage.bring(
            pull, parts, staging, packed.offset, Beside(along=inside[0][1], behind=guards[0][1])
        )
    else:
        passage.bring(pull, parts, staging, packed.offset, Beside())
        found, still = _taken(inside, passage), _taken(guards, passage)
    if bool((still != packed.generation).any()):
        raise ClaimExpired(f"the pack of {num_units} units was gone before it was read")
    if bool((found[num_units:] != pull.units).any()):
        raise TransferFailed(f"the owner packed other units than the {num_units} that the claim names here")
    return found[:num_units]


def _packed_words(staging: ArenaInfo, begin: int, num_units: int) -> list[Asked]:
    """The words, then the ids, of a pack that has them from that byte of the staging slab's data on."""
    first = np.array([staging.data_offset + begin, 0])
    return [
        (part.picked, Words(staging, part.pieces * WORD_BYTES + first, part.places))
        for part in word_parts(np.arange(2 * num_units, dtype=np.int64), _MOST_WORDS)
    ]


def _words(units: Int64Array, info: ArenaInfo, pull: Pull) -> list[Asked]:
    """Units' generation words; with the last the owner is told of the claim."""
    parts = list(word_parts(units, _MOST_WORDS))
    asked: list[Asked] = []
    for part in parts:
        pieces = part.pieces * WORD_BYTES + np.array([info.words_offset, 0])
        notice = pull.claim if part is parts[-1] and pull.alone else b""
        asked.append((part.picked, Words(info, pieces, part.places, notice)))
    return asked


def _taken(asked: Sequence[Asked], passage: Passage) -> Int64Array:
    """The words, read one part after the other."""
    found = np.empty(sum(picked.size for picked, _ in asked), dtype=np.int64)
    for picked, words in asked:
        found[picked] = passage.words(words)
    return found
