"""schemathesis asks for everything that our own description of the API allows."""

from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.conftest import ANSWER_SECONDS, Target

CASES = 800
PATHS = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/v1/models"}


@pytest.fixture(scope="module")
def operations(target: Target) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{target.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in found} >= PATHS
    return found


def test_what_is_described_never_hurts(target: Target, operations: list[Any]) -> None:
    @settings(max_examples=CASES)
    @given(st.one_of([operation.as_strategy() for operation in operations]))
    def ask(case: Any) -> None:
        response = case.call(base_url=target.url, timeout=ANSWER_SECONDS)
        assert response.status_code < 500, f"{case.method} {case.path}: {response.status_code} {response.text[:300]}"

    ask()
