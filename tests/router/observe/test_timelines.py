"""Where a request's time went: told in headers, kept for a while, and shown to those whom it concerns."""

import asyncio
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.router.serving import Served, chat_body, picture, serving, tiers
from triptych.cli import main
from triptych.config import ObserveSettings
from triptych.models.card import ModelCard
from triptych.router.observe.critical_path import critical_path, stage_seconds
from triptych.router.observe.timeline import Span, Timeline
from triptych.stages import TIMED_STAGES

pytestmark = pytest.mark.anyio
KEYS = ("alice=one", "bob=two")


def timings(header: str) -> dict[str, float]:
    pairs = (entry.split(";dur=") for entry in header.split(", "))
    return {stage: float(milliseconds) / 1000 for stage, milliseconds in pairs}


async def streamed(served: Served, content: Any, **headers: str) -> tuple[httpx.Response, list[str]]:
    body = chat_body(content, stream=True, max_tokens=4)
    response = await served.client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response, response.text.removesuffix("\n\n").split("\n\n")


async def test_a_stream_tells_what_is_known_at_its_first_token_and_the_rest_at_its_end(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        response, frames = await streamed(served, [picture()], **{"x-triptych-timeline": "1"})
        first = timings(response.headers["server-timing"])
        total = first.pop("first_token")
        assert sum(first.values()) == pytest.approx(total, abs=1e-4)  # each is rounded
        assert {"receive", "fetch", "hash", "sniff", "encode", "prefill"} <= first.keys()
        assert frames[-1] == "data: [DONE]"
        (comment,) = [frame for frame in frames if frame.startswith(": server-timing ")]
        assert comment == frames[-2]
        last = timings(comment.removeprefix(": server-timing "))
        assert {"respond", "handover", "first_decode", "decode"} <= last.keys()
        assert not [frame for frame in (await streamed(served, "hello"))[1] if frame.startswith(":")]


async def test_the_timeline_of_a_request_names_every_moment_until_its_first_token(card: ModelCard) -> None:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        await streamed(served, [picture(), picture("two-shapes.png")], **{"x-request-id": "a/b"})
        told = (await served.client.get("/v1/requests/a/b/timeline")).json()
        path = told["path"]
        assert path[0]["begin"] == 0
        assert all(one["end"] == pytest.approx(other["begin"], abs=1e-9) for one, other in pairwise(path))
        until = path[-1]["begin"] if path[-1]["stage"] == "respond" else path[-1]["end"]
        assert until == told["first_token_seconds"]
        assert told["state"] == "finished"
        assert told["images"] == 2
        assert {placed["role"] for placed in told["workers"]} == {"encode", "prefill", "decode"}
        assert {span["stage"] for span in told["spans"]} <= {stage.name for stage in TIMED_STAGES}
        assert {(span["tier"], span["item"]) for span in told["spans"] if span["stage"] == "encode"} == {
            ("encode", 0),
            ("encode", 1),
        }
        assert all(0 <= span["off_by"] < told["seconds"] for span in told["spans"])


async def test_a_trace_has_each_tier_as_a_process_and_leads_from_one_to_the_next(
    card: ModelCard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(card, tiers(card, "e", "p", "d")) as served:
        await streamed(served, [picture()], **{"x-request-id": "traced"})
        began = time.time()
        trace = (await served.client.get("/v1/requests/traced/timeline?format=chrome")).json()
        events = trace["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        assert list(names.values()) == ["router", "encode e-0", "prefill p-1", "decode d-2"]
        tracks = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        slices = [event for event in events if event["ph"] == "X"]
        assert all((event["pid"], event["tid"]) in tracks for event in slices)
        assert all(event["dur"] >= 0 and abs(event["ts"] / 1e6 - began) < 60 for event in slices)
        (encode,) = [event for event in slices if event["name"] == "encode" and event["pid"] > 1]
        assert tracks[encode["pid"], encode["tid"]] == "image 0"
        flows: dict[int, dict[str, Any]] = {}
        for event in events:
            if event["ph"] in "sf":
                flows.setdefault(event["id"], {})[event["ph"]] = event
        assert all(flow["s"]["ts"] <= flow["f"]["ts"] for flow in flows.values())
        ways = {(names[flow["s"]["pid"]][:6], names[flow["f"]["pid"]][:6]) for flow in flows.values()}
        assert {("router", "encode"), ("router", "prefil"), ("router", "decode"), ("prefil", "decode")} <= ways
        shown = await asyncio.to_thread(main, ["timeline", "traced", "--url", served.base_url])
        written = ["timeline", "traced", "--url", served.base_url, "--trace", str(tmp_path / "trace.json")]
        assert (shown, await asyncio.to_thread(main, written)) == (0, 0)
        assert json.loads((tmp_path / "trace.json").read_text()) == trace
        assert "finished: first token after" in capsys.readouterr().out
        refused = await served.client.get("/v1/requests/traced/timeline?format=svg")
        assert refused.status_code == 400


async def test_only_who_asked_a_request_and_operators_see_its_timeline(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd"), api_key="operator", api_keys=KEYS) as served:

        def of(key: str, **more: str) -> dict[str, str]:
            return {"authorization": f"Bearer {key}", **more}

        asked = {"x-request-id": "mine"}
        await served.client.post("/v1/chat/completions", json=chat_body(max_tokens=1), headers=of("one", **asked))
        path = "/v1/requests/mine/timeline"
        assert (await served.client.get(path)).status_code == 401
        assert (await served.client.get(path, headers=of("one"))).status_code == 200
        assert (await served.client.get(path, headers=of("operator"))).status_code == 200
        other = await served.client.get(path, headers=of("two"))
        assert (other.status_code, other.json()["error"]["code"]) == (404, "timeline_not_found")


async def test_old_timelines_make_room_and_are_told_from_those_that_never_were(card: ModelCard) -> None:
    async with serving(card, tiers(card, "epd"), observe=ObserveSettings(timelines=2)) as served:
        for name in ("a", "b", "c"):
            await streamed(served, "hello", **{"x-request-id": name})
        found = {name: await served.client.get(f"/v1/requests/{name}/timeline") for name in ("a", "b", "c", "d")}
        assert {name: one.status_code for name, one in found.items()} == {"a": 410, "b": 200, "c": 200, "d": 404}
        assert [entry["id"] for entry in served.router.recent.recent()] == ["c", "b"]
        assert json.dumps(served.router.recent.recent()[0])


def test_what_overlaps_counts_once_and_the_path_follows_what_was_waited_for() -> None:
    """Text is computed while the image is encoded; the rows come later, and the last step waits for them."""
    timeline = Timeline(started_at=time.perf_counter() - 1.0)
    spans = [
        ("parse", 0.0, 0.1, "", -1),
        ("prefill_queue", 0.12, 0.13, "p", -1),
        ("prefill", 0.13, 0.3, "p", -1),  # of the text
        ("encode_queue", 0.15, 0.2, "e", 0),
        ("preprocess", 0.2, 0.4, "e", 0),
        ("encode", 0.4, 0.7, "e", 0),
        ("encode_queue", 0.7, 0.705, "e", 0),
        ("prefill_wait", 0.3, 0.8, "p", -1),
        ("rows_transfer", 0.72, 0.75, "p", 0),
        ("prefill", 0.8, 0.9, "p", -1),
    ]
    timeline.spans = [Span(*span) for span in spans]
    timeline.first_token = 0.95
    path = critical_path(timeline)
    assert [part.stage for part in path] == [
        *("parse", "wire", "prefill_queue", "wire", "encode_queue", "preprocess", "encode", "encode_queue"),
        *("wire", "rows_transfer", "prefill_wait", "prefill", "wire"),
    ]
    assert sum(stage_seconds(path).values()) == pytest.approx(0.95)
    assert timeline.seconds["prefill"] == pytest.approx(0.27)


def test_lines_at_a_worker_of_all_roles_come_in_the_order_in_which_they_began() -> None:
    timeline = Timeline(started_at=time.perf_counter() - 1.0)
    timeline.spans = [
        Span("prefill_wait", 0.1, 0.2, "epd"),
        Span("encode_queue", 0.15, 0.4, "epd", 0),
        Span("prefill", 0.4, 0.5, "epd"),
    ]
    timeline.first_token = 0.5
    assert [part.stage for part in critical_path(timeline)] == ["wire", "prefill_wait", "encode_queue", "prefill"]
