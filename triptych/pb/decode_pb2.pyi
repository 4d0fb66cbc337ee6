from triptych.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReserveRequest(_message.Message):
    __slots__ = ("envelope", "prompt_tokens", "max_tokens", "branches", "lease_ms", "layout", "cache_salt", "generated", "priority", "wait_ms")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    prompt_tokens: int
    max_tokens: int
    branches: int
    lease_ms: int
    layout: _common_pb2.Layout
    cache_salt: bytes
    generated: bytes
    priority: int
    wait_ms: int
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., branches: _Optional[int] = ..., lease_ms: _Optional[int] = ..., layout: _Optional[_Union[_common_pb2.Layout, _Mapping]] = ..., cache_salt: _Optional[bytes] = ..., generated: _Optional[bytes] = ..., priority: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ReserveReply(_message.Message):
    __slots__ = ("reserved_blocks", "queue_seconds", "cached_tokens")
    RESERVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reserved_blocks: int
    queue_seconds: float
    cached_tokens: int
    def __init__(self, reserved_blocks: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class DecodeStart(_message.Message):
    __slots__ = ("envelope", "layout", "sampling", "branches", "generated", "choice")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    layout: _common_pb2.Layout
    sampling: _common_pb2.Sampling
    branches: int
    generated: bytes
    choice: int
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., layout: _Optional[_Union[_common_pb2.Layout, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., branches: _Optional[int] = ..., generated: _Optional[bytes] = ..., choice: _Optional[int] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("start", "kv", "first")
    START_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    start: DecodeStart
    kv: _containers.RepeatedCompositeFieldContainer[_common_pb2.KVRef]
    first: FirstTokenList
    def __init__(self, start: _Optional[_Union[DecodeStart, _Mapping]] = ..., kv: _Optional[_Iterable[_Union[_common_pb2.KVRef, _Mapping]]] = ..., first: _Optional[_Union[FirstTokenList, _Mapping]] = ...) -> None: ...

class FirstTokenList(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[_common_pb2.Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[_common_pb2.Token, _Mapping]]] = ...) -> None: ...

class DecodeReply(_message.Message):
    __slots__ = ("times", "since_arrival")
    TIMES_FIELD_NUMBER: _ClassVar[int]
    SINCE_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    times: _containers.RepeatedCompositeFieldContainer[_common_pb2.StageTime]
    since_arrival: float
    def __init__(self, times: _Optional[_Iterable[_Union[_common_pb2.StageTime, _Mapping]]] = ..., since_arrival: _Optional[float] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ...) -> None: ...

class SequenceTokens(_message.Message):
    __slots__ = ("request_id", "attempt", "tokens", "failure")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    request_id: bytes
    attempt: int
    tokens: _containers.RepeatedCompositeFieldContainer[_common_pb2.Token]
    failure: _common_pb2.Failure
    def __init__(self, request_id: _Optional[bytes] = ..., attempt: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[_common_pb2.Token, _Mapping]]] = ..., failure: _Optional[_Union[_common_pb2.Failure, _Mapping]] = ...) -> None: ...

class TokenBatch(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceTokens]
    def __init__(self, sequences: _Optional[_Iterable[_Union[SequenceTokens, _Mapping]]] = ...) -> None: ...
