"""One request's place in the engine: how far its prompt is computed, which blocks it reserved, what it has said."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from triptych.engine.block_keys import BlockKeys
from triptych.engine.windows import Group, group_items
from triptych.errors import InvariantViolation
from triptych.grammar.matcher import GrammarMatcher
from triptych.journey import Int64Array, Layout, RequestId, Run
from triptych.multimodal.rows import RowMap
from triptych.sampling import Sampling


def blocks_for(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def finish_reason(token_id: int, position: int, sampling: Sampling, prompt_tokens: int, max_model_len: int) -> str:
    """Why a branch ends with this token, or nothing when it goes on.

    position: of the token among the generated ones, from 0
    Under a grammar a stop token is drawn only where the answer has to end, or may and wants to.
    """
    minds_ends = not sampling.ignore_eos or sampling.grammar is not None
    if minds_ends and token_id in sampling.stop_token_ids:
        return "stop"
    generated = position + 1
    if generated >= sampling.max_tokens or prompt_tokens + generated >= max_model_len:
        return "length"
    return ""


@dataclass(slots=True, eq=False)
class PrefillSequence:
    """A prompt, and what was generated before a continuation, on its way through the model.

    It can be computed up to `num_ready` tokens: the longest prefix whose embedding rows have all landed. Items whose
    rows the cached beginning covers count as landed; they are in no window.

    keys:    of its blocks; None: it takes no part in the prefix cache
    windows: the items that are needed, in the order in which they get landing memory
    """

    request_id: RequestId
    layout: Layout
    rows: RowMap
    generated: tuple[int, ...]
    keep_kv: bool
    keys: BlockKeys | None = None
    blocks: tuple[int, ...] = ()
    num_cached: int = 0  # tokens whose KV was there when it got room, a multiple of the block size
    num_computed: int = 0  # tokens whose KV the launched steps have written or will write
    num_announced_blocks: int = 0  # or not asked for: whoever wants the KV has those from the first on
    ready_items: set[int] = field(default_factory=set)
    num_ready: int = 0
    windows: tuple[Group, ...] = ()
    num_granted_windows: int = 0
    awaited: bytes | None = None  # key of the block that it waits for, while another prompt computes it
    publishes: bool = False  # whether its next block will be the one that others find
    num_published: int = 0  # blocks from the first on that others find, or found by it
    groups: tuple[Group, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.groups = group_items(self.layout.items, self.layout.atomic)
        self._update_ready()

    @property
    def num_tokens(self) -> int:
        return self.layout.num_tokens + len(self.generated)

    @property
    def is_computed(self) -> bool:
        return self.num_computed == self.num_tokens

    def begin(self, blocks: tuple[int, ...], num_cached: int, windows: tuple[Group, ...]) -> None:
        """Room is there, and so is the KV of the first num_cached tokens; the first window is granted."""
        self.blocks = blocks
        self.num_cached = self.num_computed = num_cached
        self.windows = windows
        self.num_granted_windows = min(1, len(windows))
        self.ready_items.update(item.index for item in self.layout.items if item.runs[-1].end <= num_cached)
        self._update_ready()

    def needed_groups(self, num_cached: int) -> list[Group]:
        """Items of which a row lies behind so many cached tokens."""
        needed = ([item for item in group if item.runs[-1].end > num_cached] for group in self.groups)
        return [tuple(group) for group in needed if group]

    def mark_ready(self, item_index: int) -> None:
        self.ready_items.add(item_index)
        self._update_ready()

    def chunk_end(self, room: int, whole_room: int) -> int:
        """Where the next chunk ends, given the tokens left in this step and in an empty one; num_computed: nowhere.

        A chunk is larger than the room only when an atomic span starts it that is larger than an empty step's.
        """
        begin = self.num_computed
        limit = min(begin + room, self.num_ready)
        end = self.rows.cut(begin, limit)
        if end > limit and room < whole_room:
            return begin
        return end

    def blocks_to_announce(self, block_size: int) -> Run | None:
        """Places in the block table that are full (or the tail of a computed prompt) and not announced yet."""
        full = len(self.blocks) if self.is_computed else self.num_computed // block_size
        fresh = full - self.num_announced_blocks
        return Run(self.num_announced_blocks, fresh) if fresh > 0 else None

    def check(self) -> None:
        if not 0 <= self.num_computed <= self.num_ready <= self.num_tokens:
            raise InvariantViolation(
                f"prompt of {self.num_tokens} tokens has {self.num_computed} computed, {self.num_ready} ready"
            )
        if self.num_announced_blocks > len(self.blocks):
            raise InvariantViolation(f"{self.num_announced_blocks} of {len(self.blocks)} blocks are announced")
        if self.num_computed < self.num_cached or self.rows.legal_end(self.num_cached) != self.num_cached:
            raise InvariantViolation(f"{self.num_cached} tokens are cached, {self.num_computed} computed")
        if not min(1, len(self.windows)) <= self.num_granted_windows <= len(self.windows):
            raise InvariantViolation(f"{self.num_granted_windows} of {len(self.windows)} windows are granted")

    def _update_ready(self) -> None:
        prefix = self.rows.ready_prefix(self.ready_items)
        ready = self.num_tokens if prefix == self.layout.num_tokens else prefix
        self.num_ready = max(ready, self.num_cached)  # a beginning may end inside an item that is needed for its rest


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks of a request that will be decoded here: of its prompt, and of a part, or all, of what may follow.

    Several branches get blocks for all they may add: their choices share the prompt's, and where they have answered in
    part no other worker could continue them. A single one grows, block by block, and may have to make room for others.

    prompt_tokens: everything prefill computes, tokens generated before a continuation included
    max_tokens:    what each branch may add
    priority:      lower goes first
    margin_tokens: of max_tokens, those that blocks are reserved for; 0: all
    arrival:       its place among all that ever came, given by the scheduler
    keys:          of the prompt's blocks; None: it takes no part in the prefix cache
    blocks:        the prompt's full blocks, shared by all branches, then each branch's own ones; empty while waiting
    num_cached_blocks: of the prompt, from the first on, whose KV was there; others may read them, nobody writes them
    is_baseless:   those cannot be found any more, because a step with them went wrong: nothing may be built upon them
    """

    request_id: RequestId
    attempt: int
    prompt_tokens: int
    max_tokens: int
    branches: int
    block_size: int
    keys: BlockKeys | None = None
    priority: int = 0
    margin_tokens: int = 0
    arrival: int = 0
    blocks: tuple[int, ...] = ()
    num_cached_blocks: int = 0
    is_baseless: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Lower goes first."""
        return self.priority, self.arrival

    @property
    def reserved_tokens(self) -> int:
        """Of each branch, behind the prompt."""
        if self.branches > 1 or not self.margin_tokens:
            return self.max_tokens
        return min(self.margin_tokens, self.max_tokens)

    @property
    def num_shared_blocks(self) -> int:
        return self.prompt_tokens // self.block_size

    @property
    def num_own_blocks(self) -> int:
        """Of each branch."""
        tail = self.prompt_tokens - self.num_shared_blocks * self.block_size
        return blocks_for(tail + self.reserved_tokens, self.block_size)

    @property
    def num_blocks(self) -> int:
        return self.num_shared_blocks + self.branches * self.num_own_blocks

    @property
    def most_blocks(self) -> int:
        """With all that the branches may add."""
        tail = self.prompt_tokens - self.num_shared_blocks * self.block_size
        return self.num_shared_blocks + self.branches * blocks_for(tail + self.max_tokens, self.block_size)

    @property
    def prompt_blocks(self) -> tuple[int, ...]:
        """The blocks of branch 0 that take the prompt's KV, in prompt order."""
        return self.blocks[: blocks_for(self.prompt_tokens, self.block_size)]

    def table(self, branch: int) -> tuple[int, ...]:
        """All blocks of a branch, in order of the tokens they take."""
        begin = self.num_shared_blocks + branch * self.num_own_blocks
        return self.blocks[: self.num_shared_blocks] + self.blocks[begin : begin + self.num_own_blocks]

    def tail_copies(self, branches: Sequence[int]) -> list[tuple[int, int]]:
        """(from, to) of the partial prompt block that each of these branches but the first needs a copy of."""
        if self.prompt_tokens % self.block_size == 0:
            return []
        source = self.blocks[self.num_shared_blocks]
        return [(source, self.table(branch)[self.num_shared_blocks]) for branch in branches if branch > 0]


