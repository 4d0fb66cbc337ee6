"""Seconds of the language model's stages on this device: prompts through `forward`, decode steps replayed as graphs."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bench.roofline_work import DECODE_STEPS, Shapes, decode_key
from triptych.config import LanguageSettings
from triptych.models.base import DecodeInputs, LanguageModel, PagedInputs
from triptych.models.card import load_card
from triptych.models.loading import load_language

BLOCK_SIZE = 16


class Stages:
    """The language model of a folder without weights, and a slab for its KV; times what it is asked to do."""

    def __init__(self, folder: Path, device: torch.device, dtype: str, most_tokens: int, turns: int = 5) -> None:
        """most_tokens: of KV at once; turns: runs that a median is taken of"""
        card = load_card(str(folder), dtype, load_format="dummy")
        self._turns = turns
        self._device = device
        self.model: LanguageModel = load_language(card, device, dtype, LanguageSettings(block_size=BLOCK_SIZE))
        self._num_blocks = -(-most_tokens // BLOCK_SIZE) + 1
        shape = self.model.kv.slab_shape(self._num_blocks, BLOCK_SIZE)
        self._slab = torch.empty(shape, dtype=self.model.kv.dtype, device=device).normal_()

    def all(self, shapes: Shapes, chunk: int, steps: Sequence[tuple[int, int]] = DECODE_STEPS) -> dict[str, float]:
        """Seconds by the keys of roofline_work.stages; `chunk`: tokens of a prompt in one step."""
        found = {
            "prompt-w2": self.prompt(shapes.prompt_tokens, chunk),
            "prompt-2048": self.prompt(min(2048, self._room), 2048),
        }
        return found | dict(self._decodes(steps))

    def prompt(self, tokens: int, chunk: int) -> float:
        """Of a prompt computed in steps of `chunk` tokens."""
        spans = [(begin, min(begin + chunk, tokens)) for begin in range(0, tokens, chunk)]
        inputs = [self._prompt_inputs(begin, end, end == tokens) for begin, end in spans]
        embeddings = self.model.embed(torch.arange(7, 7 + tokens, device=self._device) % self.model.vocab_size)

        def run() -> None:
            for (begin, end), each in zip(spans, inputs, strict=True):
                self.model.forward(embeddings[begin:end], each, self._slab)

        return self._median(run)

    def decode(self, batch: int, context: int) -> float:
        """Of one step, replayed from a CUDA graph where the model can be recorded."""
        inputs = self._decode_inputs(batch, context)
        decode = getattr(self.model, "decode", None)
        if decode is None:
            raise RuntimeError(f"{type(self.model).__name__} has no decode step of its own")
        if self._device.type != "cuda":
            return self._median(lambda: decode(inputs, self._slab))
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(3):
                decode(inputs, self._slab)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decode(inputs, self._slab)
        return self._median(graph.replay, repeats=10)

    @property
    def _room(self) -> int:
        return self._num_blocks * BLOCK_SIZE

    def _decodes(self, steps: Sequence[tuple[int, int]]) -> Iterator[tuple[str, float]]:
        for batch, context in steps:
            yield decode_key(batch, context), self.decode(batch, context)

    def _median(self, run: Callable[[], object], repeats: int = 1) -> float:
        """Seconds of one run: the median of the turns, each of `repeats` runs, after one to warm up."""
        seconds = []
        for _ in range(self._turns + 1):
            self._synchronize()
            began = time.perf_counter()
            for _ in range(repeats):
                run()
            self._synchronize()
            seconds.append((time.perf_counter() - began) / repeats)
        return statistics.median(seconds[1:])

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _blocks(self, rows: int, tokens: int) -> Tensor:
        """[rows, blocks] int64: for each row blocks of its own, scattered."""
        each = -(-tokens // BLOCK_SIZE)
        if rows * each > self._num_blocks:
            raise ValueError(
                f"{rows} sequences of {tokens} tokens need {rows * each} blocks, there are {self._num_blocks}"
            )
        generator = torch.Generator().manual_seed(1)
        return torch.randperm(self._num_blocks, generator=generator)[: rows * each].view(rows, each)

    def _prompt_inputs(self, begin: int, end: int, last: bool) -> PagedInputs:
        table = self._blocks(1, end)
        at = torch.arange(begin, end)
        slots = table[0, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE
        return PagedInputs(
            positions=at.expand(3, -1).contiguous().to(self._device),
            slots=slots.to(self._device),
            query_lengths=(end - begin,),
            kv_lengths=(end,),
            block_tables=table.to(self._device),
            logits_at=torch.tensor([end - begin - 1] if last else [], dtype=torch.int64).to(self._device),
        )

    def _decode_inputs(self, batch: int, context: int) -> DecodeInputs:
        tables = self._blocks(batch, context + 1)
        slots = tables[:, context // BLOCK_SIZE] * BLOCK_SIZE + context % BLOCK_SIZE
        return DecodeInputs(
            token_ids=torch.arange(7, 7 + batch, device=self._device),
            positions=torch.full((3, batch), context, dtype=torch.int64, device=self._device),
            slots=slots.to(self._device),
            kv_lengths=torch.full((batch,), context + 1, dtype=torch.int32, device=self._device),
            block_tables=tables.to(torch.int32).to(self._device),
        )
