"""What the roles of one worker process share: identity, model, settings, memory, claims."""

import abc
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from blake3 import blake3

from triptych.config import Settings
from triptych.engine.loop import LanguageEngine
from triptych.errors import ConfigError, InvalidRecord, TransferFailed, WorkerLost
from triptych.journey import EmbeddingRef, Endpoint, KVRef, RequestId, Role
from triptych.models.base import KVGeometry
from triptych.models.card import ModelCard
from triptych.models.loading import load_language
from triptych.services.guard import Door
from triptych.services.peers import Peers
from triptych.transfer.leases import LeaseTable
from triptych.transfer.reader import Reader
from triptych.transfer.slab import Slab, create_slab

log = logging.getLogger(__name__)

EMBEDDING_ARENA = 1
KV_ARENA = 2


@dataclass(slots=True)
class Site:
    """One worker process. Slabs are added while its roles are built, then never change."""

    worker_id: str
    owner: Endpoint
    card: ModelCard
    device: torch.device
    dtype: torch.dtype
    settings: Settings
    door: Door
    leases: LeaseTable = field(default_factory=LeaseTable)
    slabs: dict[int, Slab] = field(default_factory=dict)

    def add_slab(self, kind: str, arena_id: int, unit_bytes: int, num_units: int, asked_by: str) -> Slab:
        """asked_by: the setting that makes it so large. Raises ConfigError, naming it, if there is no such memory."""
        try:
            slab = create_slab(kind, arena_id, unit_bytes, num_units, self.device)
        except (InvalidRecord, TransferFailed) as error:
            raise ConfigError(f"what {asked_by} asks for cannot be had: {error}") from error
        self.slabs[arena_id] = slab
        log.info("arena %s: %.1f MiB in %d units", kind, unit_bytes * num_units / 2**20, num_units)
        return slab


class RoleWorker(abc.ABC):
    """One role of a worker process; nothing in it is async."""

    role: Role
    max_item_tokens: int = 0  # the largest item it takes; only encoders take any

    @abc.abstractmethod
    def cancel(self, key: RequestId) -> None:
        """Free what the request holds here. Idempotent; unknown keys are fine."""

    @abc.abstractmethod
    def gauges(self) -> Mapping[str, float]:
        """Names and units as in metrics.WORKER_GAUGES."""

    @abc.abstractmethod
    def idle(self) -> bool:
        """Whether every pool, queue and table is back to its idle state."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises with the first broken invariant."""

    @abc.abstractmethod
    def stop(self) -> None: ...


class Language:
    """The language model of a worker with its engine, KV slab and the way to the neighbours' memory."""

    def __init__(self, site: Site) -> None:
        settings = site.settings.language
        self.model = load_language(site.card, site.device, site.settings.serve.dtype)
        block_bytes = self.model.kv.block_bytes(settings.block_size)
        num_blocks = settings.kv_bytes // block_bytes
        if num_blocks < 2:
            raise ConfigError(
                f"language.kv_bytes is {settings.kv_bytes}, expected at least {2 * block_bytes} (two blocks)"
            )
        self.slab = site.add_slab("kv", KV_ARENA, block_bytes, num_blocks, asked_by="language.kv_bytes")
        self.layout = kv_layout(self.model.kv, settings.block_size)
        self.engine = LanguageEngine(
            self.model,
            self.slab,
            settings,
            on_fatal=die,
            fingerprint=site.card.fingerprint,
            max_item_rows=site.card.adapter.max_item_rows,
        )
        self._copy_seconds = site.settings.transfer.copy_timeout_seconds
        self.peers = Peers(site.owner, site.card.fingerprint, self.layout, site.leases.release)
        self.reader = Reader(self.peers.connect, site.owner, site.slabs, site.device, site.settings.transfer)

    def read_rows(self, ref: EmbeddingRef, into: torch.Tensor) -> None:
        """Pull an item's rows. After an error nothing writes into `into` any more. Blocks; errors as the reader's."""
        with self._settled(ref.owner, into):
            self.reader.read_rows(ref, into)

    def read_blocks(self, ref: KVRef, block_ids: Sequence[int]) -> None:
        """Pull KV blocks into blocks of this worker; otherwise as `read_rows`."""
        if ref.kv_layout != self.layout:
            raise TransferFailed(
                f"KV of layout {ref.kv_layout.hex()[:8]} came, this worker's is {self.layout.hex()[:8]}"
            )
        blocks = self.slab.data.view(self.slab.num_units, self.slab.unit_bytes)
        with self._settled(ref.owner, blocks):
            self.reader.read_blocks(ref, blocks, block_ids)

    @contextmanager
    def _settled(self, owner: Endpoint, destination: torch.Tensor) -> Iterator[None]:
        """Waits out a copy that was given up, and lets go of an owner that does not answer any more."""
        try:
            yield
        except Exception as error:
            if isinstance(error, WorkerLost | TransferFailed):
                self.reader.forget(owner)
            if not self.reader.wait_until_quiet(destination, self._copy_seconds):
                die(error)  # a copy that never ends may still write into memory that is given to others next
            raise

    def stop(self) -> None:
        self.engine.stop()
        self.peers.close()
        self.reader.close()


def kv_layout(kv: KVGeometry, block_size: int) -> bytes:
    """Digest of what two workers must agree on before one copies the other's KV blocks."""
    facts = (kv.layers, kv.kv_heads, kv.head_size, str(kv.dtype), block_size)
    return blake3(repr(facts).encode()).digest(16)


def merge_gauges(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """One mapping of all roles' gauges; roles that share an engine report the same values."""
    merged: dict[str, float] = {}
    for part in parts:
        merged |= part
    return merged


def die(error: BaseException) -> None:
    """A broken CUDA context poisons everything after it: end the process, the supervisor starts a clean one."""
    log.critical("device context lost, ending this worker", exc_info=error)
    os._exit(70)
