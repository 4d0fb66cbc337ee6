"""Which KV blocks hold the beginning of which prompts: a tree of block keys over the block pool.

A block may be found again for as long as nobody else has got it: while it is in use, and after that for as long as it
rests in the pool. Two rules make a hit safe.

    A block is indexed only below the very block it was computed behind. So whoever follows keys from the root reads
    blocks that were computed on top of one another, never a mixture of equal ones.
    A block that leaves takes all blocks below it with it. So what was computed from KV that turned out to be broken
    cannot be found again, nor get a new block below it.
"""

from dataclasses import dataclass, field

from triptych.engine.block_keys import BlockKeys
from triptych.engine.blocks import BlockPool
from triptych.errors import InvariantViolation
from triptych.journey import RequestId


@dataclass(slots=True)
class _Node:
    key: bytes
    parent: int | None  # block; None: the first of a prompt
    children: set[int] = field(default_factory=set)


class PrefixIndex:
    """Keys of blocks whose KV is written, or will be by work that is launched, and keys that somebody is computing."""

    def __init__(self, pool: BlockPool) -> None:
        """Takes over what the pool does before it gives a remembered block to somebody else."""
        self._pool = pool
        self._block_by_key: dict[bytes, int] = {}
        self._nodes: dict[int, _Node] = {}  # by block
        self._producer_by_key: dict[bytes, RequestId] = {}
        self._key_by_producer: dict[RequestId, bytes] = {}  # the one it publishes next
        pool.on_reuse = self.forget

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: int) -> bool:
        return block in self._nodes

    def find(self, keys: BlockKeys, most: int) -> tuple[int, ...]:
        """Blocks of the longest known beginning, at most so many. Changes nothing; a found one may be free."""
        blocks: list[int] = []
        for place in range(most):
            block = self._block_by_key.get(keys[place])
            if block is None or self._nodes[block].parent != (blocks[-1] if blocks else None):
                break
            blocks.append(block)
        return tuple(blocks)

    def path(self, block: int) -> list[int]:
        """The blocks above an indexed one, nearest first; none for one that is not."""
        above: list[int] = []
        node = self._nodes.get(block)
        while node is not None and node.parent is not None:
            above.append(node.parent)
            node = self._nodes.get(node.parent)
        return above

    # Producers

    def is_awaited(self, key: bytes) -> bool:
        """Whether a live prompt computes this block next."""
        return key in self._producer_by_key

    def intend(self, key: bytes, producer: RequestId) -> bool:
        """Announce the next block a prompt will publish; it has one at a time. False when it is there or another's."""
        self.withdraw(producer)
        if key in self._block_by_key or key in self._producer_by_key:
            return False
        self._producer_by_key[key] = producer
        self._key_by_producer[producer] = key
        return True

    def withdraw(self, producer: RequestId) -> None:
        """The prompt publishes nothing more, or is about to. Idempotent."""
        key = self._key_by_producer.pop(producer, None)
        if key is not None:
            del self._producer_by_key[key]

    def intended(self, producer: RequestId) -> bytes | None:
        return self._key_by_producer.get(producer)

    # Blocks

    def publish(self, key: bytes, parent: int | None, block: int) -> bool:
        """Let a held block be found, below the block it was computed behind.

        False, and nothing changes, when that parent cannot be found any more, or an equal block is there already.
        """
        if key in self._block_by_key or not (parent is None or parent in self._nodes):
            return False
        if block in self._nodes:
            raise InvariantViolation(f"block {block} is published twice")
        self._pool.keep(block)
        self._block_by_key[key] = block
        self._nodes[block] = _Node(key, parent)
        if parent is not None:
            self._nodes[parent].children.add(block)
        return True

    def forget(self, block: int) -> None:
        """Never find this block again, nor any block below it. Idempotent; whoever holds them keeps them."""
        top = self._nodes.get(block)
        if top is None:
            return
        if top.parent is not None:
            self._nodes[top.parent].children.discard(block)
        waiting = [block]
        while waiting:
            gone = waiting.pop()
            node = self._nodes.pop(gone)
            del self._block_by_key[node.key]
            self._pool.forget(gone)
            waiting.extend(node.children)

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        if {block: node.key for block, node in self._nodes.items()} != {b: k for k, b in self._block_by_key.items()}:
            raise InvariantViolation("keys and blocks of the prefix index do not match")
        if self._pool.kept != self._nodes.keys():
            raise InvariantViolation(f"{len(self._pool.kept)} blocks are kept, {len(self._nodes)} are indexed")
        for block, node in self._nodes.items():
            if node.parent is not None and block not in self._nodes[node.parent].children:
                raise InvariantViolation(f"block {block} is not among the children of block {node.parent}")
            if any(self._nodes[child].parent != block for child in node.children):
                raise InvariantViolation(f"block {block} has a child that names another parent")
        if {key: who for who, key in self._key_by_producer.items()} != self._producer_by_key:
            raise InvariantViolation("two prompts compute one block, or one prompt two")
        if self._producer_by_key.keys() & self._block_by_key.keys():
            raise InvariantViolation("a block is awaited that is there")
