"""What the client leaves open, and what the context leaves."""

import dataclasses
import json
from types import MappingProxyType
from typing import Any

import pytest

from triptych.errors import ContextTooLong, InvalidRequest
from triptych.models.card import ModelCard
from triptych.router.sampling import max_tokens_for, sampling_for
from triptych.router.schema import Chat, ChatRequest


def request(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return Chat.parse(json.dumps(body).encode()).request


def test_the_apis_own_defaults_hold_where_the_model_has_none(card: ModelCard) -> None:
    sampling = sampling_for(request(), card, max_tokens=5)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert sampling.stop_token_ids == card.eos_token_ids


def test_the_models_defaults_hold_where_the_client_says_nothing(card: ModelCard) -> None:
    cool = dataclasses.replace(card, default_sampling=MappingProxyType({"temperature": 0.1, "top_k": 50}))
    assert sampling_for(request(), cool, 5).temperature == 0.1
    assert sampling_for(request(), cool, 5).top_k == 50
    assert sampling_for(request(temperature=0.7, top_k=-1), cool, 5).temperature == 0.7
    assert sampling_for(request(top_k=-1), cool, 5).top_k == 0


def test_an_absent_seed_is_random_and_a_given_one_is_kept(card: ModelCard) -> None:
    seeds = {sampling_for(request(), card, 5).seed for _ in range(10)}
    assert len(seeds) == 10
    assert sampling_for(request(seed=42), card, 5).seed == 42
    assert sampling_for(request(seed=-1), card, 5).seed == (1 << 64) - 1


@pytest.mark.parametrize("key", ["x", "-1", "448", "1.5", "", "٣", "0" * 30 + "999999999"])
def test_a_logit_bias_for_no_token_is_refused_by_its_key(card: ModelCard, key: str) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        sampling_for(request(logit_bias={key: 1}), card, 5)


def test_logit_bias_has_ids_and_limits(card: ModelCard) -> None:
    assert sampling_for(request(logit_bias={"7": -100, "9": 3}), card, 5).logit_bias == {7: -100.0, 9: 3.0}
    with pytest.raises(InvalidRequest, match="-100 to 100"):
        sampling_for(request(logit_bias={"7": -101}), card, 5)


def test_min_tokens_may_not_exceed_max_tokens(card: ModelCard) -> None:
    with pytest.raises(InvalidRequest, match="min_tokens"):
        sampling_for(request(min_tokens=6), card, max_tokens=5)


def test_a_prompt_that_fits_gets_what_is_asked_for() -> None:
    assert max_tokens_for(request(max_tokens=10), 90, 100, 0) == 10


def test_without_a_limit_the_rest_of_the_context_is_generated() -> None:
    assert max_tokens_for(request(), 90, 100, default=0) == 10
    assert max_tokens_for(request(), 10, 100, default=32) == 32
    assert max_tokens_for(request(), 90, 100, default=32) == 10


def test_too_much_output_is_refused_with_both_numbers() -> None:
    with pytest.raises(ContextTooLong) as caught:
        max_tokens_for(request(max_tokens=11), 90, 100, 0)
    assert caught.value.message.startswith("This model's maximum context length is 100 tokens. However, ")
    assert "101 tokens (90 in the messages, 11 in the completion)" in caught.value.message
    assert caught.value.code == "context_length_exceeded"


def test_too_long_a_prompt_is_refused_with_both_numbers() -> None:
    with pytest.raises(ContextTooLong, match=r"maximum context length is 100 tokens\. However, .* 100 tokens"):
        max_tokens_for(request(), 100, 100, 0)
