"""Answers of a prescribed form over HTTP, from three tiers of real processes; a decode worker that dies on the way."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from bench.grammar_schemas import PERSON, SCHEMAS
from tests.journey.clusters import Running, events
from tests.journey.messages import user
from tests.served import MODEL, Served, served_model, shown
from triptych.journey import Role


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("grammars")
    with served_model(folder) as running:
        yield running


def form(rules: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": rules, "strict": True}}


def test_samples_of_every_schema_are_valid_over_http(served: Served) -> None:
    def ask(number: int) -> dict[str, Any]:
        wishes = {"response_format": form(SCHEMAS[number % 20]), "temperature": 1, "seed": number, "max_tokens": 400}
        picture = [shown()] if number % 4 == 0 else []
        answer: dict[str, Any] = served.answer(*picture, "What is this?", **wishes)
        return answer

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(40)))
    for number, answer in enumerate(answers):
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "stop", choice
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMAS[number % 20])


def test_each_choice_is_of_the_form(served: Served) -> None:
    body = served.answer("Who?", response_format=form(PERSON), temperature=1, seed=3, n=4, max_tokens=200)
    texts = [choice["message"]["content"] for choice in body["choices"]]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(texts)) > 1


def test_continued_texts_keep_to_a_form_too(served: Served) -> None:
    body = {"model": MODEL, "prompt": ["Is it red?", "Is it blue?"], "guided_choice": ["yes", "no"], "temperature": 1}
    told = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert told.status_code == 200, told.text
    assert {choice["text"] for choice in told.json()["choices"]} <= {"yes", "no"}
    assert {choice["finish_reason"] for choice in told.json()["choices"]} == {"stop"}


def test_a_schema_that_cannot_be_kept_to_is_refused_by_name(served: Served) -> None:
    refused = served.chat("Who?", response_format=form({"type": "array", "uniqueItems": True}))
    assert refused.status_code == 400
    assert "uniqueItems" in refused.json()["error"]["message"]


def test_a_stream_goes_on_in_its_grammar_where_its_decode_worker_died(cluster: Running) -> None:
    body = {"model": "m", "messages": [user("Count.")], "max_tokens": 500, "temperature": 1, "seed": 5}
    body |= {"guided_regex": "([0-9]{1,4}, ){250}[0-9]{1,4}", "ignore_eos": True, "stream": True}
    wanted, _ = streamed(cluster, body)
    address = next(address for address in cluster.addresses() if Role.DECODE in address.roles)
    received, killed = streamed(cluster, body, address.pid)
    assert killed
    assert received == wanted
    assert re.fullmatch("[0-9]{1,4}(, [0-9]{1,4})*(, ?)?", received)
    cluster.wait_for_successor(address)
    cluster.seconds_until_idle(20)


def streamed(cluster: Running, body: dict[str, Any], kill: int = 0) -> tuple[str, bool]:
    """The text of an answer; kill: the process that is killed once some of it is there."""
    received, killed = "", False
    with cluster.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        for data in events(response):
            if data == "[DONE]":
                return received, killed
            event = json.loads(data)
            assert "error" not in event, event
            received += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if kill and not killed and len(received) > 100:
                os.kill(kill, signal.SIGKILL)
                killed = True
    raise AssertionError("the stream broke off")
