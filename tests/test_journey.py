"""The nouns check themselves: a sampling that holds is one every tier can sample by."""

import math
from typing import Any

import numpy as np
import pytest

from triptych import wire
from triptych.errors import InvalidRecord
from triptych.pb import common_pb2
from triptych.sampling import MOST_TOP_LOGPROBS, Sampling

NUMBERS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "top_logprobs"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -3, 1 << 64])
def test_a_number_outside_its_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRecord, match=name):
        Sampling(**{name: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 1.1},
        {"max_tokens": 0},
        {"min_tokens": 5, "max_tokens": 4},
        {"top_logprobs": MOST_TOP_LOGPROBS + 1},
        {"presence_penalty": 2.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-38},
        {"repetition_penalty": 101.0},
    ],
)
def test_what_lies_just_outside_is_refused_too(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        Sampling(**changes)


@pytest.mark.parametrize("bias", [math.nan, math.inf, -math.inf, 1e38, -100.5])
def test_a_bias_that_is_no_bias_is_refused_by_its_id(bias: float) -> None:
    with pytest.raises(InvalidRecord, match="logit_bias of 3"):
        Sampling(logit_bias={2: 1.0, 3: bias})


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 0.01},
        {"temperature": 2.0, "top_p": 1e-6, "min_p": 1.0, "repetition_penalty": 100.0},
        {"temperature": 1e-6, "presence_penalty": -2.0, "frequency_penalty": 2.0, "seed": (1 << 64) - 1},
        {"logit_bias": {0: -100.0, 1: 100.0}, "top_logprobs": MOST_TOP_LOGPROBS, "top_k": 1 << 30},
    ],
)
def test_what_holds_here_holds_behind_the_wire(changes: dict[str, Any]) -> None:
    single: dict[str, Any] = {
        name: float(np.float32(value)) if isinstance(value, float) else value for name, value in changes.items()
    }
    sampling = Sampling(**single)
    assert wire.sampling_from_pb(wire.sampling_to_pb(sampling)) == sampling


def test_a_message_that_says_nothing_is_refused_as_the_callers_fault() -> None:
    with pytest.raises(InvalidRecord) as caught:
        wire.sampling_from_pb(common_pb2.Sampling())
    assert caught.value.grpc_status == "INVALID_ARGUMENT"
