"""Decode's own prefix cache under a real model: what is there is not sent, and answers stay what they were."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.engine.prompts import picture
from tests.engine.rig import SETTINGS, Asked, Outcome, Pair, running, wait_until
from tests.engine.test_loop_faults import Front
from tests.engine.test_prefix_answers import LONG, ONE, TWO, Desk, fresh, ids
from tests.reference import Reference
from triptych.engine.loop import LanguageEngine
from triptych.errors import ClaimExpired, InternalError, InvalidRequest, LayoutMismatch
from triptych.journey import RequestId, Token, new_request_id
from triptych.models.base import LanguageModel, PagedInputs, VisionTower
from triptych.models.card import ModelCard


@pytest.fixture(scope="module")
def desk(card: ModelCard, tower: VisionTower, reference: Reference) -> Desk:
    return Desk(card, tower, reference)


def serve(pair: Pair, asked: Asked) -> tuple[dict[int, list[Token]], int, int]:
    """The answer, the tokens whose KV decode had, and those whose KV was sent."""
    request_id = new_request_id()
    cached = pair.reserve(request_id, asked).granted().cached_tokens
    sink = pair.start_prefill(request_id, asked, kv_begin=cached)
    first = sink.result()
    assert sink.kv[0].tokens_begin == cached
    pair.hand_over(request_id, sink, cached)
    pair.decode.decode(asked.decode_job(request_id, first), pair.sink)
    return pair.sink.answer(request_id, first), cached, sum(one.tokens_end - one.tokens_begin for one in sink.kv)


@pytest.mark.parametrize("chunk", [17, 4096])
@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_only_what_decode_has_not_is_sent_and_answers_are_the_uncached_ones(
    model: LanguageModel, desk: Desk, split: bool, chunk: int
) -> None:
    asked = [
        desk.ask(LONG, ONE, "What is it?"),
        desk.ask(LONG, ONE, "What else is it, and why?"),
        desk.ask(LONG, TWO, "What is it?"),
        replace(desk.ask(LONG, ONE, "What is it?"), branches=3),
    ]
    alone = [fresh(model, one) for one in asked]
    with running(model, split, prefill_chunk_tokens=chunk) as pair:
        for turn in range(2):
            for one, wanted in zip(asked, alone, strict=True):
                answer, cached, sent = serve(pair, one)
                assert [[token.id for token in tokens] for tokens in answer.values()] == [wanted] * one.branches
                assert cached + sent == one.prompt_tokens
                assert cached == (one.prompt_tokens - 1) // 16 * 16 or turn == 0


def test_a_prefill_that_finds_nothing_itself_sends_no_more_for_that(model: LanguageModel, desk: Desk) -> None:
    asked = desk.ask(LONG, ONE, "What is it?")
    with running(model) as pair, running(model) as other:
        wanted, cached, _ = serve(pair, asked)
        assert cached == 0
        pair.wait_idle()
        pair.prefill, other.prefill = other.prefill, pair.prefill
        pair.prefill_slab, other.prefill_slab = other.prefill_slab, pair.prefill_slab
        answer, cached, sent = serve(pair, asked)
        assert pair.prefill.snapshot()["prefix_hit_tokens_total"] == 0
        assert ids(answer) == ids(wanted)
        assert sent == asked.prompt_tokens - cached <= 16


def test_a_continuation_goes_on_behind_what_decode_has(model: LanguageModel, desk: Desk) -> None:
    asked = desk.ask(LONG, ONE, "What is it?")
    with running(model) as pair:
        whole = ids(serve(pair, asked)[0])
        for said in (3, 4, 17):
            answer, cached, _ = serve(pair, replace(asked, generated=tuple(whole[:said])))
            assert ids(answer) == whole[said:]
            assert cached >= (asked.prompt_tokens - 1) // 16 * 16


def test_another_tenant_finds_nothing(model: LanguageModel, desk: Desk) -> None:
    asked = desk.ask(LONG, "What is it?")
    with running(model) as pair:
        serve(pair, asked)
        for salt, found in ((b"", True), (b"tenant", False), (None, False)):
            request_id = new_request_id()
            assert (pair.reserve(request_id, asked, cache_salt=salt).granted().cached_tokens > 0) == found
            pair.cancel(request_id)


def test_decoding_evicts_what_is_cached_and_answers_stay_right(model: LanguageModel, desk: Desk) -> None:
    asked = [desk.ask(LONG, f"This is question number {number}.", picture(70 + number, 56, 56)) for number in range(5)]
    alone = [fresh(model, one) for one in asked]
    room = 2 * asked[0].num_blocks + 3
    with running(model, kv_bytes=room * model.kv.block_bytes(16)) as pair:
        for _ in range(2):
            assert [ids(serve(pair, one)[0]) for one in asked] == alone
        with ThreadPoolExecutor(5) as pool:
            assert [ids(answer) for answer in pool.map(pair.answer, asked)] == alone


def has_expired(pair: Pair, request_id: RequestId) -> bool:
    """Whether a reservation is gone."""
    try:
        pair.decode.release_blocks(pair.decode.share_prompt_blocks(request_id))
    except ClaimExpired as error:
        return "reserv" in error.message
    return False


def test_kv_behind_which_a_decode_step_went_wrong_is_not_found_and_nobody_goes_on_behind_it(
    model: LanguageModel, desk: Desk
) -> None:
    asked = desk.ask(LONG, "What is it?")
    wanted = fresh(model, asked)
    front = Front(model)
    pair = Pair(model, True, SETTINGS)
    pair.decode = LanguageEngine(front, pair.decode_slab, SETTINGS)

    def spoil(inputs: PagedInputs, logits: Tensor) -> Tensor:
        return torch.full_like(logits, float("nan"))

    for engine in pair.engines:
        engine.start()
    try:
        serve(pair, asked)
        waiting = new_request_id()
        assert pair.reserve(waiting, asked).granted().cached_tokens > 0
        front.spoil = spoil
        with pytest.raises(InternalError, match="not finite"):
            serve(pair, asked)
        front.spoil = lambda inputs, logits: logits
        wait_until(lambda: has_expired(pair, waiting), "who reserved behind it was not told to reserve again")
        answer, cached, _ = serve(pair, asked)
        assert (ids(answer), cached) == (wanted, 0)
        answer, cached, _ = serve(pair, asked)
        assert ids(answer) == wanted
        assert cached > 0
        pair.wait_idle()
    finally:
        for engine in pair.engines:
            engine.stop()


def test_what_was_reserved_for_one_prompt_is_not_decoded_behind_another(model: LanguageModel, desk: Desk) -> None:
    asked, other = desk.ask(LONG, "What is it?"), desk.ask(LONG, "What is if?")
    assert asked.prompt_tokens == other.prompt_tokens
    with running(model) as pair:
        serve(pair, asked)
        request_id = new_request_id()
        pair.reserve(request_id, asked).result()
        pair.decode.decode(other.decode_job(request_id, (Token(5, 0.0, 0, 0),)), pair.sink)
        with pytest.raises(LayoutMismatch, match="another prompt"):
            pair.sink.answer(request_id, (Token(5, 0.0, 0, 0),))


def test_keys_of_another_number_of_tokens_than_are_reserved_are_refused(model: LanguageModel, desk: Desk) -> None:
    asked = desk.ask(LONG, "What is it?")
    with running(model) as pair:
        keys = pair.decode.block_keys(asked.layout, (1, 2))
        outcome = Outcome()
        pair.decode.reserve(new_request_id(), 0, asked.prompt_tokens, 5, 1, math.inf, outcome, keys)
        with pytest.raises(LayoutMismatch, match=f"a prompt of {asked.prompt_tokens + 2}"):
            outcome.result()


@pytest.mark.parametrize("past_the_end", [True, False])
def test_kv_is_never_wanted_from_outside_the_prompt(model: LanguageModel, desk: Desk, past_the_end: bool) -> None:
    asked = desk.ask("Hi.")
    with running(model) as pair:
        wrong = asked.prompt_tokens if past_the_end else -1
        with pytest.raises(InvalidRequest, match=f"KV is wanted from token {wrong} on"):
            pair.start_prefill(new_request_id(), asked, kv_begin=wrong).result()
