"""Kernels on random numbers against the same formulas in float64, over widths that are and are not powers of two."""

import itertools

import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.kernels.choice import Kernels
from triptych.models.kernels.head_shape import HeadShape, TokenPlaces
from triptych.models.quantised import FP8, LARGEST

EPSILON = 1e-6
# (tokens, heads, head_size, gated numbers): the real tower's, the tiny ones', and awkward ones
SHAPES = [(5, 16, 80, 3456), (3, 4, 16, 100), (1, 3, 24, 1), (7, 2, 6, 1025)]
# (tokens, inputs, gated numbers): a decode step's of whole tiles, one too many tokens, and no whole tiles
PRODUCTS = [(1, 64, 64), (5, 192, 128), (17, 128, 192), (64, 64, 128), (65, 64, 64), (3, 24, 100)]
# (tokens, heads, kv_heads, head_size, block_size): as of 7B, of 3B with a head of its own size, the tiny ones', awkward
HEAD_SHAPES = [(5, 28, 4, 128, 16), (3, 16, 8, 80, 32), (9, 4, 2, 64, 16), (4, 3, 3, 6, 5), (2, 7, 1, 24, 1)]
LARGEST_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def relative(found: Tensor, expected: Tensor) -> float:
    """Of the whole tensor, so that numbers near zero do not count for more than they are."""
    found = found.double().cpu()
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(((found - expected).norm() / expected.norm()).nan_to_num(nan=1e9))


