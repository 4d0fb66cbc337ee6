"""What travels between processes: nouns that come back equal, refs instead of rows, and no pixel in a layout."""

import math
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor

from tests.multimodal.parts import image, random_parts, text
from triptych import wire
from triptych.errors import DeadlineExceeded, InternalError, InvalidRecord, InvalidRequest, TriptychError, WorkerLost
from triptych.grammar.spec import Grammar
from triptych.journey import BlockRef, EmbeddingRef, Endpoint, KVRef, Layout, Shard, new_claim_id
from triptych.multimodal.layout import lay_out, verify_layout
from triptych.pb import common_pb2
from triptych.sampling import Sampling

OWNER = Endpoint("127.0.0.1:50123", (1 << 62) + 5)


def travelled(layout: Layout) -> Layout:
    return wire.layout_from_pb(common_pb2.Layout.FromString(wire.layout_to_pb(layout).SerializeToString()))


def embedding_ref(rows: int, levels: int = 1) -> EmbeddingRef:
    return EmbeddingRef(
        claim_id=new_claim_id(),
        owner=OWNER,
        item_digest=bytes(range(32)),
        rows=rows,
        width=8192,
        dtype="bfloat16",
        shards=(Shard(0, 1, 1 << 36),),
        generation=1 << 40,
        lease_seconds=30.0,
        levels=levels,
        event=7,
        checksum=bytes(16),
    )


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_ref_whose_lease_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidRecord, match="lease"):
        replace(embedding_ref(4), lease_seconds=seconds)
    with pytest.raises(InvalidRecord, match="lease"):
        KVRef(new_claim_id(), OWNER, (BlockRef(1, 1),), 0, 16, (Shard(0, 2, 0),), "bfloat16", b"", seconds)


@pytest.mark.parametrize("seed", range(100))
def test_a_layout_comes_out_of_the_wire_as_it_went_in(seed: int) -> None:
    layout = lay_out(random_parts(seed))
    again = travelled(layout)
    assert np.array_equal(again.token_ids, layout.token_ids)
    assert again.token_ids.dtype == np.int32
    assert (again.items, again.rope, again.atomic, again.digest) == (
        layout.items,
        layout.rope,
        layout.atomic,
        layout.digest,
    )
    verify_layout(again)


def test_nothing_in_a_layout_can_hold_pixels() -> None:
    """Bytes are ids and digests alone; a picture of any size is described by the same few numbers."""
    assert set(_bytes_fields(common_pb2.Layout.DESCRIPTOR)) == {"token_ids", "digest", "items.digest"}
    small, large = (wire.layout_to_pb(lay_out([text(1), image(h, h)])) for h in (2, 120))
    for message in (small, large):
        assert len(message.items[0].SerializeToString()) < 100


def test_the_size_of_a_ref_does_not_depend_on_its_rows() -> None:
    one, many = (wire.embedding_ref_to_pb(embedding_ref(rows)).SerializeToString() for rows in (1, 16_384))
    assert len(many) - len(one) == 2, "the number itself"
    assert len(many) < 200
    assert "data" not in _bytes_fields(common_pb2.EmbeddingRef.DESCRIPTOR)


def test_refs_come_out_of_the_wire_as_they_went_in() -> None:
    ref = embedding_ref(rows=5, levels=4)
    assert wire.embedding_ref_from_pb(wire.embedding_ref_to_pb(ref)) == ref
    blocks = tuple(BlockRef(index * 3, index + 1) for index in range(9))
    kv = KVRef(new_claim_id(), OWNER, blocks, 16, 160, (Shard(0, 2, 0),), "bfloat16", bytes(16), 30.0, 3, bytes(16), 32)
    assert wire.kv_ref_from_pb(wire.kv_ref_to_pb(kv)) == kv


def test_a_claim_on_blocks_of_which_some_have_no_generation_is_refused() -> None:
    kv = KVRef(new_claim_id(), OWNER, (BlockRef(1, 1), BlockRef(2, 1)), 0, 32, (Shard(0, 2, 0),), "bfloat16", b"", 30.0)
    message = wire.kv_ref_to_pb(kv)
    message.generations.pop()
    with pytest.raises(InvalidRecord, match="2 KV blocks tells 1 generations"):
        wire.kv_ref_from_pb(message)


@pytest.mark.parametrize("grammar", [None, Grammar("json_object", ""), Grammar("regex", "ä+")])
def test_sampling_comes_out_of_the_wire_with_its_grammar(grammar: Grammar | None) -> None:
    sampling = Sampling(grammar=grammar, stop_token_ids=(2,), logit_bias={5: 1.5})
    message = common_pb2.Sampling.FromString(wire.sampling_to_pb(sampling).SerializeToString())
    assert wire.sampling_from_pb(message) == sampling


def test_a_grammar_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="of kind 'xml'"):
        wire.sampling_from_pb(
            common_pb2.Sampling(temperature=1, top_p=1, max_tokens=1, repetition_penalty=1, grammar={"kind": "xml"})
        )


def test_an_item_of_an_unknown_modality_is_refused() -> None:
    message = wire.item_to_pb(lay_out([image(1, 1)]).items[0])
    message.modality = 9  # type: ignore[assignment]
    with pytest.raises(InvalidRecord, match="item 0 has unknown modality 9"):
        wire.item_from_pb(message)


def _bytes_fields(message: Any, prefix: str = "") -> list[str]:
    found = []
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            found += _bytes_fields(field.message_type, f"{prefix}{field.name}.")
        elif field.type == FieldDescriptor.TYPE_BYTES:
            found.append(prefix + field.name)
    return found


class Broken(grpc.RpcError):
    """A call that has failed, without a word of the worker's own."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("code", "details", "meaning"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", WorkerLost),
        (grpc.StatusCode.CANCELLED, "", WorkerLost),
        # What a write over a connection that has just broken ends with.
        (grpc.StatusCode.INTERNAL, "Internal error from Core", WorkerLost),
        (grpc.StatusCode.INTERNAL, "a bug", InternalError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", DeadlineExceeded),
    ],
)
def test_a_connection_that_breaks_is_a_worker_lost_and_may_be_tried_again(
    code: grpc.StatusCode, details: str, meaning: type[TriptychError]
) -> None:
    error = wire.error_from_rpc(Broken(code, details))
    assert type(error) is meaning
    assert error.retryable == (meaning is WorkerLost)
