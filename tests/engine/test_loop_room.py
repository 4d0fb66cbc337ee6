"""Who gets room when, and what ends a request early: attempts, deadlines, cancels."""

import time
from dataclasses import replace

import pytest

from tests.engine.rig import ENDLESS, GREEDY, Asked, Outcome, PromptSink, running, wait_until
from triptych.errors import (
    Cancelled,
    ClaimExpired,
    ContextTooLong,
    DeadlineExceeded,
    InvariantViolation,
    LayoutMismatch,
    Overloaded,
)
from triptych.journey import new_request_id
from triptych.models.base import LanguageModel


def test_what_can_never_fit_is_refused_at_once_with_both_numbers(model: LanguageModel, text: Asked) -> None:
    prompt_tokens = text.layout.num_tokens
    with running(model, kv_bytes=3 * model.kv.block_bytes(16)) as pair:
        large = pair.reserve(new_request_id(), replace(text, branches=8))
        with pytest.raises(ContextTooLong, match=r"need \d+ KV blocks of 16 tokens, there are 3"):
            large.result()
    with running(model, max_model_len=prompt_tokens) as pair:
        both: list[Outcome | PromptSink] = [
            pair.reserve(new_request_id(), text),
            pair.start_prefill(new_request_id(), text),
        ]
        for outcome in both:
            with pytest.raises(ContextTooLong, match=f"{prompt_tokens} tokens, the context takes {prompt_tokens - 1}"):
                outcome.result()


def test_reservations_wait_in_order_for_room(model: LanguageModel, text: Asked) -> None:
    need = text.num_blocks
    with running(model, kv_bytes=(2 * need + 1) * model.kv.block_bytes(16)) as pair:
        ids = [new_request_id() for _ in range(4)]
        outcomes = [pair.reserve(request_id, text) for request_id in ids]
        assert [outcome.result() for outcome in outcomes[:2]] == [need, need]
        wait_until(lambda: pair.decode.snapshot()["decode_reservations_queued"] == 2, "the others do not wait")
        pair.decode.cancel(ids[1])
        assert outcomes[2].result() == need
        assert outcomes[3].is_pending
        for request_id in ids:
            pair.decode.cancel(request_id)
        with pytest.raises(Cancelled):
            outcomes[3].result()
        assert [len(outcome.calls) for outcome in outcomes] == [1, 1, 1, 1]


def test_a_reservation_that_gets_no_room_in_time_is_told_so(model: LanguageModel, text: Asked) -> None:
    need = text.num_blocks
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
        assert not second.was_granted.wait(0.05)
        pair.give_back(first)
        assert len(second.result()) == 1
        pair.give_back(second)


def test_landing_memory_is_given_in_order_and_freed_when_fused(model: LanguageModel, image: Asked) -> None:
    longest = image.layout.num_tokens + 20
    with running(model, landing_bytes=1, max_model_len=longest, prefix_cache=False) as pair:
        capacity = longest * model.hidden_size * 4
        each = image.layout.num_rows * model.hidden_size * 4
        sinks = [PromptSink() for _ in range(capacity // each + 1)]
        ids = [new_request_id() for _ in sinks]
        for request_id, sink in zip(ids, sinks, strict=True):
            pair.prefill.prefill(image.prefill_job(request_id), sink)
        assert all(sink.was_granted.wait(5) for sink in sinks[:-1])
        assert not sinks[-1].was_granted.wait(0.05)
        assert pair.prefill.snapshot()["landing_bytes"] == each * (len(sinks) - 1)
        pair.land(ids[0], 0, image.rows[0])
        assert sinks[-1].was_granted.wait(5)
        for request_id in ids[1:]:
            pair.land(request_id, 0, image.rows[0])
        for sink in sinks:
            sink.result()
            pair.give_back(sink)


def test_one_engine_prefills_into_the_blocks_it_has_reserved(model: LanguageModel, text: Asked) -> None:
    need = text.num_blocks
    with running(model, split=False, kv_bytes=need * model.kv.block_bytes(16)) as pair:
        assert len(pair.answer(text)[0]) == GREEDY.max_tokens, "a second reservation would never fit"


def test_repeating_a_reservation_answers_again_and_takes_nothing(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        request_id = new_request_id()
        first, again = pair.reserve(request_id, text), pair.reserve(request_id, text)
        assert first.result() == again.result() == text.num_blocks
        gauges = pair.decode.snapshot()
        assert gauges["kv_blocks"] - gauges["kv_free_blocks"] == text.num_blocks
        pair.decode.cancel(request_id)


def test_a_newer_attempt_ends_the_older_one(model: LanguageModel, image: Asked) -> None:
    with running(model) as pair:
        request_id = new_request_id()
        older, newer, late = PromptSink(), PromptSink(), PromptSink()
        pair.prefill.prefill(image.prefill_job(request_id), older)
        assert older.was_granted.wait(5)
        pair.prefill.prefill(image.prefill_job(request_id, attempt=1), newer)
        pair.prefill.prefill(image.prefill_job(request_id), late)
        with pytest.raises(Cancelled, match="attempt 1 has come"):
            older.result()
        with pytest.raises(Cancelled, match="attempt 0 comes too late"):
            late.result()
        pair.land(request_id, 0, image.rows[0])
        newer.result()
        pair.give_back(older)
        pair.give_back(newer)


def test_a_deadline_ends_a_prefill_that_waits_for_rows(model: LanguageModel, image: Asked) -> None:
    with running(model) as pair:
        sink = PromptSink()
        pair.prefill.prefill(image.prefill_job(new_request_id(), deadline=time.monotonic() + 0.05), sink)
        with pytest.raises(DeadlineExceeded, match=r"with \d+ tokens computed"):
            sink.result()
        pair.give_back(sink)


def test_a_deadline_ends_decoding(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        request_id, first = pair.begin(replace(text, sampling=ENDLESS))
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
        pair.cancel(waiting)

        pair.reserve(computing, asked).result()
        sink = PromptSink()
        pair.prefill.prefill(asked.prefill_job(computing), sink)
        assert sink.was_granted.wait(5)
        pair.cancel(computing)
        with pytest.raises(Cancelled):
            sink.result()
        assert sink.events.count("failed") == 1
        pair.give_back(sink)

        decoding, first = pair.begin(asked)
        pair.decode.decode(asked.decode_job(decoding, first), pair.sink)
        pair.sink.wait_for_tokens(decoding, 3)
        pair.cancel(decoding)
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
        assert sink.was_granted.wait(5)
        with pytest.raises(LayoutMismatch, match="no rows of item 3"):
            pair.prefill.landing(request_id, 3)
        pair.prefill.rows_landed(request_id, 3)
        with pytest.raises(LayoutMismatch):
            sink.result()
        pair.give_back(sink)


def test_a_share_can_be_given_back_once(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        sink = pair.start_prefill(new_request_id(), text)
        sink.result()
        pair.give_back(sink)
        with pytest.raises(InvariantViolation):
            pair.give_back(sink)
