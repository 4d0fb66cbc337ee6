from triptych.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CudaIpc(_message.Message):
    __slots__ = ("memory_handle", "event_handles", "device_uuid", "event_words_offset")
    MEMORY_HANDLE_FIELD_NUMBER: _ClassVar[int]
    EVENT_HANDLES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    EVENT_WORDS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    memory_handle: bytes
    event_handles: _containers.RepeatedScalarFieldContainer[bytes]
    device_uuid: str
    event_words_offset: int
    def __init__(self, memory_handle: _Optional[bytes] = ..., event_handles: _Optional[_Iterable[bytes]] = ..., device_uuid: _Optional[str] = ..., event_words_offset: _Optional[int] = ...) -> None: ...

class Nixl(_message.Message):
    __slots__ = ("agent", "metadata", "address", "device", "vram")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VRAM_FIELD_NUMBER: _ClassVar[int]
    agent: str
    metadata: bytes
    address: int
    device: int
    vram: bool
    def __init__(self, agent: _Optional[str] = ..., metadata: _Optional[bytes] = ..., address: _Optional[int] = ..., device: _Optional[int] = ..., vram: bool = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("host_id", "pid", "fd")
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    host_id: str
    pid: int
    fd: int
    def __init__(self, host_id: _Optional[str] = ..., pid: _Optional[int] = ..., fd: _Optional[int] = ...) -> None: ...

class Arena(_message.Message):
    __slots__ = ("id", "kind", "num_bytes", "words_offset", "data_offset", "unit_bytes", "num_units", "probe", "shm", "cuda_ipc", "rank", "nixl", "no_cuda_ipc")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORDS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_UNITS_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    SHM_FIELD_NUMBER: _ClassVar[int]
    CUDA_IPC_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NIXL_FIELD_NUMBER: _ClassVar[int]
    NO_CUDA_IPC_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    num_bytes: int
    words_offset: int
    data_offset: int
    unit_bytes: int
    num_units: int
    probe: bytes
    shm: SharedMemory
    cuda_ipc: CudaIpc
    rank: int
    nixl: Nixl
    no_cuda_ipc: str
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., num_bytes: _Optional[int] = ..., words_offset: _Optional[int] = ..., data_offset: _Optional[int] = ..., unit_bytes: _Optional[int] = ..., num_units: _Optional[int] = ..., probe: _Optional[bytes] = ..., shm: _Optional[_Union[SharedMemory, _Mapping]] = ..., cuda_ipc: _Optional[_Union[CudaIpc, _Mapping]] = ..., rank: _Optional[int] = ..., nixl: _Optional[_Union[Nixl, _Mapping]] = ..., no_cuda_ipc: _Optional[str] = ...) -> None: ...

class KVFormat(_message.Message):
    __slots__ = ("layers", "block_size", "heads", "head_size", "dtype", "first_head", "total_heads", "scaling")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_HEAD_FIELD_NUMBER: _ClassVar[int]
    TOTAL_HEADS_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    layers: int
    block_size: int
    heads: int
    head_size: int
    dtype: str
    first_head: int
    total_heads: int
    scaling: str
    def __init__(self, layers: _Optional[int] = ..., block_size: _Optional[int] = ..., heads: _Optional[int] = ..., head_size: _Optional[int] = ..., dtype: _Optional[str] = ..., first_head: _Optional[int] = ..., total_heads: _Optional[int] = ..., scaling: _Optional[str] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("envelope", "protocol", "kv_layout", "kv_format")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    KV_FORMAT_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    protocol: int
    kv_layout: bytes
    kv_format: KVFormat
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., protocol: _Optional[int] = ..., kv_layout: _Optional[bytes] = ..., kv_format: _Optional[_Union[KVFormat, _Mapping]] = ...) -> None: ...

