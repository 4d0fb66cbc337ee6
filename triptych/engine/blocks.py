"""KV blocks as numbers: which are free, who holds the others, and how often each was handed out anew.

`BlockPool` counts shares of single blocks. `BlockLedger` puts a name on every share, so that whoever ends gives back
exactly what it held, once, and `check()` can prove that nothing else is out.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence

from triptych.errors import InvariantViolation, Overloaded
from triptych.journey import BlockRef


class OutOfBlocks(Overloaded):
    """Fewer blocks are free than were asked for; ask again once somebody has released some."""


class BlockPool:
    """A fixed number of KV blocks; a block is free again when its last share is released.

    Blocks are reused in the order in which they became free: the longer a freed block rests, the likelier a late
    reader still finds what it came for. Blocks whose content is kept for whoever needs it again go last.

    on_reuse: called with a kept block before it is given to somebody else; must `forget` it, and may forget others
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.on_reuse: Callable[[int], None] = self.forget
        self.kept: set[int] = set()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # free, and kept
        self._shares = [0] * num_blocks
        self._generations = [0] * num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Those among them whose content is kept included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached_blocks(self) -> int:
        """Free ones whose content is kept."""
        return len(self._cached)

    def reserve(self, n: int) -> list[int]:
        """Ids of n free blocks, one share of each, their generations bumped. Raises OutOfBlocks and takes none."""
        if n > self.num_free_blocks:
            raise OutOfBlocks(f"{n} blocks asked for, {self.num_free_blocks} of {self.num_blocks} are free")
        ids = [self._take() for _ in range(n)]
        for id in ids:
            self._shares[id] = 1
            self._generations[id] += 1
        return ids

    def revive(self, ids: Iterable[int]) -> None:
        """One share of each block, whose content is kept and stays as it is: its generation, too.

        Raises InvariantViolation for one whose content is not kept, and takes none.
        """
        ids = list(ids)
        for id in ids:
            if id not in self.kept:
                raise InvariantViolation(f"the content of block {id} is not kept")
        for id in ids:
            self._cached.pop(id, None)
            self._shares[id] += 1

    def share(self, ids: Iterable[int]) -> None:
        """One more share of each block. Raises InvariantViolation for a free one, and shares none."""
        ids = list(ids)
        for id in ids:
            if self.shares(id) == 0:
                raise InvariantViolation(f"block {id} is free and cannot be shared")
        for id in ids:
            self._shares[id] += 1

    def release(self, ids: Iterable[int]) -> None:
        """One share of each block less. Raises InvariantViolation for a share nobody holds, and releases none."""
        ids = list(ids)
        for id, count in Counter(ids).items():
            if self.shares(id) < count:
                raise InvariantViolation(f"{count} shares of block {id} released, {self.shares(id)} are held")
        for id in ids:
            self._shares[id] -= 1
            if self._shares[id] == 0:
                (self._cached if id in self.kept else self._free)[id] = None

    def keep(self, id: int) -> None:
        """What is in this block, which somebody holds, may be used again when it is free."""
        if self.shares(id) == 0:
            raise InvariantViolation(f"block {id} is free, its content belongs to nobody")
        self.kept.add(id)

    def forget(self, id: int) -> None:
        """The block's content is of no use any more. Idempotent."""
        self.kept.discard(id)
        if id in self._cached:
            del self._cached[id]
            self._free[id] = None

    def rest(self, ids: Iterable[int]) -> None:
        """Those that are free and kept count as freed just now, in this order; the rest are left alone."""
        for id in ids:
            if id in self._cached:
                self._cached.move_to_end(id)

    def shares(self, id: int) -> int:
        if not 0 <= id < self.num_blocks:
            raise InvariantViolation(f"block {id} does not exist, the pool has {self.num_blocks}")
        return self._shares[id]

    def generation(self, id: int) -> int:
        """How often the block has been reserved; 0: never."""
        return self._generations[id]

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        if twice := self._free.keys() & self._cached.keys():
            raise InvariantViolation(f"block {min(twice)} is free twice")
        for id, shares in enumerate(self._shares):
            if shares < 0:
                raise InvariantViolation(f"block {id} has {shares} shares")
            is_free = id in self._free or id in self._cached
            if (shares == 0) != is_free:
                raise InvariantViolation(f"block {id} has {shares} shares and is {'' if is_free else 'not '}free")
            if is_free and (id in self._cached) != (id in self.kept):
                raise InvariantViolation(
                    f"free block {id} is {'' if id in self.kept else 'not '}kept, in the wrong list"
                )

    def _take(self) -> int:
        if not self._free:
            oldest = next(iter(self._cached))
            self.on_reuse(oldest)
            if oldest not in self._free:
                raise InvariantViolation(f"block {oldest} is kept, though it is needed")
        return self._free.popitem(last=False)[0]


