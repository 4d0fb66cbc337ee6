"""What a router adds to a request, and what it costs, before workers that answer at once: make bench-router.

The router is a process of its own, a scripted worker (bench/scripted_worker.py) and the client are others.

    idle    requests with one image of 1 MB, one after the other
    load    50 requests a second with four images of 200 kB each, arrivals evenly spaced
    stream  64 streams at once, of one token a step

Times. `ttft` is from the last byte of the request written to the first byte of the stream read. `before` is its part
until the worker has the request's first call, `after` from the first token being in the worker's hands to that first
byte, and `between` is the rest: the calls that go to and fro, the worker's own part of them among it. The goals are
about `before` + `after`; `ttft` as a whole is told beside it.

CPU is user and system time of the router's process, all its threads, over a whole round. `floor` is what nothing that
takes such a body can do without: the body read from a socket, parsed, its base64 decoded and hashed, in a loop of its
own in this process at the same time of day. On a busy machine ratios to it say more than milliseconds.
"""

import argparse
import asyncio
import base64
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pybase64
import pydantic_core
from blake3 import blake3
from rich.console import Console

from bench.router_cpu import MODEL, running_router, scripted_worker
from bench.server import cpu_seconds
from triptych.loadgen.provenance import provenance
from triptych.loadgen.workload import make_jpeg

GOAL_IDLE_SECONDS = 0.006
GOAL_LOAD_SECONDS = 0.008
GOAL_LOAD_CPU_SECONDS = 0.008
GOAL_TOKENS_PER_CPU_SECOND = 20_000
_READ_BYTES = 1 << 18
_LONGEST_SECONDS = 120.0


@dataclass
class Answer:
    """One streamed answer; times of the monotonic clock."""

    written: float = 0.0  # its last byte
    first_byte: float = 0.0
    request_id: str = ""
    num_chunks: int = 0
    whole: bool = False


def main() -> int:
    options = read_arguments()
    console = Console(stderr=True, highlight=False)
    busy = round(os.getloadavg()[0], 1)  # a calm machine is at 0
    report: dict[str, Any] = {"what": vars(options) | {"output": None}, "load_average_before": busy}
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in (("idle", idle), ("load", load), ("stream", stream)):
            report[name] = measure(options, Path(folder) / name)
            console.print(f"{name}: {json.dumps(report[name])}")
    report |= provenance()
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle-requests", type=int, default=200)
    parser.add_argument("--load-seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--load-tokens", type=int, default=16, help="of each answer under load")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--stream-tokens", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


@contextmanager
def router(step_ms: float, times: Path) -> Iterator[tuple[str, int]]:
    """Its URL and process id, once it may be asked."""
    with scripted_worker(step_ms, times) as worker, running_router(worker, None) as (url, pid):
        deadline = time.monotonic() + _LONGEST_SECONDS
        while not httpx.get(f"{url}/health", trust_env=False).is_success:
            if time.monotonic() > deadline:
                raise RuntimeError("the router does not find its worker")
            time.sleep(0.05)
        yield url, pid


def idle(options: argparse.Namespace, times: Path) -> dict[str, Any]:
    bodies = [make_body(index, [1_000_000], max_tokens=2) for index in range(options.idle_requests)]
    with router(1.0, times) as (url, pid):
        asyncio.run(in_turn(url, bodies[:20]))
        before = cpu_seconds(pid)
        answers = asyncio.run(in_turn(url, bodies))
        used = (cpu_seconds(pid) - before) / len(bodies)
    return {
        "goal_added_seconds": GOAL_IDLE_SECONDS,
        **latencies(answers, times),
        **costs(used, bodies),
    }


def load(options: argparse.Namespace, times: Path) -> dict[str, Any]:
    count = int(options.rate * options.load_seconds)
    distinct = [make_body(index, [200_000] * 4, options.load_tokens) for index in range(min(count, 100))]
    bodies = [distinct[index % len(distinct)] for index in range(count)]
    with router(10.0, times) as (url, pid):
        asyncio.run(at_rate(url, bodies[:50], options.rate))
        before = cpu_seconds(pid)
        answers = asyncio.run(at_rate(url, bodies, options.rate))
        used = (cpu_seconds(pid) - before) / len(bodies)
    return {
        "goal_added_seconds": GOAL_LOAD_SECONDS,
        "goal_cpu_seconds": GOAL_LOAD_CPU_SECONDS,
        **latencies(answers, times),
        **costs(used, distinct),
    }


def stream(options: argparse.Namespace, times: Path) -> dict[str, Any]:
    bodies = [make_body(index, [], options.stream_tokens) for index in range(options.streams)]
    with router(1.0, times) as (url, pid):
        asyncio.run(together(url, bodies))
        before, began = cpu_seconds(pid), time.monotonic()
        answers = asyncio.run(together(url, bodies))
        used, took = cpu_seconds(pid) - before, time.monotonic() - began
    _check(answers)
    tokens = options.streams * options.stream_tokens
    return {
        "goal_tokens_per_cpu_second": GOAL_TOKENS_PER_CPU_SECOND,
        "tokens_per_cpu_second": round(tokens / used),
        "tokens_per_second": round(tokens / took),
        "cpu_microseconds_per_token": round(used / tokens * 1e6, 1),
    }


