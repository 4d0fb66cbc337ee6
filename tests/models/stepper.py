"""A model driven step by step, without an engine: blocks dealt out at random, any split of the tokens into steps."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from triptych.journey import Int64Array
from triptych.models.base import LanguageModel, PagedInputs

BLOCK_SIZE = 16


@dataclass
class Stepping:
    """One sequence. embeddings: [tokens, hidden] of all tokens known; positions: [3, tokens]; done: tokens with KV"""

    embeddings: Tensor
    positions: Int64Array
    blocks: list[int] = field(default_factory=list)
    done: int = 0

    @property
    def num_tokens(self) -> int:
        return int(self.embeddings.shape[0])


class Stepper:
    """Sequences over one slab. The slab starts full of NaN: what nobody wrote must not count."""

    def __init__(self, model: LanguageModel, num_blocks: int, seed: int = 0) -> None:
        self.model = model
        shape = model.kv.slab_shape(num_blocks, BLOCK_SIZE)
        self.slab = torch.full(shape, torch.nan, dtype=model.kv.dtype, device=model.device)
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)

    def add(self, embeddings: Tensor, positions: Int64Array) -> Stepping:
        return Stepping(embeddings, positions)

    def remove(self, sequence: Stepping) -> None:
        self._free += sequence.blocks
        sequence.blocks = []

    def step(self, stretches: Sequence[tuple[Stepping, int]]) -> Tensor:
        """Runs the next so many tokens of each sequence; logits [sequences, vocab] behind the last of each."""
        device = self.model.device
        for sequence, count in stretches:
            while len(sequence.blocks) * BLOCK_SIZE < sequence.done + count:
                sequence.blocks.append(self._free.pop())
        width = max(len(sequence.blocks) for sequence, _ in stretches)
        tables = np.zeros((len(stretches), width), np.int64)
        positions, slots, embeddings = [], [], []
        for row, (sequence, count) in enumerate(stretches):
            tables[row, : len(sequence.blocks)] = sequence.blocks
            span = np.arange(sequence.done, sequence.done + count)
            slots.append(np.array(sequence.blocks)[span // BLOCK_SIZE] * BLOCK_SIZE + span % BLOCK_SIZE)
            positions.append(sequence.positions[:, span])
            embeddings.append(sequence.embeddings[sequence.done : sequence.done + count])
            sequence.done += count
        counts = [count for _, count in stretches]
        inputs = PagedInputs(
            positions=torch.from_numpy(np.concatenate(positions, axis=1)).to(device),
            slots=torch.from_numpy(np.concatenate(slots)).to(device),
            query_lengths=tuple(counts),
            kv_lengths=tuple(sequence.done for sequence, _ in stretches),
            block_tables=torch.from_numpy(tables).to(device),
            logits_at=torch.from_numpy(np.cumsum(counts) - 1).to(device),
        )
        return self.model.forward(torch.cat(embeddings), inputs, self.slab)

    def extend(self, sequence: Stepping, token_id: int) -> None:
        """One more token, at the next text position."""
        embedding = self.model.embed(torch.tensor([token_id], device=self.model.device))
        sequence.embeddings = torch.cat([sequence.embeddings, embedding])
        following = sequence.positions.max() + 1
        sequence.positions = np.concatenate([sequence.positions, np.full((3, 1), following)], axis=1)


@dataclass
class Greedy:
    """What greedy decoding made of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def take(self, logits: Tensor) -> int:
        token_id = int(logits.argmax())
        self.token_ids.append(token_id)
        self.logprobs.append(float(logits.log_softmax(-1)[token_id]))
        return token_id


def generate(stepper: Stepper, prompts: Sequence[Stepping], steps: int, chunk: int) -> list[Greedy]:
    """Greedy answers to all prompts, batched continuously: chunks of some share steps with decodes of others."""
    answers = [Greedy() for _ in prompts]
    while any(len(answer.token_ids) < steps for answer in answers):
        open_ones = [(s, a) for s, a in zip(prompts, answers, strict=True) if len(a.token_ids) < steps]
        stretches = [(sequence, min(chunk, sequence.num_tokens - sequence.done)) for sequence, _ in open_ones]
        logits = stepper.step(stretches)
        for (sequence, answer), row in zip(open_ones, logits, strict=True):
            if sequence.done == sequence.num_tokens:
                stepper.extend(sequence, answer.take(row))
    return answers
