"""Nouns to messages and back. Besides servicers and stubs, nothing else touches the generated classes.

`<noun>_to_pb` never fails on a valid noun; `<noun>_from_pb` raises InvalidRecord for a message that breaks a noun's
rules, so that nothing malformed gets past a service's door.
"""

import math
from collections.abc import Iterable
from typing import Any

import grpc
import numpy as np

from triptych import errors, journey
from triptych.errors import (
    ClusterError,
    DeadlineExceeded,
    InternalError,
    InvalidMedia,
    InvalidRecord,
    Overloaded,
    TriptychError,
    WorkerLost,
)
from triptych.journey import (
    BlockRef,
    ClaimId,
    EmbeddingRef,
    Endpoint,
    Grid,
    Item,
    KVRef,
    Layout,
    Modality,
    RequestId,
    RopeRun,
    Run,
    Sampling,
    Shard,
    Token,
)
from triptych.pb import common_pb2 as pb

PROTOCOL = 1
FAILURE_METADATA = "triptych-failure-bin"
MAX_MESSAGE_BYTES = 16 << 20  # the longest Layout, with room; media travel in chunks
MEDIA_CHUNK_BYTES = 1 << 20

# HTTP/2 pings notice a peer that hangs without closing its socket.
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

_MODALITY_TO_PB = {Modality.IMAGE: pb.IMAGE, Modality.VIDEO: pb.VIDEO, Modality.AUDIO: pb.AUDIO}
_MODALITY_FROM_PB = {value: key for key, value in _MODALITY_TO_PB.items()}


def envelope(
    request_id: bytes,
    attempt: int,
    router_id: str,
    incarnation: int,
    deadline_seconds: float,
    fingerprint: bytes,
) -> pb.Envelope:
    """What every call carries; a deadline below a millisecond is sent as one, an endless one is refused."""
    if not math.isfinite(deadline_seconds):
        raise InvalidRecord("an envelope needs a finite deadline")
    return pb.Envelope(
        request_id=request_id,
        attempt=attempt,
        router_id=router_id,
        worker_incarnation=incarnation,
        deadline_ms=max(1, int(deadline_seconds * 1000)),
        model_fingerprint=fingerprint,
    )


def request_id_from_pb(message: pb.Envelope) -> RequestId:
    if len(message.request_id) != journey.ID_BYTES:
        raise InvalidRecord(f"request id has {len(message.request_id)} bytes, expected {journey.ID_BYTES}")
    return RequestId(message.request_id)


# ------------------------------------------------------------------------------------------------ layout and items


def run_to_pb(run: Run) -> pb.Run:
    return pb.Run(start=run.start, length=run.length)


def run_from_pb(message: pb.Run) -> Run:
    return Run(message.start, message.length)


def grid_to_pb(grid: Grid) -> pb.Grid:
    return pb.Grid(t=grid.t, h=grid.h, w=grid.w)


def grid_from_pb(message: pb.Grid) -> Grid:
    return Grid(message.t, message.h, message.w)


def item_to_pb(item: Item) -> pb.Item:
    return pb.Item(
        index=item.index,
        digest=item.digest,
        modality=_MODALITY_TO_PB[item.modality],
        width=item.width,
        height=item.height,
        grid=grid_to_pb(item.grid),
        encoder_tokens=item.encoder_tokens,
        rows=item.rows,
        runs=[run_to_pb(run) for run in item.runs],
        span=run_to_pb(item.span),
        media=item.media,
    )


def item_from_pb(message: pb.Item) -> Item:
    if message.modality not in _MODALITY_FROM_PB:
        raise InvalidRecord(f"item {message.index} has unknown modality {message.modality}")
    return Item(
        index=message.index,
        digest=message.digest,
        modality=_MODALITY_FROM_PB[message.modality],
        width=message.width,
        height=message.height,
        grid=grid_from_pb(message.grid),
        encoder_tokens=message.encoder_tokens,
        rows=message.rows,
        runs=tuple(run_from_pb(run) for run in message.runs),
        span=run_from_pb(message.span),
        media=message.media,
    )


