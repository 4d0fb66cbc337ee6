"""All weights of the network in one flat buffer, seen by name as transformers' checkpoints name them.

One buffer makes the optimizer a handful of kernels and the copy in the compute type a single one. Matrices come first,
those of one shape side by side, so that a stack of them is a view as well.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tools.tiny_vl.config import Geometry

EMBEDDING = "model.embed_tokens.weight"
PATCH_KERNEL = "visual.patch_embed.proj.weight"


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices of one shape, neighbours in the flat buffer from `start` on."""

    start: int
    count: int
    rows: int
    columns: int

    def view(self, flat: Tensor) -> Tensor:
        size = self.count * self.rows * self.columns
        return flat[self.start : self.start + size].view(self.count, self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each weight lies in the flat buffer.

    names: in the buffer's order
    stacks: the matrices, which fill the buffer up to num_matrix; a fused query-key-value matrix counts as three
    """

    names: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    stacks: tuple[Stack, ...]
    num_matrix: int
    num_all: int

    @classmethod
    def of(cls, geometry: Geometry) -> Self:
        shapes = weight_shapes(geometry)
        pieces = {name: _as_matrices(name, shape) for name, shape in shapes.items()}
        groups: dict[tuple[int, int], list[str]] = {}
        for name, piece in pieces.items():
            if piece is not None:
                groups.setdefault(piece[1:], []).append(name)
        stacks, start = [], 0
        for (rows, columns), names in groups.items():
            count = sum(piece[0] for name in names if (piece := pieces[name]) is not None)
            stacks.append(Stack(start, count, rows, columns))
            start += count * rows * columns
        # The embedding leads the rest: vectors must not shift it off the 16 bytes that fast kernels ask for.
        rest = sorted((name for name, piece in pieces.items() if piece is None), key=lambda name: name != EMBEDDING)
        ordered = (*(name for names in groups.values() for name in names), *rest)
        return cls(ordered, shapes, tuple(stacks), start, sum(math.prod(shape) for shape in shapes.values()))

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Each weight as a view of the flat buffer."""
        sizes = [math.prod(self.shapes[name]) for name in self.names]
        return {
            name: part.view(self.shapes[name]) for name, part in zip(self.names, torch.split(flat, sizes), strict=True)
        }

    def is_wide(self, name: str) -> bool:
        """Whether a weight enters matrix products, hence is wanted in the compute type."""
        return len(self.shapes[name]) > 1


def _as_matrices(name: str, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(count, rows, columns) of the matrices that Muon makes orthogonal, None for what AdamW updates."""
    if name == EMBEDDING or len(shape) == 1:
        return None
    if name.endswith("attn.qkv.weight"):
        return 3, shape[0] // 3, shape[1]
    return 1, shape[0], math.prod(shape[1:])


def weight_shapes(geometry: Geometry) -> dict[str, tuple[int, ...]]:
    """Shape of each weight by its name in a checkpoint."""
    wide = geometry.hidden
    shapes: dict[str, tuple[int, ...]] = {PATCH_KERNEL: (wide, 3, 2, 14, 14)}
    for index in range(geometry.vision_blocks):
        at = f"visual.blocks.{index}"
        shapes |= {f"{at}.norm1.weight": (wide,), f"{at}.norm2.weight": (wide,)}
        shapes |= _linear(f"{at}.attn.qkv", 3 * wide, wide) | _linear(f"{at}.attn.proj", wide, wide)
        shapes |= _linear(f"{at}.mlp.gate_proj", geometry.vision_mlp, wide)
        shapes |= _linear(f"{at}.mlp.up_proj", geometry.vision_mlp, wide)
        shapes |= _linear(f"{at}.mlp.down_proj", wide, geometry.vision_mlp)
    shapes |= {"visual.merger.ln_q.weight": (wide,)}
    shapes |= _linear("visual.merger.mlp.0", 4 * wide, 4 * wide) | _linear("visual.merger.mlp.2", wide, 4 * wide)
    shapes |= {EMBEDDING: (geometry.vocabulary, wide), "model.norm.weight": (wide,)}
    for index in range(geometry.layers):
        shapes |= _text_layer(f"model.layers.{index}", geometry)
    return shapes


def _text_layer(at: str, geometry: Geometry) -> dict[str, tuple[int, ...]]:
    wide, narrow = geometry.hidden, geometry.key_heads * geometry.head_size
    return {
        f"{at}.input_layernorm.weight": (wide,),
        f"{at}.post_attention_layernorm.weight": (wide,),
        **_linear(f"{at}.self_attn.q_proj", wide, wide),
        **_linear(f"{at}.self_attn.k_proj", narrow, wide),
        **_linear(f"{at}.self_attn.v_proj", narrow, wide),
        f"{at}.self_attn.o_proj.weight": (wide, wide),
        f"{at}.mlp.gate_proj.weight": (geometry.text_mlp, wide),
        f"{at}.mlp.up_proj.weight": (geometry.text_mlp, wide),
        f"{at}.mlp.down_proj.weight": (wide, geometry.text_mlp),
    }


def _linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def initial_weights(geometry: Geometry, seed: int) -> Tensor:
    """[num_all] float32: normal with deviation fan_in^-1/2, residual outputs smaller, norms 1, biases 0."""
    generator = torch.Generator().manual_seed(seed)
    layout = Layout.of(geometry)
    flat = torch.zeros(layout.num_all)
    for name, weight in layout.views(flat).items():
        if weight.dim() > 1:
            weight.normal_(std=_deviation(name, weight, geometry), generator=generator)
        elif name.endswith("weight"):
            weight.fill_(1.0)
    return flat


def _deviation(name: str, weight: Tensor, geometry: Geometry) -> float:
    if name == EMBEDDING:
        return 0.05
    scale = 1.0 / math.sqrt(math.prod(weight.shape[1:]))
    if name.endswith(("attn.proj.weight", "o_proj.weight", "down_proj.weight")):
        depth = geometry.vision_blocks if name.startswith("visual") else geometry.layers
        return scale / math.sqrt(2 * depth)
    return scale


class Parameters:
    """The weights in float32 and, for matrix products, in the compute type; owner of both buffers.

    leaves: what the network computes with and gradients are taken of, by name: matrices in the compute type, vectors
        in float32
    """

    def __init__(self, layout: Layout, flat: Tensor, compute: torch.dtype) -> None:
        self.layout = layout
        self.flat = flat
        self._computed = flat if compute == flat.dtype else flat.to(compute)
        exact, cast = layout.views(self.flat), layout.views(self._computed)
        self.leaves = {
            name: (cast if layout.is_wide(name) else exact)[name].detach().requires_grad_() for name in layout.names
        }

    def refresh(self) -> None:
        """Bring the copy in the compute type up to date after the flat buffer changed."""
        if self._computed is not self.flat:
            with torch.no_grad():
                self._computed.copy_(self.flat)
