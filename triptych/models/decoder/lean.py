"""The lean decoder: a StepLanguageModel over merged weights, fused kernels and paged attention."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from triptych.journey import Int32Array
from triptych.models.attention.base import Attention, AttentionShape, AttentionStep
from triptych.models.attention.choice import choose_attention
from triptych.models.base import DecodeInputs, KVGeometry, PagedInputs, StepInputs, StepShape
from triptych.models.cpu_linear import CpuLinear, can_pack
from triptych.models.decoder.geometry import DecoderGeometry
from triptych.models.decoder.layer import AnyLayer, HostLayer, Layer, is_dense
from triptych.models.decoder.rope import Rope
from triptych.models.decoder.weights import DecoderWeights, Dense, Product
from triptych.models.kernels.choice import Kernels
from triptych.models.kernels.head_shape import HeadShape, TokenPlaces, Turn
from triptych.models.kernels.plain_turn import PlainTurn

_SMALL_TABLE_BYTES = 64 << 20


class LeanDecoder:
    """A StepLanguageModel. Used by one thread at a time."""

    levels = 1

    def __init__(
        self,
        geometry: DecoderGeometry,
        weights: DecoderWeights,
        kv: KVGeometry,
        kernels: Kernels,
        block_size: int,
        *,
        attention: str = "auto",
        host: bool | None = None,
    ) -> None:
        """Takes the weights over.

        block_size: tokens in the slab's blocks; others work, too, once attention over them was chosen
        attention:  which implementation, as choose_attention takes it
        host:       layers in the form for the CPU; None: where that works
        """
        self.geometry = geometry
        self.hidden_size = geometry.hidden_size
        self.vocab_size = geometry.vocab_size
        self.max_model_len = geometry.max_model_len
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.kv = kv
        self.heads = HeadShape(geometry.heads, geometry.kv_heads, geometry.head_size, geometry.epsilon)
        self.kernels = kernels
        self._wanted_attention = attention
        self._attention: dict[int, Attention] = {}  # by block size
        self.rope = Rope(geometry.rope, self.device)
        self._embedding = weights.embedding
        self.norm = weights.norm
        self.layers: Sequence[AnyLayer] = _layers(weights, geometry.epsilon, kernels, host)
        self.head = _head(weights.head, geometry.tied)
        # Whether a CUDA graph may record `decode` and `step`.
        self.recordable = self.attention(block_size).recordable and kernels.turn is not PlainTurn

    def attention(self, block_size: int) -> Attention:
        """What attends over slabs with blocks of so many tokens; chosen once, which may wait for the device."""
        if block_size not in self._attention:
            shape = AttentionShape(
                heads=self.heads.heads,
                kv_heads=self.heads.kv_heads,
                head_size=self.heads.head_size,
                block_size=block_size,
                layers=self.kv.layers,
                dtype=self.dtype,
                kv_dtype=self.kv.dtype,
                scale=self.heads.head_size**-0.5,
            )
            with self._current():
                self._attention[block_size] = choose_attention(shape, self.device, self._wanted_attention)
        return self._attention[block_size]

    @torch.no_grad()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Text embeddings [tokens, hidden] of ids [tokens] int64."""
        return functional.embedding(token_ids, self._embedding)

    @torch.no_grad()
    def forward(self, embeddings: Tensor, inputs: PagedInputs, kv_slab: Tensor) -> Tensor:
        """Logits [asked, vocab] float32 of embeddings [tokens, hidden]; writes the step's K and V into the slab.

        kv_slab: as KVGeometry.slab_shape says, contiguous; whatever lies in it where nothing was written does no harm
        """
        with self._current():
            attention = self.attention(kv_slab.shape[3]).step(inputs, kv_slab)
            turn = self._turn(inputs.positions, inputs.slots, kv_slab)
            return self._run(embeddings, turn, attention, inputs.logits_at, inputs.deepstack)

    @torch.no_grad()
    def decode(self, inputs: DecodeInputs, kv_slab: Tensor) -> Tensor:
        """As GraphLanguageModel.decode; see `recordable`."""
        with self._current():
            attention = self.attention(kv_slab.shape[3]).decode_step(inputs, kv_slab)
            turn = self._turn(inputs.positions, inputs.slots, kv_slab)
            return self._run(self.embed(inputs.token_ids), turn, attention, None, None)

    def list_step(self, sequences: Int32Array, shape: StepShape, block_size: int) -> list[NDArray[np.generic]]:
        """As StepLanguageModel.list_step."""
        return self.attention(block_size).list_step(sequences, shape)

    @torch.no_grad()
    def step(self, embeddings: Tensor, inputs: StepInputs, kv_slab: Tensor) -> Tensor:
        """As StepLanguageModel.step; see `recordable`."""
        with self._current():
            attention = self.attention(kv_slab.shape[3]).told_step(inputs, kv_slab)
            turn = self._turn(inputs.positions, inputs.slots, kv_slab)
            return self._run(embeddings, turn, attention, inputs.logits_at, inputs.deepstack)

    def _current(self) -> torch.cuda.device:
        """Triton launches on the current device."""
        return torch.cuda.device(self.device if self.device.type == "cuda" else -1)

    def _turn(self, positions: Tensor, slots: Tensor, kv_slab: Tensor) -> Turn:
        cos, sin = self.rope.angles(positions)
        return self.kernels.turn(TokenPlaces(cos, sin, slots, kv_slab, self.heads))

    def _run(
        self, hidden: Tensor, turn: Turn, attention: AttentionStep, asked: Tensor | None, deepstack: Tensor | None
    ) -> Tensor:
        delta: Tensor | None = None
        last = len(self.layers) - 1
        assert deepstack is None or len(deepstack) <= last, "behind the last layer there may be fewer tokens than rows"
        for number, layer in enumerate(self.layers):
            hidden, delta = layer(hidden, delta, turn, attention, asked if number == last else None)
            if deepstack is not None and number < len(deepstack):
                hidden, delta = _added(hidden, delta), deepstack[number]
        return self._logits(hidden, delta)[: turn.num_tokens if asked is None else len(asked)]

    def _logits(self, hidden: Tensor, delta: Tensor | None) -> Tensor:
        if not len(hidden):
            return torch.empty(0, self.vocab_size, device=self.device)
        _, normed = self.kernels.add_norm(hidden, delta, self.norm, self.geometry.epsilon)
        return self.head(normed).float()


def _added(hidden: Tensor, delta: Tensor | None) -> Tensor:
    return hidden if delta is None else hidden + delta


def _layers(weights: DecoderWeights, epsilon: float, kernels: Kernels, host: bool | None) -> Sequence[AnyLayer]:
    """Layer by layer, so that of weights that are copied into another order no more than one layer's lie twice."""
    layers: list[AnyLayer] = []
    for number, each in enumerate(weights.layers):
        if host if host is not None else can_pack(weights.embedding) and is_dense(each):
            layers.append(HostLayer(each, number, epsilon))
        else:
            layers.append(Layer(each, number, epsilon, kernels))
    weights.layers.clear()
    return layers


def _head(head: Product, tied: bool) -> Product:
    """On the CPU in the order that products are fastest in; a large table that ids are looked up in is not copied."""
    if not isinstance(head, Dense) or not can_pack(head.weight) or (tied and head.weight.nbytes > _SMALL_TABLE_BYTES):
        return head
    return CpuLinear(head.weight, head.bias)
