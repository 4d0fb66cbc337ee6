"""One encoder engine with its slab and leases, and pictures to feed it. Real parts throughout.

What a test wants to go wrong is done by a tower that stands in front of the real one: `Gate` holds it back, `Saboteur`
raises where told.
"""

import io
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from triptych.config import EncoderSettings, TransferSettings
from triptych.engine.encoder_budgets import EncoderBudgets, ItemCost, resolve_budgets, row_bytes
from triptych.engine.encoder_flights import Phase
from triptych.engine.encoder_graphs import SCRATCH_UNITS
from triptych.engine.encoder_loop import EncodeJob, EncoderEngine, EncodeResult, ItemPreparer
from triptych.errors import TriptychError
from triptych.journey import EmbeddingRef, Endpoint, Grid, Item, Modality, RequestId, Run, new_request_id
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.multimodal.digest import item_digest, source_digest
from triptych.multimodal.sniff import sniff
from triptych.services.encoder.graphs import capturable, capture
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.leases import LeaseTable
from triptych.transfer.reader import Reader
from triptych.transfer.slab import Slab, create_slab

OWNER = Endpoint("127.0.0.1:1", 17)
ARENA = 1
ROWS_PER_UNIT = 4
PATIENCE_SECONDS = 20.0


def picture(seed: int, width: int = 56, height: int = 56) -> bytes:
    """A PNG of noise; another seed, another picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def item_of(card: ModelCard, data: bytes, index: int = 0) -> Item:
    """The item a router would make of these bytes."""
    header = sniff(data)
    plan = card.adapter.plan(header.width, header.height, {})
    return Item(
        index=index,
        digest=item_digest(source_digest(data), {}, card.fingerprint),
        modality=Modality.IMAGE,
        width=header.width,
        height=header.height,
        grid=plan.grid,
        encoder_tokens=plan.encoder_tokens,
        rows=plan.rows,
        runs=(Run(0, plan.rows),),
        span=Run(0, plan.rows),
        media=0,
    )


class Front:
    """A vision tower in front of another; counts what passes."""

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower
        self.width = tower.width
        self.levels = tower.levels
        self.context_kinds = tower.context_kinds
        self.dtype = tower.dtype
        self.device = tower.device
        self.batches: list[tuple[Grid, ...]] = []

    def patches(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> Tensor:
        return self._tower.patches(pixels, grids)

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        self.batches.append(grids)
        return self._tower.encode(patches, grids)

    @property
    def items_encoded(self) -> int:
        return sum(len(grids) for grids in self.batches)


class Gate(Front):
    """Holds every batch back while it is shut."""

    def __init__(self, tower: VisionTower) -> None:
        super().__init__(tower)
        self.open = threading.Event()
        self.reached = threading.Event()

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        self.reached.set()
        if not self.open.wait(PATIENCE_SECONDS):
            raise TimeoutError("the gate was never opened")
        return super().encode(patches, grids)


class Saboteur(Front):
    """Raises what `plot` gives for a batch, if it gives anything."""

    def __init__(self, tower: VisionTower, plot: Callable[[tuple[Grid, ...]], Exception | None]) -> None:
        super().__init__(tower)
        self._plot = plot

    def encode(self, patches: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        error = self._plot(grids)
        if error is not None:
            raise error
        return super().encode(patches, grids)


@dataclass
class Wish:
    """A submitted job and its answers, as they come."""

    job: EncodeJob
    answers: list[EncodeResult] = field(default_factory=list)
    answered: threading.Event = field(default_factory=threading.Event)

    def take(self, result: EncodeResult) -> None:
        self.answers.append(result)
        self.answered.set()

    @property
    def result(self) -> EncodeResult:
        assert self.answered.wait(PATIENCE_SECONDS), "no answer came"
        return self.answers[0]

    @property
    def ref(self) -> EmbeddingRef:
        assert self.result.ref is not None, self.result.error
        return self.result.ref

    @property
    def error(self) -> TriptychError:
        assert self.result.error is not None, "the item was encoded"
        return self.result.error


class Rig:
    """A running engine and what surrounds it in a worker."""

    def __init__(
        self,
        card: ModelCard,
        tower: VisionTower,
        prepare: ItemPreparer,
        arena_rows: int,
        settings: EncoderSettings,
        checksums: bool,
        output_rows: int = 0,
    ) -> None:
        self.card = card
        self.budgets = budgets_of(tower, prepare, arena_rows, settings, output_rows)
        unit_bytes = ROWS_PER_UNIT * self.budgets.row_bytes
        blocks = capturable(tower, settings.graphs)
        num_units = self.budgets.units(unit_bytes) + (SCRATCH_UNITS if blocks else 0)
        self.slab: Slab = create_slab("embedding", ARENA, unit_bytes, num_units, tower.device)
        self.leases = LeaseTable()
        self.fatal: list[BaseException] = []
        transfer = TransferSettings(checksums=checksums)
        fatal, graphs = self.fatal.append, capture(blocks, self.slab, settings) if blocks else None
        self.engine = EncoderEngine(
            tower, self.slab, prepare, self.leases, OWNER, settings, self.budgets, transfer, fatal, graphs
        )
        self.reader = Reader(_nobody, OWNER, {ARENA: self.slab}, tower.device, transfer)

    def wish(
        self,
        data: bytes,
        index: int = 0,
        request_id: RequestId | None = None,
        item: Item | None = None,
        read: Callable[[], bytes] | None = None,
        lease_seconds: float = 60.0,
        seconds: float = math.inf,
    ) -> Wish:
        """Ask for one picture; `read` replaces the way to its bytes, `item` what is claimed about it."""
        job = EncodeJob(
            request_id if request_id is not None else new_request_id(),
            item if item is not None else item_of(self.card, data, index),
            read if read is not None else lambda: data,
            lease_seconds,
            time.monotonic() + seconds,
        )
        wish = Wish(job)
        self.engine.submit(job, wish.take)
        return wish

    def rows(self, ref: EmbeddingRef) -> Tensor:
        """What a prefill worker gets for a ref."""
        into = torch.empty(ref.rows, ref.levels * ref.width, dtype=getattr(torch, ref.dtype), device=self.slab.device)
        self.reader.read_rows(ref, into)
        return into

    def release(self, wishes: Sequence[Wish]) -> None:
        self.leases.release([wish.ref.claim_id for wish in wishes])

    def gauge(self, name: str) -> float:
        return self.engine.snapshot()[f"encoder_{name}"]

    def eventually(self, holds: Callable[[], bool]) -> None:
        """Wait for another thread to get there."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < limit, f"never came about: {self.engine.snapshot()}"
            time.sleep(0.001)

    def await_prepared(self, num_items: int) -> None:
        """Wait until so many items wait for a batch: the gauges count what is still being prepared too."""
        self.eventually(lambda: self.engine._ledger.flights.items[Phase.PREPARED] == num_items)

    def settle(self) -> None:
        """Wait for idleness, then restate every rule."""
        self.eventually(self.engine.idle)
        self.engine.check()
        self.leases.check()
        assert len(self.leases) == 0


