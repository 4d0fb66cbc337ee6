"""A worker in a process of its own that computes nothing, for measuring a router: python -m bench.scripted_worker.

It has all three roles and speaks the whole protocol as a real one does: media are read out of shared memory, rows of a
request's items are there together, as after one batch, KV comes chunk by chunk, the last chunk with the first tokens,
and every step sends the tokens of all running sequences in one message. What
it takes to answer is nobody's figure, as long as its own core is not the router's.

--times FILE: one line for each request whose first token is there, with its id and three times of the monotonic clock
in seconds: its first call came, its prompt came, its first token was given to gRPC.
"""

import argparse
import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

import grpc.aio

from triptych import wire
from triptych.journey import BlockRef, EmbeddingRef, Endpoint, KVRef, Role, Shard, Token, new_claim_id
from triptych.models.card import load_card
from triptych.multimodal.memfd import MemfdDescriptor, read_memfd
from triptych.pb import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    encoder_pb2,
    encoder_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

BLOCK_SIZE = 16
CHUNK_TOKENS = 2048
NUM_BLOCKS = 1 << 16
FIRST_ID = 300  # whole words of the embedded model's vocabulary from here on


class ScriptedWorker(
    worker_pb2_grpc.WorkerServicer,
    encoder_pb2_grpc.EncoderServicer,
    prefill_pb2_grpc.PrefillServicer,
    decode_pb2_grpc.DecodeServicer,
):
    def __init__(self, fingerprint: bytes, step_seconds: float, times: TextIO | None = None) -> None:
        self._fingerprint = fingerprint
        self._step_seconds = step_seconds
        self._times = times
        self._came: dict[bytes, float] = {}  # by request
        self.endpoint = Endpoint("", secrets.randbits(62) + 1)
        self._batches: dict[str, asyncio.Queue[decode_pb2.TokenBatch]] = {}  # by router
        self._running: dict[bytes, tuple[decode_pb2.DecodeStart, int]] = {}  # with the last position, by request

    async def Status(self, request: worker_pb2.StatusRequest, context: Any) -> worker_pb2.StatusReply:
        gauges = {"kv_blocks": NUM_BLOCKS, "kv_free_blocks": NUM_BLOCKS}
        reply = worker_pb2.StatusReply(
            worker_id="scripted",
            incarnation=self.endpoint.incarnation,
            roles=sorted(Role),
            state="ready",
            model_fingerprint=self._fingerprint,
            gauges=[worker_pb2.Gauge(name=name, value=value) for name, value in gauges.items()],
            protocol=wire.PROTOCOL,
            block_size=BLOCK_SIZE,
        )
        if request.HasField("probe"):
            probe = request.probe
            nonce = read_memfd(MemfdDescriptor(probe.host_id, probe.pid, probe.fd), len(probe.nonce))
            reply.probe_readable = nonce == probe.nonce
        return reply

    async def Cancel(self, request: worker_pb2.CancelRequest, context: Any) -> common_pb2.Empty:
        self._running.pop(request.envelope.request_id, None)
        return common_pb2.Empty()

    async def Renew(self, request: worker_pb2.RenewRequest, context: Any) -> worker_pb2.RenewReply:
        return worker_pb2.RenewReply()

    async def Encode(self, requests: AsyncIterator[encoder_pb2.EncodeRequest], context: Any) -> AsyncIterator[Any]:
        start = (await anext(requests)).start
        for source in start.media:
            if source.HasField("memfd"):
                read_memfd(MemfdDescriptor(source.memfd.host_id, source.memfd.pid, source.memfd.fd), source.num_bytes)
        refs = [(item.index, wire.embedding_ref_to_pb(self._rows(item))) for item in start.items]
        replies = [encoder_pb2.EncodeReply(item_index=index, ref=ref) for index, ref in refs]
        yield encoder_pb2.EncodeReplies(replies=replies)

    async def Prefill(self, requests: AsyncIterator[prefill_pb2.PrefillRequest], context: Any) -> AsyncIterator[Any]:
        start = (await anext(requests)).start
        prompt_came = time.monotonic()
        missing = len(start.layout.items)
        yield prefill_pb2.PrefillReply(accepted=prefill_pb2.Accepted(items=range(missing), more=False))
        while missing:
            missing -= len((await anext(requests)).items)
        total, refs = len(start.layout.token_ids) // 4, []
        if start.decode_follows:
            for begin in range(0, total, CHUNK_TOKENS):
                refs.append(wire.kv_ref_to_pb(self._kv(begin, min(begin + CHUNK_TOKENS, total))))
        for ref in refs[:-1]:
            yield prefill_pb2.PrefillReply(kv=[ref])
        first = [wire.token_to_pb(_token(branch, 0, start.sampling.max_tokens)) for branch in range(start.branches)]
        reply = prefill_pb2.PrefillReply(kv=refs[-1:], first=prefill_pb2.FirstTokens(tokens=first))
        request_id = start.envelope.request_id
        came = self._came.pop(request_id, prompt_came)
        if self._times is not None:
            print(request_id.hex(), came, prompt_came, time.monotonic(), file=self._times)
        yield reply

    async def Reserve(self, request: decode_pb2.ReserveRequest, context: Any) -> decode_pb2.ReserveReply:
        self._came[request.envelope.request_id] = time.monotonic()
        return decode_pb2.ReserveReply(reserved_blocks=1)

    async def Decode(self, requests: AsyncIterator[decode_pb2.DecodeRequest], context: Any) -> decode_pb2.DecodeReply:
        start = (await anext(requests)).start
        while not (await anext(requests)).HasField("first"):
            pass
        self._running[start.envelope.request_id] = start, 0
        return decode_pb2.DecodeReply()

    async def Attach(self, request: decode_pb2.AttachRequest, context: Any) -> AsyncIterator[decode_pb2.TokenBatch]:
        batches = self._batches[request.envelope.router_id] = asyncio.Queue()
        yield decode_pb2.TokenBatch()
        while True:
            yield await batches.get()

    async def step_for_ever(self) -> None:
        """One token for every running sequence at each step."""
        while True:
            await asyncio.sleep(self._step_seconds)
            by_router: dict[str, decode_pb2.TokenBatch] = {}
            for request_id, (start, position) in list(self._running.items()):
                batch = by_router.setdefault(start.envelope.router_id, decode_pb2.TokenBatch())
                batch.sequences.append(self._next(request_id, start, position + 1))
            for router_id, batch in by_router.items():
                self._batches[router_id].put_nowait(batch)

    def _next(self, request_id: bytes, start: decode_pb2.DecodeStart, position: int) -> decode_pb2.SequenceTokens:
        tokens = [_token(branch, position, start.sampling.max_tokens) for branch in range(start.branches)]
        if tokens[0].finish_reason:
            del self._running[request_id]
        else:
            self._running[request_id] = start, position
        return decode_pb2.SequenceTokens(
            request_id=request_id, attempt=start.envelope.attempt, tokens=map(wire.token_to_pb, tokens)
        )

    def _rows(self, item: common_pb2.Item) -> EmbeddingRef:
        shards = (Shard(0, 1, 0),)
        return EmbeddingRef(
            new_claim_id(), self.endpoint, item.digest, item.rows, 3584, "bfloat16", shards, 1, lease_seconds=30
        )

    def _kv(self, begin: int, end: int) -> KVRef:
        blocks = tuple(BlockRef(index, 1) for index in range(begin // BLOCK_SIZE, -(-end // BLOCK_SIZE)))
        shards = (Shard(0, 2, 0),)
        return KVRef(new_claim_id(), self.endpoint, blocks, begin, end, shards, "bfloat16", b"", lease_seconds=30)


def _token(choice: int, position: int, max_tokens: int) -> Token:
    return Token(FIRST_ID + position % 200, -0.25, choice, position, "length" if position == max_tokens - 1 else "")


async def serve(model: str, step_seconds: float, times: TextIO | None) -> None:
    """Prints its address once it answers; until cancelled."""
    worker = ScriptedWorker(load_card(model, "auto").fingerprint, step_seconds, times)
    server = grpc.aio.server(options=wire.CHANNEL_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    worker.endpoint = Endpoint(f"127.0.0.1:{port}", worker.endpoint.incarnation)
    add: Any
    for add in (
        worker_pb2_grpc.add_WorkerServicer_to_server,
        encoder_pb2_grpc.add_EncoderServicer_to_server,
        prefill_pb2_grpc.add_PrefillServicer_to_server,
        decode_pb2_grpc.add_DecodeServicer_to_server,
    ):
        add(worker, server)
    await server.start()
    print(worker.endpoint.address, flush=True)
    try:
        await worker.step_for_ever()
    finally:
        await server.stop(grace=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-vl")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--times", type=Path, metavar="FILE")
    options = parser.parse_args()
    times = options.times.open("w", buffering=1) if options.times is not None else None
    try:
        asyncio.run(serve(options.model, options.step_ms / 1000, times))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
