"""Scales of KV in 8 bits: found in the weights alone, in a good place, and folded in without rounding anything."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from triptych.errors import ConfigError
from triptych.models.kernels.head_shape import HeadShape
from triptych.models.kv_scales import (
    LARGEST_EXPONENT,
    TYPICAL,
    AttentionWeights,
    KVExponents,
    fold,
    kv_exponents,
    scaling_digest,
)

SHAPE = HeadShape(heads=6, kv_heads=3, head_size=16)
HIDDEN = 64


def layer(
    seed: int = 0,
    sizes: tuple[float, ...] = (1, 1, 1),
    *,
    bias: bool = True,
    norms: bool = False,
    dtype: str = "float32",
) -> AttentionWeights:
    """Random weights; those of each KV head are so many times as large."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    rows, turned = SHAPE.all * SHAPE.head_size, SHAPE.turned
    by_head = torch.tensor([1.0] * SHAPE.heads + list(sizes) * 2).repeat_interleave(SHAPE.head_size)
    made = AttentionWeights(
        qkv=noise(rows, HIDDEN) * by_head[:, None],
        bias=noise(rows) * by_head * 3 if bias else None,
        out=noise(HIDDEN, SHAPE.heads * SHAPE.head_size),
        input_norm=noise(HIDDEN).abs() + 0.5,
        head_norm=(noise(turned, SHAPE.head_size).abs() + 0.1)
        * torch.tensor([1.0] * SHAPE.heads + list(sizes))[:, None]
        if norms
        else None,
    )
    chosen = getattr(torch, dtype)
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return AttentionWeights(**{name: each if each is None else each.to(chosen) for name, each in fields.items()})


def copied(weights: AttentionWeights) -> AttentionWeights:
    fields = {name: getattr(weights, name) for name in weights.__dataclass_fields__}
    return AttentionWeights(**{name: each if each is None else each.clone() for name, each in fields.items()})


def keys_and_values(weights: AttentionWeights, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [tokens, heads, head_size] of inputs behind the norm's division."""
    made = functional.linear(inputs * weights.input_norm, weights.qkv, weights.bias)
    parts = made.view(len(inputs), SHAPE.all, SHAPE.head_size).split([SHAPE.heads, SHAPE.kv_heads, SHAPE.kv_heads], 1)
    if weights.head_norm is None:
        return parts[0], parts[1], parts[2]
    turned = [part / part.square().mean(-1, keepdim=True).sqrt() for part in parts[:2]]
    norms = weights.head_norm.split([SHAPE.heads, SHAPE.kv_heads])
    return turned[0] * norms[0], turned[1] * norms[1], parts[2]


def attention(weights: AttentionWeights, inputs: Tensor) -> Tensor:
    query, key, value = keys_and_values(weights, inputs)
    share = SHAPE.heads // SHAPE.kv_heads
    key, value = (each.repeat_interleave(share, dim=1) for each in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key).softmax(-1)
    attended = torch.einsum("hqk,khd->qhd", scores, value)
    return functional.linear(attended.flatten(1), weights.out)


def some_inputs(tokens: int = 64) -> Tensor:
    inputs = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(9))
    return inputs / inputs.square().mean(1, keepdim=True).sqrt()


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_folding_changes_no_result_by_a_bit(bias: bool, norms: bool) -> None:
    weights, inputs = layer(sizes=(0.01, 1.0, 40.0), bias=bias, norms=norms), some_inputs()
    folded = copied(weights)
    exponents = kv_exponents(weights, SHAPE)
    fold(folded, SHAPE, exponents)
    assert len(set(exponents.keys)) == len(set(exponents.values)) == 3, exponents
    for found, wanted, by_head in zip(
        keys_and_values(folded, inputs)[1:],
        keys_and_values(weights, inputs)[1:],
        (exponents.keys, exponents.values),
        strict=True,
    ):
        assert torch.equal(found * torch.tensor([2.0**each for each in by_head])[:, None], wanted)
    assert torch.equal(attention(folded, inputs), attention(weights, inputs))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits_are_multiplied_exactly(dtype: str) -> None:
    weights = layer(sizes=(0.2, 1.0, 8.0), dtype=dtype)
    folded, back = copied(weights), kv_exponents(weights, SHAPE)
    fold(folded, SHAPE, back)
    assert not torch.equal(folded.qkv, weights.qkv)
    fold(folded, SHAPE, KVExponents(tuple(-each for each in back.keys), tuple(-each for each in back.values)))
    assert torch.equal(folded.qkv, weights.qkv)
    assert torch.equal(folded.out, weights.out)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("size", [0.02, 1.0, 50.0])
def test_typical_numbers_come_to_lie_where_the_format_has_room_on_both_sides(size: float, norms: bool) -> None:
    weights = layer(sizes=(size, size, size), bias=False, norms=norms)
    weights.input_norm.mul_(0.2)  # what it makes smaller is smaller, unless a head's own norm comes behind
    exponents = kv_exponents(weights, SHAPE)
    fold(weights, SHAPE, exponents)
    for numbers in keys_and_values(weights, some_inputs(512))[1:]:
        sizes = numbers.square().mean((0, 2)).sqrt()
        assert ((sizes > TYPICAL / 2) & (sizes < TYPICAL * 2)).all(), sizes


def test_a_head_of_zeros_stays_one_and_extremes_have_an_end() -> None:
    weights = layer(sizes=(0.0, 1e-9, 1e9), bias=False)
    exponents = kv_exponents(weights, SHAPE)
    assert exponents.keys == exponents.values == (0, -LARGEST_EXPONENT, LARGEST_EXPONENT)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(broken: float) -> None:
    weights = layer()
    weights.qkv[-1, 3] = broken
    with pytest.raises(ConfigError, match="not finite"):
        kv_exponents(weights, SHAPE)


def test_equal_weights_have_equal_scales_however_their_sums_are_ordered() -> None:
    weights = layer(seed=3, sizes=(0.3, 2.0, 5.0))
    order = torch.randperm(HIDDEN, generator=torch.Generator().manual_seed(1))
    shuffled = replace(weights, qkv=weights.qkv[:, order], input_norm=weights.input_norm[order])
    assert kv_exponents(shuffled, SHAPE) == kv_exponents(weights, SHAPE)


def test_scales_have_a_name_that_changes_with_any_of_them() -> None:
    one = [KVExponents((1, 2), (0, 0)), KVExponents((1, 2), (0, 3))]
    others = [one[:1], [one[1], one[0]], [one[0], KVExponents((1, 2), (0, 4))], [one[0], KVExponents((0, 3), (1, 2))]]
    assert len({scaling_digest(each) for each in (one, *others)}) == 1 + len(others)
    assert scaling_digest(one) == scaling_digest(list(one))
