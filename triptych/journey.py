"""The nouns of one request's journey. Start here; stages.py has the moves it may make.

A chat request with images becomes a `Request` at the router. Each image is a `Media` (compressed bytes) and an
`Item` (what it becomes in the prompt). The prompt with its items laid in is the `Layout`. Encoders answer with
`EmbeddingRef`s, prefill workers with `KVRef`s and the first `Token`, decode workers with the rest.

A ref is a claim ticket, never the memory: the receiver pulls, the owner frees on `Release` or when the lease ends.
The values here are frozen and check themselves; the same words name them in proto, metrics and docs.
"""

import enum
import math
import secrets
from dataclasses import dataclass
from typing import NamedTuple, NewType

import numpy as np
import numpy.typing as npt

from triptych.dtypes import require_dtype
from triptych.errors import InvalidRecord

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

RequestId = NewType("RequestId", bytes)  # 16 random bytes
ClaimId = NewType("ClaimId", bytes)  # 16 random bytes

DIGEST_BYTES = 32
ID_BYTES = 16


def new_request_id() -> RequestId:
    return RequestId(secrets.token_bytes(ID_BYTES))


def new_claim_id() -> ClaimId:
    return ClaimId(secrets.token_bytes(ID_BYTES))


class Role(enum.StrEnum):
    """What a worker does; one process may have several."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"


class Modality(enum.StrEnum):
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a worker process answers; another process at the same address is another endpoint."""

    address: str  # host:port
    incarnation: int


@dataclass(frozen=True, slots=True)
class Media:
    """Source bytes of one image, still compressed, as the client gave them."""

    index: int  # among the request's distinct sources
    data: bytes
    digest: bytes  # blake3 of data, 32 bytes

    def __post_init__(self) -> None:
        _require_digest("media digest", self.digest)


@dataclass(frozen=True, slots=True)
class Run:
    """Half-open run of prompt positions."""

    start: int
    length: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.length <= 0:
            raise InvalidRecord(f"run of length {self.length} from {self.start}, expected length > 0, start >= 0")

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Grid:
    """Frames, rows and columns of patches."""

    t: int
    h: int
    w: int

    def __post_init__(self) -> None:
        if min(self.t, self.h, self.w) <= 0:
            raise InvalidRecord(f"grid is {self.t}x{self.h}x{self.w}, expected all sides > 0")

    @property
    def patches(self) -> int:
        return self.t * self.h * self.w


@dataclass(frozen=True, slots=True)
class Item:
    """One atomic multimodal item of one request: what an image becomes in the prompt."""

    index: int  # in prompt order
    digest: bytes  # source bytes + options + model fingerprint + salt, 32 bytes
    modality: Modality
    width: int  # pixels, after orientation
    height: int
    grid: Grid  # patches before merging
    encoder_tokens: int  # patches the encoder attends over
    rows: int  # embedding rows
    runs: tuple[Run, ...]  # prompt positions the rows are laid on, ascending
    span: Run  # prompt positions including specials
    media: int  # index of the source among the request's media

    def __post_init__(self) -> None:
        _require_digest("item digest", self.digest)
        if self.rows <= 0 or self.encoder_tokens <= 0:
            raise InvalidRecord(
                f"item {self.index} has {self.rows} rows, {self.encoder_tokens} encoder tokens; both must be > 0"
            )
        laid = sum(run.length for run in self.runs)
        if laid != self.rows:
            raise InvalidRecord(f"item {self.index} lays {laid} rows into the prompt, the encoder makes {self.rows}")
        position = self.span.start
        for run in self.runs:
            if run.start < position or run.end > self.span.end:
                raise InvalidRecord(f"item {self.index}: run [{run.start}, {run.end}) leaves its span or overlaps")
            position = run.end


