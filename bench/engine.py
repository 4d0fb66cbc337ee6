"""What the host spends on a decoding step besides the model: python -m bench.engine [--branches 1,64] [--output FILE].

A real engine with a model that computes next to nothing, so that a step's time is the engine's own: the plan, what the
device is told, sampling as far as the host launches it, books and news. Measured on the CPU, where torch's calls cost
about what launching kernels costs with CUDA. It is CPU time of the engine's thread, so that other work on the machine
counts for little. Stages are timed on their own; a stage's own figure holds what it calls.

    greedy     temperature 0, pipelined
    recorded   the same, replayed (a recorder stands in for CUDA graphs)
    sampled    temperature, top_p and a seed, pipelined
    penalised  frequency and repetition penalties besides
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from triptych.config import LanguageSettings
from triptych.engine.jobs import DecodeJob, PrefillJob, Reserved, Window
from triptych.engine.loop import LanguageEngine, StepReport
from triptych.errors import TriptychError
from triptych.journey import BlockRef, RequestId, Token, new_request_id
from triptych.models.base import DecodeInputs, KVGeometry, PagedInputs
from triptych.multimodal.layout import TextPart, lay_out
from triptych.sampling import Sampling

PROMPT_TOKENS = 500
PATIENCE_SECONDS = 60.0
VOCAB = 64

GREEDY = Sampling(temperature=0.0, max_tokens=160, ignore_eos=True)
DRAWN = Sampling(temperature=0.8, top_p=0.9, seed=5, max_tokens=160, ignore_eos=True)
PENALISED = Sampling(
    temperature=0.8, top_p=0.9, frequency_penalty=0.2, repetition_penalty=1.1, max_tokens=160, ignore_eos=True
)
CASES: dict[str, tuple[Sampling, dict[str, str]]] = {
    "greedy": (GREEDY, {"pipeline": "on"}),
    "recorded": (GREEDY, {"pipeline": "on", "graphs": "on"}),
    "sampled": (DRAWN, {"pipeline": "on"}),
    "penalised": (PENALISED, {"pipeline": "on"}),
}
STAGES = {
    "admit": ("_scheduler", "admit"),
    "plan": ("_scheduler", "plan"),
    "launch": ("_runner", "launch"),
    "rows": ("_runner._rows", "update"),
    "choose": ("_runner", "choose"),
    "count": ("_stepper", "_count"),
    "deliver": ("_mailbox", "deliver"),
}


class Nothing:
    """A language model that computes nothing: every logit is 0 but one."""

    hidden_size, levels, vocab_size, max_model_len = 8, 1, VOCAB, 4096
    dtype, device = torch.float32, torch.device("cpu")
    kv = KVGeometry(1, 1, 1, torch.float32)

    def __init__(self) -> None:
        self._logits = torch.zeros(1024, VOCAB)
        self._logits[:, 7] = 1.0
        self._embeddings = torch.zeros(1 << 17, self.hidden_size)

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._embeddings[: len(token_ids)]

    def forward(self, embeddings: Tensor, inputs: PagedInputs, kv_slab: Tensor) -> Tensor:
        return self._logits[: len(inputs.logits_at)]

    def decode(self, inputs: DecodeInputs, kv_slab: Tensor) -> Tensor:
        return self._logits[: len(inputs.token_ids)]


class Client:
    """All requests of one measurement: reserves, prefills, decodes, counts ends."""

    def __init__(self, engine: LanguageEngine, sampling: Sampling, count: int) -> None:
        self._engine = engine
        self._sampling = sampling
        self._left = count
        self._done = threading.Event()
        self._layout = lay_out([TextPart(tuple(number % VOCAB for number in range(PROMPT_TOKENS)))])

    def begin(self) -> DecodeJob:
        """A prompt that is computed and waits to be decoded."""
        request_id, reserved, prompt = new_request_id(), threading.Event(), _Prompt(self._engine)

        def on_done(outcome: Reserved | TriptychError) -> None:
            assert isinstance(outcome, Reserved), outcome
            reserved.set()

        deadline = time.monotonic() + PATIENCE_SECONDS
        self._engine.reserve(request_id, 0, PROMPT_TOKENS, self._sampling.max_tokens, 1, deadline, on_done)
        assert reserved.wait(PATIENCE_SECONDS), "nothing was reserved"
        self._engine.prefill(PrefillJob(request_id, 0, self._layout, self._sampling), prompt)
        assert prompt.done.wait(PATIENCE_SECONDS), "the prefill never ended"
        return DecodeJob(request_id, 0, self._layout, self._sampling, first=prompt.first)

    def wait(self) -> None:
        assert self._done.wait(PATIENCE_SECONDS), "decoding never ended"

    def tokens(self, batch: Sequence[tuple[RequestId, int, Token]]) -> None:
        self._left -= sum(1 for _, _, token in batch if token.finish_reason)
        if not self._left:
            self._done.set()

    def waiting(self, request_id: RequestId, attempt: int) -> None:
        pass

    def failed(self, request_id: RequestId, attempt: int, error: TriptychError) -> None:
        raise error


class _Prompt:
    """Gives announced blocks back at once."""

    def __init__(self, engine: LanguageEngine) -> None:
        self._engine = engine
        self.first: tuple[Token, ...] = ()
        self.done = threading.Event()

    def granted(self, window: Window) -> None: ...

    def kv_ready(self, blocks: tuple[BlockRef, ...], tokens_begin: int, tokens_end: int, last: bool) -> None:
        self._engine.release_blocks([block.id for block in blocks])

    def first_tokens(self, tokens: tuple[Token, ...], times: Any) -> None:
        self.first = tokens
        self.done.set()

    def failed(self, error: TriptychError) -> None:
        raise error


def measure(case: str, branches: int) -> dict[str, float]:
    """CPU microseconds of a step with so many branches, and of its stages, the medians."""
    sampling, changes = CASES[case]
    ends: list[float] = []  # of steps with all branches, on the engine's thread

    def note(report: StepReport) -> None:
        if report.num_decode_tokens == branches:
            ends.append(time.thread_time())

    settings = LanguageSettings(kv_bytes=branches * 64 * 128, max_sequences=branches, **changes)  # type: ignore[arg-type]
    engine = LanguageEngine(Nothing(), None, settings, note)
    spent = _timed(engine)
    engine.start()
    client = Client(engine, sampling, branches)
    jobs = [client.begin() for _ in range(branches)]
    for stage in spent.values():
        stage.clear()
    for job in jobs:
        engine.decode(job, client)
    client.wait()
    engine.stop()
    whole = [end - begin for begin, end in pairwise(ends)]
    stages = {name: statistics.median(seconds[5:-5]) * 1e6 for name, seconds in spent.items() if len(seconds) > 20}
    return {"step": statistics.median(whole[5:]) * 1e6, **stages}


def _timed(engine: LanguageEngine) -> dict[str, list[float]]:
    """The engine's stages, each of which notes how long it took."""
    spent: dict[str, list[float]] = defaultdict(list)
    for name, (path, method) in STAGES.items():
        owner: Any = engine
        for part in path.split("."):
            owner = getattr(owner._turns if part == "_stepper" else owner, part)
        for holder in [owner, *([engine._turns._stepper, engine._turns] if method == "deliver" else [])]:
            attribute = f"_{method}" if hasattr(holder, f"_{method}") and holder is not owner else method
            if hasattr(holder, attribute):
                setattr(holder, attribute, _noting(getattr(holder, attribute), spent[name]))
    return spent


def _noting(work: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def noted(*given: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return work(*given, **named)
        finally:
            spent.append(time.thread_time() - began)

    return noted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", default="1,4,16,64,128,256")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--output", type=Path, help="file for the figures, JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        case: {int(count): measure(case, int(count)) for count in options.branches.split(",")}
        for case in options.cases.split(",")
    }
    _show(found)
    if options.output is not None:
        machine = {"cores": os.cpu_count(), "torch": torch.__version__}
        options.output.write_text(json.dumps({"machine": machine, "microseconds": found}, indent=1) + "\n")


def _show(found: dict[str, dict[int, dict[str, float]]]) -> None:
    table = Table(title="host microseconds of a decoding step")
    for column in ("case", "branches", "step", *STAGES):
        table.add_column(column, justify="right")
    for case, by_count in found.items():
        for count, spent in by_count.items():
            table.add_row(case, str(count), *(f"{spent.get(name, 0):.0f}" for name in ("step", *STAGES)))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
