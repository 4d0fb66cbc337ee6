"""How a worker's KV lies in its blocks, and which other lies can be made of it on the way.

A block is one contiguous piece [layers, 2 (keys, values), block_size, heads, head_size] of dtype. Two workers that
have the same format copy blocks; where block sizes or heads differ, tokens and heads find their places
(transfer/repack.py). Nothing is computed on the way, so dtype, scales and model must be the same.
"""

from dataclasses import dataclass, replace

from blake3 import blake3

from triptych.dtypes import DTYPE_BYTES
from triptych.errors import InvalidRecord

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class KVFormat:
    """KV of one rank's arena.

    heads:       kept there
    dtype:       torch's name
    first_head:  of all heads of the model; 0 without tensor parallelism
    total_heads: of the model; 0 is taken as `heads`
    scaling:     names what the numbers are divided by; empty: by nothing
    """

    layers: int
    block_size: int
    heads: int
    head_size: int
    dtype: str
    first_head: int = 0
    total_heads: int = 0
    scaling: str = ""

    def __post_init__(self) -> None:
        if not self.total_heads:
            object.__setattr__(self, "total_heads", self.heads)
        if min(self.layers, self.block_size, self.heads, self.head_size) < 1:
            raise InvalidRecord(f"a KV format of {self}; layers, sizes and heads must be > 0")
        if self.dtype not in DTYPE_BYTES:
            raise InvalidRecord(f"a KV format of dtype {self.dtype!r}, expected one of {', '.join(DTYPE_BYTES)}")
        if not 0 <= self.first_head <= self.total_heads - self.heads:
            raise InvalidRecord(
                f"a KV format of heads [{self.first_head}, {self.end_head}), the model has {self.total_heads}"
            )

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, blocks of {self.block_size} tokens, heads [{self.first_head}, {self.end_head}) of "
            f"{self.total_heads}, {self.head_size} numbers of {self.dtype} each" + self._scaled
        )

    @property
    def _scaled(self) -> str:
        return f", scaled as {self.scaling}" if self.scaling else ""

    @property
    def end_head(self) -> int:
        return self.first_head + self.heads

    @property
    def planes(self) -> int:
        """Pieces of block_size tokens in a block: keys and values of every layer."""
        return 2 * self.layers

    @property
    def head_bytes(self) -> int:
        """One head of one token of one plane."""
        return self.head_size * DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.planes * self.block_size * self.heads * self.head_bytes

    @property
    def digest(self) -> bytes:
        """16 bytes: equal where blocks can be copied as they are."""
        facts = (self.layers, self.block_size, self.heads, self.head_size, self.dtype, self.first_head)
        return blake3(repr((*facts, self.total_heads, self.scaling)).encode()).digest(DIGEST_BYTES)

    def of_rank(self, rank: int) -> "KVFormat":
        """Another rank's of the same worker: each has as many heads, in order. `self` is rank 0's.

        Raises InvalidRecord for a rank that would have heads beyond the model's.
        """
        return replace(self, first_head=self.first_head + rank * self.heads) if rank else self


def repack_refusal(theirs: KVFormat, mine: KVFormat) -> str:
    """Why blocks of theirs cannot be made into blocks of mine; empty when they can.

    Whether the heads come that are needed is seen with each claim: its shards are those of all ranks it has.
    """
    fixed = {
        "layers": (theirs.layers, mine.layers),
        "head sizes": (theirs.head_size, mine.head_size),
        "heads of the model": (theirs.total_heads, mine.total_heads),
        "dtypes": (theirs.dtype, mine.dtype),
        "scales": (theirs.scaling or "none", mine.scaling or "none"),
    }
    differing = [f"{what} {there} there and {here} here" for what, (there, here) in fixed.items() if there != here]
    return f"KV cannot be repacked: {', '.join(differing)}" if differing else ""
