"""Steps over a slab of random keys and values, and what attention makes of them in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.models.attention.base import Attention, AttentionShape
from triptych.models.base import DecodeInputs, PagedInputs, StepInputs, StepShape

LAYERS, LAYER = 2, 1
# Of the whole result, relative. The slab's numbers are those that the reference multiplies, so what is left is
# rounding: of weights and of results.
LARGEST_ERRORS = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@dataclass(frozen=True)
class Spec:
    """Lengths are of each sequence of the step: new tokens, and tokens after the step."""

    heads: int
    kv_heads: int
    head_size: int
    block_size: int
    query_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None  # None: dtype

    def shape(self) -> AttentionShape:
        kv_dtype = self.kv_dtype or self.dtype
        sizes = (self.heads, self.kv_heads, self.head_size, self.block_size)
        return AttentionShape(*sizes, LAYERS, self.dtype, kv_dtype, self.head_size**-0.5)


@dataclass(frozen=True)
class Case:
    """query, key, value: views of one tensor, [tokens, heads, head_size] each; exact: float64, on the CPU"""

    shape: AttentionShape
    inputs: PagedInputs
    slab: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    exact: Tensor

    def attended(self, attention: Attention) -> Tensor:
        return attention.step(self.inputs, self.slab).attend(LAYER, self.query, self.key, self.value)

    def decoded(self, attention: Attention, width: int = 0, padding: int = 0) -> Tensor:
        """The step told by tensors alone, with tables of this width at least, and so many padded rows behind."""
        step = attention.decode_step(decode_inputs(self.inputs, width, padding), self.slab)
        rows = [torch.cat([each, each[:1].expand(padding, -1, -1)]) for each in (self.query, self.key, self.value)]
        return step.attend(LAYER, *rows)

    def told(self, attention: Attention, spare: int = 0) -> Tensor:
        """The step told by tensors alone, prompts in it or not, in a shape with so much more room of each kind."""
        inputs, device = self.inputs, self.slab.device
        lengths = np.array([inputs.query_lengths, inputs.kv_lengths], dtype=np.int32)
        tokens, count = len(self.query), lengths.shape[1]
        shape = StepShape(tokens + spare, count + spare, sum(length > 1 for length in inputs.query_lengths))
        sequences = np.zeros((3, shape.sequences), dtype=np.int32)
        sequences[:, :count] = np.cumsum(lengths[0]) - lengths[0], *lengths
        tables = torch.zeros(shape.sequences, inputs.block_tables.shape[1] + spare, dtype=torch.int32, device=device)
        tables[:count, : inputs.block_tables.shape[1]] = inputs.block_tables
        slots = torch.cat([inputs.slots, inputs.slots.new_full((spare,), -1)])
        listed = [torch.from_numpy(each).to(device) for each in attention.list_step(sequences[:, :count], shape)]
        told = StepInputs(
            positions=slots.expand(3, -1),
            slots=slots,
            sequences=torch.from_numpy(sequences).to(device),
            block_tables=tables,
            logits_at=slots.new_zeros(shape.sequences),
            listed=listed,
        )
        rows = [torch.cat([each, each[:1].expand(spare, -1, -1)]) for each in (self.query, self.key, self.value)]
        return attention.told_step(told, self.slab).attend(LAYER, *rows)[:tokens]


def relative(found: Tensor, exact: Tensor) -> float:
    """Of the whole tensor; huge for NaN."""
    assert found.shape == exact.shape, (found.shape, exact.shape)
    apart = (found.double().cpu() - exact).norm() / exact.norm()
    return float(apart.nan_to_num(nan=1e9))


def decode_inputs(inputs: PagedInputs, width: int, padding: int) -> DecodeInputs:
    tables = inputs.block_tables
    wide = torch.zeros(len(tables) + padding, max(width, tables.shape[1]), dtype=torch.int32, device=tables.device)
    wide[: len(tables), : tables.shape[1]] = tables
    lengths = torch.tensor([*inputs.kv_lengths, *[0] * padding], dtype=torch.int32, device=tables.device)
    slots = torch.cat([inputs.slots, inputs.slots.new_full((padding,), -1)])
    return DecodeInputs(torch.zeros_like(slots), slots.expand(3, -1), slots, lengths, wide)


def make_case(spec: Spec, seed: int = 0, device: torch.device | str = "cpu") -> Case:
    """Blocks are dealt out at random; whatever holds no token is NaN."""
    shape, chosen = spec.shape(), np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    page, kv_heads, size = spec.block_size, spec.kv_heads, spec.head_size
    used = [-(-length // page) for length in spec.kv_lengths]
    ids = chosen.permutation(sum(used) + 3)
    tables = np.zeros((len(used), max(used)), np.int64)
    tokens = sum(spec.query_lengths)
    merged = torch.randn(tokens, spec.heads + 2 * kv_heads, size, generator=generator).to(spec.dtype)
    query, key, value = torch.split(merged, [spec.heads, kv_heads, kv_heads], dim=1)
    slab = torch.full((len(ids), LAYERS, 2, page, kv_heads, size), torch.nan).to(shape.kv_dtype)
    exact, slots, at, token = [], [], 0, 0
    for row, (count, length) in enumerate(zip(spec.query_lengths, spec.kv_lengths, strict=True)):
        blocks = ids[at : at + used[row]]
        tables[row, : used[row]] = blocks
        kv = torch.randn(2, length, kv_heads, size, generator=generator).to(shape.kv_dtype).to(spec.dtype)
        span = np.arange(length)
        where = blocks[span // page], span % page
        for axis in range(2):
            # As bytes: torch does not scatter numbers of every type.
            numbers = kv[axis].to(shape.kv_dtype).view(torch.uint8)
            slab.view(torch.uint8)[where[0], LAYER, axis, where[1]] = numbers
        key[token : token + count], value[token : token + count] = kv[0, length - count :], kv[1, length - count :]
        exact.append(_exact(query[token : token + count], kv[0], kv[1], shape.scale))
        slots.append((where[0] * page + where[1])[length - count :])
        at, token = at + used[row], token + count
    told = PagedInputs(
        positions=torch.zeros(3, tokens, dtype=torch.int64, device=device),
        slots=torch.from_numpy(np.concatenate(slots)).to(device),
        query_lengths=spec.query_lengths,
        kv_lengths=spec.kv_lengths,
        block_tables=torch.from_numpy(tables).to(device),
        logits_at=torch.zeros(0, dtype=torch.int64, device=device),
    )
    views = torch.split(merged.to(device), [spec.heads, kv_heads, kv_heads], dim=1)
    return Case(shape, told, slab.to(device), *views, torch.cat(exact))


def _exact(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    count, length = len(query), len(keys)
    share = query.shape[1] // keys.shape[1]
    keys, values = (each.double().repeat_interleave(share, dim=1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * scale
    scores += torch.full((count, length), -torch.inf, dtype=torch.float64).triu_(length - count + 1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


def alone(case: Case, row: int) -> Case:
    """One sequence of a case, in a step of its own."""
    begin = sum(case.inputs.query_lengths[:row])
    tokens = slice(begin, begin + case.inputs.query_lengths[row])
    inputs = PagedInputs(
        positions=case.inputs.positions[:, tokens],
        slots=case.inputs.slots[tokens],
        query_lengths=case.inputs.query_lengths[row : row + 1],
        kv_lengths=case.inputs.kv_lengths[row : row + 1],
        block_tables=case.inputs.block_tables[row : row + 1],
        logits_at=case.inputs.logits_at,
    )
    parts = (case.query[tokens], case.key[tokens], case.value[tokens])
    return Case(case.shape, inputs, case.slab, *parts, case.exact[tokens])


def decodes(heads: int, kv_heads: int, head_size: int, block_size: int, kv_lengths: Sequence[int]) -> Spec:
    """One new token each."""
    return Spec(heads, kv_heads, head_size, block_size, (1,) * len(kv_lengths), tuple(kv_lengths))
