"""Structured output over HTTP: whatever the model would rather say, the answer is valid."""

import json
from typing import Any

import jsonschema
import pytest

from bench.grammar_schemas import SCHEMAS
from tests.served import Served

SAMPLES = 10


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_answers_are_valid_in_every_sample(served: Served, number: int) -> None:
    schema = SCHEMAS[number]
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    fields: dict[str, Any] = {"response_format": wanted, "temperature": 1.0, "max_tokens": 400}
    choices = [
        choice
        for seed in (1, 2)
        for choice in served.answer("Say something.", n=SAMPLES // 2, seed=seed, **fields)["choices"]
    ]
    assert len(choices) == SAMPLES
    for choice in choices:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_schemas_are_twenty() -> None:
    assert len(SCHEMAS) == 20
