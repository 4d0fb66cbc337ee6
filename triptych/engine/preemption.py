"""Blocks for the next token of every running branch, and who makes room for whom when there are none.

A branch that decodes grows block by block, and all of them together may want more than there is. Then the youngest of
the lowest priority makes room: what others use of its blocks stays where it is, the KV of the rest goes to host memory,
and when that is full its request is ended with Preempted: whoever drives it computes prompt and tokens again, as
behind a worker that was lost. Branches of several choices have all they need from the start and are left in peace.

Nobody waits for ever, since there is one order, `rank`: priority, then arrival. Whoever is set aside goes on before any
newcomer behind it is let in; one that was ended keeps its place in the order when it comes back. The first of all is
never the one to make room. If nobody behind it can, blocks are held by reservations, prompts or several choices: it
stands still until those move on, which none of them needs it for. A request that no empty pool could take with all that
may follow was refused when it came, so the first of all fits once the others are gone.

Not thread-safe: the engine calls it under its lock.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from triptych.engine.blocks import BlockLedger
from triptych.engine.decode_places import DecodePlaces
from triptych.engine.margins import AnswerLengths
from triptych.engine.plan import Limits, Swap
from triptych.engine.sequence import DecodeSequence, blocks_for
from triptych.journey import RequestId

REMEMBERED_PLACES = 4096  # of requests that were ended, until they come back

Rank = tuple[int, int]


@dataclass(slots=True, eq=False)
class Settled:
    """What has been decided; `moves` in the order in which it was."""

    new_blocks: list[int] = field(default_factory=list)
    moves: list[Swap] = field(default_factory=list)
    ended: list[RequestId] = field(default_factory=list)


class Preemption:
    """Growth, stepping aside and coming back, over the places of one engine."""

    def __init__(self, ledger: BlockLedger, places: DecodePlaces, lengths: AnswerLengths, limits: Limits) -> None:
        self._pool = ledger.pool
        self._places = places
        self._lengths = lengths
        self._block_size = limits.block_size
        self._block_bytes = limits.block_bytes
        self._num_arrived = 0
        self._arrival_by_ended: OrderedDict[bytes, int] = OrderedDict()
        self._num_swapped = self._num_ended = self._num_stalled = self._num_resumed = 0
        self._blocks_out = self._blocks_in = 0

    def arrival(self, request_id: RequestId) -> int:
        """Its place among all that ever came: a new one, or, once, that which it had when it was ended to make room."""
        self._num_arrived += 1
        return self._arrival_by_ended.pop(_of_all_attempts(request_id), self._num_arrived)

    # Questions

    def lets_in(self, rank: Rank | None) -> bool:
        """Whether nobody that was set aside goes before one of this rank; None: before one that has no rank."""
        aside = self._places.aside
        return not aside or (rank is not None and rank < aside[0].rank)

    def headroom(self) -> int:
        """Free blocks that newcomers leave to those that decode: the next one of each that may grow.

        Without them whoever is let in would be the next to make room.
        """
        places = self._places
        return sum(
            branch.is_alone and len(branch.blocks) < branch.most_blocks(self._block_size)
            for branch in (*places.running, *places.queued)
        )

    def gauges(self) -> dict[str, float]:
        slots = self._places.slots
        return {
            "preempted_sequences": len(self._places.aside),
            "preemptions_swapped_total": self._num_swapped,
            "preemptions_stalled_total": self._num_stalled,
            "preemptions_ended_total": self._num_ended,
            "preemption_resumes_total": self._num_resumed,
            "swap_bytes": slots.num_slots * self._block_bytes,
            "swap_free_bytes": slots.num_free * self._block_bytes,
            "swapped_out_bytes_total": self._blocks_out * self._block_bytes,
            "swapped_in_bytes_total": self._blocks_in * self._block_bytes,
        }

    # Decisions

    def settle(self, into: Settled, is_shared: bool) -> None:
        """Bring back whom there is room for, then see that each running branch has a block for its next token.

        is_shared: whether prompts, or readers outside, have blocks that will come free
        """
        while self._places.aside and self._bring_back(self._places.aside[0], into, is_shared):
            pass
        needy = [branch for branch in self._places.run() if not branch.is_ready and branch.may_go_on]
        for branch in sorted(needy, key=_rank):
            if branch.is_running:
                self._grow(branch, into)

    def _bring_back(self, branch: DecodeSequence, into: Settled, is_shared: bool) -> bool:
        if branch.num_inflight:
            return False  # its last token is known to the device alone, in a row that is its no more
        places, pool = self._places, self._pool
        need = wanted = branch.missing_blocks(self._block_size)
        is_alone = not (places.running or places.queued or any(True for _ in places.reservations))
        if branch.slots and not is_alone:
            # As a newcomer with a margin, so that it is not the next to make room again.
            margin = min(self._lengths.margin(), branch.may_add - len(branch.tokens))
            wanted += self.headroom() + blocks_for(margin, self._block_size)
        elif not (is_alone and is_shared):
            # It stands still with all its KV, or nobody else moves: those behind it give what they have.
            while pool.num_free_blocks < need and self._make_room(branch.rank, into):
                pass
        if pool.num_free_blocks < wanted:
            return False
        slots = branch.slots
        new = places.bring_back(branch, need)
        into.new_blocks += new
        if slots:
            into.moves.append(Swap(tuple(new[: len(slots)]), slots, out=False))
            self._blocks_in += len(slots)
        self._num_resumed += 1
        return True

    def _grow(self, branch: DecodeSequence, into: Settled) -> None:
        """The blocks that its next step needs; or it is not running any more."""
        places = self._places
        need = branch.missing_blocks(self._block_size)
        while self._pool.num_free_blocks < need:
            if self._make_room(branch.rank, into):
                continue
            if self.lets_in(branch.rank):
                places.set_aside(branch, keep=len(branch.blocks))
                self._num_stalled += 1
            else:  # somebody before it waits for what it holds
                self._put_aside(branch, self._num_kept(branch, self._held_aside(branch.rank)), into)
            return
        into.new_blocks += places.grow(branch, need)

    def _make_room(self, rank: Rank, into: Settled) -> bool:
        """The last one behind this rank gives what it can, which may free blocks at once or when others follow.

        False where nobody has anything to give. One that ends anyway with the step that is launched is left alone.
        """
        places, held = self._places, self._held_aside(rank)
        behind = [
            branch
            for branch in (*places.running, *places.queued, *places.aside)
            if branch.is_alone and branch.rank > rank and branch.may_go_on
        ]
        for branch in sorted(behind, key=_rank, reverse=True):
            keep = self._num_kept(branch, held)
            if keep < len(branch.blocks):
                self._put_aside(branch, keep, into)
                return True
        return False

    def _held_aside(self, rank: Rank) -> Counter[int]:
        """How many of those aside, and behind this rank, have each block."""
        aside = (branch for branch in self._places.aside if branch.is_alone and branch.rank > rank)
        return Counter(block for branch in aside for block in branch.blocks.tolist())

    def _num_kept(self, branch: DecodeSequence, held_aside: Counter[int]) -> int:
        """Blocks at its beginning that stay: those that others use, who do not themselves make room for the same.

        Without that exception two could keep for each other what neither uses.
        """
        is_counted = branch in self._places.aside
        for place, block in enumerate(branch.blocks.tolist()):
            if self._pool.shares(block) - held_aside[block] + is_counted * (held_aside[block] > 0) <= 1:
                return place
        return len(branch.blocks)

    def _put_aside(self, branch: DecodeSequence, keep: int, into: Settled) -> None:
        """Its blocks behind the first so many go to the host; or its request ends."""
        end = blocks_for(branch.next_position, self._block_size) - len(branch.slots)
        out = tuple(branch.blocks[keep:end].tolist())  # behind that there is nothing written yet
        slots = self._places.slots.take(len(out))
        if slots is None:
            self._end(branch, into)
            return
        self._num_swapped += branch not in self._places.aside
        self._places.set_aside(branch, keep, slots)
        if out:
            into.moves.append(Swap(out, slots, out=True))
            self._blocks_out += len(out)

    def _end(self, branch: DecodeSequence, into: Settled) -> None:
        request_id = branch.request_id
        self._arrival_by_ended[_of_all_attempts(request_id)] = branch.rank[1]
        if len(self._arrival_by_ended) > REMEMBERED_PLACES:
            self._arrival_by_ended.popitem(last=False)
        self._places.drop(request_id)
        into.ended.append(request_id)
        self._num_ended += 1


def _of_all_attempts(request_id: RequestId) -> bytes:
    """Services put the attempt behind the request's own 16 bytes, and it comes back as the next attempt."""
    return request_id[:16]


def _rank(branch: DecodeSequence) -> Rank:
    return branch.rank
