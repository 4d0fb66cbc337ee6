"""The API's page says what the schemas say, and so does its description."""

import pytest

from tests.router.serving import serving
from tools.api_page import PAGE, page, rows_of
from triptych.models.card import ModelCard
from triptych.router.api.described import POSTS, Described

ENDPOINTS = pytest.mark.parametrize("endpoint", POSTS, ids=[endpoint.path for endpoint in POSTS])


def test_the_committed_page_is_what_is_generated() -> None:
    assert PAGE.read_text() == page(), "run: python -m tools.api_page"


@ENDPOINTS
def test_every_field_of_the_schemas_is_on_the_page_once_with_a_text(endpoint: Described) -> None:
    rows = list(rows_of(endpoint))
    names = [name for name, _, _ in rows]
    assert len(set(names)) == len(names)
    assert set(endpoint.request.model_fields) <= set(names)
    assert set(endpoint.ignored) | set(endpoint.refused) | set(endpoint.nested) <= set(names)
    assert [name for name, _, text in rows if not text] == []


@ENDPOINTS
def test_what_is_ignored_is_read_by_nobody(endpoint: Described) -> None:
    assert not set(endpoint.ignored) & set(endpoint.request.model_fields)


@ENDPOINTS
def test_what_is_refused_is_looked_for(endpoint: Described) -> None:
    assert set(endpoint.refused) <= set(endpoint.request.model_fields)


@pytest.mark.anyio
async def test_the_description_has_every_body_and_every_error(card: ModelCard) -> None:
    async with serving(card) as served:
        document = (await served.client.get("/openapi.json")).json()
    for endpoint in POSTS:
        operation = document["paths"][endpoint.path]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
        assert set(schema["properties"]) == set(endpoint.request.model_fields)
        assert {"200", "400", "401", "404", "413", "415", "429", "503"} <= set(operation["responses"])
        assert "422" not in operation["responses"]
