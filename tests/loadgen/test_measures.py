"""What many samples add up to, on samples made by hand."""

import pytest

from triptych.errors import ConfigError
from triptych.loadgen.measures import error_kind, measure, wilson_interval
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.samples import Sample

OPTIONS = BenchOptions(images=2, max_tokens=3, slo_ttft_seconds=1.0, slo_tpot_seconds=0.1)


def sample(sent: float = 0.0, first: float = 0.5, gap: float = 0.05, tokens: int = 3, error: str = "") -> Sample:
    chunks = () if error else tuple(first + gap * index for index in range(tokens))
    last = first + gap * (tokens - 1)
    return Sample(sent, 0.0, first + gap * tokens, chunks, last, tokens, 10, error)


def test_rates_count_completed_requests_over_the_whole_run() -> None:
    measures = measure([sample(0.0), sample(1.0), sample(2.0, error="timeout")], OPTIONS)
    assert measures.duration_seconds == pytest.approx(2.65)
    assert measures.requests_per_second == pytest.approx(2 / 2.65)
    assert measures.images_per_second == pytest.approx(4 / 2.65)
    assert measures.output_tokens_per_second == pytest.approx(6 / 2.65)
    assert measures.prompt_tokens_per_second == pytest.approx(20 / 2.65)


def test_percentiles_are_over_answers_and_gaps_over_chunks() -> None:
    measures = measure([sample(first=0.2), sample(first=0.4, gap=0.15)], OPTIONS)
    assert measures.ttft_seconds == pytest.approx({"p50": 0.3, "p90": 0.38, "p99": 0.398})
    assert measures.itl_seconds is not None
    assert measures.itl_seconds["p50"] == pytest.approx(0.1)
    assert measures.tpot_seconds is not None
    assert measures.tpot_seconds["p50"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("missed", "why"),
    [
        (sample(first=1.1), "late first token"),
        (sample(gap=0.11), "slow tokens"),
        (sample(tokens=2), "too short"),
        (sample(tokens=4), "too long"),
        (sample(error="http 429"), "refused"),
    ],
)
def test_a_miss_of_any_kind_is_not_attained(missed: Sample, why: str) -> None:
    assert measure([sample(), missed], OPTIONS).attainment == 0.5, why


def test_one_token_passes_the_limit_on_later_ones() -> None:
    options = BenchOptions(max_tokens=1, slo_tpot_seconds=1e-9)
    assert measure([sample(tokens=1)], options).attainment == 1.0


def test_without_limits_there_is_no_attainment() -> None:
    assert measure([sample()], BenchOptions(max_tokens=3)).attainment is None


def test_short_answers_are_counted_and_measured() -> None:
    measures = measure([sample(tokens=2), sample()], OPTIONS)
    assert (measures.completed, measures.short_answers) == (2, 1)
    assert measures.goodput_requests_per_second == pytest.approx(1 / measures.duration_seconds)


def test_the_interval_is_wilsons() -> None:
    low, high = wilson_interval(90, 100)
    assert (round(low, 3), round(high, 3)) == (0.826, 0.945)
    assert wilson_interval(0, 10)[0] == 0
    assert wilson_interval(10, 10)[1] == 1


def test_errors_of_one_kind_are_counted_together() -> None:
    assert error_kind("http 429: {'error': 1}") == error_kind("http 429: other") == "http 429"
    assert error_kind("stream: error frame: {}") == "stream: error frame"
    assert error_kind("timeout") == "timeout"


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests": 0},
        {"rate": 0.0},
        {"repeat_share": 1.0},
        {"url": "localhost"},
        {"images": 0, "text_tokens": 0},
        {"slo_ttft_seconds": -1.0},
    ],
)
def test_options_that_cannot_work_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=list(wrong)[-1]):
        BenchOptions(**wrong)  # type: ignore[arg-type]
