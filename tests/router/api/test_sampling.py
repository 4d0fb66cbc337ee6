"""What the client leaves open, and what the context leaves."""

import dataclasses
import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from triptych import wire
from triptych.errors import ContextTooLong, InvalidRequest
from triptych.models.card import ModelCard
from triptych.router.api.sampling import max_tokens_for, sampling_for
from triptych.router.api.schema import Chat, ChatRequest


def request(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return Chat.parse(json.dumps(body).encode()).request


def test_the_apis_own_defaults_hold_where_the_model_has_none(card: ModelCard) -> None:
    sampling = sampling_for(request(), card, max_tokens=5)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert sampling.stop_token_ids == card.eos_token_ids


def test_the_models_defaults_hold_where_the_client_says_nothing(card: ModelCard) -> None:
    cool = dataclasses.replace(card, default_sampling=MappingProxyType({"temperature": 0.25, "top_k": 50}))
    assert sampling_for(request(), cool, 5).temperature == 0.25
    assert sampling_for(request(), cool, 5).top_k == 50
    assert sampling_for(request(temperature=0.75, top_k=-1), cool, 5).temperature == 0.75
    assert sampling_for(request(top_k=-1), cool, 5).top_k == 0


def test_an_absent_seed_is_random_and_a_given_one_is_kept(card: ModelCard) -> None:
    seeds = {sampling_for(request(), card, 5).seed for _ in range(10)}
    assert len(seeds) == 10
    assert sampling_for(request(seed=42), card, 5).seed == 42
    assert sampling_for(request(seed=-1), card, 5).seed == (1 << 64) - 1


@pytest.mark.parametrize("key", ["x", "-1", "{vocab_size}", "1.5", "", "٣", "0" * 30 + "999999999"])
def test_a_logit_bias_for_no_token_is_refused_by_its_key(card: ModelCard, key: str) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        sampling_for(request(logit_bias={key.format(vocab_size=card.vocab_size): 1}), card, 5)


def test_logit_bias_has_ids_and_limits(card: ModelCard) -> None:
    assert sampling_for(request(logit_bias={"7": -100, "9": 3}), card, 5).logit_bias == {7: -100.0, 9: 3.0}
    with pytest.raises(InvalidRequest, match="-100 to 100"):
        sampling_for(request(logit_bias={"7": -101}), card, 5)


@pytest.mark.parametrize(
    ("asked", "name", "found"),
    [
        ({"temperature": 1e-300}, "temperature", 0.0),
        ({"temperature": 1e-30}, "temperature", 0.0),
        ({"temperature": 1e-6}, "temperature", float(np.float32(1e-6))),
        ({"top_p": 1e-300}, "top_p", float(np.float32(1e-6))),
        ({"top_p": 1e-46}, "top_p", float(np.float32(1e-6))),
        ({"top_p": 1 - 1e-12}, "top_p", 1.0),
        ({"min_p": 1e-300}, "min_p", 0.0),
        ({"presence_penalty": 1e-300}, "presence_penalty", 0.0),
        ({"repetition_penalty": 0.01}, "repetition_penalty", float(np.float32(0.01))),
        ({"logit_bias": {"3": 0.1}}, "logit_bias", {3: float(np.float32(0.1))}),
    ],
)
def test_extremes_mean_the_same_to_every_tier(card: ModelCard, asked: dict[str, Any], name: str, found: Any) -> None:
    sampling = sampling_for(request(**asked), card, 5)
    assert getattr(sampling, name) == found
    assert wire.sampling_from_pb(wire.sampling_to_pb(sampling)) == sampling


@pytest.mark.parametrize("penalty", [0, -1, 1e-320, 1e-46, 1e-38, 0.009, 100.1])
def test_a_repetition_penalty_that_would_leave_float32_is_refused(penalty: float) -> None:
    with pytest.raises(InvalidRequest, match="repetition_penalty"):
        request(repetition_penalty=penalty)


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
