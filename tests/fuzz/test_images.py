"""Broken files all the way: the encoder refuses what the router's look at the header lets through."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from tests.fuzz import strategies as ours
from tests.fuzz.conftest import check_answer
from tests.journey.messages import image
from tests.served import Served, served_model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_model(tmp_path_factory.mktemp("fuzz")) as served:
        yield served


@settings(max_examples=500)
@given(ours.images())
def test_broken_images_are_refused_or_read(served: Served, data: bytes) -> None:
    response = served.chat(image(data), "What?", max_tokens=1)
    check_answer(response)
    assert response.status_code in (200, 400), response.text


def test_the_cluster_is_as_good_as_before(served: Served) -> None:
    assert served.text(image(ours.FILES["png"]), "What colour is the shape?") == "red"
    assert served.cluster.busy() == []
