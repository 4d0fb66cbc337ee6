"""Attention inside the long segments of a packed batch, in float32 on the CPU.

torch's attention multiplies by MKL, as its linear layers do (cpu_linear.py). Here both products are oneDNN's, a few
queries at a time, so that their weights stay in the cache until the second product has taken them. One core, 4 heads of
64: 8.6 instead of 12.2 ms at 1,024 positions, 108 instead of 168 at 4,784 (2 heads of 80); below 512 nothing is gained.
"""

import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.cpu_linear import can_pack, filled, product
from triptych.models.segment_attention import SegmentGroup, Segments, attend_segments

LONG = 512  # positions, from which on a segment is attended to here

_QUERIES = 256  # at a time: a megabyte of weights at 1,024 keys


def attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """As `attend_segments`, faster where there are long segments."""
    if not can_pack(query) or all(group.length < LONG for group in segments.groups):
        return attend_segments(query, key, value, segments)
    output = torch.empty(query.shape, dtype=query.dtype)
    for group in segments.groups:
        for begin in _begins(group):
            span = slice(begin, begin + group.length)
            _attend_one(query[span], key[span], value[span], output[span])
    return output


def _begins(group: SegmentGroup) -> list[int]:
    if group.at is None:
        return list(range(0, group.count * group.length, group.length))
    return [int(begin) for begin in group.at[:, 0]]


def _attend_one(query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> None:
    """All [positions, heads, head_size], of one segment."""
    if len(query) < LONG:
        queries, keys, values = (each.transpose(0, 1) for each in (query, key, value))
        out.copy_(functional.scaled_dot_product_attention(queries, keys, values).transpose(0, 1))
        return
    scale, positions = query.shape[2] ** -0.5, len(query)
    for head in range(query.shape[1]):
        mine, across = filled(key[:, head]).contiguous(), filled(value[:, head]).t().contiguous()
        for begin in range(0, positions, _QUERIES):
            span = slice(begin, begin + _QUERIES)
            queries = query[span, head] * scale
            scores = product(filled(queries), mine)
            scores[:, positions:] = -torch.inf
            out[span, head] = product(torch.softmax(scores, dim=-1), across)[: len(queries)]
