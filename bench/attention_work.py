"""Steps that bench/attention.py times, and the ways to attend in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.models.attention.base import Attention, AttentionShape, AttentionStep
from triptych.models.attention.choice import make_attention
from triptych.models.attention.tuning import CHUNK_CANDIDATES, DECODE_CANDIDATES
from triptych.models.base import DecodeInputs, PagedInputs

DECODE_LAYERS, PROMPT_LAYERS = 28, 4  # of a step that is timed: KV has to come from memory, not from the cache


@dataclass(frozen=True)
class Point:
    """Sequences that are alike: new tokens of each, and tokens of each after the step."""

    sequences: int
    length: int
    kv_length: int

    @property
    def name(self) -> str:
        new = "" if self.length in (1, self.kv_length) else f"{self.length:,} of "
        return f"{self.sequences} × {new}{self.kv_length:,}"

    def kv_bytes(self, shape: AttentionShape) -> int:
        """Read by one layer if each key and value is read once."""
        each = 2 * shape.kv_heads * shape.head_size * shape.kv_dtype.itemsize
        return self.sequences * self.kv_length * each

    def flops(self, shape: AttentionShape) -> int:
        """Of one layer's products of queries with keys and weights with values, of those pairs that see each other."""
        before = self.kv_length - self.length
        pairs = self.length * before + self.length * (self.length + 1) // 2
        return 4 * self.sequences * pairs * shape.heads * shape.head_size


DECODES = (
    Point(64, 1, 2048),
    Point(64, 1, 600),
    Point(16, 1, 4880),
    Point(1, 1, 2048),
    Point(8, 1, 32_768),
    Point(256, 1, 1024),
)
PROMPTS = (
    Point(2, 2048, 2048),
    Point(4, 4784, 4784),
    Point(1, 2048, 4784),
    Point(4, 512, 4784),
    Point(1, 2048, 32_768),
)
QUICK_DECODES = (Point(3, 1, 70), Point(1, 1, 33))
QUICK_PROMPTS = (Point(2, 40, 40), Point(2, 17, 50))


def shape_of(device: torch.device, block_size: int) -> AttentionShape:
    """Of Qwen2.5-VL-7B; a tiny one off CUDA."""
    if device.type == "cuda":
        sizes, dtype = (28, 4, 128), torch.bfloat16
    else:
        sizes, dtype = (4, 2, 16), torch.float32
    return AttentionShape(*sizes, block_size, DECODE_LAYERS, dtype, dtype, sizes[2] ** -0.5)


Make = Callable[[], Attention]


def ways(shape: AttentionShape, device: torch.device, *, decode: bool) -> Mapping[str, Make]:
    """Name -> implementation; making one raises where what it needs is not there."""
    named: dict[str, Make] = {"sdpa": lambda: make_attention("sdpa", shape, device)}
    if device.type != "cuda":
        return named
    # Triton comes with torch for GPUs alone.
    from triptych.models.attention.paged import TritonAttention

    if decode:
        for each in DECODE_CANDIDATES:
            label = f"triton {each.tile} keys, {each.stretch} a split, {each.warps}w {each.stages}s {each.programs}p"
            named[label] = lambda each=each: TritonAttention(shape, device, decode=each)  # type: ignore[misc]
    else:
        for tile in CHUNK_CANDIDATES:
            label = f"triton {tile.rows} x {tile.tile}, {tile.warps}w {tile.stages}s"
            named[label] = lambda tile=tile: TritonAttention(shape, device, chunks=tile)  # type: ignore[misc]
        named["varlen"] = lambda: make_attention("varlen", shape, device)
    named["flashinfer"] = lambda: make_attention("flashinfer", shape, device)
    return named


@dataclass(frozen=True)
class Work:
    """A step of random numbers over all layers of a slab."""

    inputs: PagedInputs
    slab: Tensor
    query: Tensor
    key: Tensor
    value: Tensor

    def told(self) -> DecodeInputs:
        """The same by tensors alone."""
        inputs = self.inputs
        lengths = torch.tensor(inputs.kv_lengths, dtype=torch.int32, device=self.slab.device)
        return DecodeInputs(inputs.slots, inputs.positions, inputs.slots, lengths, inputs.block_tables.int())


def make_work(point: Point, shape: AttentionShape, layers: int, device: torch.device) -> Work:
    """Blocks are dealt out at random, as after hours of serving."""
    used = -(-point.kv_length // shape.block_size)
    blocks = used * point.sequences
    dealt = np.random.default_rng(0).permutation(blocks).reshape(point.sequences, used)
    tables = torch.from_numpy(dealt.astype(np.int64)).to(device)
    tokens = point.sequences * point.length
    places = torch.zeros(tokens, dtype=torch.int64, device=device)
    inputs = PagedInputs(
        positions=places.expand(3, -1),
        slots=places,
        query_lengths=(point.length,) * point.sequences,
        kv_lengths=(point.kv_length,) * point.sequences,
        block_tables=tables,
        logits_at=places[:0],
    )
    sides = (blocks, layers, 2, shape.block_size, shape.kv_heads, shape.head_size)
    slab = torch.empty(sides, dtype=shape.kv_dtype, device=device).normal_()
    merged = torch.randn(tokens, shape.heads + 2 * shape.kv_heads, shape.head_size, device=device).to(shape.dtype)
    return Work(inputs, slab, *torch.split(merged, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1))


def prepared(attention: Attention, work: Work, layers: int) -> Callable[[], list[Tensor]]:
    """One step over all layers; where decoding is recorded in serving, what is done once per step is part of it."""

    def attend_all(step: AttentionStep) -> list[Tensor]:
        return [step.attend(layer, work.query, work.key, work.value) for layer in range(layers)]

    if set(work.inputs.query_lengths) == {1} and attention.name == "triton":
        told = work.told()
        return lambda: attend_all(attention.decode_step(told, work.slab))
    step = attention.step(work.inputs, work.slab)
    return lambda: attend_all(step)
