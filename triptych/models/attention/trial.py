"""Small steps that an implementation has to get right before it serves anybody, and how long a large one takes it.

Blocks lie in no order, and slots that hold no token are NaN. The measure is torch's attention in float32.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.attention.base import Attention, AttentionShape
from triptych.models.attention.sdpa import SdpaAttention
from triptych.models.base import DecodeInputs, PagedInputs, StepInputs, StepShape
from triptych.models.quantised import from_fp8
from triptych.models.shipping import ship

# Of the whole result, relative: rounding of weights and of results.
_LARGEST_ERROR = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}
_LAYERS, _LAYER = 2, 1
# New tokens and tokens after the step: single ones, prompts that begin, prompts that go on.
_STEPS = (
    ((1, 1, 1, 1), (1, 33, 700, 2600)),
    ((1, 150, 1, 40, 129), (300, 150, 1, 700, 129)),
    ((140, 130), (140, 130)),
)
_TIMED_PROMPTS, _TIMED_TOKENS, _ROUNDS = 2, 2048, 7


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A random step of one layer; query, key and value are views of one tensor, [tokens, heads, head_size] each."""

    inputs: PagedInputs
    slab: Tensor
    query: Tensor
    key: Tensor
    value: Tensor

    def attended(self, attention: Attention) -> Tensor:
        """Its results, by this implementation."""
        return attention.step(self.inputs, self.slab).attend(_LAYER, self.query, self.key, self.value)

    def told(self, attention: Attention) -> Tensor:
        """The same, told by tensors alone, in a shape with room for one token and one sequence more."""
        lengths = np.array([self.inputs.query_lengths, self.inputs.kv_lengths], np.int32)
        shape = StepShape(len(self.query) + 1, lengths.shape[1] + 1, lengths.shape[1])
        sequences = np.stack([np.cumsum(lengths[0]) - lengths[0], *lengths]).astype(np.int32)
        listed = attention.list_step(sequences, shape)
        tables, slots = self.inputs.block_tables, self.inputs.slots
        device = slots.device
        inputs = StepInputs(
            positions=functional.pad(self.inputs.positions, (0, 1)),
            slots=functional.pad(slots, (0, 1), value=-1),
            sequences=functional.pad(torch.from_numpy(sequences).to(device), (0, 1)),
            block_tables=functional.pad(tables, (0, 0, 0, 1)).to(torch.int32),
            logits_at=slots.new_zeros(shape.sequences),
            listed=[torch.from_numpy(each).to(device) for each in listed],
        )
        rows = (torch.cat([each, each[:1]]) for each in (self.query, self.key, self.value))
        return attention.told_step(inputs, self.slab).attend(_LAYER, *rows)[:-1]


@torch.inference_mode()
def what_is_wrong(attention: Attention, shape: AttentionShape, device: torch.device) -> str:
    """Says where an implementation's numbers are not the measure's; empty where they are. Waits for the device."""
    for lengths, kv_lengths in _STEPS:
        step = random_step(shape, lengths, kv_lengths, device)
        exact = _exact(step, shape)
        wrong = _compared(step.attended(attention), exact, shape.dtype)
        if wrong:
            return f"a step of {lengths} new tokens behind {kv_lengths} is {wrong}"
        wrong = _compared(step.told(attention), exact, shape.dtype)
        if wrong:
            return f"the same step of {lengths} new tokens, told by tensors, is {wrong}"
    step = random_step(shape, *_STEPS[0], device)
    made = attention.decode_step(_padded(step.inputs), step.slab).attend(
        _LAYER, *(torch.cat([each, each[:1]]) for each in (step.query, step.key, step.value))
    )
    wrong = _compared(made, torch.cat([_exact(step, shape), torch.zeros_like(made[:1])]), shape.dtype)
    return f"a decode step is {wrong}" if wrong else ""


