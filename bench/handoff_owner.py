"""The process that owns rows and KV in bench/handoff.py: a worker's own server, leases and slabs, without a model."""

import os
import random
import resource
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import grpc
import torch

from bench.handoff_pieces import PieceOwner
from bench.handoff_sizes import Sizes
from bench.handoff_steps import OWNER, Clocks
from triptych import wire
from triptych.config import Settings
from triptych.journey import BlockRef, ClaimId, EmbeddingRef, Endpoint, KVRef, RequestId, Role, Shard
from triptych.services.host import Placement, WorkerHost
from triptych.services.site import EMBEDDING_ARENA, KV_ARENA, Language, RoleWorker, Site
from triptych.transfer.leases import Claimed
from triptych.transfer.slab import Slab

_REQUEST = RequestId(bytes(20))
_LEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Met:
    """What the consumer must know of the owner."""

    endpoint: Endpoint
    fingerprint: bytes


class Memory(RoleWorker):
    """A role that holds slabs and computes nothing."""

    role = Role.ENCODE

    def __init__(self, site: Site, sizes: Sizes) -> None:
        self.site = site
        self.rows: Slab = site.add_slab(
            "embedding", EMBEDDING_ARENA, sizes.unit_bytes, sizes.units_per_item * sizes.items, asked_by="this bench"
        )
        self.kv: Slab = site.add_slab("kv", KV_ARENA, sizes.block_bytes, sizes.pool, asked_by="this bench")

    def cancel(self, key: RequestId) -> None:
        """Nothing here is any request's."""

    def gauges(self) -> Mapping[str, float]:
        return {}

    def idle(self) -> bool:
        return True

    def check(self) -> None:
        """No pool, no rule."""

    def stop(self) -> None:
        """No thread."""


