"""Language engines driven as services drive them: real model, real slabs, and sinks that write down what they hear."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.engine.sinks import PATIENCE_SECONDS, KVReady, Outcome, PromptSink, TokenSink
from triptych.config import LanguageSettings
from triptych.engine.loop import DecodeJob, LanguageEngine, PrefillJob
from triptych.grammar.compiler import GrammarCompiler
from triptych.journey import Layout, RequestId, Token, new_request_id
from triptych.models.base import LanguageModel
from triptych.sampling import Sampling
from triptych.transfer.slab import Slab, create_slab

__all__ = [
    "ENDLESS",
    "GREEDY",
    "PATIENCE_SECONDS",
    "SETTINGS",
    "Asked",
    "KVReady",
    "Outcome",
    "Pair",
    "PromptSink",
    "TokenSink",
    "running",
    "wait_until",
]

SETTINGS = LanguageSettings(kv_bytes=8 << 20, max_sequences=16, landing_bytes=1 << 20)
GREEDY = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
ENDLESS = Sampling(temperature=0.0, max_tokens=400, ignore_eos=True)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A question to the model. rows: of each item, as the vision tower makes them."""

    layout: Layout
    sampling: Sampling
    rows: Sequence[Tensor] = ()
    branches: int = 1
    choice: int = 0
    generated: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        return self.layout.num_tokens + len(self.generated)

    @property
    def more_tokens(self) -> int:
        return self.sampling.max_tokens - len(self.generated)

    @property
    def num_blocks(self) -> int:
        """Of a reservation for one branch, at 16 tokens a block."""
        return -(-(self.prompt_tokens + self.more_tokens) // 16)

    def prefill_job(self, request_id: RequestId, **changes: object) -> PrefillJob:
        job = PrefillJob(request_id, 0, self.layout, self.sampling, self.branches, self.choice, self.generated)
        return replace(job, **changes)  # type: ignore[arg-type]

    def decode_job(self, request_id: RequestId, first: tuple[Token, ...], **changes: object) -> DecodeJob:
        job = DecodeJob(request_id, 0, self.layout, self.sampling, self.branches, self.choice, self.generated, first)
        return replace(job, **changes)  # type: ignore[arg-type]


class Pair:
    """A prefill and a decode engine, or one engine that is both; each with its own slab."""

    def __init__(
        self,
        model: LanguageModel,
        split: bool,
        settings: LanguageSettings,
        max_item_rows: int = 0,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.prefill_slab = _slab(model, settings)
        self.decode_slab = _slab(model, settings) if split else self.prefill_slab
        self.prefill = LanguageEngine(
            model, self.prefill_slab, settings, max_item_rows=max_item_rows, grammars=grammars
        )
        self.decode = self.prefill
        if split:
            self.decode = LanguageEngine(model, self.decode_slab, settings, grammars=grammars)
        self.sink = TokenSink()

    @property
    def engines(self) -> tuple[LanguageEngine, ...]:
        return (self.prefill,) if self.decode is self.prefill else (self.prefill, self.decode)

    def answer(self, asked: Asked) -> dict[int, list[Token]]:
        """The whole journey of one request, blocking; tokens by choice."""
        request_id, first = self.begin(asked)
        self.decode.decode(asked.decode_job(request_id, first), self.sink)
        return self.sink.answer(request_id, first)

    def begin(self, asked: Asked) -> tuple[RequestId, tuple[Token, ...]]:
        """A request whose KV has landed, ready to be decoded."""
        request_id = new_request_id()
        cached = self.reserve(request_id, asked).granted().cached_tokens
        sink = self.start_prefill(request_id, asked, kv_begin=cached)
        first = sink.result()
        self.hand_over(request_id, sink, cached)
        return request_id, first

    def reserve(
        self, request_id: RequestId, asked: Asked, deadline: float | None = None, cache_salt: bytes | None = b""
    ) -> Outcome:
        """cache_salt: None: nothing is looked up in the prefix cache"""
        outcome = Outcome()
        deadline = time.monotonic() + PATIENCE_SECONDS if deadline is None else deadline
        keys = None
        if cache_salt is not None:
            keys = self.decode.block_keys(asked.layout, asked.generated, cache_salt)
        self.decode.reserve(
            request_id, 0, asked.prompt_tokens, asked.more_tokens, asked.branches, deadline, outcome, keys
        )
        return outcome

    def start_prefill(self, request_id: RequestId, asked: Asked, **changes: object) -> PromptSink:
        """Prefill, with the rows of every window landed as soon as there is room for them."""
        sink = PromptSink()
        self.prefill.prefill(asked.prefill_job(request_id, **changes), sink)
        if asked.rows:
            self.land_all(request_id, asked, sink)
        return sink

    def land_all(self, request_id: RequestId, asked: Asked, sink: PromptSink) -> None:
        """Land what each window asks for, until the last one is in, or the prefill has ended."""
        while (window := sink.next_window()) is not None:
            for item_index in window.items:
                self.land(request_id, item_index, asked.rows[item_index])
            if window.last:
                return

    def land(self, request_id: RequestId, item_index: int, rows: Tensor) -> None:
        self.prefill.landing(request_id, item_index).copy_(rows)
        self._finish_copies()
        self.prefill.rows_landed(request_id, item_index)

    def hand_over(self, request_id: RequestId, sink: PromptSink, cached_tokens: int = 0) -> None:
        """Copy the announced blocks where the decode engine wants them, and give both shares back.

        cached_tokens: whose KV is there already, and whose blocks the prefill was told not to announce
        """
        mine = self.decode.share_prompt_blocks(request_id)
        place = cached_tokens // self.decode.limits.block_size
        for ready in sink.kv:
            targets = list(mine[place : place + len(ready.ids)])
            if self.decode is self.prefill:
                assert targets == ready.ids, "one engine computes straight into the reserved blocks"
            else:
                _units(self.decode_slab)[targets] = _units(self.prefill_slab)[ready.ids]
            self.prefill.release_blocks(ready.ids)
            place += len(ready.ids)
        assert place == len(mine), "the announced blocks do not cover the prompt"
        self._finish_copies()
        self.decode.release_blocks(mine)

    def _finish_copies(self) -> None:
        """As a reader does before it says that anything has landed."""
        if self.prefill_slab.device.type == "cuda":
            done = torch.cuda.Event()
            done.record()
            done.synchronize()  # of a stream, torch's sync-debug mode would take it for a mistake

    def give_back(self, sink: PromptSink) -> None:
        """All shares that a prefill has lent."""
        for ready in sink.kv:
            self.prefill.release_blocks(ready.ids)

    def cancel(self, request_id: RequestId) -> None:
        for engine in self.engines:
            engine.cancel(request_id)

    def wait_idle(self) -> None:
        """Everything is back, and every book balances."""
        for engine in self.engines:
            wait_until(engine.idle, "the engine never became idle")
            engine.check()
            gauges = engine.snapshot()
            assert gauges["kv_free_blocks"] == gauges["kv_blocks"]
            assert gauges["landing_bytes"] == 0


@contextmanager
def running(
    model: LanguageModel,
    split: bool = True,
    max_item_rows: int = 0,
    grammars: GrammarCompiler | None = None,
    **changes: Any,
) -> Iterator[Pair]:
    """Engines that are started, and found idle at the end."""
    pair = Pair(model, split, replace(SETTINGS, **changes), max_item_rows, grammars)
    for engine in pair.engines:
        engine.start()
    try:
        yield pair
        pair.wait_idle()
    finally:
        for engine in pair.engines:
            engine.stop()


def wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.002)


def _slab(model: LanguageModel, settings: LanguageSettings) -> Slab:
    unit_bytes = model.kv.block_bytes(settings.block_size)
    return create_slab("kv", 2, unit_bytes, settings.kv_bytes // unit_bytes, model.device)


def _units(slab: Slab) -> Tensor:
    return slab.data.view(slab.words.numel(), -1)
