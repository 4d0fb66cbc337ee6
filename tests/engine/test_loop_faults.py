"""What goes wrong ends what it must and nothing else."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.rig import GREEDY, SETTINGS, Asked, Pair, PromptSink, TokenSink, running
from triptych.engine.jobs import Window
from triptych.engine.landing import LandingMemory
from triptych.engine.loop import LanguageEngine
from triptych.errors import (
    ClaimExpired,
    InternalError,
    InvalidRequest,
    LayoutMismatch,
    TriptychError,
    WorkerLost,
)
from triptych.journey import BlockRef, RequestId, Token, new_request_id
from triptych.models.base import LanguageModel, PagedInputs
from triptych.sampling import MOST_BRANCHES


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generated": (5000,)}, InvalidRequest),
        ({"generated": (-1,)}, InvalidRequest),
        ({"generated": (1,), "branches": 2}, InvalidRequest),
        ({"generated": (1,) * 12}, InvalidRequest),
        ({"branches": 0}, InvalidRequest),
        ({"branches": MOST_BRANCHES + 1}, InvalidRequest),
        ({"branches": (1 << 32) - 1}, InvalidRequest),
        ({"branches": 2, "choice": MOST_BRANCHES - 1}, InvalidRequest),
        ({"sampling": replace(GREEDY, logit_bias={1024: 1.0})}, InvalidRequest),
        ({"sampling": replace(GREEDY, stop_token_ids=(99_999,))}, InvalidRequest),
    ],
)
def test_a_prefill_that_makes_no_sense_fails_alone(
    model: LanguageModel, text: Asked, changes: dict[str, Any], error: type[TriptychError]
) -> None:
    with running(model) as pair, pytest.raises(error):
        pair.start_prefill(new_request_id(), text, **changes).result()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generated": (1,)}, LayoutMismatch),
        ({"branches": 2}, LayoutMismatch),
        ({"first": ()}, LayoutMismatch),
        ({"first": (Token(1, 0.0, 0, position=4),)}, LayoutMismatch),
        ({"first": (Token(4096, 0.0, 0, position=0),)}, InvalidRequest),
        ({"sampling": replace(GREEDY, max_tokens=13)}, InvalidRequest),
        ({"attempt": 1}, ClaimExpired),
        ({"request_id": RequestId(b"x" * 16)}, ClaimExpired),
    ],
)
def test_a_decode_that_is_not_what_was_reserved_fails_alone(
    model: LanguageModel, text: Asked, changes: dict[str, Any], error: type[TriptychError]
) -> None:
    with running(model) as pair:
        request_id, first = pair.begin(text)
        job = replace(text.decode_job(request_id, first), **changes)
        pair.decode.decode(job, pair.sink)
        with pytest.raises(error):
            pair.sink.answer(job.request_id, first)
        pair.decode.cancel(request_id)


@pytest.mark.parametrize("branches", [0, MOST_BRANCHES + 1, (1 << 32) - 1])
def test_no_blocks_are_reserved_for_branches_that_no_request_has(
    model: LanguageModel, text: Asked, branches: int
) -> None:
    with running(model) as pair, pytest.raises(InvalidRequest, match="branches"):
        pair.reserve(new_request_id(), replace(text, branches=branches)).result()


def test_a_request_that_forbids_every_token_fails_alone(model: LanguageModel, text: Asked) -> None:
    every = tuple(range(model.vocab_size))
    silent = replace(text, sampling=replace(GREEDY, ignore_eos=False, min_tokens=2, stop_token_ids=every))
    with running(model) as pair:
        outcomes = [pair.start_prefill(new_request_id(), asked) for asked in (silent, text)]
        with pytest.raises(InternalError, match="not finite"):
            outcomes[0].result()
        assert len(outcomes[1].result()) == 1
        for outcome in outcomes:
            pair.give_back(outcome)


class Front:
    """A language model in front of another, which does as told before or after a step."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.hidden_size = model.hidden_size
        self.levels = model.levels
        self.vocab_size = model.vocab_size
        self.max_model_len = model.max_model_len
        self.dtype = model.dtype
        self.device = model.device
        self.kv = model.kv
        self.spoil: Callable[[PagedInputs, Tensor], Tensor] = lambda inputs, logits: logits

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._model.embed(token_ids)

    def forward(self, embeddings: Tensor, inputs: PagedInputs, kv_slab: Tensor) -> Tensor:
        return self.spoil(inputs, self._model.forward(embeddings, inputs, kv_slab))


