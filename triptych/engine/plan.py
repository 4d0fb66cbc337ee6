"""Values the scheduler hands out: who got room, what the next step computes, which blocks became full."""

from dataclasses import dataclass

from triptych.engine.jobs import Window
from triptych.engine.sequence import DecodeSequence, PrefillSequence, Reservation
from triptych.errors import ConfigError, InvariantViolation
from triptych.journey import BlockRef, RequestId


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine may use."""

    block_size: int  # tokens per KV block
    max_model_len: int  # tokens of prompt and answer
    prefill_chunk_tokens: int  # per step, over all prompts
    max_sequences: int  # branches decoding in one step
    landing_bytes: int  # embedding rows reserved and not yet fused
    row_bytes: int  # one embedding row
    mixed_chunk_tokens: int = 0  # of prompts, in a step that decodes too; 0: as many as in others
    margin_tokens: int = 0  # reserved for an answer before it is decoded; 0: as recent answers were long
    num_swap_slots: int = 0  # blocks that host memory has room for
    block_bytes: int = 0  # one KV block

    def __post_init__(self) -> None:
        for name in ("block_size", "prefill_chunk_tokens", "max_sequences"):
            if getattr(self, name) < 1:
                raise ConfigError(f"language.{name} is {getattr(self, name)}, expected at least 1")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [begin, end) of one prompt."""

    sequence: PrefillSequence
    begin: int
    end: int

    @property
    def is_last(self) -> bool:
        return self.end == self.sequence.num_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass: a token of each of these branches, and these chunks."""

    decodes: tuple[DecodeSequence, ...]
    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.end - chunk.begin for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Swap:
    """Whole blocks copied between the KV slab and host memory: block by block into, or out of, the slot beside it."""

    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    out: bool  # from the slab to the host

    def __post_init__(self) -> None:
        if len(self.blocks) != len(self.slots):
            raise InvariantViolation(f"{len(self.blocks)} blocks are swapped with {len(self.slots)} slots")


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who got room, and what has to be done about it before anything else is launched.

    windows:    landing memory for items, in the order in which it was given; each of prefills is in here with its first
    new_blocks: that nobody held before, to be stamped first of all
    moves:      in this order: a slot that one reads may be written by a later one, and what one reads is free by then
    ended:      requests that have made room, and have left the scheduler
    """

    prefills: tuple[PrefillSequence, ...]
    windows: tuple[tuple[PrefillSequence, Window], ...]
    reservations: tuple[Reservation, ...]
    new_blocks: tuple[BlockRef, ...]
    moves: tuple[Swap, ...] = ()
    ended: tuple[RequestId, ...] = ()


@dataclass(frozen=True, slots=True)
class Announcement:
    """KV blocks to tell a prefill's sink about; a share of each is lent already."""

    blocks: tuple[BlockRef, ...]
    tokens_begin: int
    tokens_end: int
    last: bool
