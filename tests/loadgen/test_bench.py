"""What the client measures, against a server that knows what it did."""

import json
from typing import Any

import numpy as np
import pytest

from tests.loadgen.server import DONE, FINISH, ROLE, Answer, ScriptedServer, chunk, frame, text, usage, words
from triptych.errors import ClusterError
from triptych.loadgen.bench import BenchResult, render, run_bench
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.samples import Sample

SLACK = 0.1  # seconds that a busy machine may add to anything


def bench(answer: Answer, **options: Any) -> BenchResult:
    with ScriptedServer(lambda body: answer) as server:
        return run_bench(small(server.url, **options))


def small(url: str, **options: Any) -> BenchOptions:
    chosen: dict[str, Any] = {"model": "m", "requests": 1, "images": 0, "warmup": 0, "max_tokens": 3}
    return BenchOptions(url=url, **(chosen | options))


def only_sample(answer: Answer, **options: Any) -> Sample:
    (sample,) = bench(answer, **options).samples
    return sample


def test_times_are_those_of_the_server() -> None:
    with ScriptedServer(lambda body: Answer(words(4, first_after=0.15, gap=0.05))) as server:
        (sample,) = run_bench(small(server.url, max_tokens=4)).samples
        (visit,) = server.visits
    wrote = np.array(visit.written[1:5]) - visit.arrived  # behind the role chunk
    assert sample.ttft == pytest.approx(wrote[0], abs=SLACK)
    assert sample.ttft >= 0.15
    assert np.diff(sample.chunks) == pytest.approx(np.diff(wrote), abs=SLACK)
    assert sample.tpot == pytest.approx((wrote[-1] - wrote[0]) / 3, abs=SLACK / 3)
    assert sample.ended >= sample.chunks[-1]


def test_a_run_that_takes_long_says_how_far_it_is() -> None:
    told: list[str] = []
    with ScriptedServer(lambda body: Answer(words(3, first_after=0.3))) as server:
        run_bench(small(server.url, requests=2, warmup=1), told.append, told_every=0.1)
    assert told[:3] == ["making 0 pictures", "warming up with 1 requests", "sending 2 requests"]
    assert "1 of 2 have ended" in told


def test_overhead_on_a_quiet_path_is_small() -> None:
    with ScriptedServer(lambda body: Answer(words(2))) as server:
        result = run_bench(small(server.url, requests=50, max_tokens=2))
        served = [visit.written[1] - visit.arrived for visit in server.visits]
    added = np.median([sample.ttft for sample in result.samples]) - np.median(served)
    assert added < 0.01


def test_the_clock_starts_with_the_request_and_not_before() -> None:
    with ScriptedServer(lambda body: Answer(words(1))) as server:
        result = run_bench(small(server.url, requests=20, concurrency=1, max_tokens=1))
    assert all(sample.ended < SLACK for sample in result.samples)
    assert result.measures.duration_seconds < 20 * SLACK


def test_a_role_chunk_is_not_the_first_token() -> None:
    sample = only_sample(Answer([ROLE, 0.1, text("a"), FINISH, DONE]), max_tokens=1)
    assert sample.ttft >= 0.1


def test_output_tokens_are_the_servers_count() -> None:
    sample = only_sample(Answer([ROLE, text("two at once"), text("one"), FINISH, usage(11, 3), DONE]))
    assert (sample.output_tokens, sample.prompt_tokens) == (3, 11)


def test_without_usage_content_chunks_are_counted() -> None:
    assert only_sample(Answer([ROLE, text("a"), text("b"), FINISH, DONE])).output_tokens == 2


def test_an_answer_without_text_has_its_finish_chunk_as_first_token() -> None:
    sample = only_sample(Answer([ROLE, 0.1, FINISH, usage(5, 1), DONE]), max_tokens=1)
    assert sample.ttft >= 0.1
    assert (sample.error, sample.tpot) == ("", None)