class Owner:
    """Its public methods are what the consumer may ask for; each makes something and answers it."""

    def __init__(self, settings: Settings, device: str, sizes: Sizes) -> None:
        self._sizes = sizes
        self._made: list[Memory] = []
        self._generation = 0
        self._chance = random.Random(1)
        self._pieces: PieceOwner | None = None
        self._clocks, self._timing = Clocks(), ExitStack()
        self.host = WorkerHost(
            Placement("owner", frozenset({Role.ENCODE}), device=device), {Role.ENCODE: self._build}, settings
        )
        endpoint = self.host.start()
        self._memory = self._made[0]
        self._site = self._memory.site
        self._pack()
        self.met = Met(endpoint, self._site.card.fingerprint)

    def rows(self, items: int) -> list[bytes]:
        """One ref for each item, as it would come over the wire; the rows are all there. Each number is the item's."""
        self._generation += 1
        per_item = self._sizes.units_per_item
        slab = self._memory.rows
        slab.stamp(range(items * per_item), [self._generation] * (items * per_item))
        units = slab.data.view(torch.bfloat16).view(-1, per_item * self._sizes.unit_bytes // 2)
        units[:items] = (torch.arange(items, device=units.device) + self._generation % 64)[:, None]
        event = slab.record_event()
        self._synchronize()
        refs = [self._rows_ref(item, event) for item in range(items)]
        return [wire.embedding_ref_to_pb(ref).SerializeToString() for ref in refs]

    def kv(self, in_row: bool) -> bytes:
        """A ref on scattered blocks, or on blocks in a row; each 4 bytes of block i of the ref say generation + i."""
        self._generation += 1
        slab, count = self._memory.kv, self._sizes.blocks
        ids = list(range(count)) if in_row else self._chance.sample(range(self._sizes.pool), count)
        slab.stamp(ids, [self._generation] * count)
        numbers = torch.arange(count, dtype=torch.int32, device=slab.device) + self._generation
        slab.data.view(torch.int32).view(self._sizes.pool, -1)[torch.tensor(ids, device=slab.device)] = numbers[:, None]
        event = slab.record_event()
        self._synchronize()
        ref = KVRef(
            claim_id=self._grant(Claimed(KV_ARENA, tuple(ids), event)),
            owner=self.met.endpoint,
            blocks=tuple(BlockRef(block, self._generation) for block in ids),
            tokens_begin=0,
            tokens_end=self._sizes.tokens,
            shards=(Shard(0, KV_ARENA, 0),),
            dtype="bfloat16",
            kv_layout=bytes(16),
            lease_seconds=_LEASE_SECONDS,
            event=event,
        )
        return wire.kv_ref_to_pb(ref).SerializeToString()

    def memory(self) -> dict[str, int]:
        return memory_figures(self._site.device)

    def claims(self) -> int:
        """How many are not given back."""
        return len(self._site.leases)

    def time_steps(self) -> None:
        """What this process does for a hand-over is timed, until `steps`."""
        self._timing.enter_context(self._clocks.around(OWNER))

    def steps(self, hand_overs: int) -> dict[str, dict[str, float]]:
        """As `Clocks.figures`."""
        self._timing.close()
        return self._clocks.figures(hand_overs)

    def pieces(self, what: str, *arguments: Any) -> Any:
        """Of bench/handoff_pieces.py."""
        if self._pieces is None:
            self._pieces = PieceOwner(self._memory.kv)
        return getattr(self._pieces, what)(*arguments)

    def _build(self, site: Site, language: Language | None, server: grpc.aio.Server) -> RoleWorker:
        self._made.append(Memory(site, self._sizes))
        return self._made[-1]

    def _rows_ref(self, item: int, event: int) -> EmbeddingRef:
        units = range(item * self._sizes.units_per_item, (item + 1) * self._sizes.units_per_item)
        return EmbeddingRef(
            claim_id=self._grant(Claimed(EMBEDDING_ARENA, tuple(units), event)),
            owner=self.met.endpoint,
            item_digest=bytes(32),
            rows=self._sizes.rows,
            width=self._sizes.width,
            dtype="bfloat16",
            shards=(Shard(0, EMBEDDING_ARENA, units.start * self._sizes.unit_bytes),),
            generation=self._generation,
            lease_seconds=_LEASE_SECONDS,
            event=event,
        )

    def _grant(self, covers: Claimed) -> ClaimId:
        return self._site.leases.grant(_REQUEST, _LEASE_SECONDS, lambda: None, covers)

    def _pack(self) -> None:
        """As a prefill worker, which this is to NIXL's readers too, and an encoder by its roles is not."""
        if self._site.staging is not None:
            self._site.staging.stop()
            self._site.start_staging(packs=True)

    def _synchronize(self) -> None:
        """Rows and KV are written before their ref leaves: waiting for the producer is no cost of the hand-off."""
        if self._site.device.type == "cuda":
            torch.cuda.synchronize(self._site.device)


def serve(pipe: Connection, settings: Settings, device: str, sizes: Sizes) -> None:
    """Answers until the other end is closed. An answer is (whether it worked, value or error)."""
    owner = Owner(settings, device, sizes)
    pipe.send((True, owner.met))
    try:
        while True:
            what, arguments = pipe.recv()
            pipe.send(_answer(owner, what, arguments))
    except (EOFError, OSError):
        owner.host.stop()
        os._exit(0)


def _answer(owner: Owner, what: str, arguments: Sequence[Any]) -> tuple[bool, Any]:
    try:
        return True, getattr(owner, what)(*arguments)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def memory_figures(device: torch.device) -> dict[str, int]:
    """Bytes: resident, and on CUDA torch's own and, of all processes together, the device's."""
    with open("/proc/self/statm") as statm:
        figures = {"resident": int(statm.read().split()[1]) * resource.getpagesize()}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        figures |= {"device_of_all": total - free}
        figures |= {"torch_allocated": torch.cuda.memory_allocated(device)}
        figures |= {"torch_reserved": torch.cuda.memory_reserved(device)}
    return figures
