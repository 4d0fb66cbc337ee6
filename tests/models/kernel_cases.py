"""Kernels on random numbers against the same formulas in float64, over widths that are and are not powers of two."""

import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.kernels.choice import Kernels

EPSILON = 1e-6
# (tokens, heads, head_size, gated numbers): the real tower's, the tiny ones', and awkward ones
SHAPES = [(5, 16, 80, 3456), (3, 4, 16, 100), (1, 3, 24, 1), (7, 2, 6, 1025)]
LARGEST_ERRORS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def relative(found: Tensor, expected: Tensor) -> float:
    """Of the whole tensor, so that numbers near zero do not count for more than they are."""
    found = found.double().cpu()
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(((found - expected).norm() / expected.norm()).nan_to_num(nan=1e9))


def errors(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """The largest relative error of each kernel."""
    worst = dict.fromkeys(("add_norm", "rotate", "gate"), 0.0)
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
        worst = {name: max(error, apart[name]) for name, error in worst.items()}
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
