"""The engine's manners: order of news, room, deadlines, cancels, faults. Answers themselves are in test_equality."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.prompts import layout_of, picture, rows_of, text_layout, user
from tests.engine.rig import SETTINGS, Asked, Outcome, Pair, PromptSink, TokenSink, running, wait_until
from tests.reference import Reference
from triptych.engine.loop import LanguageEngine, StepReport
from triptych.errors import (
    Cancelled,
    ClaimExpired,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    InvariantViolation,
    LayoutMismatch,
    Overloaded,
    TriptychError,
    WorkerLost,
)
from triptych.journey import BlockRef, RequestId, Sampling, Token, new_request_id
from triptych.models.base import LanguageModel, PagedInputs, VisionTower
from triptych.models.card import ModelCard

GREEDY = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
ENDLESS = Sampling(temperature=0.0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def text(card: ModelCard, reference: Reference) -> Asked:
    return Asked(text_layout(card, reference, "What is the colour of the sea at night?"), GREEDY)


@pytest.fixture(scope="module")
def image(card: ModelCard, tower: VisionTower, reference: Reference) -> Asked:
    one = picture(1, 112, 84)
    ids = reference.inputs([user("Look here: ", one, " What is it?")], [one])["input_ids"][0].tolist()
    return Asked(layout_of(card, ids, [one]), GREEDY, rows_of(reference, tower, [one]))


# News


def test_news_of_a_prefill_come_in_order(model: LanguageModel, image: Asked) -> None:
    with running(model, prefill_chunk_tokens=17) as pair:
        request_id = new_request_id()
        sink = pair.start_prefill(request_id, image)
        sink.result()
        chunks = -(-image.layout.num_tokens // 16)
        assert sink.events[0] == "accepted"
        assert sink.events[-1] == "first_tokens"
        assert set(sink.events[1:-1]) == {"kv_ready"}
        assert [ready.last for ready in sink.kv] == [False] * (len(sink.kv) - 1) + [True]
        assert [ready.tokens_begin for ready in sink.kv[1:]] == [ready.tokens_end for ready in sink.kv[:-1]]
        assert sum(len(ready.ids) for ready in sink.kv) == chunks
        assert set(sink.times) == {"prefill_queue", "prefill", "prefill_compute"}
        assert all(0 <= seconds < 30 for seconds in sink.times.values())
        give_back(pair, sink)


def test_text_before_an_image_is_computed_while_the_image_is_being_encoded(model: LanguageModel, image: Asked) -> None:
    before = image.layout.items[0].runs[0].start
    assert before > 16
    with running(model) as pair:
        request_id = new_request_id()
        sink = PromptSink()
        pair.prefill.prefill(image.prefill_job(request_id), sink)
        wait_until(lambda: bool(sink.kv), "the text was never computed")
        assert sink.kv[0].tokens_end == before // 16 * 16
        assert not sink.has_ended.is_set()
        pair.land(request_id, 0, image.rows[0])
        sink.result()
        give_back(pair, sink)


def test_blocks_are_stamped_with_the_generation_that_is_announced(model: LanguageModel, text: Asked) -> None:
    need = -(-text.layout.num_tokens // 16)
    with running(model, kv_bytes=need * model.kv.block_bytes(16)) as pair:
        for _ in range(3):
            sink = pair.start_prefill(new_request_id(), text)
            sink.result()
            for block in (block for ready in sink.kv for block in ready.blocks):
                assert int(pair.prefill_slab.words[block.id]) == block.generation
            give_back(pair, sink)
        assert pair.prefill_slab.words.tolist() == [3] * need


def test_kv_that_nobody_will_decode_is_not_announced(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        sink = pair.start_prefill(new_request_id(), text, keep_kv=False)
        assert len(sink.result()) == 1
        assert sink.events == ["accepted", "first_tokens"]


def test_a_step_tells_a_sink_of_all_its_tokens_at_once(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        pair.answer(replace(text, branches=4))
        assert all(len(batch) == 4 for batch in pair.sink.batches)
        assert len(pair.sink.batches) == GREEDY.max_tokens - 1


def test_steps_are_reported(model: LanguageModel, text: Asked) -> None:
    reports: list[StepReport] = []
    pair = Pair(model, split=False, settings=SETTINGS)
    pair.prefill = pair.decode = LanguageEngine(model, pair.prefill_slab, SETTINGS, reports.append)
    pair.prefill.start()
    pair.answer(text)
    pair.prefill.stop()
    assert sum(report.num_prefill_tokens for report in reports) == text.layout.num_tokens
    assert sum(report.num_decode_tokens for report in reports) == GREEDY.max_tokens - 1
    assert all(report.seconds > 0 for report in reports)


# Ends of answers


def test_an_end_token_ends_the_branch_that_drew_it(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        tokens = pair.answer(text)[0]
        place = next(place for place in range(2, 12) if tokens[place].id not in [token.id for token in tokens[:place]])
        stopping = replace(GREEDY, ignore_eos=False, stop_token_ids=(tokens[place].id,))
        stopped = pair.answer(replace(text, sampling=stopping))[0]
        later = pair.answer(replace(text, sampling=replace(stopping, min_tokens=place + 1)))[0]
    assert [token.id for token in stopped] == [token.id for token in tokens[: place + 1]]
    assert [token.finish_reason for token in stopped[-2:]] == ["", "stop"]
    assert [token.id for token in later[:place]] == [token.id for token in tokens[:place]]
    assert later[place].id != tokens[place].id


def test_a_branch_that_ends_with_its_first_token_is_not_decoded(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        sampling = replace(GREEDY, temperature=1.0, seed=3, max_tokens=8)
        free = pair.answer(replace(text, sampling=sampling, branches=2))
        assert free[0][0].id != free[1][0].id
        stopping = replace(sampling, ignore_eos=False, stop_token_ids=(free[0][0].id,))
        half = pair.answer(replace(text, sampling=stopping, branches=2))
        none = pair.answer(replace(text, sampling=replace(sampling, max_tokens=1), branches=2))
    assert [token.finish_reason for token in half[0]] == ["stop"]
    assert [token.id for token in half[1]] == [token.id for token in free[1]]
    assert [[token.finish_reason for token in none[choice]] for choice in (0, 1)] == [["length"], ["length"]]


def test_the_context_ends_an_answer(model: LanguageModel, text: Asked) -> None:
    longest = text.layout.num_tokens + 5
    with running(model, max_model_len=longest) as pair:
        tokens = pair.answer(text)[0]
    assert len(tokens) == 5
    assert tokens[-1].finish_reason == "length"


# Room


def test_what_can_never_fit_is_refused_at_once_with_both_numbers(model: LanguageModel, text: Asked) -> None:
    prompt_tokens = text.layout.num_tokens
    with running(model, kv_bytes=3 * model.kv.block_bytes(16)) as pair:
        outcome = pair.reserve(new_request_id(), replace(text, branches=8))
        with pytest.raises(ContextTooLong, match=r"need \d+ KV blocks of 16 tokens, there are 3"):
            outcome.result()
    with running(model, max_model_len=prompt_tokens) as pair:
        both: list[Outcome | PromptSink] = [
            pair.reserve(new_request_id(), text),
            pair.start_prefill(new_request_id(), text),
        ]
        for outcome in both:
            with pytest.raises(ContextTooLong, match=f"{prompt_tokens} tokens, the context takes {prompt_tokens - 1}"):
                outcome.result()


def test_reservations_wait_in_order_for_room(model: LanguageModel, text: Asked) -> None:
    need = blocks_of(text)
    with running(model, kv_bytes=(2 * need + 1) * model.kv.block_bytes(16)) as pair:
        ids = [new_request_id() for _ in range(4)]
        outcomes = [pair.reserve(request_id, text) for request_id in ids]
        assert [outcome.result() for outcome in outcomes[:2]] == [need, need]
        assert pair.decode.snapshot()["decode_reservations_queued"] == 2
        pair.decode.cancel(ids[1])
        assert outcomes[2].result() == need
        assert outcomes[3].is_pending
        for request_id in ids:
            pair.decode.cancel(request_id)
        with pytest.raises(Cancelled):
            outcomes[3].result()
        assert [len(outcome.calls) for outcome in outcomes] == [1, 1, 1, 1]


def test_a_reservation_that_gets_no_room_in_time_is_told_so(model: LanguageModel, text: Asked) -> None:
    need = blocks_of(text)
    with running(model, kv_bytes=(need + 1) * model.kv.block_bytes(16)) as pair:
        first = new_request_id()
        pair.reserve(first, text).result()
        waiting = pair.reserve(new_request_id(), text, deadline=time.monotonic() + 0.05)
        with pytest.raises(Overloaded, match=f"{need} KV blocks are needed, 1 of {need + 1} are free"):
            waiting.result()
        pair.decode.cancel(first)


def test_prompts_wait_for_room_and_get_it_when_blocks_come_back(model: LanguageModel, text: Asked) -> None:
    need = -(-text.layout.num_tokens // 16)
    with running(model, kv_bytes=need * model.kv.block_bytes(16)) as pair:
        first = pair.start_prefill(new_request_id(), text)
        first.result()
        second = pair.start_prefill(new_request_id(), text)
        assert not second.was_accepted.wait(0.05)
        give_back(pair, first)
        assert len(second.result()) == 1
        give_back(pair, second)


def test_landing_memory_is_given_in_order_and_freed_when_fused(model: LanguageModel, image: Asked) -> None:
    longest = image.layout.num_tokens + 20
    with running(model, landing_bytes=0, max_model_len=longest) as pair:
        capacity = longest * model.hidden_size * 4
        each = image.layout.num_rows * model.hidden_size * 4
        sinks = [PromptSink() for _ in range(capacity // each + 1)]
        ids = [new_request_id() for _ in sinks]
        for request_id, sink in zip(ids, sinks, strict=True):
            pair.prefill.prefill(image.prefill_job(request_id), sink)
        assert all(sink.was_accepted.wait(5) for sink in sinks[:-1])
        assert not sinks[-1].was_accepted.wait(0.05)
        assert pair.prefill.snapshot()["landing_bytes"] == each * (len(sinks) - 1)
        pair.land(ids[0], 0, image.rows[0])
        assert sinks[-1].was_accepted.wait(5)
        for request_id in ids[1:]:
            pair.land(request_id, 0, image.rows[0])
        for sink in sinks:
            sink.result()
            give_back(pair, sink)


def test_one_engine_prefills_into_the_blocks_it_has_reserved(model: LanguageModel, text: Asked) -> None:
    need = blocks_of(text)
    with running(model, split=False, kv_bytes=need * model.kv.block_bytes(16)) as pair:
        assert len(pair.answer(text)[0]) == GREEDY.max_tokens, "a second reservation would never fit"


# Attempts, deadlines, cancels


def test_repeating_a_reservation_answers_again_and_takes_nothing(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        request_id = new_request_id()
        first, again = pair.reserve(request_id, text), pair.reserve(request_id, text)
        assert first.result() == again.result() == blocks_of(text)
        gauges = pair.decode.snapshot()
        assert gauges["kv_blocks"] - gauges["kv_free_blocks"] == blocks_of(text)
        pair.decode.cancel(request_id)


def test_a_newer_attempt_ends_the_older_one(model: LanguageModel, image: Asked) -> None:
    with running(model) as pair:
        request_id = new_request_id()
        older, newer, late = PromptSink(), PromptSink(), PromptSink()
        pair.prefill.prefill(image.prefill_job(request_id), older)
        assert older.was_accepted.wait(5)
        pair.prefill.prefill(image.prefill_job(request_id, attempt=1), newer)
        pair.prefill.prefill(image.prefill_job(request_id), late)
        with pytest.raises(Cancelled, match="attempt 1 has come"):
            older.result()
        with pytest.raises(Cancelled, match="attempt 0 comes too late"):
            late.result()
        pair.land(request_id, 0, image.rows[0])
        newer.result()
        give_back(pair, older)
        give_back(pair, newer)


def test_a_deadline_ends_a_prefill_that_waits_for_rows(model: LanguageModel, image: Asked) -> None:
    with running(model) as pair:
        sink = PromptSink()
        pair.prefill.prefill(image.prefill_job(new_request_id(), deadline=time.monotonic() + 0.05), sink)
        with pytest.raises(DeadlineExceeded, match=r"with \d+ tokens computed"):
            sink.result()
        give_back(pair, sink)


def test_a_deadline_ends_decoding(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        request_id, first = begun(pair, replace(text, sampling=ENDLESS))
        job = replace(text, sampling=ENDLESS).decode_job(request_id, first, deadline=time.monotonic() + 0.1)
        pair.decode.decode(job, pair.sink)
        with pytest.raises(DeadlineExceeded):
            pair.sink.answer(request_id, first)


@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_a_cancel_frees_everything_at_any_stage(model: LanguageModel, image: Asked, split: bool) -> None:
    asked = replace(image, sampling=ENDLESS)
    with running(model, split) as pair:
        waiting, computing, decoding = (new_request_id() for _ in range(3))
        pair.reserve(waiting, asked).result()
        cancel(pair, waiting)

        pair.reserve(computing, asked).result()
        sink = PromptSink()
        pair.prefill.prefill(asked.prefill_job(computing), sink)
        assert sink.was_accepted.wait(5)
        cancel(pair, computing)
        with pytest.raises(Cancelled):
            sink.result()
        assert sink.events.count("failed") == 1
        give_back(pair, sink)

        decoding, first = begun(pair, asked)
        pair.decode.decode(asked.decode_job(decoding, first), pair.sink)
        pair.sink.wait_for_tokens(decoding, 3)
        cancel(pair, decoding)
        with pytest.raises(Cancelled):
            pair.sink.answer(decoding, first)


def test_a_late_copy_into_a_cancelled_reservation_hits_nobody(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        request_id = new_request_id()
        need = pair.reserve(request_id, replace(text, sampling=ENDLESS)).result()
        held = pair.decode.share_prompt_blocks(request_id)
        assert held == pair.decode.prompt_blocks(request_id)
        pair.decode.cancel(request_id)
        gauges = pair.decode.snapshot
        wait_until(lambda: gauges()["kv_blocks"] - gauges()["kv_free_blocks"] == len(held), f"{need} blocks stayed")
        with pytest.raises(ClaimExpired):
            pair.decode.prompt_blocks(request_id)
        pair.decode.release_blocks(held)


def test_rows_for_a_prompt_that_has_ended_are_nobodys(model: LanguageModel, image: Asked) -> None:
    with running(model) as pair:
        pair.prefill.rows_landed(new_request_id(), 0)
        with pytest.raises(Cancelled):
            pair.prefill.landing(new_request_id(), 0)


def test_rows_of_an_item_the_prompt_does_not_have_end_it(model: LanguageModel, image: Asked) -> None:
    with running(model) as pair:
        request_id = new_request_id()
        sink = PromptSink()
        pair.prefill.prefill(image.prefill_job(request_id), sink)
        assert sink.was_accepted.wait(5)
        with pytest.raises(LayoutMismatch, match="no rows of item 3"):
            pair.prefill.landing(request_id, 3)
        pair.prefill.rows_landed(request_id, 3)
        with pytest.raises(LayoutMismatch):
            sink.result()
        give_back(pair, sink)


def test_a_share_can_be_given_back_once(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        sink = pair.start_prefill(new_request_id(), text)
        sink.result()
        give_back(pair, sink)
        with pytest.raises(InvariantViolation):
            give_back(pair, sink)


# Jobs that do not fit


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"generated": (5000,)}, InvalidRequest),
        ({"generated": (-1,)}, InvalidRequest),
        ({"generated": (1,), "branches": 2}, InvalidRequest),
        ({"generated": (1,) * 12}, InvalidRequest),
        ({"branches": 0}, InvalidRequest),
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
        request_id, first = begun(pair, text)
        job = replace(text.decode_job(request_id, first), **changes)
        pair.decode.decode(job, pair.sink)
        with pytest.raises(error):
            pair.sink.answer(job.request_id, first)
        pair.decode.cancel(request_id)


# Faults


class Front:
    """A language model in front of another, which does as told before or after a step."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.hidden_size = model.hidden_size
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
            ids[asked] = begun(pair, asked)
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

    def accepted(self) -> None:
        super().accepted()
        self.raise_at("accepted")

    def kv_ready(self, blocks: tuple[BlockRef, ...], tokens_begin: int, tokens_end: int, last: bool) -> None:
        self.raise_at("kv_ready")
        super().kv_ready(blocks, tokens_begin, tokens_end, last)

    def failed(self, error: TriptychError) -> None:
        super().failed(error)
        self.raise_at("failed")

    def raise_at(self, event: str) -> None:
        if event == self.to:
            raise RuntimeError("deaf")


