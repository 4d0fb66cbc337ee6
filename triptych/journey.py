"""The nouns of one request's journey, and the moves it may make. Start here.

A chat request with images becomes a `Request` at the router. Each image is a `Media` (compressed bytes) and an
`Item` (what it becomes in the prompt). The prompt with its items laid in is the `Layout`. Encoders answer with
`EmbeddingRef`s, prefill workers with `KVRef`s and the first `Token`, decode workers with the rest.

A ref is a claim ticket, never the memory: the receiver pulls, the owner frees on `Release` or when the lease ends.
The values here are frozen and check themselves; the same words name them in proto, metrics and docs.
"""

import enum
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

import numpy as np
import numpy.typing as npt

from triptych.errors import InvalidRecord

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

RequestId = NewType("RequestId", bytes)  # 16 random bytes
ClaimId = NewType("ClaimId", bytes)  # 16 random bytes

DIGEST_BYTES = 32
ID_BYTES = 16

# What numbers of refs may be: torch's names, and bytes of one.
DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
}

MOST_BRANCHES = 8  # choices of one request
MOST_TOP_LOGPROBS = 20
LARGEST_BIAS = 100.0
LEAST_REPETITION_PENALTY = 0.01
LARGEST_REPETITION_PENALTY = 100.0


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
            raise InvalidRecord(
                f"run starts at {self.start} with length {self.length}, expected start >= 0, length > 0"
            )

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
        if not self.rope:
            return 0
        highest = 0
        for run in self.rope:
            if run.grid is None:
                highest = max(highest, max(run.base) + run.length)
            else:
                t, h, w = run.base
                top = max(t + (run.grid.t - 1) * run.step_t, h + run.grid.h - 1, w + run.grid.w - 1)
                highest = max(highest, top + 1)
        return highest - self.num_tokens


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
        _require_dtype(self.dtype)
        _require_distinct(self.shards)


@dataclass(frozen=True, slots=True)
class BlockRef:
    """One KV block and the generation it had when its claim was made."""

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
            raise InvalidRecord(
                f"KV ref of {len(self.blocks)} blocks for tokens [{self.tokens_begin}, {self.tokens_end})"
            )
        _require_dtype(self.dtype)
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


_MOST_UINT32 = (1 << 32) - 1

# Both ends belong to them, as float32, which is what the wire carries. Within them no product, quotient or sum with
# logits of any sane model leaves float32.
SAMPLING_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (0, _MOST_UINT32),
    "min_p": (0, 1),
    "seed": (0, (1 << 64) - 1),
    "max_tokens": (1, _MOST_UINT32),
    "min_tokens": (0, _MOST_UINT32),
    "top_logprobs": (0, MOST_TOP_LOGPROBS),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (float(np.float32(LEAST_REPETITION_PENALTY)), LARGEST_REPETITION_PENALTY),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Randomness is a function of (seed, choice, position) alone.

    Raises InvalidRecord for a number outside its range; NaN is outside every range.
    """

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()  # includes the model's end tokens
    logprobs: bool = False
    top_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (least, most) in SAMPLING_RANGES.items():
            _require_range(name, getattr(self, name), least, most)
        if self.top_p == 0:
            raise InvalidRecord("sampling has top_p 0, expected more: nothing would be left to draw")
        if self.min_tokens > self.max_tokens:
            raise InvalidRecord(f"sampling has min_tokens {self.min_tokens}, max_tokens {self.max_tokens}")
        for id, bias in self.logit_bias.items():
            _require_range(f"logit_bias of {id}", bias, -LARGEST_BIAS, LARGEST_BIAS)


def _require_range(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidRecord(f"sampling has {what} {value}, expected {least:g} to {most:g}")


class Stage(enum.StrEnum):
    """Where a request is. FINISHED, FAILED and CANCELLED are ends."""

    RECEIVED = "received"
    FETCHING = "fetching"
    LAID_OUT = "laid_out"
    RESERVING = "reserving"
    ENCODING = "encoding"
    PREFILLING = "prefilling"
    HANDING_OVER = "handing_over"
    DECODING = "decoding"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = (Stage.FAILED, Stage.CANCELLED)

# A move that is not in this table is a bug. Encoding and prefilling overlap: the request is PREFILLING once its
# last item is encoded. Going back is a retry or a continuation on another worker.
MOVES: Mapping[Stage, tuple[Stage, ...]] = {
    Stage.RECEIVED: (Stage.FETCHING, Stage.LAID_OUT, *_ENDS),
    Stage.FETCHING: (Stage.LAID_OUT, *_ENDS),
    Stage.LAID_OUT: (Stage.RESERVING, *_ENDS),
    Stage.RESERVING: (Stage.ENCODING, Stage.PREFILLING, *_ENDS),
    Stage.ENCODING: (Stage.PREFILLING, Stage.RESERVING, *_ENDS),
    Stage.PREFILLING: (Stage.HANDING_OVER, Stage.RESERVING, Stage.FINISHED, *_ENDS),
    # Finished from here: the last token was out before a prefill worker that is lost had ended its call.
    Stage.HANDING_OVER: (Stage.DECODING, Stage.RESERVING, Stage.FINISHED, *_ENDS),
    Stage.DECODING: (Stage.FINISHED, Stage.RESERVING, *_ENDS),
    Stage.FINISHED: (),
    Stage.FAILED: (),
    Stage.CANCELLED: (),
}


def check_move(before: Stage, after: Stage) -> None:
    """Raises InvalidRecord for a move the table does not list."""
    if after not in MOVES[before]:
        raise InvalidRecord(f"a request cannot go from {before} to {after}")


def _require_dtype(name: str) -> None:
    if name not in DTYPE_BYTES:
        raise InvalidRecord(f"a ref of dtype {name!r}, expected one of {', '.join(DTYPE_BYTES)}")


def _require_distinct(shards: tuple[Shard, ...]) -> None:
    if len(set(shards)) != len(shards):
        raise InvalidRecord(f"a ref in {len(shards)} shards names one of them twice")


def _require_digest(what: str, digest: bytes) -> None:
    if len(digest) != DIGEST_BYTES:
        raise InvalidRecord(f"{what} has {len(digest)} bytes, expected {DIGEST_BYTES}")
