"""Rotary embedding and KV write in Triton: one pass over a token's queries, keys and values, with nothing kept between.

Imported only where Triton is; the tensors' device has to be the current one. With TRITON_INTERPRET=1 set before the
import it runs on the CPU, slowly.
"""

# Triton compiles annotations too, and knows none but its own.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from triptych.models.kernels.fp8 import fp8_byte, fp8_value
from triptych.models.kernels.head_shape import TokenPlaces, check_places

_HEADS = 8  # of one program: with heads of 128 numbers, 16 bytes for each thread of two warps
_NUMBERS_PER_WARP = 256


class FusedTurn:
    """A Turn of one step. Nothing that it launches depends on the numbers in its tensors: it can be recorded."""

    def __init__(self, places: TokenPlaces) -> None:
        check_places(places)
        self.num_tokens = len(places.slots)
        self._places = places
        slab = places.kv_slab
        self._rounded = slab.dtype.itemsize == 1
        # Of each layer: the first block's planes, from which the others are as far as blocks are long.
        self._layers = (slab.view(torch.uint8) if self._rounded else slab).unbind(1)

    def __call__(self, layer: int, qkv: Tensor, head_norm: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """As Turn; all three are views of `qkv`."""
        places, shape = self._places, self._places.shape
        assert qkv.is_contiguous(), f"kernels take rows that follow one another, got strides {qkv.stride()}"
        planes = self._layers[layer]
        half = shape.head_size // 2
        block_half = triton.next_power_of_2(half)
        _turn[(len(qkv), triton.cdiv(shape.all, _HEADS))](
            qkv,
            places.cos,
            places.sin,
            qkv if head_norm is None else head_norm,
            places.slots,
            planes,
            shape.epsilon,
            planes.stride(0),
            HAS_NORM=head_norm is not None,
            ROUNDED=self._rounded,
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            HALF=half,
            BLOCK_SIZE=planes.shape[2],
            BLOCK_HEADS=_HEADS,
            BLOCK_HALF=block_half,
            num_warps=max(1, _HEADS * block_half // _NUMBERS_PER_WARP),
        )
        heads = qkv.view(len(qkv), shape.all, shape.head_size)
        return heads[:, : shape.heads], heads[:, shape.heads : shape.turned], heads[:, shape.turned :]


# Slots are a part of whatever a step was shipped in: one more kernel, compiled while requests wait, for its odd places.
@triton.jit(do_not_specialize_on_alignment=["slots"])
def _turn(
    qkv,
    cos,
    sin,
    norm,
    slots,
    planes,
    epsilon,
    block_stride,  # no constant: models of any number of layers share a kernel
    HAS_NORM: tl.constexpr,
    ROUNDED: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    SIZE: tl.constexpr = 2 * HALF
    TURNED: tl.constexpr = HEADS + KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    number = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < TURNED + KV_HEADS) & (number < HALF)
    turned = inside & (head < TURNED)
    kept = inside & (head >= HEADS)

    source = qkv + token * ((TURNED + KV_HEADS) * SIZE) + head * SIZE + number
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + HALF, mask=inside, other=0.0)
    x = first.to(tl.float32)
    y = second.to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x + y * y, axis=1, keep_dims=True) / SIZE + epsilon)
        weight = norm + head * SIZE + number
        u = (x * scale).to(first.dtype).to(tl.float32) * tl.load(weight, mask=turned, other=0.0).to(tl.float32)
        v = (y * scale).to(first.dtype).to(tl.float32) * tl.load(weight + HALF, mask=turned, other=0.0).to(tl.float32)
        x = tl.where(turned, u.to(first.dtype).to(tl.float32), x)
        y = tl.where(turned, v.to(first.dtype).to(tl.float32), y)
    c = tl.load(cos + token * HALF + number, mask=number < HALF, other=0.0)
    s = tl.load(sin + token * HALF + number, mask=number < HALF, other=0.0)
    first = tl.where(turned, (x * c - y * s).to(first.dtype), first)
    second = tl.where(turned, (y * c + x * s).to(first.dtype), second)

    # Keys' heads, then values' heads: a plane further on.
    slot = tl.load(slots + token)
    written = kept & (slot >= 0)
    plane = (head - HEADS) // KV_HEADS
    row = (plane * BLOCK_SIZE + slot % BLOCK_SIZE) * KV_HEADS + (head - HEADS) % KV_HEADS
    target = planes + (slot // BLOCK_SIZE) * block_stride + row * SIZE + number
    if ROUNDED:
        low = fp8_byte(first.to(tl.float32))
        high = fp8_byte(second.to(tl.float32))
        tl.store(target, low, mask=written)
        tl.store(target + HALF, high, mask=written)
        # What is read from here instead of from the slab must be the same.
        first = tl.where(kept, fp8_value(low).to(first.dtype), first)
        second = tl.where(kept, fp8_value(high).to(first.dtype), second)
        tl.store(source, first, mask=inside)
        tl.store(source + HALF, second, mask=inside)
    else:
        tl.store(target, first, mask=written)
        tl.store(target + HALF, second, mask=written)
        tl.store(source, first, mask=turned)
        tl.store(source + HALF, second, mask=turned)