@dataclass(frozen=True, slots=True)
class RopeRun:
    """Consecutive prompt positions whose rope positions follow one rule.

    Text (no grid): all three axes ascend by one from the base. Grid: position (f, r, c) of the merged grid gets
    (base_t + f * step_t, base_h + r, base_w + c), in reading order.
    """

    length: int
    base: tuple[int, int, int]
    grid: Grid | None = None
    step_t: int = 0

    def __post_init__(self) -> None:
        if self.length <= 0 or min(self.base) < 0:
            raise InvalidRecord(f"rope run of length {self.length} from {self.base}")
        if self.grid is not None and self.grid.patches != self.length:
            raise InvalidRecord(f"rope run covers {self.length} positions, its grid has {self.grid.patches}")

    @property
    def end(self) -> int:
        """The first rope position above all of the run's."""
        if self.grid is None:
            return max(self.base) + self.length
        t, h, w = self.base
        return max(t + (self.grid.t - 1) * self.step_t, h + self.grid.h - 1, w + self.grid.w - 1) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A prompt with its items laid in; travels to every tier, which recomputes the digest and compares.

    token_ids: [prompt_tokens] int32. Placeholders hold an id of the vocabulary that is never looked at: what is a
               placeholder is told by the items' runs alone.
    rope:      covers the prompt without gaps; the next generated token has rope position prompt_tokens + rope_delta
    atomic:    spans that no chunk, prefix hit or ready prefix may end inside, ascending
    digest:    32 bytes over everything above (multimodal/layout.py)
    """

    token_ids: Int32Array
    items: tuple[Item, ...]
    rope: tuple[RopeRun, ...]
    atomic: tuple[Run, ...]
    digest: bytes

    def __post_init__(self) -> None:
        _require_digest("layout digest", self.digest)
        if self.token_ids.dtype != np.int32 or self.token_ids.ndim != 1:
            raise InvalidRecord(
                f"token ids are {self.token_ids.dtype} of rank {self.token_ids.ndim}, expected int32 of rank 1"
            )
        covered = sum(run.length for run in self.rope)
        if covered != self.num_tokens:
            raise InvalidRecord(f"rope runs cover {covered} positions, the prompt has {self.num_tokens}")
        end = 0
        for item in self.items:
            if item.span.start < end or item.span.end > self.num_tokens:
                raise InvalidRecord(f"item {item.index} lies outside the prompt or over its neighbour")
            end = item.span.end

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_rows(self) -> int:
        return sum(item.rows for item in self.items)

    @property
    def rope_delta(self) -> int:
        """Rope position of the first generated token, less the number of prompt tokens."""
        return max((run.end for run in self.rope), default=0) - self.num_tokens


@dataclass(frozen=True, slots=True)
class Shard:
    """One piece of a claim: which rank's slab, and where in it."""

    rank: int
    arena: int
    offset: int  # bytes from the start of the slab's data


@dataclass(frozen=True, slots=True)
class EmbeddingRef:
    """Claim on one encoded item held by an encoder."""

    claim_id: ClaimId
    owner: Endpoint
    item_digest: bytes
    rows: int
    width: int  # numbers per row and level
    dtype: str  # float32, bfloat16, ...
    shards: tuple[Shard, ...]
    generation: int
    lease_seconds: float  # a duration: the owner's monotonic clock decides
    levels: int = 1  # 1 + deepstack
    event: int = 0  # which of the owner's events the rows stand behind (cuda_ipc), counted from 1
    checksum: bytes = b""

    def __post_init__(self) -> None:
        _require_digest("item digest", self.item_digest)
        if min(self.rows, self.width, self.levels) <= 0 or not self.shards:
            raise InvalidRecord(f"embedding ref of {self.levels}x{self.rows}x{self.width} in {len(self.shards)} shards")
        _require_lease(self.lease_seconds)
        require_dtype(self.dtype)
        _require_distinct(self.shards)


class BlockRef(NamedTuple):
    """One KV block and the generation it had when its claim was made. A tuple: a long prompt has thousands of them."""

    id: int
    generation: int


@dataclass(frozen=True, slots=True)
class KVRef:
    """Claim on KV blocks held by a prefill worker until the decode worker has released them."""

    claim_id: ClaimId
    owner: Endpoint
    blocks: tuple[BlockRef, ...]  # following those of the refs before
    tokens_begin: int
    tokens_end: int
    shards: tuple[Shard, ...]
    dtype: str
    kv_layout: bytes  # digest of block size, layers, heads, head size, dtype
    lease_seconds: float
    event: int = 0
    checksum: bytes = b""
    block_size: int = 0  # tokens in a block of the sender; 0: as many as in one of the receiver

    def __post_init__(self) -> None:
        if self.tokens_end <= self.tokens_begin or not self.blocks or not self.shards:
            raise InvalidRecord(f"KV ref: {len(self.blocks)} blocks, tokens [{self.tokens_begin}, {self.tokens_end})")
        _require_lease(self.lease_seconds)
        require_dtype(self.dtype)
        _require_distinct(self.shards)


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token of one choice."""

    id: int
    logprob: float
    choice: int
    position: int  # 0 for the first generated token
    finish_reason: str = ""  # stop or length; empty while the sequence goes on
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob) of the most likely ones


def _require_distinct(shards: tuple[Shard, ...]) -> None:
    if len(set(shards)) != len(shards):
        raise InvalidRecord(f"a ref in {len(shards)} shards names one of them twice")


def _require_lease(seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise InvalidRecord(f"a ref's lease is {seconds} s, expected a finite time above 0")


def _require_digest(what: str, digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise InvalidRecord(f"{what} has {len(digest)} bytes, expected {DIGEST_BYTES}")