@torch.inference_mode()
def prompt_seconds(attention: Attention, shape: AttentionShape, device: torch.device) -> float:
    """Median time of one layer over two fresh prompts of 2,048 tokens, on CUDA. Waits for the device."""
    lengths = (_TIMED_TOKENS,) * _TIMED_PROMPTS
    step = random_step(shape, lengths, lengths, device)
    prepared = attention.step(step.inputs, step.slab)
    times: list[float] = []
    for _ in range(_ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        prepared.attend(_LAYER, step.query, step.key, step.value)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times[2:])


def random_step(shape: AttentionShape, lengths: Sequence[int], kv_lengths: Sequence[int], device: torch.device) -> Step:
    """A step of so many new tokens of each sequence, with so many tokens behind it."""
    chosen, generator = np.random.default_rng(0), torch.Generator(device).manual_seed(0)
    page, kv_heads, size = shape.block_size, shape.kv_heads, shape.head_size
    used = [-(-length // page) for length in kv_lengths]
    ids = chosen.permutation(sum(used) + 1)
    slots = []
    tables, at = np.zeros((len(used), max(used)), np.int64), 0
    for row, (count, length) in enumerate(zip(used, kv_lengths, strict=True)):
        tables[row, :count] = ids[at : at + count]
        slots.append((tables[row, :count, None] * page + np.arange(page)).reshape(-1)[:length])
        at += count
    written, new, shipped = ship(
        device,
        np.concatenate(slots),
        np.concatenate([each[-count:] for each, count in zip(slots, lengths, strict=True)]),
        tables,
    )
    inputs = PagedInputs(new[None].expand(3, -1), new, tuple(lengths), tuple(kv_lengths), shipped, new[:0])
    history = torch.randn(2, len(written), kv_heads, size, generator=generator, device=device).to(shape.kv_dtype)
    slab = torch.full((len(ids), _LAYERS, 2, page, kv_heads, size), torch.nan, device=device).to(shape.kv_dtype)
    moved, numbers = (_movable(each) for each in (slab, history))
    for axis in range(2):
        moved[written // page, _LAYER, axis, written % page] = numbers[axis]
    heads = shape.heads + 2 * kv_heads
    merged = torch.randn(len(new), heads, size, generator=generator, device=device).to(shape.dtype)
    query, *kv = torch.split(merged, [shape.heads, kv_heads, kv_heads], dim=1)
    for axis, each in enumerate(kv):
        rows = moved[new // page, _LAYER, axis, new % page]
        each.copy_(from_fp8(rows.view(shape.kv_dtype), shape.dtype))
    return Step(inputs, slab, query, *kv)


def _movable(numbers: Tensor) -> Tensor:
    """As bytes where a number is one: torch does not scatter all of those."""
    return numbers.view(torch.uint8) if numbers.dtype.itemsize == 1 else numbers


def _exact(step: Step, shape: AttentionShape) -> Tensor:
    wide = replace(shape, dtype=torch.float32, kv_dtype=torch.float32)
    slab = from_fp8(step.slab, torch.float32)
    parts = (each.float() for each in (step.query, step.key, step.value))
    return Step(step.inputs, slab, *parts).attended(SdpaAttention(wide))


def _padded(inputs: PagedInputs) -> DecodeInputs:
    """The step told by tensors alone, with one row that stands for nobody."""
    slots = torch.cat([inputs.slots, inputs.slots.new_full((1,), -1)])
    (lengths,) = ship(slots.device, np.array([*inputs.kv_lengths, 0], np.int64))
    tables = torch.cat([inputs.block_tables, inputs.block_tables[:1]])
    return DecodeInputs(torch.zeros_like(slots), slots.expand(3, -1), slots, lengths.int(), tables.int())


def _compared(made: Tensor, exact: Tensor, dtype: torch.dtype) -> str:
    apart = float((made.float() - exact.float()).norm() / exact.float().norm())
    allowed = _LARGEST_ERROR[dtype]
    return "" if apart <= allowed else f"{apart:.2g} of its size apart, expected {allowed:.2g}"  # NaN is apart, too