class BlockLedger:
    """Every share of every block under the name of its holder, or among those lent to readers outside.

    Not thread-safe: the engine calls it under its lock.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self._held: dict[Hashable, list[int]] = {}
        self._lent: Counter[int] = Counter()

    @property
    def num_lent_shares(self) -> int:
        return self._lent.total()

    @property
    def is_empty(self) -> bool:
        return not self._held and not self._lent

    def held(self, holder: Hashable) -> tuple[int, ...]:
        return tuple(self._held.get(holder, ()))

    def reserve(self, holder: Hashable, n: int) -> list[int]:
        """n blocks nobody else has, for holder. Raises OutOfBlocks."""
        ids = self.pool.reserve(n)
        self._held.setdefault(holder, []).extend(ids)
        return ids

    def share(self, holder: Hashable, ids: Sequence[int]) -> None:
        """Blocks that are in use already, for holder too."""
        self.pool.share(ids)
        self._held.setdefault(holder, []).extend(ids)

    def reuse(self, holder: Hashable, ids: Sequence[int]) -> None:
        """Blocks whose content is kept, in use or free, for holder too."""
        self.pool.revive(ids)
        self._held.setdefault(holder, []).extend(ids)

    def exchange(self, holder: Hashable, old: Sequence[int], new: Sequence[int]) -> None:
        """Holder's share of each old block for one of a new block, whose content is kept, in the same place.

        Raises InvariantViolation, and changes nothing, for an old block that holder has not.
        """
        held = self._held.get(holder, [])
        by_old = dict(zip(old, new, strict=True))
        if not set(old) <= set(held):
            raise InvariantViolation(f"{holder} gives up blocks that it does not hold")
        self.pool.revive(new)
        self._held[holder] = [by_old.get(id, id) for id in held]
        self.pool.release(old)

    def shrink(self, holder: Hashable, keep: int) -> None:
        """Holder keeps its first so many blocks; the last goes first, as in `free`."""
        held = self._held[holder]
        self.pool.release(reversed(held[keep:]))
        del held[keep:]

    def free(self, holder: Hashable) -> None:
        """Everything holder has, last blocks first: the beginning of a prompt is of use to more others than its end.

        Nothing when it has nothing.
        """
        self.pool.release(reversed(self._held.pop(holder, [])))

    def lend(self, ids: Sequence[int]) -> tuple[BlockRef, ...]:
        """A share of each block for a reader outside, who gives it back by take_back."""
        self.pool.share(ids)
        self._lent.update(ids)
        return tuple(BlockRef(id, self.pool.generation(id)) for id in ids)

    def take_back(self, ids: Sequence[int]) -> None:
        """Raises InvariantViolation when a share was never lent, and takes none back."""
        for id, count in Counter(ids).items():
            if self._lent[id] < count:
                raise InvariantViolation(f"{count} shares of block {id} given back, {self._lent[id]} are lent")
        self.pool.release(reversed(ids))
        for id in ids:
            self._lent[id] -= 1
            if self._lent[id] == 0:
                del self._lent[id]

    def check(self, holders: Iterable[Hashable]) -> None:
        """Raises InvariantViolation unless exactly these holders, and the lent shares, make up the pool's shares."""
        self.pool.check()
        strangers = set(self._held) - set(holders)
        if strangers:
            raise InvariantViolation(f"{min(map(str, strangers))} holds blocks and is gone")
        counted = Counter(self._lent)
        for ids in self._held.values():
            counted.update(ids)
        for id in range(self.pool.num_blocks):
            shares = self.pool.shares(id)
            if counted[id] != shares:
                raise InvariantViolation(f"block {id} has {shares} shares, {counted[id]} are held or lent")
