"""One line for each request: what it says, what it never says, and for which requests there is one."""

import json
import logging
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from tests.router.serving import chat_body, image, picture, serving, tiers
from triptych.config import ObserveSettings
from triptych.logs import JSONFormatter
from triptych.models.card import ModelCard
from triptych.router.request_log import RequestLog

pytestmark = pytest.mark.anyio
SECONDS = 5.0


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
    handler, logger = Lines(), logging.getLogger("triptych.router.request_log")
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
    trace = "ab" * 16
    async with serving(card, workers, observe=observe, api_keys=("alice=the-key",)) as served:
        headers = {"authorization": "Bearer the-key", "x-request-id": "r-1", "traceparent": f"00-{trace}-{'cd' * 8}-01"}
        text = {"type": "text", "text": "the prompt"}
        body = chat_body([picture(), text], max_tokens=3)
        await served.client.post("/v1/chat/completions", json=body, headers=headers)
        line = lines.next()
        assert (line["request_id"], line["tenant"], line["status"]) == ("r-1", "alice", 200)
        assert (line["endpoint"], line["model"], line["state"]) == ("/v1/chat/completions", "tiny_vl", "finished")
        assert (line["images"], line["cached_items"], line["completion_tokens"]) == (1, 0, 3)
        assert line["retries"] == []
        assert line["trace_id"] == trace
        assert {placed["why"] for placed in line["workers"]} == {"least_queued", "most_free"}
        assert line["first_token_seconds"] == pytest.approx(sum(line["stages"].values()), abs=1e-4)
        assert not [secret for secret in ("the-key", "the prompt", "base64") if secret in json.dumps(line)]
        assert lines.lines.empty()
        assert all(worker.log_ids == {"r-1"} for worker in workers)
        assert all(trace in worker.traceparents.pop() for worker in workers)


async def test_what_fails_or_is_slow_has_a_line_whatever_the_share(card: ModelCard, lines: Lines) -> None:
    observe = ObserveSettings(log_format="json", log_share=0.0)
    async with serving(card, tiers(card, "epd"), observe=observe) as served:
        await served.chat()
        await served.chat([image(b"no image")])
        line = lines.next()
        assert (line["status"], line["error"]) == (400, "InvalidMedia")
        assert "stages" not in line
    observe = ObserveSettings(log_format="json", log_share=0.0, slow_seconds=1e-9)
    async with serving(card, tiers(card, "epd"), observe=observe) as served:
        await served.chat()
        assert lines.next()["status"] == 200


def test_lines_that_nobody_can_follow_are_dropped_and_counted() -> None:
    log = RequestLog(ObserveSettings(log_format="json"), most_queued=2)
    for _ in range(5):
        log.write({"seconds": 0.1}, 200, None)
    assert log.num_dropped == 3
