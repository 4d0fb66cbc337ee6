from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Modality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODALITY_UNSPECIFIED: _ClassVar[Modality]
    IMAGE: _ClassVar[Modality]
    VIDEO: _ClassVar[Modality]
    AUDIO: _ClassVar[Modality]
MODALITY_UNSPECIFIED: Modality
IMAGE: Modality
VIDEO: Modality
AUDIO: Modality

class Envelope(_message.Message):
    __slots__ = ("request_id", "attempt", "router_id", "worker_incarnation", "deadline_ms", "model_fingerprint", "adapter", "checksums", "log_id", "traceparent")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request_id: bytes
    attempt: int
    router_id: str
    worker_incarnation: int
    deadline_ms: int
    model_fingerprint: bytes
    adapter: str
    checksums: bool
    log_id: str
    traceparent: str
    def __init__(self, request_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., router_id: _Optional[str] = ..., worker_incarnation: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., model_fingerprint: _Optional[bytes] = ..., adapter: _Optional[str] = ..., checksums: bool = ..., log_id: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("start", "length")
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    start: int
    length: int
    def __init__(self, start: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Grid(_message.Message):
    __slots__ = ("t", "h", "w")
    T_FIELD_NUMBER: _ClassVar[int]
    H_FIELD_NUMBER: _ClassVar[int]
    W_FIELD_NUMBER: _ClassVar[int]
    t: int
    h: int
    w: int
    def __init__(self, t: _Optional[int] = ..., h: _Optional[int] = ..., w: _Optional[int] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("index", "digest", "modality", "width", "height", "grid", "encoder_tokens", "rows", "runs", "span", "media")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    ENCODER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    index: int
    digest: bytes
    modality: Modality
    width: int
    height: int
    grid: Grid
    encoder_tokens: int
    rows: int
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    span: Run
    media: int
    def __init__(self, index: _Optional[int] = ..., digest: _Optional[bytes] = ..., modality: _Optional[_Union[Modality, str]] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., grid: _Optional[_Union[Grid, _Mapping]] = ..., encoder_tokens: _Optional[int] = ..., rows: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., span: _Optional[_Union[Run, _Mapping]] = ..., media: _Optional[int] = ...) -> None: ...

class RopeRun(_message.Message):
    __slots__ = ("length", "base_t", "base_h", "base_w", "grid", "step_t")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    BASE_T_FIELD_NUMBER: _ClassVar[int]
    BASE_H_FIELD_NUMBER: _ClassVar[int]
    BASE_W_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    STEP_T_FIELD_NUMBER: _ClassVar[int]
    length: int
    base_t: int
    base_h: int
    base_w: int
    grid: Grid
    step_t: int
    def __init__(self, length: _Optional[int] = ..., base_t: _Optional[int] = ..., base_h: _Optional[int] = ..., base_w: _Optional[int] = ..., grid: _Optional[_Union[Grid, _Mapping]] = ..., step_t: _Optional[int] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("token_ids", "items", "rope", "atomic", "digest")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ROPE_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    items: _containers.RepeatedCompositeFieldContainer[Item]
    rope: _containers.RepeatedCompositeFieldContainer[RopeRun]
    atomic: _containers.RepeatedCompositeFieldContainer[Run]
    digest: bytes
    def __init__(self, token_ids: _Optional[bytes] = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., rope: _Optional[_Iterable[_Union[RopeRun, _Mapping]]] = ..., atomic: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("address", "incarnation")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: int
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("rank", "arena", "offset")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    rank: int
    arena: int
    offset: int
    def __init__(self, rank: _Optional[int] = ..., arena: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class EmbeddingRef(_message.Message):
    __slots__ = ("claim_id", "owner", "item_digest", "rows", "width", "dtype", "shards", "levels", "generation", "event", "lease_ms", "checksum")
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ITEM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    claim_id: bytes
    owner: Endpoint
    item_digest: bytes
    rows: int
    width: int
    dtype: str
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    levels: int
    generation: int
    event: int
    lease_ms: int
    checksum: bytes
    def __init__(self, claim_id: _Optional[bytes] = ..., owner: _Optional[_Union[Endpoint, _Mapping]] = ..., item_digest: _Optional[bytes] = ..., rows: _Optional[int] = ..., width: _Optional[int] = ..., dtype: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., levels: _Optional[int] = ..., generation: _Optional[int] = ..., event: _Optional[int] = ..., lease_ms: _Optional[int] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class KVRef(_message.Message):
    __slots__ = ("claim_id", "owner", "block_ids", "tokens_begin", "tokens_end", "shards", "dtype", "kv_layout", "event", "lease_ms", "checksum", "levels", "block_size", "generations")
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_BEGIN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_END_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    claim_id: bytes
    owner: Endpoint
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    tokens_begin: int
    tokens_end: int
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    dtype: str
    kv_layout: bytes
    event: int
    lease_ms: int
    checksum: bytes
    levels: int
    block_size: int
    generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, claim_id: _Optional[bytes] = ..., owner: _Optional[_Union[Endpoint, _Mapping]] = ..., block_ids: _Optional[_Iterable[int]] = ..., tokens_begin: _Optional[int] = ..., tokens_end: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., dtype: _Optional[str] = ..., kv_layout: _Optional[bytes] = ..., event: _Optional[int] = ..., lease_ms: _Optional[int] = ..., checksum: _Optional[bytes] = ..., levels: _Optional[int] = ..., block_size: _Optional[int] = ..., generations: _Optional[_Iterable[int]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("id", "logprob")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "logprob", "finish_reason", "top", "choice", "position")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    finish_reason: str
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    choice: int
    position: int
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ..., finish_reason: _Optional[str] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ..., choice: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "seed", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "top_logprobs", "logprobs", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "grammar")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: int
    logprobs: bool
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    grammar: Grammar
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., ignore_eos: bool = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[int] = ..., logprobs: bool = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("error", "message", "item_index", "code")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ITEM_INDEX_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    item_index: int
    code: str
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ..., item_index: _Optional[int] = ..., code: _Optional[str] = ...) -> None: ...

class StageTime(_message.Message):
    __slots__ = ("stage", "seconds", "begin", "item_index")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ITEM_INDEX_FIELD_NUMBER: _ClassVar[int]
    stage: str
    seconds: float
    begin: float
    item_index: int
    def __init__(self, stage: _Optional[str] = ..., seconds: _Optional[float] = ..., begin: _Optional[float] = ..., item_index: _Optional[int] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
