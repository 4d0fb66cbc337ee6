"""Attention inside segments of a packed batch, known to transformers as `triptych_flash_varlen`.

Vision towers pack the patches of several images and attend inside frames or windows. The name contains `flash` because
transformers hands packed batches with their boundaries only to implementations called so; for others it splits the
batch in Python, which reads boundaries back from the device in every layer.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from triptych.journey import Int64Array
from triptych.models.shipping import ship

ATTENTION_NAME = "triptych_flash_varlen"

_KERNEL_CAPABILITY = (8, 0)  # of the GPU, at least


@dataclass(frozen=True, slots=True, eq=False)
class SegmentGroup:
    """Segments of one length. at: [segments, length] int64 positions, None where they are the whole batch in order"""

    count: int
    length: int
    at: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """How a packed batch falls apart; what Python reads is host data.

    boundaries: [segments + 1] int32 on the device, from 0 to the number of positions
    groups:     by length, for attention without a kernel that takes boundaries; empty where there is one
    """

    boundaries: Tensor
    longest: int
    groups: tuple[SegmentGroup, ...]


def segment(lengths: Int64Array, device: torch.device, dtype: torch.dtype) -> Segments:
    """Segments of these lengths, one behind the other, ready for attention in this dtype on this device."""
    ends = np.cumsum(lengths)
    (boundaries,) = ship(device, np.concatenate([np.zeros(1, np.int64), ends]))
    groups = () if has_segment_kernel(device, dtype) else _groups(lengths, ends - lengths, device)
    return Segments(boundaries.to(torch.int32), int(lengths.max()), groups)


def attend_segments(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """Every position attends to all of its own segment; all [positions, heads, head_size], scaled by its root."""
    if not segments.groups:
        bounds, longest = segments.boundaries, segments.longest
        by_kernel: Tensor = varlen_attn(query, key, value, bounds, bounds, longest, longest)  # type: ignore[assignment]
        return by_kernel
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for group in segments.groups:
        queries, keys, values = (_gather(each, group) for each in (query, key, value))
        attended = functional.scaled_dot_product_attention(queries, keys, values).transpose(1, 2)
        if group.at is None:
            return attended.reshape(query.shape)
        output[group.at] = attended
    return output


def _gather(states: Tensor, group: SegmentGroup) -> Tensor:
    """[segments, heads, length, head_size]"""
    if group.at is None:
        return states.view(group.count, group.length, *states.shape[1:]).transpose(1, 2)
    return states[group.at].transpose(1, 2)


def _groups(lengths: Int64Array, begins: Int64Array, device: torch.device) -> tuple[SegmentGroup, ...]:
    distinct = np.unique(lengths)
    if len(distinct) == 1:
        return (SegmentGroup(len(lengths), int(distinct[0]), None),)
    positions = [begins[lengths == length][:, None] + np.arange(length) for length in distinct]
    shipped = ship(device, *positions)
    return tuple(SegmentGroup(at.shape[0], at.shape[1], at) for at in shipped)


def has_segment_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention takes segments by their boundaries, on the device; else they are grouped on the host."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    return torch.cuda.get_device_capability(device) >= _KERNEL_CAPABILITY


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    segmentations: tuple[Segments, ...],
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, heads, positions, head_size] in, heads behind positions out.

    segmentations: one for each boundaries tensor that the tower was given; layers differ in which they use
    """
    segments = next(each for each in segmentations if each.boundaries is cu_seq_lens_q)
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    return attend_segments(queries, keys, values, segments)[None], None


AttentionInterface.register(ATTENTION_NAME, segment_attention)
