"""A decoder's weights on a device, merged where one product can do the work of several.

The merged tensors are allocated once; what a checkpoint stores apart is read straight into its rows of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.decoder.geometry import DecoderGeometry


class Product(Protocol):
    """A matrix product with a weight that stays."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, out] of x [rows, in], in x's dtype"""


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A Product by torch's own. weight: [out, in], bias: [out]"""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


@dataclass(slots=True, eq=False)
class LayerWeights:
    """One layer. Products may be replaced by others that compute the same.

    qkv:       queries' heads, then keys', then values'; see HeadShape
    gate_up:   gate, then up
    head_norm: [heads + kv_heads, head_size], or None
    """

    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    input_norm: Tensor
    post_norm: Tensor
    head_norm: Tensor | None


@dataclass(slots=True, eq=False)
class DecoderWeights:
    """embedding, head: [vocab, hidden], one tensor where they are tied; norm: [hidden], ahead of the head"""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Product


@dataclass(frozen=True, slots=True, eq=False)
class Allocated:
    """Weights that are not set yet.

    places: by the names that transformers' modules give them, where each stored tensor goes
    shared: rows [copies, numbers] that all take what the tensor of this name says
    """

    weights: DecoderWeights
    places: Mapping[str, Tensor]
    shared: Mapping[str, Tensor]

    def spread(self) -> None:
        """Copies what is shared from its first row, which is its place, to the others."""
        for rows in self.shared.values():
            rows[1:] = rows[0]


def allocate(geometry: DecoderGeometry, dtype: torch.dtype, device: torch.device) -> Allocated:
    """Memory for all weights of a decoder, in one tensor for each product and norm."""
    builder = _Builder(geometry, dtype, device)
    embedding = builder.empty(geometry.vocab_size, geometry.hidden_size)
    builder.places["model.embed_tokens.weight"] = embedding
    layers = [builder.layer(f"model.layers.{number}.") for number in range(geometry.layers)]
    norm = builder.vector("model.norm.weight", geometry.hidden_size)
    head = embedding
    if not geometry.tied:
        head = builder.places["lm_head.weight"] = builder.empty(geometry.vocab_size, geometry.hidden_size)
    return Allocated(DecoderWeights(embedding, layers, norm, Dense(head)), builder.places, builder.shared)


class _Builder:
    def __init__(self, geometry: DecoderGeometry, dtype: torch.dtype, device: torch.device) -> None:
        self.places: dict[str, Tensor] = {}
        self.shared: dict[str, Tensor] = {}
        self._geometry = geometry
        self._dtype, self._device = dtype, device

    def empty(self, *sides: int) -> Tensor:
        return torch.empty(*sides, dtype=self._dtype, device=self._device)

    def vector(self, name: str, width: int) -> Tensor:
        made = self.places[name] = self.empty(width)
        return made

    def layer(self, prefix: str) -> LayerWeights:
        geometry, hidden = self._geometry, self._geometry.hidden_size
        queries, keys = geometry.heads * geometry.head_size, geometry.kv_heads * geometry.head_size
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        parts = {attention + name: rows for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys))}
        return LayerWeights(
            qkv=self._dense(parts, hidden, geometry.qkv_bias),
            out=self._dense({attention + "o_proj": hidden}, queries, geometry.out_bias),
            gate_up=self._dense(
                dict.fromkeys((mlp + "gate_proj", mlp + "up_proj"), geometry.intermediate_size), hidden
            ),
            down=self._dense({mlp + "down_proj": hidden}, geometry.intermediate_size),
            input_norm=self.vector(prefix + "input_layernorm.weight", hidden),
            post_norm=self.vector(prefix + "post_attention_layernorm.weight", hidden),
            head_norm=self._head_norm(attention) if geometry.head_norm else None,
        )

    def _dense(self, rows_by_name: Mapping[str, int], inputs: int, bias: bool = False) -> Dense:
        weight = self.empty(sum(rows_by_name.values()), inputs)
        offsets = self.empty(len(weight)) if bias else None
        for name, begin, end in _spans(rows_by_name):
            self.places[name + ".weight"] = weight[begin:end]
            if offsets is not None:
                self.places[name + ".bias"] = offsets[begin:end]
        return Dense(weight, offsets)

    def _head_norm(self, attention: str) -> Tensor:
        geometry = self._geometry
        made = self.empty(geometry.heads + geometry.kv_heads, geometry.head_size)
        for name, begin, end in _spans({"q_norm": geometry.heads, "k_norm": geometry.kv_heads}):
            stored = f"{attention}{name}.weight"
            self.shared[stored] = made[begin:end]
            self.places[stored] = made[begin]
        return made


def _spans(rows_by_name: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Name, first row and the row behind the last, one behind the other."""
    begin = 0
    for name, rows in rows_by_name.items():
        yield name, begin, begin + rows
        begin += rows
