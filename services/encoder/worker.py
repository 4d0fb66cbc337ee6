"""The encode role: vision tower, embedding arena, and nothing of the language model."""

import logging
import math
from collections.abc import Mapping

from triptych.engine.encoder_budgets import EncoderBudgets, ItemCost, resolve_budgets, row_bytes
from triptych.engine.encoder_graphs import SCRATCH_UNITS, BlockGraphs
from triptych.engine.encoder_loop import EncodeJob, EncoderEngine
from triptych.engine.encoder_preprocess import preprocess_threads
from triptych.errors import InvariantViolation
from triptych.journey import EmbeddingRef, Item, Modality, RequestId, Role
from triptych.metrics import BucketCounts
from triptych.models.base import VisionTower
from triptych.models.loading import load_tower
from triptych.services.encoder.decoding import choose_decoder
from triptych.services.encoder.gpu_jpeg import choose_gpu_jpeg
from triptych.services.encoder.graphs import capturable, capture
from triptych.services.encoder.prepare import Preparer
from triptych.services.site import EMBEDDING_ARENA, RoleWorker, Site, die
from triptych.transfer.slab import Slab

log = logging.getLogger(__name__)

ROWS_PER_UNIT = 16  # what one generation word guards: small items waste little, big ones need few words


class EncoderWorker(RoleWorker):
    """Owns the encoded rows until every claim on them has been released or has expired."""

    role = Role.ENCODE

    def __init__(self, site: Site) -> None:
        settings = site.settings.encoder
        # First, so that its processes start while the tower is loaded.
        self._decoder = choose_decoder(
            settings.decode_isolation, preprocess_threads(settings.preprocess_threads, site.device)
        )
        try:
            self.engine = self._engine(site)
            self._decoder.await_started()
        except BaseException:
            self._decoder.close()
            raise
        self.max_item_tokens = self.engine.max_item_tokens
        self.engine.start()
        site.rows_here = self._hand_out

    def _hand_out(self, key: RequestId, item: Item, lease_seconds: float) -> EmbeddingRef | None:
        return self.engine.hand_out(EncodeJob(key, item, _no_media, lease_seconds, math.inf))

    def _engine(self, site: Site) -> EncoderEngine:
        settings = site.settings.encoder
        tower = load_tower(site.card, site.device, site.settings.serve.dtype)
        gpu_jpeg = choose_gpu_jpeg(settings.gpu_jpeg, tower.device, tower.dtype)
        prepare = Preparer(site.card, gpu_jpeg, self._decoder)
        # The tower first, whose shape the budgets need; then the budgets, which say how much memory is made.
        budgets = _budgets(site, tower, prepare)
        log.info(budgets.line())
        slab, graphs = _arena(site, tower, budgets)
        return EncoderEngine(
            tower=tower,
            slab=slab,
            prepare=prepare,
            leases=site.leases,
            owner=site.owner,
            settings=settings,
            budgets=budgets,
            transfer=site.settings.transfer,
            on_fatal=die,
            graphs=graphs,
        )

    def cancel(self, key: RequestId) -> None:
        self.engine.cancel(key)

    def gauges(self) -> Mapping[str, float]:
        return {**self.engine.snapshot(), **self._decoder.gauges()}

    def histograms(self) -> Mapping[str, BucketCounts]:
        return self.engine.histograms()

    def turn_seconds(self) -> float:
        return self.engine.turn_seconds()

    def idle(self) -> bool:
        return self.engine.idle()

    def check(self) -> None:
        self.engine.check()

    def stop(self) -> None:
        self._decoder.close()  # the engine waits for what is being decoded
        self.engine.stop()


def _no_media() -> bytes:
    raise InvariantViolation("rows that are handed out are not made: nobody reads their media")


def _arena(site: Site, tower: VisionTower, budgets: EncoderBudgets) -> tuple[Slab, BlockGraphs | None]:
    """The memory for rows, and the tower's blocks captured over it where they are to be."""
    settings = site.settings.encoder
    blocks = capturable(tower, settings.graphs)
    unit_bytes = ROWS_PER_UNIT * budgets.row_bytes
    num_units = budgets.units(unit_bytes) + (SCRATCH_UNITS if blocks else 0)
    slab = site.add_slab("embedding", EMBEDDING_ARENA, unit_bytes, num_units, asked_by=budgets.arena_setting)
    return slab, capture(blocks, slab, settings) if blocks else None


def _budgets(site: Site, tower: VisionTower, prepare: Preparer) -> EncoderBudgets:
    largest = {Modality.IMAGE: ItemCost(prepare.max_item_tokens, prepare.max_item_rows)}
    bytes_per_row = row_bytes(tower.width, tower.levels, tower.dtype.itemsize)
    return resolve_budgets(site.settings.encoder, largest, bytes_per_row, tower.context_kinds)