def _rope_run_to_pb(run: RopeRun) -> pb.RopeRun:
    message = pb.RopeRun(
        length=run.length, base_t=run.base[0], base_h=run.base[1], base_w=run.base[2], step_t=run.step_t
    )
    if run.grid is not None:
        message.grid.CopyFrom(grid_to_pb(run.grid))
    return message


def _rope_run_from_pb(message: pb.RopeRun) -> RopeRun:
    grid = grid_from_pb(message.grid) if message.HasField("grid") else None
    return RopeRun(message.length, (message.base_t, message.base_h, message.base_w), grid, message.step_t)


def layout_to_pb(layout: Layout) -> pb.Layout:
    return pb.Layout(
        token_ids=tokens_to_bytes(layout.token_ids),
        items=[item_to_pb(item) for item in layout.items],
        rope=[_rope_run_to_pb(run) for run in layout.rope],
        atomic=[run_to_pb(run) for run in layout.atomic],
        digest=layout.digest,
    )


def layout_from_pb(message: pb.Layout) -> Layout:
    """The layout as sent; whoever uses it calls multimodal.layout.verify_layout first."""
    return Layout(
        token_ids=tokens_from_bytes(message.token_ids),
        items=tuple(item_from_pb(item) for item in message.items),
        rope=tuple(_rope_run_from_pb(run) for run in message.rope),
        atomic=tuple(run_from_pb(run) for run in message.atomic),
        digest=message.digest,
    )


def tokens_to_bytes(token_ids: Iterable[int] | journey.Int32Array) -> bytes:
    """Token ids as little-endian int32."""
    array = token_ids if isinstance(token_ids, np.ndarray) else np.fromiter(token_ids, dtype=np.int32)
    return array.astype("<i4", copy=False).tobytes()


def tokens_from_bytes(data: bytes) -> journey.Int32Array:
    if len(data) % 4:
        raise InvalidRecord(f"token ids take {len(data)} bytes, expected a multiple of 4")
    return np.frombuffer(data, dtype="<i4").astype(np.int32)


# ---------------------------------------------------------------------------------------------------------- claims


def endpoint_to_pb(endpoint: Endpoint) -> pb.Endpoint:
    return pb.Endpoint(address=endpoint.address, incarnation=endpoint.incarnation)


def endpoint_from_pb(message: pb.Endpoint) -> Endpoint:
    return Endpoint(message.address, message.incarnation)


def _shard_to_pb(shard: Shard) -> pb.Shard:
    return pb.Shard(rank=shard.rank, arena=shard.arena, offset=shard.offset)


def _shard_from_pb(message: pb.Shard) -> Shard:
    return Shard(message.rank, message.arena, message.offset)


def _claim_id(data: bytes) -> ClaimId:
    if len(data) != journey.ID_BYTES:
        raise InvalidRecord(f"claim id has {len(data)} bytes, expected {journey.ID_BYTES}")
    return ClaimId(data)


def claim_ids_from_pb(ids: Iterable[bytes]) -> list[ClaimId]:
    return [_claim_id(entry) for entry in ids]


def embedding_ref_to_pb(ref: EmbeddingRef) -> pb.EmbeddingRef:
    return pb.EmbeddingRef(
        claim_id=ref.claim_id,
        owner=endpoint_to_pb(ref.owner),
        item_digest=ref.item_digest,
        rows=ref.rows,
        width=ref.width,
        dtype=ref.dtype,
        shards=[_shard_to_pb(shard) for shard in ref.shards],
        levels=ref.levels,
        generation=ref.generation,
        event=ref.event,
        lease_ms=_lease_to_ms(ref.lease_seconds),
        checksum=ref.checksum,
    )


def embedding_ref_from_pb(message: pb.EmbeddingRef) -> EmbeddingRef:
    return EmbeddingRef(
        claim_id=_claim_id(message.claim_id),
        owner=endpoint_from_pb(message.owner),
        item_digest=message.item_digest,
        rows=message.rows,
        width=message.width,
        dtype=message.dtype,
        shards=tuple(_shard_from_pb(shard) for shard in message.shards),
        generation=message.generation,
        lease_seconds=message.lease_ms / 1000,
        levels=message.levels,
        event=message.event,
        checksum=message.checksum,
    )


