"""One line for each request: what it says, what it never says, and for which requests there is one."""

import json
import logging
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.router.serving import chat_body, image, picture, serving, tiers
from triptych.config import ObserveSettings
from triptych.errors import WorkerLost
from triptych.logs import JSONFormatter
from triptych.models.card import ModelCard
from triptych.router.observe.request_log import RequestLog

pytestmark = pytest.mark.anyio
SECONDS = 5.0
TRACE = "ab" * 16
TRACED = {"traceparent": f"00-{TRACE}-{'cd' * 8}-01"}


class Lines(logging.Handler):
    """What a router's lines would be on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JSONFormatter("router"))
        self.lines: queue.Queue[str] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put(self.format(record))

    def next(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads(self.lines.get(timeout=SECONDS))
        return line


@pytest.fixture
def lines() -> Iterator[Lines]:
    with listening("triptych.router.observe.request_log") as handler:
        yield handler


@contextmanager
def listening(name: str) -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


async def test_a_request_has_one_line_that_says_how_it_went_and_nothing_of_what_was_asked(
    card: ModelCard, lines: Lines
) -> None:
    workers, observe = tiers(card, "e", "p", "d"), ObserveSettings(log_format="json")
    async with serving(card, workers, observe=observe, api_keys=("alice=the-key",)) as served:
        headers = {"authorization": "Bearer the-key", "x-request-id": "r-1", **TRACED}
        text = {"type": "text", "text": "the prompt"}
        body = chat_body([picture(), text], max_tokens=3)
        await served.client.post("/v1/chat/completions", json=body, headers=headers)
        line = lines.next()
        assert (line["request_id"], line["tenant"], line["status"]) == ("r-1", "alice", 200)
        assert (line["endpoint"], line["model"], line["state"]) == ("/v1/chat/completions", "tiny_vl", "finished")
        assert (line["images"], line["cached_items"], line["completion_tokens"]) == (1, 0, 3)
        assert line["retries"] == []
        assert line["trace_id"] == TRACE
        assert {placed["why"] for placed in line["workers"]} == {"least_queued", "most_free"}
        assert line["first_token_seconds"] == pytest.approx(sum(line["stages"].values()), abs=1e-4)
        assert not [secret for secret in ("the-key", "the prompt", "base64") if secret in json.dumps(line)]
        assert lines.lines.empty()
        assert all(worker.log_ids == {"r-1"} for worker in workers)
        assert all(TRACE in worker.traceparents.pop() for worker in workers)


async def test_what_fails_or_is_slow_has_a_line_whatever_the_share(card: ModelCard, lines: Lines) -> None:
    observe = ObserveSettings(log_format="json", log_share=0.0)
    async with serving(card, tiers(card, "epd"), observe=observe) as served:
        await served.chat()
        served.client.headers.update(TRACED)
        await served.chat([image(b"no image")])
        line = lines.next()
        assert (line["status"], line["error"], line["trace_id"]) == (400, "InvalidMedia", TRACE)
        assert "stages" not in line
    observe = ObserveSettings(log_format="json", log_share=0.0, slow_seconds=1e-9)
    async with serving(card, tiers(card, "epd"), observe=observe) as served:
        await served.chat()
        assert lines.next()["status"] == 200


async def test_the_line_of_several_prompts_tells_what_they_have_taken_together(card: ModelCard, lines: Lines) -> None:
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(log_format="json")) as served:
        asked = {"model": "tiny_vl", "prompt": ["hello", "hello there", "bye"], "max_tokens": 4}
        usage = (await served.client.post("/v1/completions", json=asked)).json()["usage"]
        line = lines.next()
    assert usage["completion_tokens"] == 12
    assert {name: line[name] for name in ("prompt_tokens", "completion_tokens")} == {
        name: usage[name] for name in ("prompt_tokens", "completion_tokens")
    }


async def test_whatever_else_a_router_says_of_a_request_names_it_too(card: ModelCard) -> None:
    headers = {"x-request-id": "r-1", **TRACED}
    with listening("triptych.router.edge.failures") as lines:
        async with serving(card) as served:
            for stream in (False, True):
                body = chat_body(stream=stream)
                assert (await served.client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 503
        found = [lines.next() for _ in range(2)]
    assert [(line["request_id"], line["trace_id"]) for line in found] == [("r-1", TRACE)] * 2
    with listening("triptych.router.pipeline.pipeline") as lines:
        workers = tiers(card, "e", "p", "p", "d")
        async with serving(card, workers) as served:
            for worker in workers[1:3]:
                worker.fail_prefill.append(WorkerLost("as told"))
            await served.client.post("/v1/chat/completions", json=chat_body(max_tokens=2), headers=headers)
        line = lines.next()
    assert "is tried again" in line["message"]
    assert (line["request_id"], line["trace_id"]) == ("r-1", TRACE)


def test_lines_that_nobody_can_follow_are_dropped_and_counted() -> None:
    log = RequestLog(ObserveSettings(log_format="json"), most_queued=2)
    for _ in range(5):
        log.write({"seconds": 0.1}, 200, None)
    assert log.num_dropped == 3
