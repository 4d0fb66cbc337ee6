"""Real clusters for tests: Ray actors, gRPC between them, HTTP in front."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from triptych.cluster.actors import WorkerAddress
from triptych.cluster.supervisor import Supervisor
from triptych.config import (
    MIB,
    EncoderSettings,
    LanguageSettings,
    RouterSettings,
    ServeSettings,
    Settings,
    TransferSettings,
    with_secret,
)
from triptych.journey import Role
from triptych.models.card import load_card
from triptych.pb import worker_pb2
from triptych.pb.worker_pb2_grpc import WorkerStub
from triptych.wire.membership import Membership

FLOAT32_BYTES = 4
ANSWER_SECONDS = 120.0  # a liveness bound: nothing here takes a fifth of it
RESTART_SECONDS = 60.0  # another


@dataclass(frozen=True, order=True)
class Variation:
    """Which cluster a test wants; equal variations share one."""

    topology: str = "e+p+d"
    model: str = "random"
    chunk_tokens: int = 4096
    prefills: int = 1
    encoders: int = 1
    room_for_items: int = 0  # of the largest kind, in landing memory and in each encoder's arena; 0: for very many
    kv_blocks: int = 0  # of 16 tokens, in each language worker; 0: very many
    margin_tokens: int = 0  # reserved for an answer; 0: predicted
    swap_blocks: int = 0  # that host memory takes of those that make room
    routers: int = 1

    def __str__(self) -> str:
        name = f"{self.model}-{self.topology}-{self.encoders}-{self.prefills}-{self.chunk_tokens}"
        name = f"{name}-{self.room_for_items}" if self.room_for_items else name
        name = f"{name}-{self.kv_blocks}-blocks" if self.kv_blocks else name
        return f"{name}-{self.swap_blocks}-swapped" if self.margin_tokens else name

    def settings(self, folders: Mapping[str, Path]) -> Settings:
        room = self.room_for_items * _item_bytes(folders[self.model]) if self.room_for_items else 32 * MIB
        block_bytes = _block_bytes(folders[self.model])
        return Settings(
            serve=ServeSettings(
                model=str(folders[self.model]),
                served_name="m",
                topology=self.topology,
                encoders=self.encoders,
                prefills=self.prefills,
                routers=self.routers,
                device="cpu",
                ray="local",
                cpu_threads=1,
            ),
            router=RouterSettings(
                port=0, allow_media_cidrs=("127.0.0.0/8",), allow_media_ports=(), status_interval_seconds=0.2
            ),
            encoder=EncoderSettings(arena_bytes=room, output_bytes=room if self.room_for_items else 0),
            language=LanguageSettings(
                kv_bytes=self.kv_blocks * block_bytes if self.kv_blocks else 128 * MIB,
                decode_margin_tokens=self.margin_tokens,
                swap_bytes=self.swap_blocks * block_bytes,
                prefill_chunk_tokens=self.chunk_tokens,
                landing_bytes=room,
            ),
            transfer=TransferSettings(lease_seconds=10.0, sweep_interval_seconds=0.2, checksums=True),
        )


def _item_bytes(folder: Path) -> int:
    """Embedding rows of the largest image, as computed on the CPU."""
    card = load_card(str(folder), "auto")
    return int(card.adapter.max_item_rows * card.config["text_config"]["hidden_size"]) * FLOAT32_BYTES


def _block_bytes(folder: Path) -> int:
    """Keys and values of 16 tokens, as computed on the CPU."""
    text = load_card(str(folder), "auto").config["text_config"]
    head_size = text["hidden_size"] // text["num_attention_heads"]
    return int(text["num_hidden_layers"] * 2 * 16 * text["num_key_value_heads"] * head_size) * FLOAT32_BYTES


@dataclass(frozen=True)
class Answer:
    """One choice: ids, their logprobs, text, and what the usage said."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int