def errors(kernels: Kernels, device: torch.device, dtype: torch.dtype, *, products: bool = True) -> dict[str, float]:
    """The largest relative error of each kernel; products: of those that multiply matrices, too."""
    worst = dict.fromkeys(("add_norm", "rotate", "gate"), 0.0)
    worst["turn"] = max(_turn(kernels, device, dtype, *case) for case in itertools.product(HEAD_SHAPES, (False, True)))
    if products:
        worst["gated"] = max(_gated(kernels, device, dtype, *case) for case in PRODUCTS)
    _check_rounded(kernels, device, dtype)
    for seed, (tokens, heads, head_size, gated) in enumerate(SHAPES):
        generator = torch.Generator().manual_seed(seed)

        def noise(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device, dtype)

        width = heads * head_size
        apart = {
            "add_norm": max(
                _add_norm(kernels, noise(tokens, width), delta, noise(width)) for delta in (None, noise(tokens, width))
            ),
            "rotate": _rotate(kernels, noise(tokens, 3 * width), noise(tokens, head_size // 2).float(), heads),
            "gate": _gate(kernels, noise(tokens, 2 * gated)),
        }
        worst |= {name: max(worst[name], error) for name, error in apart.items()}
    return worst


def _add_norm(kernels: Kernels, hidden: Tensor, delta: Tensor | None, weight: Tensor) -> float:
    before = hidden.clone()
    added, normed = kernels.add_norm(hidden, delta, weight, EPSILON)
    assert torch.equal(hidden, before), "what captured work reads is written by its prelude alone"
    exact = hidden.double().cpu() + (0 if delta is None else delta.double().cpu())
    wanted = exact / (exact.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight.double().cpu()
    return max(relative(added, exact), relative(normed, wanted))


def _rotate(kernels: Kernels, qkv: Tensor, angles: Tensor, heads: int) -> float:
    exact = qkv.double().cpu().view(len(qkv), 3, heads, 2, -1)
    c, s = angles.cos().double().cpu()[:, None, None], angles.sin().double().cpu()[:, None, None]
    first, second = exact[:, :2, :, 0], exact[:, :2, :, 1]
    wanted = torch.stack([first * c - second * s, second * c + first * s], dim=3)
    kernels.rotate(qkv, angles.cos(), angles.sin(), heads)
    found = qkv.view(len(qkv), 3, heads, 2, -1)
    assert torch.equal(found[:, 2].double().cpu(), exact[:, 2]), "values are not rotated"
    return relative(found[:, :2], wanted)


def _gate(kernels: Kernels, both: Tensor) -> float:
    gates, values = both.double().cpu().chunk(2, dim=-1)
    return relative(kernels.gate(both), functional.silu(gates) * values)


def _gated(kernels: Kernels, device: torch.device, dtype: torch.dtype, tokens: int, inputs: int, width: int) -> float:
    generator = torch.Generator().manual_seed(tokens)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((tokens, inputs), (2 * width, inputs)))
    x, weight = x.to(device, dtype), (weight / inputs**0.5).to(device, dtype)
    found = kernels.gated(x, weight)
    gates, values = (x.double().cpu() @ weight.double().cpu().T).chunk(2, dim=-1)
    return relative(found, functional.silu(gates) * values)


def _turn(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    sides: tuple[int, int, int, int, int],
    has_norm: bool,
) -> float:
    """Of what comes back and of what is written into the slab, where nothing else may change."""
    tokens, heads, kv_heads, head_size, block_size = sides
    shape = HeadShape(heads, kv_heads, head_size, EPSILON)
    generator = torch.Generator().manual_seed(tokens)

    def noise(*sides: int) -> Tensor:
        return torch.randn(*sides, generator=generator).to(device, dtype)

    qkv, slab = noise(tokens, shape.all * head_size), noise(tokens + 1, 2, 2, block_size, kv_heads, head_size)
    norm = noise(shape.turned, head_size) if has_norm else None
    angles = 20 * torch.randn(tokens, head_size // 2, generator=generator).to(device)
    slots = torch.randperm((tokens + 1) * block_size, generator=generator)[:tokens].to(device)
    slots[1] = -1
    wanted = _turned(qkv, norm, angles, shape)
    expected = slab.double().cpu()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // block_size, 1, :, slot % block_size] = torch.stack(wanted[1:])[:, token]
    found = kernels.turn(TokenPlaces(angles.cos(), angles.sin(), slots, slab, shape))(1, qkv, norm)
    return max(*(relative(*pair) for pair in zip(found, wanted, strict=True)), relative(slab, expected))


def _check_rounded(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> None:
    """Into a slab of 8 bits go rounded keys and values, and the very same come back; no number stays none."""
    shape = HeadShape(6, 2, 16, EPSILON)
    generator = torch.Generator().manual_seed(1)
    qkv = 100 * torch.randn(4, shape.all * 16, generator=generator).to(device, dtype)
    qkv[2, 6 * 16], qkv[3, 8 * 16], qkv[3, 9 * 16] = torch.nan, 9e4 if dtype != torch.float16 else 6e4, torch.inf
    angles, slots = torch.randn(4, 8, generator=generator).to(device), torch.tensor([9, 30, 4, 17]).to(device)
    wanted = _turned(qkv, None, angles, shape)
    slab = torch.zeros(2, 3, 2, 16, 2, 16, device=device).to(FP8)
    places = TokenPlaces(angles.cos(), angles.sin(), slots, slab, shape)
    queries, keys, values = kernels.turn(places)(2, qkv, None)
    stored = slab.float()[slots // 16, 2, :, slots % 16].to(dtype)
    for made, kept, exact in zip((keys, values), stored.unbind(1), wanted[1:], strict=True):
        torch.testing.assert_close(made, kept, rtol=0, atol=0, equal_nan=True)
        bounded = torch.where(exact.isinf(), torch.nan, exact).clamp(-LARGEST, LARGEST)
        torch.testing.assert_close(kept.double().cpu(), bounded, rtol=0.07, atol=0.01, equal_nan=True)
    assert relative(queries, wanted[0]) <= LARGEST_ERRORS[dtype]


def _turned(qkv: Tensor, norm: Tensor | None, angles: Tensor, shape: HeadShape) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in float64."""
    exact = qkv.double().cpu().view(len(qkv), shape.all, 2, -1)
    both, values = exact[:, : shape.turned], exact[:, shape.turned :].flatten(2)
    if norm is not None:
        both = both / (both.square().mean((-1, -2), keepdim=True) + shape.epsilon).sqrt()
        both = both * norm.double().cpu().view(shape.turned, 2, -1)
    c, s = (each.double().cpu()[:, None] for each in (angles.cos(), angles.sin()))
    first, second = both.unbind(2)
    turned = torch.cat([first * c - second * s, second * c + first * s], dim=-1)
    return turned[:, : shape.heads], turned[:, shape.heads :], values
