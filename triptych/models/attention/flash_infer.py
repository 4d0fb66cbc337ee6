"""Attention by FlashInfer (https://arxiv.org/abs/2501.01005), where it is installed and was asked for.

Its plan is made on the host, once per step, for steps that are told there. Those that are told by tensors alone go to
our own kernels, which can be recorded. How FlashInfer splits keys depends on the whole batch, so the last bits of
a result may depend on its neighbours.
"""

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.journey import Int32Array, Int64Array
from triptych.models.attention.base import AttentionShape
from triptych.models.attention.paged import TritonAttention, TritonStep
from triptych.models.base import DecodeInputs, PagedInputs, StepInputs, StepShape
from triptych.models.shipping import ship

_WORKSPACE_BYTES = 256 * 2**20  # for results of splits
# A plan is copied from the wrapper's own pinned memory while the host goes on: wrappers take turns, so that the plan of
# a step is not written over before the device has it. Steps are read one behind the other, so three are enough.
_TURNS = 3


class FlashInferAttention:
    """An Attention."""

    name = "flashinfer"
    recordable = True  # what is told by tensors is our own

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        """Raises ImportError where FlashInfer is not installed."""
        library: Any = importlib.import_module("flashinfer")
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._shape = shape
        self._told = TritonAttention(shape, device)
        self._decodes = itertools.cycle(
            [library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True) for _ in range(_TURNS)]
        )
        self._chunks = itertools.cycle(
            [library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD") for _ in range(_TURNS)]
        )

    def step(self, inputs: PagedInputs, kv_slab: Tensor) -> "_FlashInferStep":
        """As Attention.step."""
        shape = self._shape
        kv_lengths = np.array(inputs.kv_lengths, np.int64)
        used = -(-kv_lengths // shape.block_size)
        (flat,) = ship(kv_slab.device, _flat(used, inputs.block_tables.shape[1]))
        pages = inputs.block_tables.reshape(-1)[flat].to(torch.int32)
        bounds, last = _bounds(used), _host(kv_lengths - (used - 1) * shape.block_size)
        sizes = (shape.heads, shape.kv_heads, shape.head_size, shape.block_size)
        types = {"sm_scale": shape.scale, "q_data_type": shape.dtype, "kv_data_type": shape.kv_dtype}
        if set(inputs.query_lengths) == {1}:
            wrapper = next(self._decodes)
            wrapper.plan(bounds, pages, last, *sizes, **types)
        else:
            wrapper = next(self._chunks)
            queries = _bounds(np.array(inputs.query_lengths, np.int64))
            wrapper.plan(queries, bounds, pages, last, *sizes, causal=True, **types)
        return _FlashInferStep(wrapper.run, kv_slab)

    def decode_step(self, inputs: DecodeInputs, kv_slab: Tensor) -> TritonStep:
        """As Attention.decode_step; nothing waits for the device."""
        return self._told.decode_step(inputs, kv_slab)

    def list_step(self, sequences: Int32Array, shape: StepShape) -> list[NDArray[np.generic]]:
        """As Attention.list_step."""
        return self._told.list_step(sequences, shape)

    def told_step(self, inputs: StepInputs, kv_slab: Tensor) -> TritonStep:
        """As Attention.told_step; nothing waits for the device."""
        return self._told.told_step(inputs, kv_slab)


class _FlashInferStep:
    """An AttentionStep over a plan."""

    def __init__(self, run: Callable[..., Tensor], kv_slab: Tensor) -> None:
        self._run = run
        self._slab = kv_slab

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As AttentionStep.attend."""
        return self._run(query.contiguous(), (self._slab[:, layer, 0], self._slab[:, layer, 1]))


def _flat(used: Int64Array, width: int) -> Int64Array:
    """Where the blocks of all sequences stand in their tables, row by row."""
    rows = np.repeat(np.arange(len(used)), used)
    columns = np.arange(used.sum()) - np.repeat(np.cumsum(used) - used, used)
    flat: Int64Array = rows * width + columns
    return flat


def _bounds(counts: Int64Array) -> Tensor:
    return _host(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))


def _host(numbers: Int64Array) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int32))