def make_body(number: int, image_bytes: Sequence[int], max_tokens: int) -> bytes:
    """Images are a small picture with so much in a comment that it has the size: a router looks at headers alone."""
    jpeg = make_jpeg((3, number % 8), 640, 480, 75)
    content: list[dict[str, Any]] = []
    for place, size in enumerate(image_bytes):
        content.append({"type": "image_url", "image_url": {"url": _data_uri(jpeg, (number, place), size)}})
    content.append({"type": "text", "text": "What is in these pictures, and what is not?"})
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    return json.dumps(body).encode()


def _data_uri(jpeg: bytes, owner: tuple[int, int], size: int) -> str:
    filler = blake3(repr(owner).encode()).digest(max(0, size - len(jpeg)))
    return "data:image/jpeg;base64," + base64.b64encode(jpeg + filler).decode()


async def in_turn(url: str, bodies: Sequence[bytes]) -> list[Answer]:
    """On one connection."""
    client = Client(url)
    await client.connect()
    answers = []
    for body in bodies:
        answers.append(await client.ask(body))
        await asyncio.sleep(0.002)  # what the router still tidies is not the next one's
    client.close()
    return answers


async def at_rate(url: str, bodies: Sequence[bytes], rate: float) -> list[Answer]:
    """Each at its time, on a connection that is free then, or a new one."""
    free: list[Client] = []
    began = time.monotonic()

    async def one(index: int, body: bytes) -> Answer:
        await asyncio.sleep(max(0.0, began + index / rate - time.monotonic()))
        client = free.pop() if free else await Client(url).connect()
        answer = await client.ask(body)
        free.append(client)
        return answer

    answers = await asyncio.gather(*(one(index, body) for index, body in enumerate(bodies)))
    for client in free:
        client.close()
    return answers


async def together(url: str, bodies: Sequence[bytes]) -> list[Answer]:
    clients = [await Client(url).connect() for _ in bodies]
    answers = await asyncio.gather(*(client.ask(body) for client, body in zip(clients, bodies, strict=True)))
    for client in clients:
        client.close()
    return answers


class Client:
    """A connection that costs its own process next to nothing, which on few cores would be the router's time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._socket = socket.socket()

    async def connect(self) -> "Client":
        self._socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    async def ask(self, body: bytes) -> Answer:
        loop, answer = asyncio.get_running_loop(), Answer()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\n\r\n"
        await loop.sock_sendall(self._socket, head.encode() + body)
        answer.written = time.monotonic()
        received = b""
        async with asyncio.timeout(_LONGEST_SECONDS):
            while not received.endswith(b"0\r\n\r\n"):
                piece = await loop.sock_recv(self._socket, _READ_BYTES)
                if not piece:
                    raise RuntimeError(f"the router hung up after {received[:300]!r}")
                if b"data: " in piece and not answer.first_byte:
                    answer.first_byte = time.monotonic()
                    answer.request_id = (received + piece).partition(b"chatcmpl-")[2][:64].partition(b'"')[0].decode()
                answer.num_chunks += piece.count(b'"content": "') + piece.count(b'"content":"')
                answer.whole = answer.whole or b"data: [DONE]" in (received[-20:] + piece)
                received = (received if not answer.first_byte else received[-20:]) + piece
        return answer

    def close(self) -> None:
        self._socket.close()


def latencies(answers: Sequence[Answer], times: Path) -> dict[str, Any]:
    """p50 and p95 of each part, in seconds."""
    _check(answers)
    seen = {}
    for line in times.read_text().splitlines():
        request_id, *clock = line.split()
        seen[request_id] = tuple(map(float, clock))
    parts: dict[str, list[float]] = {name: [] for name in ("ttft", "before", "between", "after", "added")}
    for answer in answers:
        came, _, first_token = seen[answer.request_id]
        parts["ttft"].append(answer.first_byte - answer.written)
        parts["before"].append(came - answer.written)
        parts["between"].append(first_token - came)
        parts["after"].append(answer.first_byte - first_token)
        parts["added"].append(parts["before"][-1] + parts["after"][-1])
    told = {}
    for name, values in parts.items():
        told[f"{name}_seconds_p50"] = round(statistics.median(values), 5)
        told[f"{name}_seconds_p95"] = round(sorted(values)[int(0.95 * (len(values) - 1))], 5)
    return told


def _check(answers: Sequence[Answer]) -> None:
    broken = sum(not answer.whole for answer in answers)
    if broken:
        raise RuntimeError(f"{broken} of {len(answers)} answers are not whole")


def costs(used: float, bodies: Sequence[bytes]) -> dict[str, Any]:
    floor = floor_seconds(bodies)
    return {
        "cpu_seconds_per_request": round(used, 5),
        "floor_cpu_seconds_per_request": round(floor, 5),
        "ratio_to_floor": round(used / floor, 2),
    }


def floor_seconds(bodies: Sequence[bytes]) -> float:
    """CPU of this thread alone: another one writes."""
    ours, theirs = socket.socketpair()
    rounds = list(bodies[:50]) * 2

    def write() -> None:
        for body in rounds:
            theirs.sendall(body)

    writer = threading.Thread(target=write)
    writer.start()
    began = time.thread_time()
    for body in rounds:
        pieces, left = [], len(body)
        while left:
            piece = ours.recv(min(left, _READ_BYTES))
            pieces.append(piece)
            left -= len(piece)
        message = pydantic_core.from_json(b"".join(pieces))["messages"][0]
        for part in message["content"]:
            if part["type"] == "image_url":
                blake3(pybase64.b64decode(part["image_url"]["url"].partition(",")[2], validate=True)).digest()
    used = time.thread_time() - began
    writer.join()
    ours.close()
    theirs.close()
    return used / len(rounds)


if __name__ == "__main__":
    sys.exit(main())