class Running:
    """A running cluster and ways to talk to it."""

    def __init__(self, variation: Variation, settings: Settings) -> None:
        self.variation = variation
        self.settings = with_secret(settings)
        self.membership = Membership(self.settings.serve.cluster_secret)
        self.supervisor = Supervisor(self.settings)
        self.url = f"http://127.0.0.1:{self.supervisor.start()}"
        self.http = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, trust_env=False)

    def stop(self) -> None:
        self.http.close()
        self.supervisor.stop()

    def post(self, body: Mapping[str, Any], **keywords: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={"model": "m", **body}, **keywords)

    def answers(self, messages: Sequence[Mapping[str, Any]], max_tokens: int = 48, **fields: Any) -> list[Answer]:
        """All choices of a greedy (unless told otherwise) request that ignores the end token."""
        body = {
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": True,
            "return_token_ids": True,
            **fields,
        }
        response = self.post(body)
        assert response.status_code == 200, response.text
        reply = response.json()
        return [
            Answer(
                token_ids=tuple(choice["token_ids"]),
                logprobs=tuple(entry["logprob"] for entry in choice["logprobs"]["content"]),
                text=choice["message"]["content"],
                finish_reason=choice["finish_reason"],
                prompt_tokens=reply["usage"]["prompt_tokens"],
                cached_tokens=reply["usage"]["prompt_tokens_details"]["cached_tokens"],
            )
            for choice in reply["choices"]
        ]

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of calls that all run at once."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return [future.result(timeout=ANSWER_SECONDS) for future in [pool.submit(call) for call in calls]]

    def addresses(self) -> Sequence[WorkerAddress]:
        return self.supervisor.addresses()

    def wait_for_successor(self, address: WorkerAddress) -> None:
        """Until another process is in the place of one that was killed; fails the test where none comes."""
        deadline = time.monotonic() + RESTART_SECONDS
        while not any(one.worker_id == address.worker_id and one.pid != address.pid for one in self.addresses()):
            assert time.monotonic() < deadline, f"{address.worker_id} did not come back within {RESTART_SECONDS} s"
            time.sleep(0.1)

    def status(self, address: WorkerAddress, check: bool = True) -> worker_pb2.StatusReply:
        """The worker's own word, with its invariants checked."""
        with self.membership.channel(address.endpoint.address) as channel:
            request = worker_pb2.StatusRequest(check_invariants=check)
            reply: worker_pb2.StatusReply = WorkerStub(channel).Status(request, timeout=10)
            return reply

    def gauge(self, name: str, role: Role) -> float:
        """Over all workers of the role."""
        statuses = [self.status(address, check=False) for address in self.addresses() if role in address.roles]
        return sum(gauge.value for status in statuses for gauge in status.gauges if gauge.name == name)

    def busy(self) -> list[str]:
        """What is not back to its idle state, in words; broken invariants too."""
        found = []
        for address in self.addresses():
            status = self.status(address)
            if status.violation:
                found.append(f"{address.worker_id}: {status.violation}")
            if not status.idle:
                gauges = {gauge.name: gauge.value for gauge in status.gauges}
                found.append(f"{address.worker_id}: not idle, {gauges}")
        return found

    def seconds_until_idle(self, limit: float) -> float:
        """How long until every worker is idle with all invariants intact; fails the test past the limit."""
        began = time.monotonic()
        while busy := self.busy():
            assert time.monotonic() - began < limit, f"still busy after {limit} s: {busy}"
            time.sleep(0.05)
        return time.monotonic() - began


class Clusters:
    """At most one running cluster; asking for another variation ends it."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._running: Running | None = None

    def get(self, variation: Variation) -> Running:
        if self._running is None or self._running.variation != variation:
            self.stop()
            self._running = Running(variation, variation.settings(self._folders))
        return self._running

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


def events(response: httpx.Response) -> Iterator[str]:
    """The data of each server-sent event, [DONE] included."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
