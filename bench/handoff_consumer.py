"""The consumer's side in bench/handoff.py: a worker's own reader, from a ref's bytes to checked rows and blocks."""

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from bench.handoff_owner import Met, memory_figures, serve
from bench.handoff_sizes import Sizes
from triptych import wire
from triptych.config import Settings
from triptych.journey import EmbeddingRef, Endpoint, KVRef
from triptych.pb import common_pb2 as pb
from triptych.services.peers import Peers
from triptych.services.quick_waits import wake_quickly
from triptych.transfer.leases import LeaseTable
from triptych.transfer.mapping import Mapping
from triptych.transfer.nixl_start import start_nixl
from triptych.transfer.pairing import open_mapping
from triptych.transfer.reader import Reader

HERE = Endpoint("127.0.0.1:1", 1)
PULL_THREADS = 4  # as prefill and decode workers have
_ANSWER_SECONDS = 60.0
_DEADLINE_SECONDS = 20.0


class OwnerProcess:
    """The owner, asked through a pipe. It ends when the pipe is closed, whatever happens to this process."""

    def __init__(self, settings: Settings, device: str, sizes: Sizes) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, settings, device, sizes), daemon=True)
        self._process.start()
        theirs.close()
        self._met: Met | None = None

    @property
    def met(self) -> Met:
        """Waits for the owner's start, the first time."""
        if self._met is None:
            met = self._receive()
            assert isinstance(met, Met)
            self._met = met
        return self._met

    def ask(self, what: str, *arguments: Any) -> Any:
        assert self.met
        self._pipe.send((what, arguments))
        return self._receive()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(10)

    def _receive(self) -> Any:
        if not self._pipe.poll(_ANSWER_SECONDS):
            raise TimeoutError(f"the owner has not answered for {_ANSWER_SECONDS:g} s")
        worked, answer = self._pipe.recv()
        if not worked:
            raise RuntimeError(f"the owner failed: {answer}")
        return answer


@dataclass(frozen=True, slots=True)
class Path:
    """A way to hand over, and how much of it."""

    what: str  # "1 item", "16 items", "KV"
    num_bytes: int
    hand_over: Callable[[], float]  # seconds from the refs' arrival until all is here and checked


class Consumer:
    """Pulls what the owner made, by one transport. Used in a `with`."""

    def __init__(self, owner: OwnerProcess, settings: Settings, device: torch.device, sizes: Sizes) -> None:
        wake_quickly()  # as every worker's process does: its threads take turns by other rules than Python's own
        self.device = device
        self._owner, self._sizes = owner, sizes
        self._peers = Peers(HERE, owner.met.fingerprint, None, LeaseTable())
        self._nixl = start_nixl(settings.transfer, device)
        self._reader = Reader(
            *(self._peers.connect, HERE, {}, device, settings.transfer),
            nixl=self._nixl,
            give_back=self._peers.release,
            prepare=lambda *asked: self._peers.prepare(*asked),  # looked up at each call: its steps may be timed
        )
        self._threads = ThreadPoolExecutor(PULL_THREADS, thread_name_prefix="pull")
        self._chance = random.Random(2)
        self.landing = torch.zeros(sizes.items, sizes.rows, sizes.width, dtype=torch.bfloat16, device=device)
        self.blocks = torch.zeros(sizes.pool, sizes.block_bytes, dtype=torch.uint8, device=device)

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._reader.close()
        self._peers.close()
        if self._nixl is not None:
            self._nixl.close()

    def open(self) -> str:
        """The transport by which the owner is reached. Raises TransferFailed with each refusal."""
        return self._reader.open(self._owner.met.endpoint, time.monotonic() + _DEADLINE_SECONDS)

    def kv_arena(self) -> Mapping:
        """The owner's KV arena, opened once more, by the nearest transport; its bytes are mapped."""
        arenas = self._peers.connect(self._owner.met.endpoint)
        return open_mapping(next(info for info in arenas if info.kind == "kv"), self.device, {})

    def paths(self) -> list[Path]:
        sizes = self._sizes
        return [
            Path("1 item", sizes.item_bytes, lambda: self.rows(1)),
            Path(f"{sizes.items} items", sizes.items * sizes.item_bytes, lambda: self.rows(sizes.items)),
            Path("KV, scattered", sizes.kv_bytes, lambda: self.kv(in_row=False)),
            Path("KV, in a row", sizes.kv_bytes, lambda: self.kv(in_row=True)),
        ]

    def rows(self, items: int) -> float:
        """Raises AssertionError unless the rows that came are the owner's."""
        messages = self._owner.ask("rows", items)
        began = time.perf_counter()
        pulls = [self._threads.submit(self._pull_rows, message, item) for item, message in enumerate(messages)]
        refs = [pull.result() for pull in pulls]
        took = time.perf_counter() - began
        wanted = torch.arange(items, device=self.device) + refs[0].generation % 64
        assert bool((self.landing[:items] == wanted[:, None, None]).all()), "rows came that are not the owner's"
        return took

    def kv(self, in_row: bool) -> float:
        """Raises AssertionError unless the blocks that came are the owner's, each in its place."""
        count = self._sizes.blocks
        targets = list(range(count)) if in_row else self._chance.sample(range(self._sizes.pool), count)
        message = self._owner.ask("kv", in_row)
        began = time.perf_counter()
        ref = self._threads.submit(self._pull_blocks, message, targets).result()
        took = time.perf_counter() - began
        landed = self.blocks.view(torch.int32)[torch.tensor(targets, device=self.device)]
        wanted = torch.arange(count, device=self.device) + ref.blocks[0].generation
        assert bool((landed == wanted[:, None]).all()), "blocks came that are not the owner's"
        return took

    def wait_until_given_back(self) -> int:
        """How many claims the owner still counts, after up to two seconds."""
        end = time.monotonic() + 2
        while (left := int(self._owner.ask("claims"))) and time.monotonic() < end:
            time.sleep(0.01)
        return left

    def memory(self) -> dict[str, dict[str, int]]:
        return {"owner": self._owner.ask("memory"), "consumer": memory_figures(self.device)}

    def _pull_rows(self, message: bytes, item: int) -> EmbeddingRef:
        ref = wire.embedding_ref_from_pb(pb.EmbeddingRef.FromString(message))
        self._reader.read_rows(ref, self.landing[item])
        return ref

    def _pull_blocks(self, message: bytes, targets: Sequence[int]) -> KVRef:
        ref = wire.kv_ref_from_pb(pb.KVRef.FromString(message))
        self._reader.read_blocks(ref, self.blocks, targets)
        return ref


def plain_copy_seconds(device: torch.device, num_bytes: int, repeats: int) -> list[float]:
    """Of one plain copy of so many bytes within a device's memory, each; on CUDA by the device's own clock."""
    source, into = (torch.empty(num_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    return [timed_on(device, lambda: into.copy_(source)) for _ in range(repeats + 2)][2:]


def timed_on(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of what `work` queues on the current stream, by the device's clock; on the CPU by the host's."""
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    torch.cuda.synchronize(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end)) / 1e3
