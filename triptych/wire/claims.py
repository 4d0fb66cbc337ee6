"""Claim tickets and where their owners answer, to messages and back."""

from collections.abc import Iterable, Sequence

from triptych import journey
from triptych.errors import InvalidRecord
from triptych.journey import BlockRef, ClaimId, EmbeddingRef, Endpoint, KVRef, Shard
from triptych.pb import common_pb2 as pb


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


def _blocks(ids: Sequence[int], generations: Sequence[int]) -> tuple[BlockRef, ...]:
    if len(ids) != len(generations):
        raise InvalidRecord(f"a claim on {len(ids)} KV blocks tells {len(generations)} generations, expected one each")
    return tuple(map(BlockRef, ids, generations))


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
        block_ids=[block.id for block in ref.blocks],
        generations=[block.generation for block in ref.blocks],
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
        blocks=_blocks(message.block_ids, message.generations),
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