def test_a_step_that_fails_ends_its_requests_and_the_loop_goes_on(
    model: LanguageModel, text: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    front = Front(model)

    def fail_once(inputs: PagedInputs, logits: Tensor) -> Tensor:
        front.spoil = lambda inputs, logits: logits
        raise ValueError("a kernel of clay")

    with caplog.at_level(logging.CRITICAL), running(front) as pair:
        front.spoil = fail_once
        with pytest.raises(InternalError, match="a kernel of clay"):
            pair.start_prefill(new_request_id(), text).result()
        assert len(pair.answer(text)[0]) == GREEDY.max_tokens


def test_logits_of_nan_end_their_own_request_alone(model: LanguageModel, text: Asked, image: Asked) -> None:
    front = Front(model)
    gate = threading.Event()

    def spoil_shorter(inputs: PagedInputs, logits: Tensor) -> Tensor:
        gate.wait(5)
        shorter = [row for row, length in enumerate(inputs.kv_lengths) if length < image.layout.num_tokens]
        if len(inputs.query_lengths) == 2 and max(inputs.query_lengths) == 1:
            logits[shorter] = torch.nan
        return logits

    with running(front) as pair:
        ids = {}
        for asked in (text, image):
            ids[asked] = pair.begin(asked)
        front.spoil = spoil_shorter
        for asked, (request_id, first) in ids.items():
            pair.decode.decode(asked.decode_job(request_id, first), pair.sink)
        gate.set()
        with pytest.raises(InternalError, match="not finite"):
            pair.sink.answer(*ids[text])
        assert len(pair.sink.answer(*ids[image])[0]) == GREEDY.max_tokens


class Deaf(PromptSink):
    """Raises when told one thing."""

    def __init__(self, to: str) -> None:
        super().__init__()
        self.to = to

    def granted(self, window: Window) -> None:
        super().granted(window)
        self.raise_at("granted")

    def kv_ready(self, blocks: tuple[BlockRef, ...], tokens_begin: int, tokens_end: int, last: bool) -> None:
        self.raise_at("kv_ready")
        super().kv_ready(blocks, tokens_begin, tokens_end, last)

    def failed(self, error: TriptychError) -> None:
        super().failed(error)
        self.raise_at("failed")

    def raise_at(self, event: str) -> None:
        if event == self.to:
            raise RuntimeError("deaf")


@pytest.mark.parametrize("to", ["granted", "kv_ready"])
def test_a_prefill_sink_that_raises_loses_its_request_alone(
    model: LanguageModel, text: Asked, to: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL), running(model) as pair:
        sink = Deaf(to)
        pair.prefill.prefill(text.prefill_job(new_request_id()), sink)
        with pytest.raises(InternalError):
            sink.result()
        assert sink.events.count("failed") == 1
        assert len(pair.answer(text)[0]) == GREEDY.max_tokens


def test_a_token_sink_that_raises_loses_the_requests_it_was_told_of(
    model: LanguageModel, text: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    class DeafTokens(TokenSink):
        def tokens(self, batch: object) -> None:
            raise RuntimeError("deaf")

    with caplog.at_level(logging.CRITICAL), running(model) as pair:
        request_id, first = pair.begin(text)
        sink = DeafTokens()
        pair.decode.decode(text.decode_job(request_id, first), sink)
        with pytest.raises(InternalError):
            sink.answer(request_id, first)
        assert len(pair.answer(text)[0]) == GREEDY.max_tokens


def test_stopping_ends_what_is_left_and_refuses_what_comes(model: LanguageModel, text: Asked, image: Asked) -> None:
    pair = Pair(model, split=False, settings=SETTINGS)
    pair.prefill.start()
    waiting = PromptSink()
    pair.prefill.prefill(image.prefill_job(new_request_id()), waiting)
    assert waiting.was_granted.wait(5)
    pair.prefill.stop()
    late = pair.start_prefill(new_request_id(), text)
    for outcome in (waiting, late, pair.reserve(new_request_id(), text)):
        with pytest.raises(WorkerLost, match="stopped"):
            outcome.result()
    pair.give_back(waiting)
    pair.wait_idle()


def test_an_engine_that_was_never_started_stops_too(model: LanguageModel, text: Asked) -> None:
    pair = Pair(model, split=False, settings=SETTINGS)
    outcome = pair.reserve(new_request_id(), text)
    pair.prefill.stop()
    with pytest.raises(WorkerLost):
        outcome.result()
    pair.wait_idle()


def test_a_lost_device_ends_everything(model: LanguageModel, text: Asked, caplog: pytest.LogCaptureFixture) -> None:
    front = Front(model)
    lost: list[BaseException] = []

    def lose(inputs: PagedInputs, logits: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    front.spoil = lose
    pair = Pair(front, split=False, settings=SETTINGS)
    pair.prefill = pair.decode = LanguageEngine(front, pair.prefill_slab, SETTINGS, on_fatal=lost.append)
    pair.prefill.start()
    with caplog.at_level(logging.CRITICAL + 1):
        for _ in range(2):
            with pytest.raises(WorkerLost, match="the device is lost"):
                pair.start_prefill(new_request_id(), text).result()
    assert "illegal memory access" in str(lost[0])
    pair.prefill.stop()
    pair.wait_idle()


def test_a_device_that_is_found_lost_ahead_of_a_step_ends_everything_too(
    model: LanguageModel, text: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[BaseException] = []
    pair = Pair(model, split=False, settings=SETTINGS)
    pair.prefill = pair.decode = LanguageEngine(model, pair.prefill_slab, SETTINGS, on_fatal=lost.append)

    def lose(units: object, generations: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(pair.prefill_slab, "stamp", lose)
    pair.prefill.start()
    with caplog.at_level(logging.CRITICAL + 1), pytest.raises(WorkerLost, match="the device is lost"):
        pair.start_prefill(new_request_id(), text).result()
    assert "illegal memory access" in str(lost[0])
    pair.prefill.stop()


def test_a_device_that_is_found_lost_where_rows_are_to_land_ends_everything_and_is_no_lack_of_memory(
    model: LanguageModel, image: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[BaseException] = []
    pair = Pair(model, split=False, settings=SETTINGS)
    pair.prefill = pair.decode = LanguageEngine(model, pair.prefill_slab, SETTINGS, on_fatal=lost.append)

    def lose(memory: LandingMemory, request_id: RequestId, items: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(LandingMemory, "open", lose)
    pair.prefill.start()
    with caplog.at_level(logging.CRITICAL + 1), pytest.raises(WorkerLost, match="the device is lost"):
        pair.start_prefill(new_request_id(), image).result()
    assert "illegal memory access" in str(lost[0])
    pair.prefill.stop()


def test_an_idle_engine_sleeps(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        pair.answer(text)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1


def test_how_long_a_step_has_been_going_is_known_while_it_hangs(model: LanguageModel, text: Asked) -> None:
    front = Front(model)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(inputs: PagedInputs, logits: Tensor) -> Tensor:
        hangs.set()
        goes_on.wait(5)
        return logits

    with running(front) as pair:
        front.spoil = hang
        sink = pair.start_prefill(new_request_id(), text)
        assert hangs.wait(5)
        before = pair.prefill.turn_seconds()
        assert pair.prefill.turn_seconds() > before > 0
        goes_on.set()
        sink.result()
        pair.give_back(sink)
        deadline = time.monotonic() + 5
        while pair.prefill.turn_seconds():
            assert time.monotonic() < deadline, "an engine at rest takes no turn"
            time.sleep(0.001)
