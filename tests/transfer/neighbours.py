"""Other processes that own slabs, for tests: real ones, told what to do through a pipe."""

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_longlong
from multiprocessing.connection import Connection
from typing import Any

import torch

from triptych.journey import BlockRef, EmbeddingRef, Endpoint, KVRef, Shard, new_claim_id
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.host_slab import fence
from triptych.transfer.slab import Slab, create_slab

CPU = torch.device("cpu")
OWNER = Endpoint("127.0.0.1:7001", 11)
HERE = Endpoint("127.0.0.1:7002", 12)

# Each neighbour on the CPU is forked from a server that has imported torch already.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])

Action = Callable[..., Any]


class Neighbour:
    """A process with one slab. Leaving the `with` kills it."""

    def __init__(
        self,
        kind: str,
        unit_bytes: int,
        num_units: int,
        published: Any = None,
        device: torch.device = CPU,
        actions: Mapping[str, Action] | None = None,
    ) -> None:
        """published: shared memory its actions may write into; actions: more than the ones below, by name."""
        context = PROCESSES if device.type == "cpu" else multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, kind, unit_bytes, num_units, published, device, _ACTIONS | dict(actions or {}))
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.info: ArenaInfo = self._pipe.recv()

    def ask(self, what: str, *arguments: Any) -> Any:
        """Has the process do one of the things in `_ACTIONS` and waits for its answer."""
        self.tell(what, *arguments)
        return self._pipe.recv()

    def tell(self, what: str, *arguments: Any) -> None:
        self._pipe.send((what, arguments))

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)

    def __enter__(self) -> "Neighbour":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def fill(slab: Slab, units: Sequence[int], generation: int) -> None:
    """Units stamped, then overwritten so that each 8 bytes of them say the generation."""
    slab.stamp(units, [generation] * len(units))
    numbers = slab.data.view(torch.int64).view(slab.num_units, -1)
    numbers[list(units)] = generation


def rows_ref(generation: int, rows: int, width: int, offset: int = 0, arena: int = 1, **more: Any) -> EmbeddingRef:
    fields: dict[str, Any] = {"owner": OWNER, "dtype": "int64", "lease_seconds": 1.0} | more
    return EmbeddingRef(
        claim_id=new_claim_id(),
        item_digest=bytes(32),
        rows=rows,
        width=width,
        shards=(Shard(0, arena, offset),),
        generation=generation,
        **fields,
    )


def blocks_ref(blocks: Sequence[tuple[int, int]], arena: int = 2, **more: Any) -> KVRef:
    """A claim on (id, generation) pairs."""
    fields: dict[str, Any] = {"owner": OWNER, "shards": (Shard(0, arena, 0),), "checksum": b""} | more
    return KVRef(
        claim_id=new_claim_id(),
        blocks=tuple(BlockRef(*block) for block in blocks),
        tokens_begin=0,
        tokens_end=16 * len(blocks),
        dtype="float32",
        kv_layout=bytes(16),
        lease_seconds=1.0,
        **fields,
    )


def shared_counters(count: int) -> Any:
    """int64 numbers that this process and a neighbour both see."""
    return PROCESSES.RawArray(c_longlong, count)


def _serve(
    pipe: Connection,
    kind: str,
    unit_bytes: int,
    num_units: int,
    published: Any,
    device: torch.device,
    actions: Mapping[str, Action],
) -> None:
    torch.set_num_threads(1)
    slab = create_slab(kind, {"embedding": 1, "kv": 2}[kind], unit_bytes, num_units, device)
    pipe.send(slab.describe())
    while True:
        what, arguments = pipe.recv()
        pipe.send(actions[what](slab, published, *arguments))


def _fill(slab: Slab, _published: Any, units: Sequence[int], generation: int) -> int:
    fill(slab, units, generation)
    return slab.record_event()


def _rewrite_all(slab: Slab, published: Any, seconds: float) -> int:
    """Overwrites the whole slab again and again, telling each generation once it is all there; the last one."""
    generation, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        generation += 1
        fill(slab, range(slab.num_units), generation)
        fence()
        published[0] = generation
        time.sleep(random.Random(generation).random() * 2e-3)
    return generation


def _rewrite_some(slab: Slab, published: Any, seconds: float) -> int:
    """Overwrites random units again and again, telling each one's generation once it is there; the last one."""
    chance, generation, end = random.Random(1), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        generation += 1
        unit = chance.randrange(slab.num_units)
        fill(slab, [unit], generation)
        fence()
        published[unit] = generation
        if generation % 16 == 0:
            time.sleep(chance.random() * 1e-3)
    return generation


def _replace_descriptor(slab: Slab, _published: Any, what: str) -> None:
    """Puts something else under the number of the slab's descriptor: what happens to numbers that are reused."""
    info = slab.describe()
    assert info.shm is not None
    if what == "slab":
        other = create_slab(info.kind, info.id, info.unit_bytes, info.num_units, CPU).describe().shm
        assert other is not None
        source = other.fd
    elif what == "pipe":
        source = os.pipe()[0]
    elif what == "unsealed":
        source = os.memfd_create("unsealed")
        os.ftruncate(source, info.num_bytes)
    else:
        source = os.open("/dev/null", os.O_RDONLY)
    os.dup2(source, info.shm.fd)


def _close(slab: Slab, _published: Any) -> None:
    slab.close()


_ACTIONS: dict[str, Action] = {
    "fill": _fill,
    "rewrite_all": _rewrite_all,
    "rewrite_some": _rewrite_some,
    "replace_descriptor": _replace_descriptor,
    "close": _close,
}
