"""Qwen2.5-VL on packed batches: the same numbers as transformers' module, in pieces that compile once for all layers.

Attention stands between the pieces. Activations flow between blocks in float32, matrix products and attention run in
the type of the matrices. Weights are arguments of the pieces, so one compiled graph serves every layer.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tools.tiny_vl.attention import Attention
from tools.tiny_vl.config import IMAGE_MEAN, IMAGE_STD, Geometry
from tools.tiny_vl.packing import LONGEST_IMAGE, LONGEST_SEQUENCE, LONGEST_WINDOW, NO_LABEL, PATCH_VALUES
from tools.tiny_vl.parameters import EMBEDDING, PATCH_KERNEL

EPSILON = 1e-6
# 588 values are no multiple of the 16 bytes that fast matrix kernels load at once; 592 are.
_PADDED_VALUES = 592

Weights = dict[str, Tensor]
Heads = tuple[Tensor, Tensor, Tensor]
_VISION_IN = ("norm1.weight", "attn.qkv.weight", "attn.qkv.bias")
_VISION_OUT = (
    "attn.proj.weight", "attn.proj.bias", "norm2.weight", "mlp.gate_proj.weight", "mlp.gate_proj.bias",
    "mlp.up_proj.weight", "mlp.up_proj.bias", "mlp.down_proj.weight", "mlp.down_proj.bias",
)  # fmt: skip
_TEXT_IN = (
    "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
)  # fmt: skip
_TEXT_OUT = (
    "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)  # fmt: skip
_MERGER = ("ln_q.weight", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")


class Network:
    """The forward pass; owns no weights, only how its pieces are run."""

    def __init__(self, geometry: Geometry, attend: Attention, device: torch.device, compiled: bool) -> None:
        self._geometry = geometry
        self._attend = attend
        heads = (geometry.heads, geometry.key_heads)
        run: Callable[[Any], Any] = (
            (lambda piece: torch.compile(piece, dynamic=False, fullgraph=True)) if compiled else (lambda piece: piece)
        )
        self._embed, self._merge, self._score = run(embed_patches), run(merge), run(score)
        self._vision = _Stage(run(vision_in), run(vision_across), run(vision_out), heads)
        self._text = _Stage(run(text_in), run(text_across), run(text_out), heads)
        mean = torch.tensor(IMAGE_MEAN, device=device).repeat_interleave(PATCH_VALUES // 3)
        std = torch.tensor(IMAGE_STD, device=device).repeat_interleave(PATCH_VALUES // 3)
        self._scale, self._shift = 1.0 / (255.0 * std), -mean / std
        self._vision_turns = _inverse_frequencies(geometry.head_size // 2, 10000.0, device)
        self._text_turns = _inverse_frequencies(geometry.head_size, geometry.rope_theta, device)
        axes = [torch.full((size,), axis) for axis, size in enumerate(geometry.mrope_section)]
        self._axis_of_turn = torch.cat(axes).to(device)

    def rows(self, weights: Weights, batch: dict[str, Tensor]) -> Tensor:
        """[R, hidden] float32: the tower's embedding rows, in the order of the packed patches."""
        kernel = weights[PATCH_KERNEL]
        gaussian = torch.randn(batch["patches"].shape, dtype=kernel.dtype, device=kernel.device)
        hidden = self._embed(batch["patches"], batch["noise"], gaussian, self._scale, self._shift, kernel)
        angles = (batch["patch_at"].float()[:, :, None] * self._vision_turns).flatten(1)
        blocks = [
            (_named(weights, f"visual.blocks.{at}", _VISION_IN), _named(weights, f"visual.blocks.{at}", _VISION_OUT))
            for at in range(self._geometry.vision_blocks)
        ]

        def attend(at: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if at in self._geometry.full_blocks:
                return self._attend(query, key, value, batch["image_ends"], LONGEST_IMAGE, False)
            return self._attend(query, key, value, batch["window_ends"], LONGEST_WINDOW, False)

        hidden = self._vision(hidden, angles.cos(), angles.sin(), blocks, attend)
        rows: Tensor = self._merge(hidden, *_named(weights, "visual.merger", _MERGER))
        return rows

    def hidden(self, weights: Weights, batch: dict[str, Tensor]) -> Tensor:
        """[T, hidden] float32: the language model's last residual, before its final norm."""
        rows = self.rows(weights, batch)
        hidden = splice(weights[EMBEDDING], rows, batch["token_ids"], batch["row_slot"], batch["row_lost"])
        # [T, turns]: each frequency turns with the axis that it belongs to.
        places = batch["token_at"].float().index_select(0, self._axis_of_turn).t()
        angles = places * self._text_turns
        layers = [
            (_named(weights, f"model.layers.{at}", _TEXT_IN), _named(weights, f"model.layers.{at}", _TEXT_OUT))
            for at in range(self._geometry.layers)
        ]

        def attend(at: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self._attend(query, key, value, batch["sequence_ends"], LONGEST_SEQUENCE, True)

        return self._text(hidden, angles.cos(), angles.sin(), layers, attend)

    def loss(self, weights: Weights, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy over the labels (a scalar), and [L] bool: which are the likeliest token, padding is."""
        hidden = self.hidden(weights, batch).index_select(0, batch["label_at"])
        found: tuple[Tensor, Tensor] = self._score(
            hidden, weights["model.norm.weight"], weights[EMBEDDING], batch["label_id"]
        )
        return found


class _Stage:
    """A run of blocks: in, attention, then out of one block and into the next as one piece, at last out."""

    def __init__(
        self,
        enter: Callable[..., Heads],
        across: Callable[..., tuple[Tensor, Heads]],
        leave: Callable[..., Tensor],
        heads: tuple[int, int],
    ) -> None:
        self._enter, self._across, self._leave, self._heads = enter, across, leave, heads

    def __call__(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        blocks: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]],
        attend: Callable[[int, Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        split = self._enter(hidden, cos, sin, self._heads, blocks[0][0])
        last = len(blocks) - 1
        for at, ((_, outward), (inward, _)) in enumerate(pairwise(blocks)):
            mixed = attend(at, *split).flatten(1)
            hidden, split = self._across(hidden, mixed, cos, sin, self._heads, outward, inward)
        return self._leave(hidden, attend(last, *split).flatten(1), blocks[last][1])


def embed_patches(
    patches: Tensor, noise: Tensor, gaussian: Tensor, scale: Tensor, shift: Tensor, kernel: Tensor
) -> Tensor:
    """[P, hidden] float32 from [P, 588] uint8 pixels, with their noise laid over, normalized.

    kernel: [hidden, 3, 2, 14, 14]; both its slices in time see the same picture, so their sum sees it once
    """
    noisy = (patches.float() + noise.float()[:, None] * gaussian.float()).round().clamp(0.0, 255.0)
    values = functional.pad(noisy * scale + shift, (0, _PADDED_VALUES - PATCH_VALUES))
    flat = functional.pad(kernel.float().sum(2).flatten(1), (0, _PADDED_VALUES - PATCH_VALUES))
    return (values.to(kernel.dtype) @ flat.to(kernel.dtype).t()).float()


def vision_in(hidden: Tensor, cos: Tensor, sin: Tensor, heads: tuple[int, int], weights: tuple[Tensor, ...]) -> Heads:
    """Query, key and value of a tower block, each [P, heads, head_size] in the matrices' type."""
    norm, qkv, bias = weights
    query, key, value = torch.unflatten(_times(_normed(hidden, norm), qkv, bias), 1, (3, heads[0], -1)).unbind(1)
    return _handed(_turned(query, cos, sin), qkv), _handed(_turned(key, cos, sin), qkv), _handed(value, qkv)


def vision_out(hidden: Tensor, mixed: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """The residual after a tower block's attention and MLP."""
    proj, proj_bias, norm, gate, gate_bias, up, up_bias, down, down_bias = weights
    hidden = hidden + _times(mixed, proj, proj_bias)
    both = _times(_normed(hidden, norm), torch.cat((gate, up)), torch.cat((gate_bias, up_bias)))
    gated, raised = both.chunk(2, dim=1)
    return hidden + _times(functional.silu(gated) * raised, down, down_bias)


def vision_across(
    hidden: Tensor,
    mixed: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: tuple[int, int],
    outward: tuple[Tensor, ...],
    inward: tuple[Tensor, ...],
) -> tuple[Tensor, Heads]:
    """Out of one tower block and into the next."""
    left = vision_out(hidden, mixed, outward)
    return left, vision_in(left, cos, sin, heads, inward)


def text_in(hidden: Tensor, cos: Tensor, sin: Tensor, heads: tuple[int, int], weights: tuple[Tensor, ...]) -> Heads:
    """Query, key and value of a language layer, each [T, heads, head_size]: a key stands once for each query."""
    norm, q, k, v, *biases = weights
    fused = _times(_normed(hidden, norm), torch.cat((q, k, v)), torch.cat(biases))
    num_heads, num_keys = heads
    every = torch.unflatten(fused, 1, (num_heads + 2 * num_keys, -1))
    query, key, value = torch.split(every, [num_heads, num_keys, num_keys], dim=1)
    return (
        _handed(_turned(query, cos, sin), q),
        _handed(_spread(_turned(key, cos, sin), num_heads), q),
        _handed(_spread(value, num_heads), q),
    )


def text_out(hidden: Tensor, mixed: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """The residual after a language layer's attention and MLP."""
    out, norm, gate, up, down = weights
    hidden = hidden + _times(mixed, out)
    gated, raised = _times(_normed(hidden, norm), torch.cat((gate, up))).chunk(2, dim=1)
    return hidden + _times(functional.silu(gated) * raised, down)


def text_across(
    hidden: Tensor,
    mixed: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: tuple[int, int],
    outward: tuple[Tensor, ...],
    inward: tuple[Tensor, ...],
) -> tuple[Tensor, Heads]:
    """Out of one language layer and into the next."""
    left = text_out(hidden, mixed, outward)
    return left, text_in(left, cos, sin, heads, inward)


def merge(hidden: Tensor, norm: Tensor, wide: Tensor, wide_bias: Tensor, narrow: Tensor, narrow_bias: Tensor) -> Tensor:
    """[P / 4, hidden]: four neighbouring patches to a row."""
    four = _normed(hidden, norm).reshape(-1, wide.shape[1])
    return _times(functional.gelu(_times(four, wide, wide_bias)), narrow, narrow_bias)


def score(hidden: Tensor, norm: Tensor, embedding: Tensor, label_id: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of the labels, and [L] bool: which are the likeliest token; padding counts as right."""
    logits = _times(_normed(hidden, norm), embedding)
    labelled = label_id != NO_LABEL
    wanted = label_id.clamp(min=0)
    losses = logits.logsumexp(1) - logits.gather(1, wanted[:, None]).squeeze(1)
    loss = (losses * labelled).sum() / labelled.sum().clamp(min=1)
    return loss, (logits.argmax(1) == wanted) | ~labelled


class _Splice(torch.autograd.Function):
    """Token embeddings with the tower's rows in their places.

    Its own gradient: adding up the rows of 60,000 tokens by atomics crawls where a third of them is one and the same
    token; a product with the one-hot matrix is a tenth of a millisecond.
    """

    @staticmethod
    def forward(ctx: Any, embedding: Tensor, rows: Tensor, ids: Tensor, slot: Tensor, lost: Tensor) -> Tensor:
        # One more place at the end takes the rows that nobody wants.
        tokens = rows.new_empty(ids.shape[0] + 1, rows.shape[1])
        tokens[:-1] = embedding.index_select(0, ids)
        tokens.index_copy_(0, slot.long(), rows.masked_fill(lost[:, None], 0.0))
        ctx.save_for_backward(embedding, ids, slot, lost)
        return tokens[:-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        embedding, ids, slot, lost = ctx.saved_tensors
        grad = functional.pad(grads[0], (0, 0, 0, 1))
        for_rows = grad.index_select(0, slot).masked_fill(lost[:, None], 0.0)
        shown = functional.pad(ids, (0, 1), value=-1).index_fill(0, slot.long(), -1)
        one_hot = shown == torch.arange(embedding.shape[0], device=ids.device, dtype=ids.dtype)[:, None]
        for_embedding = one_hot.to(embedding.dtype) @ grad.to(embedding.dtype)
        return for_embedding, for_rows, None, None, None


def splice(embedding: Tensor, rows: Tensor, ids: Tensor, slot: Tensor, lost: Tensor) -> Tensor:
    """[T, hidden] in the rows' type: embeddings of the tokens, rows laid over the places that slot names."""
    tokens: Tensor = _Splice.apply(embedding, rows, ids, slot, lost)
    return tokens


def _named(weights: Weights, at: str, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    return tuple(weights[f"{at}.{name}"] for name in names)


def _inverse_frequencies(size: int, theta: float, device: torch.device) -> Tensor:
    # Computed on the CPU as transformers does: a GPU's power function differs in the last bits.
    return (1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float) / size))).to(device)


def _normed(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def _times(values: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    product = (values.to(matrix.dtype) @ matrix.t()).float()
    return product if bias is None else product + bias


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _spread(keys: Tensor, heads: int) -> Tensor:
    """[n, heads, head_size]: each key head for as many neighbouring query heads as share it."""
    places, num_keys, size = keys.shape
    return keys[:, :, None].expand(places, num_keys, heads // num_keys, size).reshape(places, heads, size)


def _handed(heads: Tensor, like: Tensor) -> Tensor:
    return heads.to(like.dtype).contiguous()