@pytest.mark.parametrize("to", ["accepted", "kv_ready"])
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
        request_id, first = begun(pair, text)
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
    assert waiting.was_accepted.wait(5)
    pair.prefill.stop()
    late = pair.start_prefill(new_request_id(), text)
    for outcome in (waiting, late, pair.reserve(new_request_id(), text)):
        with pytest.raises(WorkerLost, match="stopped"):
            outcome.result()
    give_back(pair, waiting)
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


def test_an_idle_engine_sleeps(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        pair.answer(text)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1


# Helpers


def blocks_of(asked: Asked) -> int:
    """Blocks of a reservation for one branch."""
    return -(-(asked.prompt_tokens + asked.more_tokens) // 16)


def begun(pair: Pair, asked: Asked) -> tuple[RequestId, tuple[Token, ...]]:
    """A request whose KV has landed, ready to be decoded."""
    request_id = new_request_id()
    pair.reserve(request_id, asked).result()
    sink = pair.start_prefill(request_id, asked)
    first = sink.result()
    pair.hand_over(request_id, sink)
    return request_id, first


def give_back(pair: Pair, sink: PromptSink) -> None:
    for ready in sink.kv:
        pair.prefill.release_blocks(ready.ids)


def cancel(pair: Pair, request_id: RequestId) -> None:
    for engine in pair.engines:
        engine.cancel(request_id)
