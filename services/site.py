"""What the roles of one worker process share: identity, model, settings, memory, claims."""

import abc
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from triptych.config import MIB, Settings
from triptych.engine.device_errors import is_device_lost
from triptych.engine.loop import LanguageEngine
from triptych.errors import ConfigError, InvalidRecord, TransferFailed, WorkerLost
from triptych.grammar.compiler import compiler_of
from triptych.journey import EmbeddingRef, Endpoint, Item, KVRef, RequestId, Role
from triptych.metrics import BucketCounts
from triptych.models.base import KVGeometry
from triptych.models.card import ModelCard
from triptych.models.loading import load_language
from triptych.services.guard import Door
from triptych.services.memory_plan import kv_bytes
from triptych.services.neighbour_watch import NeighbourWatch
from triptych.services.peers import Peers
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.faults import Faults
from triptych.transfer.figures import TransferFigures
from triptych.transfer.kv_format import KVFormat
from triptych.transfer.leases import LeaseTable
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.pull import IsWanted, always
from triptych.transfer.reader import Reader, copier_for
from triptych.transfer.shards import Repack
from triptych.transfer.slab import Slab, create_slab
from triptych.transfer.staging import STAGING_UNIT_BYTES, Staging
from triptych.wire.membership import Membership

log = logging.getLogger(__name__)

EMBEDDING_ARENA = 1
KV_ARENA = 2
STAGING_ARENA = 3

