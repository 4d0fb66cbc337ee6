"""The towers that bench/encoder.py sets beside one another, on the same random weights, and how each takes images."""

import copy
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from bench.encoder_work import Workload
from triptych.engine.capture import CudaCapture, Recorder
from triptych.engine.encoder_buckets import Bucket, choose
from triptych.engine.encoder_graphs import BlockGraphs, buckets_for
from triptych.journey import Grid
from triptych.models.pixels import PixelRule
from triptych.models.qwen2_5_vl.lean_tower import LeanTower
from triptych.models.qwen2_5_vl.tower import Qwen25VLTower
from triptych.models.segment_attention import ATTENTION_NAME
from triptych.models.weights import build_empty

Encode = Callable[[Tensor, Sequence[Grid]], Tensor]

SDPA = "transformers, sdpa"
FLASH = "transformers, flash_attention_2"
MODULES = "transformers' modules, varlen attention"
LEAN = "lean, eager"
GRAPHS = "lean, graphs"
OURS = (LEAN, GRAPHS)

_SCRATCH_ROWS = 16


@dataclass(frozen=True)
class Towers:
    """Name -> rows, item by item, of the patches of so many images; and which are not there, with the reason."""

    encode: Mapping[str, Encode]
    missing: Mapping[str, str]
    lean: LeanTower
    buckets: Sequence[Bucket]  # that were captured


def make_towers(
    config: Mapping[str, Any], rule: PixelRule, workloads: Sequence[Workload], device: torch.device, dtype: torch.dtype
) -> Towers:
    """All on copies of the same weights."""
    plain = _random_module(config, device, dtype)
    varlen = copy.deepcopy(plain)
    varlen.config._attn_implementation = ATTENTION_NAME
    lean = LeanTower(Qwen25VLTower(copy.deepcopy(varlen), rule))
    modules = Qwen25VLTower(varlen, rule)
    encode: dict[str, Encode] = {
        SDPA: _Transformers(plain),
        MODULES: lambda patches, grids: modules.encode(patches, tuple(grids)),
        LEAN: lambda patches, grids: lean.encode(patches, tuple(grids)),
    }
    missing, buckets = {}, []
    try:
        graphs = _graphs(lean, workloads)
        encode[GRAPHS], buckets = _Replayed(graphs), sorted(graphs.captured)
    except Exception as error:  # the rest is worth measuring without them
        missing[GRAPHS] = f"{type(error).__name__}: {error}"
    if importlib.util.find_spec("flash_attn") is None or device.type != "cuda":
        missing[FLASH] = "the package flash_attn is not installed" if device.type == "cuda" else "not on the CPU"
    else:
        flash = copy.deepcopy(plain)
        flash.config._attn_implementation = "flash_attention_2"
        encode[FLASH] = _Transformers(flash)
    return Towers(encode, missing, lean, buckets)


class _Transformers:
    """The stock tower as `model.visual` is called: the grids on the device, as a processor's outputs are moved."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._device = module.device

    def __call__(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        thw = torch.tensor([[grid.t, grid.h, grid.w] for grid in grids]).to(self._device)
        rows: Tensor = self._module(patches, grid_thw=thw).pooler_output
        return rows


class _Replayed:
    """As an encoder runs them: each batch padded to the bucket that covers it, rows written to the arena."""

    def __init__(self, graphs: BlockGraphs) -> None:
        self._graphs = graphs

    def __call__(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        num_rows = sum(grid.patches for grid in grids) // 4
        replay = self._graphs.prepare(patches, grids, np.arange(num_rows))
        assert replay is not None, f"no captured shape covers {grids}"
        replay()
        return self._graphs.arena_rows[:num_rows]


def _random_module(config: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    vision = Qwen2_5_VLVisionConfig(**config)
    vision._attn_implementation = "sdpa"
    module = build_empty(lambda: Qwen2_5_VisionTransformerPretrainedModel(vision), dtype, device)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in module.named_parameters():
        if "norm" in name or "ln_q" in name:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(0.0, 0.02, generator=generator)
    return module


def _graphs(lean: LeanTower, workloads: Sequence[Workload]) -> BlockGraphs:
    """Of the buckets that an encoder would have, only those that the workloads come to."""
    batches = [[each.grid] * count for each in workloads for count in (1, each.pack)]
    shapes = [lean.shape(grids) for grids in batches]
    needs = [Bucket(shape.tokens, tuple(len(lengths) for lengths in shape.contexts)) for shape in shapes]
    most, items = max(need.tokens for need in needs), max(len(grids) for grids in batches)
    all_buckets = buckets_for(lean, most, items)
    chosen = {found for need in needs if (found := choose(all_buckets, need)) is not None}
    rows = most // lean.tokens_per_row
    arena = torch.zeros(rows + _SCRATCH_ROWS, lean.levels * lean.width, dtype=lean.dtype, device=lean.device)
    capture = CudaCapture(lean.device) if lean.device.type == "cuda" else Recorder()
    graphs = BlockGraphs(lean, arena, range(rows, rows + _SCRATCH_ROWS), tuple(chosen), capture)
    graphs.capture_all()
    return graphs