def kv_ref_to_pb(ref: KVRef) -> pb.KVRef:
    return pb.KVRef(
        claim_id=ref.claim_id,
        owner=endpoint_to_pb(ref.owner),
        blocks=[pb.BlockRef(id=block.id, generation=block.generation) for block in ref.blocks],
        tokens_begin=ref.tokens_begin,
        tokens_end=ref.tokens_end,
        shards=[_shard_to_pb(shard) for shard in ref.shards],
        dtype=ref.dtype,
        kv_layout=ref.kv_layout,
        event=ref.event,
        lease_ms=_lease_to_ms(ref.lease_seconds),
        checksum=ref.checksum,
        levels=1,
        block_size=ref.block_size,
    )


def kv_ref_from_pb(message: pb.KVRef) -> KVRef:
    return KVRef(
        claim_id=_claim_id(message.claim_id),
        owner=endpoint_from_pb(message.owner),
        blocks=tuple(BlockRef(block.id, block.generation) for block in message.blocks),
        tokens_begin=message.tokens_begin,
        tokens_end=message.tokens_end,
        shards=tuple(_shard_from_pb(shard) for shard in message.shards),
        dtype=message.dtype,
        kv_layout=message.kv_layout,
        lease_seconds=message.lease_ms / 1000,
        event=message.event,
        checksum=message.checksum,
        block_size=message.block_size,
    )


def _lease_to_ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


# -------------------------------------------------------------------------------------------- tokens and sampling


def token_to_pb(token: Token) -> pb.Token:
    return pb.Token(
        id=token.id,
        logprob=token.logprob,
        finish_reason=token.finish_reason,
        top=[pb.TopLogprob(id=id_, logprob=logprob) for id_, logprob in token.top],
        choice=token.choice,
        position=token.position,
    )


def token_from_pb(message: pb.Token) -> Token:
    return Token(
        id=message.id,
        logprob=message.logprob,
        choice=message.choice,
        position=message.position,
        finish_reason=message.finish_reason,
        top=tuple((entry.id, entry.logprob) for entry in message.top),
    )


def sampling_to_pb(sampling: Sampling) -> pb.Sampling:
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
    )


def sampling_from_pb(message: pb.Sampling) -> Sampling:
    return Sampling(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs,
        top_logprobs=message.top_logprobs,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=dict(message.logit_bias),
    )


# ---------------------------------------------------------------------------------------------------------- errors


def failure_to_pb(error: TriptychError) -> pb.Failure:
    index = -1 if error.item_index is None else error.item_index
    code = error.media_code if isinstance(error, InvalidMedia) else error.code
    return pb.Failure(error=type(error).__name__, message=error.message, item_index=index, code=code)


def error_from_failure(message: pb.Failure) -> TriptychError:
    """The error a worker reported; a name this build does not know becomes a ClusterError."""
    kind = errors.ERROR_BY_NAME.get(message.error, ClusterError)
    if kind is TriptychError:
        kind = ClusterError
    index = None if message.item_index < 0 else message.item_index
    if kind is InvalidMedia:
        return InvalidMedia(message.message, item_index=index, code=message.code or "invalid_image")
    return kind(message.message, item_index=index)


def failure_trailer(error: TriptychError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that carries the whole error beside the gRPC status."""
    return ((FAILURE_METADATA, failure_to_pb(error).SerializeToString()),)


def status_code(error: TriptychError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc_status]


def error_from_rpc(error: grpc.RpcError) -> TriptychError:
    """What a failed call means to us: the worker's own error when it sent one, else what the status implies."""
    trailers: Any = (error.trailing_metadata() or ()) if hasattr(error, "trailing_metadata") else ()
    for key, value in trailers:  # pairs, whether from grpc or from grpc.aio
        if key == FAILURE_METADATA and isinstance(value, bytes):
            return error_from_failure(pb.Failure.FromString(value))
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    detail = (error.details() if hasattr(error, "details") else str(error)) or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("a worker did not answer in time")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(f"a worker refused: {detail}")
    # Sending over a connection that has just broken: grpc.aio tells that with these words, not with UNAVAILABLE.
    broke = code is grpc.StatusCode.INTERNAL and detail.startswith("Internal error from Core")
    if broke or code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return WorkerLost("a worker went away while it held the request")
    return InternalError(f"a worker failed: {code.name} {detail}")
