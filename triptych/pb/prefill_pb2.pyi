from triptych.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrefillStart(_message.Message):
    __slots__ = ("envelope", "layout", "sampling", "branches", "decode_follows", "lease_ms", "generated", "choice", "cache_salt", "kv_begin")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    DECODE_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    KV_BEGIN_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    layout: _common_pb2.Layout
    sampling: _common_pb2.Sampling
    branches: int
    decode_follows: bool
    lease_ms: int
    generated: bytes
    choice: int
    cache_salt: bytes
    kv_begin: int
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., layout: _Optional[_Union[_common_pb2.Layout, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., branches: _Optional[int] = ..., decode_follows: bool = ..., lease_ms: _Optional[int] = ..., generated: _Optional[bytes] = ..., choice: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., kv_begin: _Optional[int] = ...) -> None: ...

class ItemRef(_message.Message):
    __slots__ = ("item_index", "ref")
    ITEM_INDEX_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    item_index: int
    ref: _common_pb2.EmbeddingRef
    def __init__(self, item_index: _Optional[int] = ..., ref: _Optional[_Union[_common_pb2.EmbeddingRef, _Mapping]] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("start", "items")
    START_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    start: PrefillStart
    items: _containers.RepeatedCompositeFieldContainer[ItemRef]
    def __init__(self, start: _Optional[_Union[PrefillStart, _Mapping]] = ..., items: _Optional[_Iterable[_Union[ItemRef, _Mapping]]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("items", "cached_tokens", "more", "held")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: int
    more: bool
    held: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, items: _Optional[_Iterable[int]] = ..., cached_tokens: _Optional[int] = ..., more: bool = ..., held: _Optional[_Iterable[int]] = ...) -> None: ...

class FirstTokens(_message.Message):
    __slots__ = ("tokens", "times", "cached_tokens", "since_arrival")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SINCE_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[_common_pb2.Token]
    times: _containers.RepeatedCompositeFieldContainer[_common_pb2.StageTime]
    cached_tokens: int
    since_arrival: float
    def __init__(self, tokens: _Optional[_Iterable[_Union[_common_pb2.Token, _Mapping]]] = ..., times: _Optional[_Iterable[_Union[_common_pb2.StageTime, _Mapping]]] = ..., cached_tokens: _Optional[int] = ..., since_arrival: _Optional[float] = ...) -> None: ...

class PrefillReply(_message.Message):
    __slots__ = ("accepted", "kv", "first")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    kv: _containers.RepeatedCompositeFieldContainer[_common_pb2.KVRef]
    first: FirstTokens
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., kv: _Optional[_Iterable[_Union[_common_pb2.KVRef, _Mapping]]] = ..., first: _Optional[_Union[FirstTokens, _Mapping]] = ...) -> None: ...
