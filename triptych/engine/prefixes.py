"""The prefix cache as prompts use it: how much of one is there already, who waits for whom, and what is published.

A prompt publishes its blocks one after the other as their work is launched, and names the next one beforehand: prompts
that need that block wait for it instead of computing it too. Whoever waits holds nothing and holds up nobody; the one
waited for has all its room, so it moves on or ends.
"""

from collections.abc import Sequence

from triptych.engine.block_keys import BlockKeys
from triptych.engine.blocks import BlockPool
from triptych.engine.prefix_index import PrefixIndex
from triptych.engine.sequence import PrefillSequence, Reservation
from triptych.errors import InvariantViolation
from triptych.journey import RequestId


class Prefixes:
    """Lookups when a prompt is scheduled, publication as it is computed. Prompts without keys take no part."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._index = PrefixIndex(pool)
        self._block_size = block_size
        self._prompts: dict[RequestId, PrefillSequence] = {}  # admitted ones with keys
        self.num_looked_up = 0  # tokens of admitted prompts, ever
        self.num_hit = 0  # of those, whose KV was there

    def look(self, prompt: PrefillSequence) -> tuple[int, ...] | None:
        """Blocks that this waiting prompt can begin with, or None: somebody is computing its next one, wait for it.

        At least one token is left to compute, and the beginning does not end inside an atomic span.
        """
        keys = prompt.keys
        if keys is None:
            return ()
        if prompt.awaited is not None and self._index.is_awaited(prompt.awaited):
            return None
        prompt.awaited = None
        most = self._most(prompt.num_tokens)
        blocks = self._index.find(keys, most)
        if len(blocks) < most and self._index.is_awaited(keys[len(blocks)]):
            prompt.awaited = keys[len(blocks)]
            return None
        return blocks[: keys.legal(len(blocks))]

    def find(self, keys: BlockKeys | None, num_tokens: int) -> tuple[int, ...]:
        """Blocks that a prompt of so many tokens can begin with, as `look` gives them, and waiting for nobody."""
        if keys is None:
            return ()
        blocks = self._index.find(keys, self._most(num_tokens))
        return blocks[: keys.legal(len(blocks))]

    def begin(self, prompt: PrefillSequence) -> None:
        """The prompt has room, and its num_cached tokens; from here on others wait for what it computes."""
        if prompt.keys is None:
            return
        self.num_looked_up += prompt.num_tokens
        self.num_hit += prompt.num_cached
        self._prompts[prompt.request_id] = prompt
        prompt.num_published = prompt.num_cached // self._block_size
        self._intend(prompt)

    def publish(self, prompt: PrefillSequence) -> None:
        """Work is launched up to num_computed: its full blocks can be found. All later work runs behind it."""
        if prompt.keys is None or not prompt.publishes:
            return
        self._index.withdraw(prompt.request_id)
        for place in range(prompt.num_published, prompt.num_computed // self._block_size):
            parent = prompt.blocks[place - 1] if place else None
            if not self._index.publish(prompt.keys[place], parent, prompt.blocks[place]):
                prompt.publishes = False
                return
            prompt.num_published += 1
        self._intend(prompt)

    def settle(self, held: Reservation) -> None:
        """The prompt's KV lies, verified, in the blocks reserved for it: its full ones can be found from now on.

        As far as nobody else's are found, or being computed here.
        """
        keys, num_blocks = held.keys, held.num_shared_blocks
        if keys is None:
            return
        for place in range(len(self._index.find(keys, num_blocks)), num_blocks):
            parent = held.blocks[place - 1] if place else None
            if self._index.is_awaited(keys[place]) or not self._index.publish(keys[place], parent, held.blocks[place]):
                return

    def leave(self, request_id: RequestId) -> None:
        """The prompt has ended. What it has published stays; whoever waits for more of it goes on alone. Idempotent."""
        self._prompts.pop(request_id, None)
        self._index.withdraw(request_id)

    def spoil(self, blocks: Sequence[int]) -> None:
        """A step with these blocks has gone wrong: forget all it has read or written, and what was built upon that.

        What it has only read goes too: were that the cause, every later prompt would find it, and fail, again.
        """
        for block in blocks:
            self._index.forget(block)
        for other in self._prompts.values():
            if other.publishes and other.num_published and other.blocks[other.num_published - 1] not in self._index:
                other.publishes = False
                self._index.withdraw(other.request_id)

    def knows(self, block: int) -> bool:
        """Whether the block can be found."""
        return block in self._index

    def overwrite(self, ids: Sequence[int]) -> None:
        """These blocks are about to be computed anew: nobody may find what is in them."""
        for block in ids:
            self._index.forget(block)

    def rest(self, ids: Sequence[int]) -> None:
        """Blocks were given back, in order: let those above them rest as long, without which they cannot be found."""
        if ids:
            self._pool.rest(self._index.path(ids[0]))

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        self._index.check()
        for prompt in self._prompts.values():
            self._check_prompt(prompt)

    def check_held(self, held: Reservation) -> None:
        """Raises InvariantViolation when blocks that a reservation began with are found no more, and it does not know.

        Whoever computes the prompt into it finds those first, and would else write where others read.
        """
        mine = held.blocks[: held.num_cached_blocks]
        if mine and not held.is_baseless and (held.keys is None or self._index.find(held.keys, len(mine)) != mine):
            raise InvariantViolation(f"a reservation began with {len(mine)} cached blocks that are not found any more")

    def _check_prompt(self, prompt: PrefillSequence) -> None:
        intended = self._index.intended(prompt.request_id)
        wanted = None
        if prompt.keys is not None and prompt.publishes:
            wanted = prompt.keys[prompt.num_published]
            mine = prompt.blocks[: prompt.num_published]
            if self._index.find(prompt.keys, prompt.num_published) != mine:
                raise InvariantViolation("a prompt publishes behind blocks that are not its own")
        if intended != wanted:
            raise InvariantViolation("a prompt publishes another block next than the one others wait for")

    def _intend(self, prompt: PrefillSequence) -> None:
        keys, place = prompt.keys, prompt.num_published
        prompt.publishes = keys is not None and place < len(keys) and self._index.intend(keys[place], prompt.request_id)

    def _most(self, num_tokens: int) -> int:
        """Blocks that a hit may have: one token at least is left to compute, and its block to be sent."""
        return (num_tokens - 1) // self._block_size