@dataclass(slots=True, eq=False)
class DecodeSequence:
    """One branch being decoded. The KV of everything but its last token is in its blocks.

    blocks:     given by the scheduler, and replaced by a longer array when it grows; a view of `table`, which has room
                for all that it may ever have
    room:       tokens whose KV its blocks take
    slots:      of host memory, with the KV behind that in `blocks`, while it makes room for others
    rank:       lower goes first, and makes room last
    is_alone:   its request has no other branch: it may be continued elsewhere
    may_add:    tokens that its answer may have in all
    """

    request_id: RequestId
    attempt: int
    branch: int
    choice: int
    layout: Layout
    sampling: Sampling
    tokens: list[int]  # generated, from position 0, at least one
    blocks: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    table: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    num_inflight: int = 0  # tokens that launched steps make of it and that are not in `tokens` yet
    room: int = 0
    slots: tuple[int, ...] = ()
    is_running: bool = False
    rank: tuple[int, int] = (0, 0)
    is_alone: bool = False
    matcher: GrammarMatcher | None = None
    history: int = field(default_factory=itertools.count(1).__next__)  # names its KV; see PagedInputs

    prompt_tokens: int = field(init=False)
    rope_delta: int = field(init=False)
    may_add: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = self.layout.num_tokens
        self.rope_delta = self.layout.rope_delta
        self.may_add = self.sampling.max_tokens

    @property
    def may_go_on(self) -> bool:
        """Whether another token may follow those that are launched."""
        return len(self.tokens) + self.num_inflight < self.may_add

    @property
    def is_ready(self) -> bool:
        """Whether another step of it is wanted, and has a block. Asked of every branch in every step."""
        launched = len(self.tokens) + self.num_inflight
        return launched < self.may_add and self.prompt_tokens + launched <= self.room

    def missing_blocks(self, block_size: int) -> int:
        """Those that its next step needs and it has not; what is on the host counts as missing."""
        return max(0, self.next_position // block_size + 1 - len(self.blocks))

    def most_blocks(self, block_size: int) -> int:
        """Of all that it may ever write: its last token's KV is of use to nobody."""
        return blocks_for(self.prompt_tokens + self.may_add - 1, block_size)

    @property
    def num_kv_tokens(self) -> int:
        """Behind the steps whose tokens are in `tokens`."""
        return self.prompt_tokens + len(self.tokens) - 1

    @property
    def next_position(self) -> int:
        """Tokens whose KV the launched steps have written or will write: where the next step writes."""
        return self.num_kv_tokens + self.num_inflight

    @property
    def next_token(self) -> int:
        """Position, among the generated ones, of the token that the next step makes."""
        return len(self.tokens) + self.num_inflight

    def check(self, block_size: int) -> None:
        if not self.tokens:
            raise InvariantViolation("a branch without a first token is decoding")
        if self.room != len(self.blocks) * block_size:
            raise InvariantViolation(f"branch has room for {self.room} tokens in {len(self.blocks)} blocks")
        num_blocks = len(self.blocks) + len(self.slots)
        if self.next_position > num_blocks * block_size:
            raise InvariantViolation(f"branch has {self.next_position} KV tokens, {num_blocks} blocks and slots")
