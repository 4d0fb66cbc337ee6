"""Rotary embedding and KV write in torch: on any device, and what the fused one is measured by."""

import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.kernels.head_shape import TokenPlaces, check_places
from triptych.models.quantised import to_fp8


class PlainTurn:
    """A Turn of one step. Made of slots on a device, of which some may be -1, it waits for the device."""

    def __init__(self, places: TokenPlaces) -> None:
        check_places(places)
        slab, shape = places.kv_slab, places.shape
        self.num_tokens = len(places.slots)
        self._shape = shape
        # A number of one byte is moved as a byte: torch does not move numbers of every such type.
        self._rounded = slab.dtype if slab.dtype.itemsize == 1 else None
        moved = slab if self._rounded is None else slab.view(torch.uint8)
        self._rows = moved.view(-1, shape.kv_heads * shape.head_size)
        # Twice the angle's cosine, and its sine with the sign that it has in either half of a head.
        self._cos = torch.cat([places.cos, places.cos], dim=1)[:, None]
        self._sin = torch.cat([-places.sin, places.sin], dim=1)[:, None]
        self._kept, self._row_of = _write_rows(places.slots, slab.shape[1], slab.shape[3])

    def __call__(self, layer: int, qkv: Tensor, head_norm: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """As Turn."""
        shape = self._shape
        heads = qkv.view(len(qkv), shape.all, shape.head_size)
        both, values = heads[:, : shape.turned], heads[:, shape.turned :]
        if head_norm is not None:
            both = _normed(both, head_norm, shape.epsilon)
        exact = both if both.dtype == torch.float32 else both.float()
        swapped = torch.roll(exact, shape.head_size // 2, dims=-1)
        turned = torch.addcmul(exact * self._cos, swapped, self._sin)
        if turned.dtype != qkv.dtype:
            turned = turned.to(qkv.dtype)
        queries, keys = turned[:, : shape.heads], turned[:, shape.heads :]
        return queries, self._write(layer, 0, keys), self._write(layer, 1, values)

    def _write(self, layer: int, which: int, states: Tensor) -> Tensor:
        """Into the layer's planes of keys (0) or values (1); the states as whoever reads the slab finds them."""
        stored = states if self._rounded is None else to_fp8(states)
        flat = stored.flatten(1)
        rows = flat.to(self._rows.dtype) if self._rounded is None else flat.view(torch.uint8)
        self._rows.index_copy_(0, self._row_of[layer, which], rows if self._kept is None else rows[self._kept])
        return states if self._rounded is None else stored.to(states.dtype)


def _write_rows(slots: Tensor, layers: int, block_size: int) -> tuple[Tensor | None, Tensor]:
    """Which tokens are written (None: all of them), and the token rows [layers, 2, written] of the slab they go to."""
    kept = None
    if not bool((slots >= 0).all()):
        kept = slots >= 0
        slots = slots[kept]
    planes = layers * 2
    first = slots // block_size * (planes * block_size) + slots % block_size
    offsets = torch.arange(planes, device=slots.device) * block_size
    return kept, (offsets[:, None] + first).view(layers, 2, -1)


def _normed(heads: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMS norm of each head; rounded where transformers' modules round."""
    exact = heads.float()
    return functional.rms_norm(exact, exact.shape[-1:], None, epsilon).to(heads.dtype) * weight