class ConnectReply(_message.Message):
    __slots__ = ("protocol", "arenas", "kv_layout", "kv_format")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ARENAS_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    KV_FORMAT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    arenas: _containers.RepeatedCompositeFieldContainer[Arena]
    kv_layout: bytes
    kv_format: KVFormat
    def __init__(self, protocol: _Optional[int] = ..., arenas: _Optional[_Iterable[_Union[Arena, _Mapping]]] = ..., kv_layout: _Optional[bytes] = ..., kv_format: _Optional[_Union[KVFormat, _Mapping]] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("envelope", "claim_id", "pack")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    claim_id: bytes
    pack: bool
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., claim_id: _Optional[bytes] = ..., pack: bool = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("packed", "arena", "offset", "generation")
    PACKED_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    packed: bool
    arena: int
    offset: int
    generation: int
    def __init__(self, packed: bool = ..., arena: _Optional[int] = ..., offset: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("envelope", "claim_ids")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_IDS_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    claim_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., claim_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("envelope", "claim_ids", "lease_ms")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    claim_ids: _containers.RepeatedScalarFieldContainer[bytes]
    lease_ms: int
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., claim_ids: _Optional[_Iterable[bytes]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("gone",)
    GONE_FIELD_NUMBER: _ClassVar[int]
    gone: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, gone: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("envelope", "check_invariants", "probe")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CHECK_INVARIANTS_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    envelope: _common_pb2.Envelope
    check_invariants: bool
    probe: MemfdProbe
    def __init__(self, envelope: _Optional[_Union[_common_pb2.Envelope, _Mapping]] = ..., check_invariants: bool = ..., probe: _Optional[_Union[MemfdProbe, _Mapping]] = ...) -> None: ...

class MemfdProbe(_message.Message):
    __slots__ = ("host_id", "pid", "fd", "nonce")
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    host_id: str
    pid: int
    fd: int
    nonce: bytes
    def __init__(self, host_id: _Optional[str] = ..., pid: _Optional[int] = ..., fd: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Gauge(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class TransferPath(_message.Message):
    __slots__ = ("owner", "owner_role", "consumer_role", "transport", "refused")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_ROLE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ROLE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    owner: str
    owner_role: str
    consumer_role: str
    transport: str
    refused: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, owner: _Optional[str] = ..., owner_role: _Optional[str] = ..., consumer_role: _Optional[str] = ..., transport: _Optional[str] = ..., refused: _Optional[_Iterable[str]] = ...) -> None: ...

class TransferCopies(_message.Message):
    __slots__ = ("owner_role", "consumer_role", "transport", "by_seconds", "by_bytes", "seconds", "num_bytes")
    OWNER_ROLE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ROLE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    BY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    owner_role: str
    consumer_role: str
    transport: str
    by_seconds: _containers.RepeatedScalarFieldContainer[int]
    by_bytes: _containers.RepeatedScalarFieldContainer[int]
    seconds: float
    num_bytes: int
    def __init__(self, owner_role: _Optional[str] = ..., consumer_role: _Optional[str] = ..., transport: _Optional[str] = ..., by_seconds: _Optional[_Iterable[int]] = ..., by_bytes: _Optional[_Iterable[int]] = ..., seconds: _Optional[float] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("name", "counts", "total")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    counts: _containers.RepeatedScalarFieldContainer[int]
    total: float
    def __init__(self, name: _Optional[str] = ..., counts: _Optional[_Iterable[int]] = ..., total: _Optional[float] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("worker_id", "incarnation", "roles", "state", "model_fingerprint", "device", "gauges", "idle", "violation", "probe_readable", "probe_reason", "host_id", "pid", "max_model_len", "block_size", "kv_blocks", "max_item_tokens", "protocol", "paths", "copies", "histograms")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    VIOLATION_FIELD_NUMBER: _ClassVar[int]
    PROBE_READABLE_FIELD_NUMBER: _ClassVar[int]
    PROBE_REASON_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    roles: _containers.RepeatedScalarFieldContainer[str]
    state: str
    model_fingerprint: bytes
    device: str
    gauges: _containers.RepeatedCompositeFieldContainer[Gauge]
    idle: bool
    violation: str
    probe_readable: bool
    probe_reason: str
    host_id: str
    pid: int
    max_model_len: int
    block_size: int
    kv_blocks: int
    max_item_tokens: int
    protocol: int
    paths: _containers.RepeatedCompositeFieldContainer[TransferPath]
    copies: _containers.RepeatedCompositeFieldContainer[TransferCopies]
    histograms: _containers.RepeatedCompositeFieldContainer[Histogram]
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., roles: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., model_fingerprint: _Optional[bytes] = ..., device: _Optional[str] = ..., gauges: _Optional[_Iterable[_Union[Gauge, _Mapping]]] = ..., idle: bool = ..., violation: _Optional[str] = ..., probe_readable: bool = ..., probe_reason: _Optional[str] = ..., host_id: _Optional[str] = ..., pid: _Optional[int] = ..., max_model_len: _Optional[int] = ..., block_size: _Optional[int] = ..., kv_blocks: _Optional[int] = ..., max_item_tokens: _Optional[int] = ..., protocol: _Optional[int] = ..., paths: _Optional[_Iterable[_Union[TransferPath, _Mapping]]] = ..., copies: _Optional[_Iterable[_Union[TransferCopies, _Mapping]]] = ..., histograms: _Optional[_Iterable[_Union[Histogram, _Mapping]]] = ...) -> None: ...