_STAGING_BYTES = {"cpu": 32 * MIB, "cuda": 256 * MIB}


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
    faults: Faults = field(default_factory=Faults)
    figures: TransferFigures = field(default_factory=TransferFigures)
    nixl: NixlAgent | None = None
    staging: Staging | None = None
    roles: frozenset[Role] = frozenset()  # of this process
    device_share: float = 1.0  # of its GPU, among the workers placed there
    membership: Membership = field(default_factory=Membership)
    # Of an encoder in this process: a claim on an item's rows, where it has them, by a request's key, for seconds
    rows_here: Callable[[RequestId, Item, float], EmbeddingRef | None] | None = None

    def add_slab(self, kind: str, arena_id: int, unit_bytes: int, num_units: int, asked_by: str) -> Slab:
        """asked_by: the setting that makes it so large. Raises ConfigError, naming it, if there is no such memory."""
        try:
            slab = create_slab(kind, arena_id, unit_bytes, num_units, self.device)
        except (InvalidRecord, TransferFailed) as error:
            raise ConfigError(f"what {asked_by} asks for cannot be had: {error}") from error
        self.slabs[arena_id] = slab
        self._register(slab)
        log.info("arena %s: %.1f MiB in %d units", kind, unit_bytes * num_units / 2**20, num_units)
        return slab

    def start_staging(self, *, packs: bool) -> None:
        """Claims can be made ready from now on for readers over a network; in packs, if there is memory for them."""
        wanted = self.settings.transfer.nixl_staging_bytes or _STAGING_BYTES[self.device.type]
        slab = None
        if packs and self.settings.transfer.nixl_pack_below_bytes:
            try:
                units, asked_by = max(1, wanted // STAGING_UNIT_BYTES), "transfer.nixl_staging_bytes"
                slab = self.add_slab("staging", STAGING_ARENA, STAGING_UNIT_BYTES, units, asked_by)
            except ConfigError as error:
                log.warning("scattered blocks go out piece by piece: %s", error.message)
        self.staging = Staging(self.slabs, self.leases, copier_for(self.device), slab)

    def arenas(self) -> list[ArenaInfo]:
        """What this worker exports, and by which ways."""
        return [self.nixl.describe(slab) if self.nixl is not None else slab.describe() for slab in self.slabs.values()]

    def _register(self, slab: Slab) -> None:
        """With NIXL, once and ahead of the first neighbour; a slab that it will not take leaves this worker without."""
        if self.nixl is None:
            return
        try:
            self.nixl.describe(slab)
        except TransferFailed as error:
            log.info("nixl is not used: %s", error.message)
            self.nixl = None


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

    def histograms(self) -> Mapping[str, BucketCounts]:
        """Names as in metrics.WORKER_HISTOGRAMS."""
        return {}

    def turn_seconds(self) -> float:
        """For how long a device loop of its own has been at what it does now; 0 while there is nothing to do."""
        return 0.0

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
        if Role.DECODE not in site.roles:
            settings = replace(settings, graphs="off")  # to record decoding takes seconds, and nothing is decoded here
        self.model = load_language(site.card, site.device, site.settings.serve.dtype, settings)
        block_bytes = self.model.kv.block_bytes(settings.block_size)
        num_bytes = kv_bytes(site.settings, site.roles, site.device_share, site.device)
        num_blocks = num_bytes // block_bytes
        if num_blocks < 2:
            raise ConfigError(f"language.kv_bytes is {num_bytes}, expected at least {2 * block_bytes} (two blocks)")
        self.slab = site.add_slab("kv", KV_ARENA, block_bytes, num_blocks, asked_by="language.kv_bytes")
        self.format = kv_format(self.model.kv, settings.block_size)
        self.layout = self.format.digest
        self.grammars = compiler_of(site.card.folder, self.model.vocab_size, site.card.eos_token_ids)
        self.engine = LanguageEngine(
            self.model,
            self.slab,
            settings,
            on_fatal=die,
            fingerprint=site.card.fingerprint,
            max_item_rows=site.card.adapter.max_item_rows,
            grammars=self.grammars,
        )
        self._owner = site.owner
        self._figures = site.figures
        self._copy_seconds = site.settings.transfer.copy_timeout_seconds
        self.peers = Peers(
            *(site.owner, site.card.fingerprint, self.format, site.leases, site.faults),
            membership=site.membership,
        )
        self.reader = Reader(
            *(self.peers.connect, site.owner, site.slabs, site.device, site.settings.transfer),
            *(site.faults, site.figures, site.nixl, self.peers.release, self.peers.prepare),
        )
        interval = site.settings.transfer.lease_seconds
        # Also those whose memory a failed pull has closed: calls to them are kept.
        known = lambda: [*{*self.reader.known(), *self.peers.known()}]  # noqa: E731
        self._watch = NeighbourWatch(known, self.peers.is_there, self._forget, interval)

    def read_rows(self, ref: EmbeddingRef, into: torch.Tensor, is_wanted: IsWanted = always) -> None:
        """Pull an item's rows. After an error nothing writes into `into` any more. Blocks; errors as the reader's.

        Gives the claim back, whatever happens. Begins nothing more once it is not wanted.
        """
        with self._settled(ref.owner, into):
            self.reader.read_rows(ref, into, is_wanted=is_wanted)

    def read_blocks(self, ref: KVRef, blocks: Sequence[int], keep_tokens: int, is_wanted: IsWanted = always) -> None:
        """Pull KV into blocks of this worker, which a prompt begins with; otherwise as `read_rows`.

        keep_tokens: from the prompt's beginning, in blocks that are others' too, and are not written
        """
        slab = self.slab.data.view(self.slab.num_units, self.slab.unit_bytes)
        with self._settled(ref.owner, slab):
            if ref.kv_layout == self.layout and ref.tokens_begin >= keep_tokens and [s.rank for s in ref.shards] == [0]:
                first = ref.tokens_begin // self.format.block_size
                mine = blocks[first : first + len(ref.blocks)]
                self.reader.read_blocks(ref, slab, mine, is_wanted=is_wanted)
            else:
                repack = Repack(partial(self._format_of, ref), self.format, blocks, keep_tokens)
                self.reader.read_repacked(ref, repack, slab, is_wanted=is_wanted)

    def _format_of(self, ref: KVRef) -> KVFormat:
        """Of the blocks of a ref whose owner is connected."""
        found = self.format if ref.owner == self._owner else self.peers.kv_format(ref.owner)
        if found is None or found.digest != ref.kv_layout:
            raise TransferFailed(f"KV of layout {ref.kv_layout.hex()[:8]} came, the owner told of {found or 'none'}")
        return found

    @contextmanager
    def _settled(self, owner: Endpoint, destination: torch.Tensor) -> Iterator[None]:
        """Waits out a copy that was given up, and lets go of an owner that does not answer any more."""
        with ending_where_device_is_lost():  # which the waiting may find too
            try:
                yield
            except Exception as error:
                if is_device_lost(error):
                    raise
                if isinstance(error, WorkerLost | TransferFailed):
                    self._figures.failed()
                    self.reader.forget(owner)
                if not self.reader.wait_until_quiet(destination, self._copy_seconds):
                    die(error)  # a copy that never ends may still write into memory that is given to others next
                raise

    def _forget(self, endpoint: Endpoint) -> None:
        """A neighbour's process is gone."""
        self.reader.forget(endpoint)
        self.peers.forget(endpoint)

    def stop(self) -> None:
        self.engine.stop()
        self.grammars.close()
        self._watch.stop()
        self.peers.close()
        self.reader.close()


def kv_format(kv: KVGeometry, block_size: int) -> KVFormat:
    """How a model's KV lies in blocks of a worker that has all its heads."""
    dtype = str(kv.dtype).removeprefix("torch.")
    return KVFormat(kv.layers, block_size, kv.kv_heads, kv.head_size, dtype, scaling=kv.scaling)


def merge_gauges(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """One mapping of all roles' gauges; roles that share an engine report the same values."""
    merged: dict[str, float] = {}
    for part in parts:
        merged |= part
    return merged


@contextmanager
def ending_where_device_is_lost() -> Iterator[None]:
    """Whatever is done inside ends this process, and is told to nobody, where it finds the device lost."""
    try:
        yield
    except Exception as error:
        if is_device_lost(error):
            die(error)
        raise


def die(error: BaseException) -> None:
    """A broken CUDA context poisons everything after it: end the process, the supervisor starts a clean one."""
    log.critical("device context lost, ending this worker", exc_info=error)
    os._exit(70)
