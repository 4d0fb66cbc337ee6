"""Attention within the segments of a packed batch: windows, images or conversations."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch before 2.10; the other ways remain
    varlen_attn = None  # type: ignore[assignment]

Way = Literal["flash", "varlen", "segments"]
Attention = Callable[[Tensor, Tensor, Tensor, Tensor, int, bool], Tensor]


def attention_by(way: Way) -> Attention:
    """A function (query, key, value, ends, longest, causal) -> mixed values, all [n, heads, head_size].

    ends: [segments + 1] int32, cumulative lengths from 0 to n; empty segments are allowed
    longest: no segment may be longer
    way: "flash" calls the CUDA kernels of variable-length attention themselves, which costs the host least; "varlen"
        goes through torch's public function; "segments" runs anywhere, one segment after the other
    """
    if way == "flash":
        return _flash
    if way == "varlen":
        return _varlen
    return _one_by_one


class _Flash(torch.autograd.Function):
    """The pair of operators below torch's varlen_attn, without the tenth of a millisecond its wrappers take a call."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, causal: bool
    ) -> Tensor:
        mixed, log_sums, random_state, unused, _ = torch.ops.aten._flash_attention_forward(
            query, key, value, ends, ends, longest, longest, 0.0, causal, False
        )
        ctx.save_for_backward(query, key, value, ends, mixed, log_sums, random_state, unused)
        ctx.longest, ctx.causal = longest, causal
        return mixed  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, ends, mixed, log_sums, random_state, unused = ctx.saved_tensors
        found = torch.ops.aten._flash_attention_backward(
            grads[0].contiguous(), query, key, value, mixed, log_sums, ends, ends,
            ctx.longest, ctx.longest, 0.0, ctx.causal, random_state, unused,
        )  # fmt: skip
        return (*found, None, None, None)


def _flash(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, causal: bool) -> Tensor:
    mixed: Tensor = _Flash.apply(query, key, value, ends, longest, causal)
    return mixed


def _varlen(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, causal: bool) -> Tensor:
    if varlen_attn is None:
        raise RuntimeError(f"torch {torch.__version__} has no varlen_attn, expected 2.10 or later")
    # 2.10 says is_causal, later releases a window that ends at the query.
    options: dict[str, Any] = {"is_causal": causal}
    if "window_size" in inspect.signature(varlen_attn).parameters:
        options = {"window_size": (-1, 0) if causal else (-1, -1)}
    mixed: Any = varlen_attn(query, key, value, ends, ends, longest, longest, **options)
    return mixed  # type: ignore[no-any-return]


def _one_by_one(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, causal: bool) -> Tensor:
    bounds = [int(end) for end in ends]
    parts = []
    for start, end in pairwise(bounds):
        if start == end:
            continue
        if end - start > longest:
            raise ValueError(f"a segment has {end - start} places, expected at most {longest}")
        q, k, v = (each[start:end].transpose(0, 1) for each in (query, key, value))
        parts.append(functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1))
    return torch.cat(parts)
