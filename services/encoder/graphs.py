"""Whether and how an encoder captures its tower: what the setting `encoder.graphs` asks for."""

import logging

import torch

from triptych.config import EncoderSettings
from triptych.engine.capture import Capture, CudaCapture, Recorder
from triptych.engine.device_errors import is_device_lost
from triptych.engine.encoder_graphs import BlockGraphs, arena_rows, buckets_for
from triptych.errors import ConfigError
from triptych.journey import Grid
from triptych.models.base import GraphTower, VisionTower
from triptych.models.loading import graph_tower
from triptych.transfer.slab import Slab

__all__ = ["capturable", "capture"]

log = logging.getLogger(__name__)

# Rows of a batch that is padded to another shape differ by rounding, which in 16 bits is some hundredths at most;
# attention that overlooks a boundary, or takes an empty context amiss, is apart by about the whole.
_LARGEST_DIFFERENCE = 0.1

_PROBE = (Grid(1, 10, 6), Grid(1, 2, 12))  # windows of several lengths, and far fewer contexts than are captured


def capturable(tower: VisionTower, wanted: str) -> GraphTower | None:
    """The tower's halves, where its blocks are to be captured.

    wanted: on, off, or auto: on CUDA where the tower can be
    Raises ConfigError when it is on and the tower cannot.
    """
    if wanted == "off" or (wanted == "auto" and tower.device.type != "cuda"):
        return None
    halves = graph_tower(tower)
    if halves is None and wanted == "on":
        raise ConfigError(f"encoder.graphs is on, but this tower cannot be captured in {tower.dtype} on {tower.device}")
    return halves


def capture(tower: GraphTower, slab: Slab, settings: EncoderSettings) -> BlockGraphs | None:
    """Graphs for all batches within the settings' budgets, tried once. The slab's last unit is their scratch.

    Where capturing or the trial fails, None with a warning, or ConfigError if graphs are not "auto" but "on".
    """
    try:
        return _captured(tower, slab, settings)
    except Exception as error:
        if is_device_lost(error):
            raise
        if settings.graphs == "on":
            raise ConfigError(f"encoder.graphs is on, but the tower cannot be captured: {error}") from error
        log.warning("the tower cannot be captured and runs eagerly: %s", error)
        return None


def _captured(tower: GraphTower, slab: Slab, settings: EncoderSettings) -> BlockGraphs:
    rows, scratch = arena_rows(slab, tower.levels * tower.width, tower.dtype)
    buckets = buckets_for(tower, settings.max_encoder_tokens_per_batch, settings.max_items_per_batch)
    graphs = BlockGraphs(tower, rows, scratch, buckets, _capture(tower.device))
    graphs.capture_all()
    apart = graphs.verify(_PROBE[: settings.max_items_per_batch])
    if apart > _LARGEST_DIFFERENCE:
        raise ConfigError(f"replayed rows are {apart:.2g} of the largest number apart from eager ones")
    return graphs


def _capture(device: torch.device) -> Capture:
    return CudaCapture(device) if device.type == "cuda" else Recorder()
