"""What a request gets when it is its turn: blocks, those of the prefix cache among them, and landing memory."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from triptych.engine.admission import Need, Room
from triptych.engine.blocks import BlockLedger
from triptych.engine.decode_places import DecodePlaces
from triptych.engine.jobs import Window
from triptych.engine.landing_books import LandingBooks
from triptych.engine.preemption import Preemption
from triptych.engine.prefixes import Prefixes
from triptych.engine.sequence import PrefillSequence, Reservation, blocks_for
from triptych.journey import RequestId

Ask = PrefillSequence | Reservation


@dataclass(frozen=True, slots=True)
class Given:
    """What one ask got: blocks nobody held before, blocks that came free, its first window."""

    new_blocks: Sequence[int]
    num_freed: int = 0
    windows: Sequence[tuple[PrefillSequence, Window]] = ()


class Giving:
    """Takes from the scheduler's books, all or nothing."""

    def __init__(
        self,
        ledger: BlockLedger,
        prefixes: Prefixes,
        decodes: DecodePlaces,
        landing: LandingBooks,
        preemption: Preemption,
        block_size: int,
    ) -> None:
        self._ledger = ledger
        self._prefixes = prefixes
        self._decodes = decodes
        self._landing = landing
        self._preemption = preemption
        self._block_size = block_size

    def give(self, ask: Ask, room: Room) -> Given | None:
        """What the ask got; None when it is not its turn."""
        if isinstance(ask, Reservation):
            return self._grant(ask, room)
        held = self._reserved_for(ask)
        if held is None and not (room.blocks_open and self._preemption.lets_in(None)):
            return None  # it needs a block at least: not worth a lookup
        cached = self._prefixes.look(ask)
        if cached is None:
            return None
        if held is not None and self._is_written(held.blocks[held.num_cached_blocks : len(cached)]):
            cached = cached[: held.num_cached_blocks]
        num_cached = len(cached) * self._block_size
        windows = self._landing.pack(ask.needed_groups(num_cached))
        num_bytes = self._landing.size(windows[0]) if windows else 0
        if not room.take(Need(self._blocks_needed(ask, held, cached), num_bytes)):
            return None
        new_blocks, num_freed = self._take_blocks(ask, held, cached)
        ask.begin(self._ledger.held(prefill_key(ask.request_id)), num_cached, windows)
        self._prefixes.begin(ask)
        return Given(new_blocks, num_freed, [(ask, self._landing.begin(ask))])

    def _grant(self, ask: Reservation, room: Room) -> Given | None:
        if not (room.blocks_open and self._preemption.lets_in(ask.rank)):
            return None  # as above
        cached = self._prefixes.find(ask.keys, ask.prompt_tokens)
        if not room.take(Need(ask.num_blocks - len(cached) + self._num_resting(cached), 0)):
            return None
        return Given(self._decodes.grant(ask, cached))

    def _num_resting(self, cached: Sequence[int]) -> int:
        """Of these blocks, which are in the cache, those that are free, too."""
        return sum(self._ledger.pool.shares(id) == 0 for id in cached)

    def _is_written(self, reserved: Sequence[int]) -> bool:
        """Whether somebody copies into these blocks, so that they cannot be given up."""
        return any(self._ledger.pool.shares(id) > 1 for id in reserved)

    def _blocks_needed(self, ask: PrefillSequence, held: Reservation | None, cached: Sequence[int]) -> int:
        """Free blocks that the prompt takes up."""
        if held is not None:
            return 0
        return blocks_for(ask.num_tokens, self._block_size) - len(cached) + self._num_resting(cached)

    def _take_blocks(
        self, ask: PrefillSequence, held: Reservation | None, cached: Sequence[int]
    ) -> tuple[list[int], int]:
        """A block table for the prompt: the blocks nobody held before, and how many came free."""
        key = prefill_key(ask.request_id)
        if held is None:
            self._ledger.reuse(key, cached)
            return self._ledger.reserve(key, blocks_for(ask.num_tokens, self._block_size) - len(cached)), 0
        num_freed = self._decodes.begin_with(held, cached)
        self._prefixes.overwrite(held.prompt_blocks[len(cached) :])
        self._ledger.share(key, held.prompt_blocks)
        return [], num_freed

    def _reserved_for(self, sequence: PrefillSequence) -> Reservation | None:
        """The request's own reservation here: computing into its blocks saves the copy at hand-over."""
        held = self._decodes.reservation(sequence.request_id)
        if held is None or held.is_baseless or held.prompt_tokens != sequence.num_tokens:
            return None  # a different length is a disagreement between tiers; start of decoding refuses it by name
        if held.keys is not None and (sequence.keys is None or not held.keys.equal(sequence.keys)):
            return None  # another prompt, which must not be computed over blocks that others read
        return held


def prefill_key(request_id: RequestId) -> Hashable:
    """A prompt's name in the ledger."""
    return ("prefill", request_id)
