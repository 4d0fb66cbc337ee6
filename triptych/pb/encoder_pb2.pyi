from triptych.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Memfd(_message.Message):
    __slots__ = ("host_id", "pid", "fd")
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    host_id: str
    pid: int
    fd: int
    def __init__(self, host_id: _Optional[str] = ..., pid: _Optional[int] = ..., fd: _Optional[int] = ...) -> None: ...

class MediaSource(_message.Message):
    __slots__ = ("index", "num_bytes", "digest", "memfd")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MEMFD_FIELD_NUMBER: _ClassVar[int]
    index: int
    num_bytes: int
    digest: bytes
    memfd: Memfd
    def __init__(self, index: _Optional[int] = ..., num_bytes: _Optional[int] = ..., digest: _Optional[bytes] = ..., memfd: _Optional[_Union[Memfd, _Mapping]] = ...) -> None: ...

class MediaChunk(_message.Message):
    __slots__ = ("media", "offset", "data")
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    media: int
    offset: int
    data: bytes
    def __init__(self, media: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class EncodeStart(_message.Message):
    __slots__ = ("envelope", "items", "media", "lease_ms")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    items: _containers.RepeatedCompositeFieldContainer[_common_pb2.Item]
    media: _containers.RepeatedCompositeFieldContainer[MediaSource]
    lease_ms: int
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., items: _Optional[_Iterable[_Union[_common_pb2.Item, _Mapping]]] = ..., media: _Optional[_Iterable[_Union[MediaSource, _Mapping]]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("start", "chunk")
    START_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    start: EncodeStart
    chunk: MediaChunk
    def __init__(self, start: _Optional[_Union[EncodeStart, _Mapping]] = ..., chunk: _Optional[_Union[MediaChunk, _Mapping]] = ...) -> None: ...

class EncodeReply(_message.Message):
    __slots__ = ("item_index", "ref", "failure", "times", "cached", "since_arrival")
    ITEM_INDEX_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    SINCE_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    item_index: int
    ref: _common_pb2.EmbeddingRef
    failure: _common_pb2.Failure
    times: _containers.RepeatedCompositeFieldContainer[_common_pb2.StageTime]
    cached: bool
    since_arrival: float
    def __init__(self, item_index: _Optional[int] = ..., ref: _Optional[_Union[_common_pb2.EmbeddingRef, _Mapping]] = ..., failure: _Optional[_Union[_common_pb2.Failure, _Mapping]] = ..., times: _Optional[_Iterable[_Union[_common_pb2.StageTime, _Mapping]]] = ..., cached: bool = ..., since_arrival: _Optional[float] = ...) -> None: ...

class EncodeReplies(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[EncodeReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[EncodeReply, _Mapping]]] = ...) -> None: ...

class CacheRequest(_message.Message):
    __slots__ = ("envelope", "action", "digests")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[CacheRequest.Action]
        PIN: _ClassVar[CacheRequest.Action]
        UNPIN: _ClassVar[CacheRequest.Action]
        CLEAR: _ClassVar[CacheRequest.Action]
    ACTION_UNSPECIFIED: CacheRequest.Action
    PIN: CacheRequest.Action
    UNPIN: CacheRequest.Action
    CLEAR: CacheRequest.Action
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    action: CacheRequest.Action
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., action: _Optional[_Union[CacheRequest.Action, str]] = ..., digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CacheReply(_message.Message):
    __slots__ = ("items", "num_bytes")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    items: int
    num_bytes: int
    def __init__(self, items: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("envelope", "modality", "media")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    modality: _common_pb2.Modality
    media: MediaSource
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., modality: _Optional[_Union[_common_pb2.Modality, str]] = ..., media: _Optional[_Union[MediaSource, _Mapping]] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("width", "height", "frames", "seconds", "grid", "encoder_tokens", "rows")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    ENCODER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    width: int
    height: int
    frames: int
    seconds: float
    grid: _common_pb2.Grid
    encoder_tokens: int
    rows: int
    def __init__(self, width: _Optional[int] = ..., height: _Optional[int] = ..., frames: _Optional[int] = ..., seconds: _Optional[float] = ..., grid: _Optional[_Union[_common_pb2.Grid, _Mapping]] = ..., encoder_tokens: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...