@contextmanager
def running(
    card: ModelCard,
    tower: VisionTower,
    prepare: ItemPreparer,
    arena_rows: int = 4096,
    settings: EncoderSettings | None = None,
    checksums: bool = True,
    output_rows: int = 0,
) -> Iterator[Rig]:
    rig = Rig(card, tower, prepare, arena_rows, settings or EncoderSettings(), checksums, output_rows)
    rig.engine.start()
    try:
        yield rig
        rig.engine.check()
    finally:
        if isinstance(tower, Gate):
            tower.open.set()
        rig.engine.stop()
        rig.slab.close()


def budgets_of(
    tower: VisionTower, prepare: ItemPreparer, arena_rows: int, settings: EncoderSettings, output_rows: int = 0
) -> EncoderBudgets:
    """Budgets of an arena for that many rows, however large the model's largest item is.

    output_rows: of these, for rows being made or read at once; 0: all
    """
    bytes_per_row = row_bytes(tower.width, tower.levels, tower.dtype.itemsize)
    largest = {Modality.IMAGE: ItemCost(prepare.max_item_tokens, prepare.max_item_rows)}
    arena_bytes = arena_rows * bytes_per_row
    output_bytes = output_rows * bytes_per_row or arena_bytes
    settings = replace(settings, output_bytes=output_bytes, arena_bytes=arena_bytes)
    return resolve_budgets(settings, largest, bytes_per_row, tower.context_kinds)


def _nobody(endpoint: Endpoint) -> Sequence[ArenaInfo]:
    raise AssertionError(f"nobody else is there, yet {endpoint} was asked")