def test_tokens_without_text_count_when_they_come_and_when_they_are_held_back() -> None:
    empty = chunk({"content": ""})
    sent = only_sample(Answer([ROLE, 0.1, empty, 0.1, text("a"), FINISH, usage(5, 2), DONE]), max_tokens=2)
    assert len(sent.chunks) == 2
    assert sent.ttft < 0.1 + SLACK
    held = only_sample(Answer([ROLE, text("a"), 0.2, FINISH, usage(5, 3), DONE]))
    assert len(held.chunks) == 1
    assert held.tpot == pytest.approx(0.1, abs=SLACK / 2)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer([ROLE, text("a"), frame({"error": {"message": "lost"}}, "error")]), "stream: error frame"),
        (Answer([ROLE, text("a"), frame({"error": {"message": "lost"}}), DONE]), "stream: error frame"),
        (Answer([ROLE, text("a"), DONE]), "stream: no finish_reason"),
        (Answer([ROLE, text("a"), FINISH]), "stream: no [DONE]"),
        (Answer([ROLE, text("a"), FINISH, b"data: [DONE]"]), "stream: no [DONE]"),
        (Answer([]), "stream: no finish_reason"),
        (Answer([frame("not json"), FINISH, DONE]), "stream: not a chat chunk"),
        (Answer([frame("[1]"), FINISH, DONE]), "stream: not a chat chunk"),
        (Answer([ROLE, FINISH, DONE, text("late")]), "stream: an event behind [DONE]"),
        (Answer([b"data: \xff\n\n", FINISH, DONE]), "stream: a line is not UTF-8"),
        (Answer([b'{"choices": []}'], content_type="application/json"), "stream: content type is application/json"),
        (Answer([b"busy"], status=429, content_type="text/plain"), "http 429"),
        (Answer([b"broken"], status=500), "http 500"),
        (Answer([ROLE, text("a"), 5.0]), "timeout"),
    ],
)
def test_what_is_not_a_complete_answer_is_an_error(answer: Answer, error: str) -> None:
    result = bench(answer, timeout_seconds=0.5)
    assert result.samples[0].error.startswith(error)
    assert result.measures.errors == {error: 1}
    assert (result.measures.completed, result.measures.ttft_seconds) == (0, None)


def test_a_broken_connection_is_an_error() -> None:
    result = bench(Answer([ROLE, text("a")], hang_up=True))
    assert result.samples[0].error.startswith("connection: ClientPayloadError")


def test_a_server_that_is_not_there_is_an_error_for_each_request() -> None:
    with ScriptedServer(lambda body: Answer(words(1))) as server:
        gone = server.url
    assert bench_errors(gone) == 2
    with pytest.raises(ClusterError, match="no server answers"):
        run_bench(small(gone, model=""))


def bench_errors(url: str) -> int:
    return sum(run_bench(small(url, requests=2)).measures.errors.values())


def test_an_unnamed_model_is_the_first_the_server_lists() -> None:
    with ScriptedServer(lambda body: Answer(words(3))) as server:
        run_bench(small(f"{server.url}/v1", model="", api_key="secret"))
    assert [visit.body["model"] for visit in server.visits] == ["listed"]
    assert server.visits[0].headers["authorization"] == "Bearer secret"


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    with ScriptedServer(lambda body: Answer(words(3, first_after=0.02))) as server:
        result = run_bench(small(server.url, requests=12, concurrency=3))
    assert (server.most_at_once, result.measures.completed) == (3, 12)


def test_an_open_loop_does_not_wait_for_answers() -> None:
    with ScriptedServer(lambda body: Answer(words(3, first_after=0.4))) as server:
        result = run_bench(small(server.url, requests=10, rate=100.0))
    assert server.most_at_once >= 8
    sent = [sample.sent for sample in result.samples]
    assert sent == sorted(sent)
    assert result.measures.lateness_seconds is not None
    assert result.measures.lateness_seconds["p50"] < SLACK


def test_warm_up_requests_are_sent_and_not_measured() -> None:
    with ScriptedServer(lambda body: Answer(words(3))) as server:
        result = run_bench(small(server.url, requests=2, warmup=3, images=1, width=32, height=32))
    assert (len(server.visits), result.measures.requests) == (5, 2)
    pictures = [visit.body["messages"][0]["content"][0]["image_url"]["url"] for visit in server.visits]
    assert len(set(pictures)) == 5


def test_a_result_says_what_and_where_from_but_names_no_machine() -> None:
    with ScriptedServer(lambda body: Answer(words(3))) as server:
        result = run_bench(small(server.url, requests=2, slo_ttft_seconds=5.0, api_key="secret"))
    written = json.dumps(result.to_json())
    read = json.loads(written)
    assert set(read) == {"what", "measures", "machine", "versions", "commit", "date", "samples"}
    assert read["what"]["requests"] == len(read["samples"]) == read["measures"]["completed"] == 2
    assert read["machine"]["cores"] >= 1
    assert not [word for word in ("127.0.0.1", "secret", "/") if word in json.dumps(read["what"])]


def test_a_table_shows_times_rates_and_errors() -> None:
    answers = iter([Answer(words(3)), Answer([b"busy"], status=429)])
    with ScriptedServer(lambda body: next(answers)) as server:
        table = render(run_bench(small(server.url, requests=2, slo_ttft_seconds=5.0)))
    names = list(table.columns[0].cells)
    assert names[:4] == ["TTFT ms", "TPOT ms", "ITL ms", "E2E ms"]
    assert {"req/s", "output tok/s", "images/s", "SLO attainment", "completed", "error: http 429"} <= set(names)
