"""Whether and how an encoder captures its tower: what the setting `encoder.graphs` asks for."""

import torch

from triptych.engine.encoder_graphs import BlockGraphs, Capture, CudaCapture, Recorder, arena_rows, buckets_for
from triptych.errors import ConfigError
from triptych.models.base import GraphTower, VisionTower
from triptych.models.loading import graph_tower
from triptych.transfer.slab import Slab

__all__ = ["capturable", "capture"]


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


def capture(tower: GraphTower, slab: Slab, max_tokens: int, max_items: int) -> BlockGraphs:
    """Graphs for all batches of up to so many tokens in so many items. The slab's last unit is their scratch."""
    rows, scratch = arena_rows(slab, tower.levels * tower.width, tower.dtype)
    graphs = BlockGraphs(tower, rows, scratch, buckets_for(tower, max_tokens, max_items), _capture(tower.device))
    graphs.capture_all()
    return graphs


def _capture(device: torch.device) -> Capture:
    return CudaCapture(device) if device.type == "cuda" else Recorder()
