"""A text forced through a decoder of ours: logits behind every token, by prompt chunks and then by single tokens."""

import random

import torch
from torch import Tensor

from triptych.models.base import DecodeInputs, LanguageModel, PagedInputs

BLOCK_SIZE = 16


class Teacher:
    """One text over a slab of its own, whose blocks lie in no order and are NaN where nothing was written."""

    def __init__(self, model: LanguageModel, ids: Tensor, seed: int = 0) -> None:
        """ids: [tokens] int64"""
        self._model = model
        self._ids = ids.to(model.device)
        blocks = -(-len(ids) // BLOCK_SIZE)
        order = list(range(blocks + 3))
        random.Random(seed).shuffle(order)
        self._blocks = torch.tensor(order[:blocks], device=model.device)
        shape = model.kv.slab_shape(len(order), BLOCK_SIZE)
        self._slab = torch.full(shape, torch.nan, dtype=model.kv.dtype, device=model.device)

    def logits(self, chunk: int, singles: int) -> Tensor:
        """[tokens, vocab] float32; the last `singles` tokens go one by one, by `decode` where the model has it."""
        prompt = len(self._ids) - singles
        parts = [self._chunk(begin, min(begin + chunk, prompt)) for begin in range(0, prompt, chunk)]
        step = self._decode if hasattr(self._model, "decode") else lambda at: self._chunk(at, at + 1)
        return torch.cat([*parts, *(step(at) for at in range(prompt, len(self._ids)))]).float()

    def _slots(self, at: Tensor) -> Tensor:
        return self._blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE

    def _chunk(self, begin: int, end: int) -> Tensor:
        at = torch.arange(begin, end, device=self._model.device)
        inputs = PagedInputs(
            positions=at.expand(3, -1).contiguous(),
            slots=self._slots(at),
            query_lengths=(end - begin,),
            kv_lengths=(end,),
            block_tables=self._blocks[None, : -(-end // BLOCK_SIZE)].contiguous(),
            logits_at=torch.arange(end - begin, device=self._model.device),
        )
        return self._model.forward(self._model.embed(self._ids[begin:end]), inputs, self._slab)

    def _decode(self, at: int) -> Tensor:
        """Beside the token a row that stands for nobody, as in a recorded step."""
        device = self._model.device
        where = torch.tensor([at], device=device)
        padded = torch.zeros(1, dtype=torch.int64, device=device)
        inputs = DecodeInputs(
            token_ids=torch.cat([self._ids[at : at + 1], padded]),
            positions=torch.cat([where, padded]).expand(3, -1).contiguous(),
            slots=torch.cat([self._slots(where), padded - 1]),
            kv_lengths=torch.tensor([at + 1, 0], dtype=torch.int32, device=device),
            block_tables=torch.stack([self._blocks, torch.zeros_like(self._blocks)]).to(torch.int32),
        )
        decode = getattr(self._model, "decode")  # noqa: B009  not every model has it
        logits: Tensor = decode(inputs, self._slab)[:1]
        return logits
