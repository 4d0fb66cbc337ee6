"""A decoder's first steps, held against plain float32 arithmetic before it serves anybody.

Two short prompts in blocks that lie in no order: a whole prompt beside a first chunk, a later chunk beside a branch,
and branches of which one row stands for nobody. What each layer makes of its input must be what the formulas make of
that same input, so that rounding in one layer is no excuse for the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from triptych.models.attention.base import AttentionStep
from triptych.models.base import DecodeInputs, PagedInputs
from triptych.models.decoder.layer import AnyLayer, Layer
from triptych.models.decoder.lean import LeanDecoder
from triptych.models.decoder.weights import Dense, LayerWeights, Product
from triptych.models.kernels.head_shape import Turn
from triptych.models.quantised import FP8, to_fp8

# Of what a layer adds, and of what it adds it to. Kernels have passed narrower trials alone: this one is of the whole.
_LARGEST_OF_UPDATE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
_LARGEST_OF_SUM = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
_HEAD_ROWS = 4096  # of the vocabulary whose logits are compared
_LENGTHS = (40, 33)  # tokens of the two prompts at the end


@torch.no_grad()
def what_is_wrong(decoder: LeanDecoder, block_size: int) -> str:
    """Says where the decoder's numbers are not those of the formulas; empty where they are. Waits for the device.

    Its layers must be of the form for GPUs. Products that are not dense stand for themselves.
    """
    layers = [each for each in decoder.layers if isinstance(each, Layer)]
    assert len(layers) == len(decoder.layers), "layers for the CPU do not keep what they would be measured by"
    with _recorded(decoder) as records:
        logits = _run_steps(decoder, block_size)
    positions = torch.cat([torch.arange(length, device=decoder.device) for length in _LENGTHS])
    angles = decoder.rope.angles(positions.expand(3, -1))
    for number, (layer, record) in enumerate(zip(layers, records, strict=True)):
        given, made = _in_order(record.given), _in_order(record.made)
        wanted = _formulas(layer.weights, given, angles, decoder)
        wrong = _compared(made, wanted, wanted - given, decoder.dtype)
        if wrong:
            return f"layer {number} is {wrong}"
    wanted = _head_formulas(decoder, _in_order(records[-1].made))
    wrong = _compared(_in_order(logits)[:, : wanted.shape[1]], wanted, wanted, decoder.dtype)
    return f"the head is {wrong}" if wrong else ""


def _compared(made: Tensor, wanted: Tensor, update: Tensor, dtype: torch.dtype) -> str:
    """Token by token: some are a hundred times as large as the others, and would speak for all."""
    allowed = _LARGEST_OF_UPDATE[dtype] * update.norm(dim=1) + _LARGEST_OF_SUM[dtype] * wanted.norm(dim=1)
    ratio = ((made - wanted).norm(dim=1) / allowed).nan_to_num(nan=torch.inf)
    worst = int(ratio.argmax())
    return "" if ratio[worst] <= 1 else f"at token {worst} {float(ratio[worst]):.3g} times as far apart as is allowed"


@dataclass
class _Record:
    """Of one layer, the residual stream ahead of it and behind it, step by step: [tokens, hidden] float32 each."""

    layer: AnyLayer
    given: list[Tensor] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)

    def __call__(
        self, hidden: Tensor, delta: Tensor | None, turn: Turn, attention: AttentionStep, asked: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        self.given.append(_summed(hidden, delta))
        hidden, delta = self.layer(hidden, delta, turn, attention, asked)
        self.made.append(_summed(hidden, delta))
        return hidden, delta


def _summed(hidden: Tensor, delta: Tensor | None) -> Tensor:
    return hidden.float().clone() if delta is None else hidden.float() + delta.float()


@contextmanager
def _recorded(decoder: LeanDecoder) -> Iterator[list[_Record]]:
    layers = decoder.layers
    records = [_Record(layer) for layer in layers]
    decoder.layers = records
    try:
        yield records
    finally:
        decoder.layers = layers


def _run_steps(decoder: LeanDecoder, block_size: int) -> list[Tensor]:
    """Logits of each step; the tokens of a step as `_in_order` takes them."""
    per_prompt = -(-max(_LENGTHS) // block_size)
    # From the back, so that no sequence's blocks follow one another.
    tables = torch.arange(2 * per_prompt, device=decoder.device).flip(0).view(per_prompt, 2).t().contiguous()
    slab = torch.full(decoder.kv.slab_shape(2 * per_prompt, block_size), torch.nan, device=decoder.device)
    slab = slab.to(decoder.kv.dtype)
    ids = torch.arange(7, 7 + sum(_LENGTHS), device=decoder.device) % decoder.vocab_size
    first, second = torch.split(ids, list(_LENGTHS))
    paged = _Paged(decoder, slab, tables, block_size)
    return [
        paged.forward([first[:38], second[:19]], (0, 0)),
        paged.forward([first[38:39], second[19:32]], (38, 19)),
        paged.decode([first[39:], second[32:]], (39, 32)),
    ]


def _in_order(steps: Sequence[Tensor]) -> Tensor:
    """All tokens of the first prompt, then of the second, of what `_run_steps` had computed: [tokens, any] float32."""
    whole, mixed, branches = (step.float() for step in steps)
    first = [whole[:38], mixed[:1], branches[:1]]
    return torch.cat([*first, whole[38:57], mixed[1:14], branches[1:2]])


class _Paged:
    """Steps over a slab of two prompts; tables: [2, blocks]"""

    def __init__(self, decoder: LeanDecoder, slab: Tensor, tables: Tensor, block_size: int) -> None:
        self._decoder, self._slab, self._tables, self._block_size = decoder, slab, tables, block_size

    def forward(self, ids: Sequence[Tensor], begins: Sequence[int]) -> Tensor:
        lengths = [len(each) for each in ids]
        spans = [
            torch.arange(begin, begin + n, device=self._slab.device) for begin, n in zip(begins, lengths, strict=True)
        ]
        inputs = PagedInputs(
            positions=torch.cat(spans).expand(3, -1).contiguous(),
            slots=torch.cat([self._slots(row, span) for row, span in enumerate(spans)]),
            query_lengths=tuple(lengths),
            kv_lengths=tuple(begin + n for begin, n in zip(begins, lengths, strict=True)),
            block_tables=self._tables,
            logits_at=torch.arange(sum(lengths), device=self._slab.device),
        )
        return self._decoder.forward(self._decoder.embed(torch.cat(list(ids))), inputs, self._slab)

    def decode(self, ids: Sequence[Tensor], begins: Sequence[int]) -> Tensor:
        """Behind the two branches, a row that stands for nobody."""
        device = self._slab.device
        at = torch.tensor([*begins, 0], device=device)
        slots = [self._slots(row, at[row : row + 1]) for row in range(2)]
        inputs = DecodeInputs(
            token_ids=torch.cat([*ids, ids[0]]),
            positions=at.expand(3, -1).contiguous(),
            slots=torch.cat([*slots, torch.tensor([-1], device=device)]),
            kv_lengths=torch.tensor([*(begin + 1 for begin in begins), 0], dtype=torch.int32, device=device),
            block_tables=torch.cat([self._tables, torch.zeros_like(self._tables[:1])]).int(),
        )
        return self._decoder.decode(inputs, self._slab)

    def _slots(self, row: int, span: Tensor) -> Tensor:
        return self._tables[row][span // self._block_size] * self._block_size + span % self._block_size


def _formulas(weights: LayerWeights, given: Tensor, angles: tuple[Tensor, Tensor], decoder: LeanDecoder) -> Tensor:
    """The residual stream behind a layer, of the one ahead of it, over both prompts whole: float32."""
    heads = decoder.heads
    normed = _rms(given, heads.epsilon) * weights.input_norm.float()
    states = _times(weights.qkv, normed, decoder.dtype).view(len(given), heads.all, heads.head_size)
    both, values = states[:, : heads.turned], states[:, heads.turned :]
    if weights.head_norm is not None:
        both = _rms(both, heads.epsilon) * weights.head_norm.float()
    queries, keys = torch.split(_turned(both, *angles), [heads.heads, heads.kv_heads], dim=1)
    if decoder.kv.dtype == FP8:
        keys, values = (to_fp8(each).float() for each in (keys, values))
    prompts = [torch.split(each, list(_LENGTHS)) for each in (queries, keys, values)]
    attended = torch.cat([_attended(*each) for each in zip(*prompts, strict=True)])
    hidden = given + _times(weights.out, attended, decoder.dtype)
    gate_up = _times(weights.gate_up, _rms(hidden, heads.epsilon) * weights.post_norm.float(), decoder.dtype)
    gate, up = gate_up.chunk(2, dim=1)
    return hidden + _times(weights.down, functional.silu(gate) * up, decoder.dtype)


def _head_formulas(decoder: LeanDecoder, hidden: Tensor) -> Tensor:
    normed = _rms(hidden, decoder.heads.epsilon) * decoder.norm.float()
    if isinstance(decoder.head, Dense):
        return functional.linear(normed, decoder.head.weight[:_HEAD_ROWS].float())
    return _times(decoder.head, normed, decoder.dtype)[:, :_HEAD_ROWS]


def _rms(numbers: Tensor, epsilon: float) -> Tensor:
    return numbers * torch.rsqrt(numbers.square().mean(-1, keepdim=True) + epsilon)


def _times(product: Product, x: Tensor, dtype: torch.dtype) -> Tensor:
    if not isinstance(product, Dense):
        return product(x.to(dtype)).float()
    return functional.linear(x, product.weight.float(), None if product.bias is None else product.bias.float())


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)


def _attended(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[tokens, heads * head_size] of one prompt [tokens, heads, head_size], each token seeing those up to itself."""
    tokens, heads, head_size = queries.shape
    share = heads // keys.shape[1]
    keys, values = (each.repeat_interleave(share, dim=1) for each in (keys, values))
    logits = torch.einsum("qhd,khd->hqk", queries, keys) * head_size**-0.5
    ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=queries.device).triu_(1)
    weights = logits.masked_fill_(ahead, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
