"""A decode worker: blocks reserved before anything is sent, KV pulled into them, found again by the next prompt."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.transfer.model.network import Answer
from tests.transfer.model.owner import Owner, World
from tests.transfer.model.process import Process
from tests.transfer.model.pull import Consumer, Pull
from tests.transfer.model.values import Event, Prompt, Ref, contents
from triptych.engine.blocks import BlockLedger, BlockPool
from triptych.engine.prefix_index import PrefixIndex
from triptych.errors import ClaimExpired, TriptychError
from triptych.journey import ClaimId, Endpoint, RequestId
from triptych.transfer.protocol import takeover
from triptych.transfer.protocol.takeover import KVSpan, Takeover, TakeoverActions

DECODE_BLOCKS = 16
BLOCK_TOKENS = 4
_DONE = Event()
_DONE.happen()


@dataclass(slots=True, eq=False)
class Sequence:
    """One request here, from its reservation to its last token."""

    key: RequestId
    router: Endpoint
    prompt: Prompt
    takeover: Takeover
    hold_seconds: float
    reserved: Answer | None
    started: Answer | None = None
    blocks: list[int] = field(default_factory=list)
    hold: ClaimId | None = None


class Decode(Owner, Consumer):
    """Reserves in order of arrival; a sequence's blocks are whoever's they are until no pull writes into them."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process, DECODE_BLOCKS)
        self.start_consuming()
        self.landing = self.slab
        self.ledger = BlockLedger(BlockPool(DECODE_BLOCKS))
        self.index = PrefixIndex(self.ledger.pool)
        self._sequences: dict[RequestId, Sequence] = {}
        self._queue: deque[Sequence] = deque()

    # Calls

    def reserve(self, key: RequestId, router: Endpoint, prompt: Prompt, seconds: float, reply: Answer) -> None:
        """The number of blocks that are here already, once all are reserved."""
        self.require_unbroken(key, router)
        if key in self._sequences:
            return
        sequence = Sequence(key, router, prompt, self.world.planted.takeover(tokens_of(prompt)), seconds, reply)
        self._sequences[key] = sequence
        self._queue.append(sequence)
        self._admit()

    def kv(self, key: RequestId, ref: Ref) -> None:
        """Pull a chunk's blocks."""
        sequence = self._sequences.get(key)
        if ref.claim in self.pulls:
            return
        if sequence is None:
            self.give_back(ref.owner, ref.claim, stray=True)
            raise ClaimExpired("the reservation is gone")
        whole = tokens_of(sequence.prompt)
        begin, end = ref.begin * BLOCK_TOKENS, min(whole, (ref.begin + len(ref.units)) * BLOCK_TOKENS)
        span = KVSpan(ref.claim, ref.owner, begin, end, len(ref.units), BLOCK_TOKENS)
        self._do(sequence, sequence.takeover.ref(self.process.clock(), span), ref)

    def start(self, key: RequestId, reply: Answer) -> None:
        """Replied to once all KV is here."""
        sequence = self._sequences.get(key)
        if sequence is None:
            raise ClaimExpired("the reservation is gone")
        sequence.started = reply
        self._do(sequence, sequence.takeover.first(self.process.clock()))

    def cancel(self, key: RequestId) -> None:
        self.broken(key)
        sequence = self._sequences.get(key)
        if sequence is None:
            return
        if sequence.takeover.state is takeover.TakeoverState.STARTED:
            self._free(sequence)
        else:
            self._do(sequence, sequence.takeover.cancelled(self.process.clock()))

    def lost(self, endpoint: Endpoint) -> None:
        """A router's sequences end with it; a neighbour's blocks will not come."""
        for sequence in [sequence for sequence in self._sequences.values() if sequence.router == endpoint]:
            self.cancel(sequence.key)
        self.broken(endpoint)
        self.owner_lost(endpoint)

    # State

    def is_idle(self) -> bool:
        idle = not self._sequences and not self.pulls and self.ledger.is_empty and not len(self.leases)
        return idle and not len(self.keeper.machine)

    def check(self) -> None:
        self.check_leases()
        self.index.check()
        self.ledger.check(self._sequences)
        for sequence in self._sequences.values():
            sequence.takeover.check()

    # Inside

    def _admit(self) -> None:
        while self._queue:
            sequence = self._queue[0]
            if sequence.key not in self._sequences:
                self._queue.popleft()
                continue
            cached = self._reserve(sequence)
            if cached is None:
                return
            self._queue.popleft()
            self._do(sequence, sequence.takeover.reserved(self.process.clock(), cached * BLOCK_TOKENS))
            sequence.hold = self.grant(
                sequence.key, (), _DONE, sequence.hold_seconds, lambda s=sequence: self._expire(s)
            )
            reply, sequence.reserved = sequence.reserved, None
            if reply is not None:
                reply(cached)

    def _reserve(self, sequence: Sequence) -> int | None:
        """How many blocks of the prompt were here; None, and nothing is taken, without room for the others."""
        pool, prompt = self.ledger.pool, sequence.prompt
        found = self.index.find(keys_of(prompt), prompt.num_blocks - 1)  # type: ignore[arg-type]
        resting = sum(pool.shares(block) == 0 for block in found)
        if pool.num_free_blocks - resting < prompt.num_blocks - len(found):
            return None
        self.ledger.reuse(sequence.key, found)
        sequence.blocks = [*found, *self.ledger.reserve(sequence.key, prompt.num_blocks - len(found))]
        return len(found)

    def _do(self, sequence: Sequence, actions: TakeoverActions, ref: Ref | None = None) -> None:
        for action in actions:
            if isinstance(action, takeover.StartPull):
                assert ref is not None
                self._pull(sequence, ref)
            elif isinstance(action, takeover.DropPull):
                self.pulls[action.claim].cancel()
            elif isinstance(action, takeover.GiveBack):
                self.give_back(action.owner, action.claim, stray=True)
            elif isinstance(action, takeover.Start):
                self._decode(sequence)
            elif isinstance(action, takeover.Refuse):
                self._refuse(sequence, action.kind(action.reason))
            else:
                self._free(sequence)

    def _stamp(self, block: int) -> object:
        """Who else has the block, and since when: while a pull writes into it, nobody has, and nothing changes."""
        shares = self.ledger.pool.shares(block)
        return (self.ledger.pool.generation(block), shares, "free" if shares == 0 else "")

    def _pull(self, sequence: Sequence, ref: Ref) -> None:
        places = range(ref.begin, ref.begin + len(ref.units))

        def failed(kind: type[TriptychError], reason: str) -> None:
            self._do(sequence, sequence.takeover.pull_failed(self.process.clock(), ref.claim, kind, reason))

        def landed() -> None:
            self._do(sequence, sequence.takeover.pull_landed(self.process.clock(), ref.claim))

        blocks = [sequence.blocks[place] for place in places]
        for block in blocks:
            self.world.oracle.hold(self.ledger.pool.shares(block) == 1, f"block {block} is shared and would be written")
        Pull(self, sequence, ref, blocks, contents(sequence.prompt.name, places), self._stamp, landed, failed)

    def _decode(self, sequence: Sequence) -> None:
        self._read(sequence)
        self._publish(sequence)
        self._end_hold(sequence)
        reply, sequence.started = sequence.started, None
        if reply is not None:
            reply("started")
        self.process.later(self.world.random.uniform(0.01, 0.8), "decode", self._finish, sequence)

    def _finish(self, sequence: Sequence) -> None:
        if self._sequences.get(sequence.key) is sequence:
            self._read(sequence)
            self._free(sequence)
            self.world.network.tell(self.process, sequence.router, "finished", "finished", sequence.key)

    def _read(self, sequence: Sequence) -> None:
        """What attention sees."""
        wanted = contents(sequence.prompt.name, range(sequence.prompt.num_blocks))
        self.world.oracle.reads_right(self.process, self.landing.units(sequence.blocks), wanted)

    def _publish(self, sequence: Sequence) -> None:
        """Its full blocks may be found from now on."""
        parent: int | None = None
        for key, block in list(zip(keys_of(sequence.prompt), sequence.blocks, strict=True))[:-1]:
            if block not in self.index and not self.index.publish(key, parent, block):
                return
            parent = block

    def _refuse(self, sequence: Sequence, error: TriptychError) -> None:
        for reply in (sequence.reserved, sequence.started):
            if reply is not None:
                reply(error)
        sequence.reserved = sequence.started = None

    def _expire(self, sequence: Sequence) -> None:
        sequence.hold = None
        self._do(sequence, sequence.takeover.expired(self.process.clock()))

    def _end_hold(self, sequence: Sequence) -> None:
        hold, sequence.hold = sequence.hold, None
        if hold is not None:
            self.release([hold])

    def _free(self, sequence: Sequence) -> None:
        self._sequences.pop(sequence.key, None)
        self.broken(sequence.key)
        self.ledger.free(sequence.key)
        self.world.oracle.check_destinations(self.process)
        self._end_hold(sequence)
        self._admit()


def tokens_of(prompt: Prompt) -> int:
    """Of all its blocks but one token, so that the last block is never full."""
    return prompt.num_blocks * BLOCK_TOKENS - 1


def keys_of(prompt: Prompt) -> Any:
    return [prompt.name + place.to_bytes(4, "big") for place in range(prompt.num_blocks)]
