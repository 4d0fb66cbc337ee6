"""A crowd of requests over a scheduler that has blocks for a third of them, and a memory that knows whose KV it holds.

The crowd plays engine, device and router: it stamps and moves what it is told to, writes a tag for every token's KV,
and reads all tags of a sequence back before each of its steps. A request that was ended to make room comes again with
the tokens it has, as the router would have it.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.engine.books import BLOCK_SIZE, cached, prompt, request_id, reservation
from tests.multimodal.parts import text
from triptych.engine.plan import Swap
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, PrefillSequence, Reservation
from triptych.journey import Layout, RequestId
from triptych.sampling import Sampling

Tag = object
UNWRITTEN = "unwritten"


@dataclass(eq=False)
class Visitor:
    """One request. lengths: of its answers, by branch, at which a stop token comes; max_tokens may end them earlier."""

    id: RequestId
    number: int
    family: int
    prompt_tokens: int
    layout: Layout
    max_tokens: int
    lengths: tuple[int, ...]
    priority: int
    has_keys: bool
    said: list[list[int]] = field(default_factory=list)  # tokens delivered, by branch
    held: Reservation | None = None
    kv_in: int = 0  # turns until its KV has landed
    attempts: int = 0
    arrived: int = 0  # turn

    @property
    def branches(self) -> int:
        return len(self.lengths)

    def answer(self, branch: int) -> list[int]:
        """All that it must have said in the end."""
        return [self.token(branch, position) for position in range(min(self.lengths[branch], self.max_tokens))]

    def token(self, branch: int, position: int) -> int:
        return hash((self.number, branch, position)) % 1000

    def tag(self, branch: int, place: int) -> Tag:
        """Of the KV of one token of a branch; prompts of one family begin alike."""
        if place < self.prompt_tokens:
            return ("prompt", self.family if self.has_keys else self.id, place)
        return ("said", self.id, branch, place - self.prompt_tokens)


@dataclass(eq=False)
class Crowd:
    rng: random.Random
    books: Scheduler
    pipelined: bool
    most: int = 24  # visitors at once
    several: float = 0.15  # share of those with several choices
    urgent: float = 0.0  # share of those with a priority
    departures: float = 0.01
    turn: int = 0
    number: int = 0
    visitors: dict[RequestId, Visitor] = field(default_factory=dict)
    prefills: list[PrefillSequence] = field(default_factory=list)  # whose KV is decoded elsewhere
    lent: list[list[int]] = field(default_factory=list)
    slab: dict[int, list[Tag]] = field(default_factory=dict)
    host: dict[int, list[Tag]] = field(default_factory=dict)
    flying: list[DecodeSequence] = field(default_factory=list)  # launched, and not read yet
    seen: Counter[str] = field(default_factory=Counter)
    waits: list[int] = field(default_factory=list)  # turns from arrival to the end

    # One turn, in the engine's order

    def step(self, arrivals: bool = True) -> None:
        self.turn += 1
        if arrivals and len(self.visitors) < self.most:
            self.arrive()
        self.land()
        self.leave()
        self.admit()
        self.books.check()
        launched = self.launch()
        if self.pipelined:
            self.flying, launched = launched, self.flying
        for branch in launched:
            self.conclude(branch)
        self.books.check()

    def arrive(self) -> None:
        self.number += 1
        rng = self.rng
        family, has_keys = rng.randrange(4), rng.random() < 0.7
        if rng.random() < 0.1:
            self.books.add_prefill(prompt(10_000 + self.number, [text(rng.randrange(1, 30))]))
            return
        size = rng.randrange(1, 40)
        parts = [text(size, first=100 * family)]
        count = rng.randrange(2, 4) if rng.random() < self.several else 1
        most = rng.choice([1, 5, 20, 60]) + 1
        visitor = Visitor(
            id=request_id(self.number),
            number=self.number,
            family=family,
            prompt_tokens=size,
            layout=cached(self.number, parts).layout,
            max_tokens=most,
            lengths=tuple(rng.randrange(2, 2 * most + 1) for _ in range(count)),
            priority=rng.choice([-1, 1]) if rng.random() < self.urgent else 0,
            has_keys=has_keys,
            said=[[] for _ in range(count)],
            arrived=self.turn,
        )
        most_blocks = self.held_by(visitor).most_blocks
        if most_blocks <= self.books.ledger.pool.num_blocks:
            self.visitors[visitor.id] = visitor
            self.reserve(visitor)

    def reserve(self, visitor: Visitor) -> None:
        visitor.held = self.held_by(visitor)
        self.books.add_reservation(visitor.held)

    def held_by(self, visitor: Visitor) -> Reservation:
        said = tuple(visitor.said[0])
        held = reservation(
            visitor.number, visitor.prompt_tokens + len(said), visitor.max_tokens - len(said), visitor.branches
        )
        held.attempt, held.priority = visitor.attempts, visitor.priority
        if visitor.has_keys:
            held.keys = cached(visitor.number, [text(visitor.prompt_tokens, first=100 * visitor.family)], said).keys
        return held

    def admit(self) -> None:
        admitted = self.books.admit()
        for move in admitted.moves:
            self.move(move)
        filled = {block for move in admitted.moves if not move.out for block in move.blocks}
        for ref in admitted.new_blocks:
            if ref.id not in filled:
                self.slab[ref.id] = [UNWRITTEN] * BLOCK_SIZE
        for id in admitted.ended:
            self.seen["ended"] += 1
            visitor = self.visitors[id]
            assert visitor.branches == 1, "several choices cannot be continued elsewhere"
            assert visitor.said[0], "whoever makes room has said something"
            visitor.attempts += 1
            self.reserve(visitor)
        for held in admitted.reservations:
            self.visitors[held.request_id].kv_in = self.rng.randrange(1, 6)
        self.prefills += admitted.prefills

    def move(self, move: Swap) -> None:
        for block, slot in zip(move.blocks, move.slots, strict=True):
            if move.out:
                self.seen["swapped out"] += 1
                self.host[slot] = list(self.slab[block])
            else:
                self.seen["swapped in"] += 1
                self.slab[block] = list(self.host[slot])

    def land(self) -> None:
        """KV comes from elsewhere, and decoding starts; prompts for elsewhere are computed."""
        for visitor in list(self.visitors.values()):
            if visitor.kv_in and self.books.reservation(visitor.id) is not None:
                visitor.kv_in -= 1
                if not visitor.kv_in:
                    self.start(visitor)
        for sequence in self.prefills[:]:
            if self.rng.random() < 0.3:
                self.prefills.remove(sequence)
                self.lent.append(list(sequence.blocks))
                self.books.ledger.lend(sequence.blocks)
                self.books.drop_prefill(sequence.request_id)
        for blocks in self.lent[:]:
            if self.rng.random() < 0.3:
                self.lent.remove(blocks)
                self.books.take_back(blocks)

    def start(self, visitor: Visitor) -> None:
        held = self.books.reservation(visitor.id)
        assert held is not None
        for place in range(held.num_cached_blocks * BLOCK_SIZE, held.prompt_tokens):
            self.write(held.prompt_blocks, place, visitor.tag(0, place))
        self.books.prompt_landed(held)
        said = list(visitor.said[0])
        going = []
        for branch in range(visitor.branches):
            position = len(said)
            visitor.said[branch] = [*said, visitor.token(branch, position)]
            if position + 1 < len(visitor.answer(branch)):
                going.append(branch)
        if not going:
            self.books.drop_decode(visitor.id)
            self.finish(visitor)
            return
        copies = held.tail_copies(going)
        sampling = Sampling(max_tokens=visitor.max_tokens)
        self.books.start_decode(
            [
                DecodeSequence(
                    *(visitor.id, visitor.attempts, branch, branch, visitor.layout, sampling),
                    [*visitor.said[branch]],
                )
                for branch in going
            ]
        )
        for source, target in copies:
            self.slab[target] = list(self.slab[source])

    def launch(self) -> list[DecodeSequence]:
        launched = []
        for branch in self.books.plan().decodes:
            assert not branch.slots
            assert branch.num_inflight <= int(self.pipelined)
            visitor = self.visitors[branch.request_id]
            place = branch.next_position
            places = range(place) if len(branch.tokens) % 8 == 1 else self.rng.sample(range(place), min(place, 6))
            for earlier in places:  # all of them after a start, some of them always: half of the test's time is here
                assert self.read(branch.blocks.tolist(), earlier) == visitor.tag(branch.branch, earlier)
            last = branch.blocks.tolist()[place // BLOCK_SIZE]
            assert self.books.ledger.pool.shares(last) == 1, "nobody writes into what others read"
            self.write(branch.blocks.tolist(), place, visitor.tag(branch.branch, place))
            branch.num_inflight += 1
            launched.append(branch)
        self.seen["steps"] += bool(launched)
        return launched

    def conclude(self, branch: DecodeSequence) -> None:
        branch.num_inflight -= 1
        if not self.books.holds_branch(branch):
            return  # it has ended, or its request was ended, or has left
        visitor = self.visitors[branch.request_id]
        token = visitor.token(branch.branch, len(branch.tokens))
        branch.tokens.append(token)
        visitor.said[branch.branch].append(token)
        assert branch.tokens == visitor.said[branch.branch]
        if len(branch.tokens) == len(visitor.answer(branch.branch)):
            self.books.finish_branch(branch)
            if not self.books.is_decoding(visitor.id):
                self.finish(visitor)

    def finish(self, visitor: Visitor) -> None:
        assert visitor.said == [visitor.answer(branch) for branch in range(visitor.branches)]
        del self.visitors[visitor.id]
        self.seen["finished"] += 1
        self.waits.append(self.turn - visitor.arrived)

    def leave(self) -> None:
        if self.visitors and self.rng.random() < self.departures:
            gone = self.rng.choice(sorted(self.visitors))
            self.books.drop_decode(gone)
            del self.visitors[gone]

    # Memory

    def write(self, blocks: Sequence[int], place: int, tag: Tag) -> None:
        self.slab.setdefault(blocks[place // BLOCK_SIZE], [UNWRITTEN] * BLOCK_SIZE)[place % BLOCK_SIZE] = tag

    def read(self, blocks: Sequence[int], place: int) -> Tag:
        return self.slab[blocks[place // BLOCK_SIZE]][place % BLOCK_SIZE]

    # The end

    def run(self, turns: int) -> None:
        """So many turns with arrivals, then until everybody has gone."""
        for _ in range(turns):
            self.step()
        self.departures = 0.0
        for _ in range(5000):
            if not (self.visitors or self.books.prefill_ids() or self.lent or self.flying):
                break
            self.step(arrivals=False)
        assert not self.visitors, f"{len(self.visitors)} requests wait for ever"
        assert self.books.is_idle()
        assert self.books.ledger.pool.num_free_blocks == self.books.ledger.pool.num_blocks
        gauges = self.books.gauges()
        assert gauges["swap_free_bytes"] == gauges["swap_bytes"]
