"""What it costs that both ends of every connection in a cluster prove themselves: python -m bench.tls_cost.

The same calls over a connection with mutual TLS and over a plain one, in turns, to a server in a process of its own:

    call    a question of 300 bytes and its answer, as Reserve or Release have them
    token   one message of 200 bytes on a stream, as a step's tokens come
    chunk   1 MiB of media, as encoders on other hosts get them
    connect until the connection stands

Microseconds, medians over rounds: `cpu` is this process's user and system time, which is what a router pays, `wall`
the clock's. `ratio` is TLS's CPU time to that without.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop

from triptych.loadgen.provenance import provenance
from triptych.wire.calls import CHANNEL_OPTIONS, MEDIA_CHUNK_BYTES
from triptych.wire.membership import Membership

SECRET = "0123456789abcdef" * 4
CALLS, TOKENS, CHUNKS = 1000, 3000, 64
QUESTION, TOKEN, CHUNK = bytes(300), bytes(200), bytes(MEDIA_CHUNK_BYTES)
WAYS = {"plain": "", "tls": SECRET}

Figures = dict[str, list[tuple[float, float]]]  # by what was done: CPU and wall, microseconds each


async def serve(secret: str) -> None:
    """Prints its port, and answers until it is ended."""

    async def echo(request: bytes, _: Any) -> bytes:
        return request

    async def stream(request: bytes, _: Any) -> Any:
        for _number in range(TOKENS):
            yield TOKEN

    async def swallow(requests: Any, _: Any) -> bytes:
        async for _request in requests:
            pass
        return b""

    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    handlers: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
        "Swallow": grpc.stream_unary_rpc_method_handler(swallow),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Tls", handlers),))
    port = Membership(secret).listen(server, "127.0.0.1", 0)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def round_of(secret: str, figures: Figures) -> None:
    command = [sys.executable, "-m", "bench.tls_cost", "--serve", secret or "plain"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    channel = Membership(secret).aio_channel(f"127.0.0.1:{port}")
    try:
        await measured(figures, "connect", 1, channel.channel_ready)
        calls: Any = {name: getattr(channel, shape)(f"/bench.Tls/{name}") for name, shape in SHAPES.items()}

        async def ask() -> None:
            for _ in range(CALLS):
                await calls["Echo"](QUESTION)

        async def read() -> None:
            call = calls["Stream"](b"")
            while await call.read() is not grpc.aio.EOF:
                pass

        async def send() -> None:
            call = calls["Swallow"]()
            for _ in range(CHUNKS):
                await call.write(CHUNK)
            await call.done_writing()
            await call

        await ask()
        await measured(figures, "call", CALLS, ask)
        await measured(figures, "token", TOKENS, read)
        await measured(figures, "chunk", CHUNKS, send)
    finally:
        await channel.close()
        process.kill()
        await process.wait()


SHAPES = {"Echo": "unary_unary", "Stream": "unary_stream", "Swallow": "stream_unary"}


async def measured(figures: Figures, name: str, count: int, work: Callable[[], Awaitable[Any]]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    taken = time.process_time() - cpu, time.perf_counter() - wall
    figures.setdefault(name, []).append((taken[0] * 1e6 / count, taken[1] * 1e6 / count))


async def run(rounds: int) -> dict[str, Any]:
    by_way: dict[str, Figures] = {way: {} for way in WAYS}
    for _ in range(rounds):
        for way, secret in WAYS.items():
            await round_of(secret, by_way[way])
    told: dict[str, Any] = {}
    for name in by_way["plain"]:
        cpu = {way: statistics.median(taken[0] for taken in by_way[way][name]) for way in WAYS}
        wall = {way: statistics.median(taken[1] for taken in by_way[way][name]) for way in WAYS}
        told[name] = {f"{way}_cpu_microseconds": round(cpu[way], 1) for way in WAYS}
        told[name] |= {f"{way}_wall_microseconds": round(wall[way], 1) for way in WAYS}
        told[name]["cpu_ratio"] = round(cpu["tls"] / cpu["plain"], 2)
    return told


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.tls_cost", description=__doc__)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve("" if options.serve == "plain" else options.serve))
        return
    result = {"what": {"rounds": options.rounds}, **uvloop.run(run(options.rounds)), **provenance()}
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
