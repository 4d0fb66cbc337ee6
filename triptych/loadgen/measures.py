"""What many requests of one workload add up to.

Definitions (seconds; p50, p90, p99 are percentiles with linear interpolation):

    clock       starts when the client sends the request's first byte
    TTFT        first content chunk - start. A content chunk is an event whose delta carries generated text (content,
                reasoning or a tool call), or carries nothing and neither names the role nor ends the answer: a token
                that decodes to no text. A chunk that names the role and has no text is none
    ITL         each gap between two content chunks of one answer; chunk_tokens says how many tokens a chunk carries
    TPOT        (last - first content chunk) / (n - 1). Last is the later one of the last content chunk and the chunk
                with the finish_reason: servers hold back tokens without text, and the finish tells of the last one.
                n is the output tokens by the server's usage, or the number of content chunks where it sends none. An
                answer of one token has no TPOT, and passes its limit
    E2E         [DONE] - start
    completed   HTTP 200, an event stream with a finish_reason and [DONE] and neither an error frame nor anything that
                is not an event: whatever else comes back is an error, also when text came before it
    attained    completed with exactly the requested tokens, and TTFT, TPOT and E2E each <= its limit, where there is
                one; errors, time-outs and refusals are misses
    attainment  attained requests / all requests, with its Wilson 95 % interval
    goodput     attained requests / duration, at the rate that this run has offered. The goodput of a server is the
                largest rate whose attainment is the target's: several runs find it
    duration    first byte of the first request - end of the last one
    rates       of completed requests, over the duration: requests, output tokens, prompt tokens, images per second
    lateness    first byte - when the request was due (open loop): what the client itself got wrong
"""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triptych.loadgen.options import BenchOptions
from triptych.loadgen.samples import Sample

POINTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Measures:
    """Many samples of one workload; percentiles are None where nothing was measured."""

    requests: int
    completed: int
    short_answers: int  # completed, but not with exactly the requested tokens
    errors: dict[str, int]  # kind -> requests
    duration_seconds: float
    requests_per_second: float
    output_tokens_per_second: float
    prompt_tokens_per_second: float
    images_per_second: float
    ttft_seconds: dict[str, float] | None
    tpot_seconds: dict[str, float] | None
    itl_seconds: dict[str, float] | None
    e2e_seconds: dict[str, float] | None
    lateness_seconds: dict[str, float] | None
    chunk_tokens: float | None
    attainment: float | None  # None when no limit was given
    attainment_interval: tuple[float, float] | None
    goodput_requests_per_second: float | None  # None when no limit was given


def measure(samples: Sequence[Sample], options: BenchOptions, duration: float | None = None) -> Measures:
    """duration: seconds, where the samples come from several runs; else from the samples themselves."""
    good = [sample for sample in samples if not sample.error]
    if duration is None:
        duration = max(sample.sent + sample.ended for sample in samples) - min(sample.sent for sample in samples)
    chunks = sum(len(sample.chunks) for sample in good)
    tokens = sum(sample.output_tokens for sample in good)
    attained = sum(sample.attains(options) for sample in samples)
    limited = options.has_limits
    return Measures(
        requests=len(samples),
        completed=len(good),
        short_answers=sum(sample.output_tokens != options.max_tokens for sample in good),
        errors=dict(Counter(error_kind(sample.error) for sample in samples if sample.error)),
        duration_seconds=duration,
        requests_per_second=len(good) / duration,
        output_tokens_per_second=tokens / duration,
        prompt_tokens_per_second=sum(sample.prompt_tokens for sample in good) / duration,
        images_per_second=len(good) * options.images / duration,
        ttft_seconds=percentiles([sample.ttft for sample in good]),
        tpot_seconds=percentiles([sample.tpot for sample in good if sample.tpot is not None]),
        itl_seconds=percentiles([gap for sample in good for gap in np.diff(sample.chunks)]),
        e2e_seconds=percentiles([sample.ended for sample in good]),
        lateness_seconds=percentiles([sample.lateness for sample in samples]) if options.rate else None,
        chunk_tokens=tokens / chunks if chunks else None,
        attainment=attained / len(samples) if limited else None,
        attainment_interval=wilson_interval(attained, len(samples)) if limited else None,
        goodput_requests_per_second=attained / duration if limited else None,
    )


def error_kind(error: str) -> str:
    """What a failure has in common with others: `http 429`, `timeout`, `stream: no [DONE]`, ..."""
    parts = error.split(":")
    return ":".join(parts[:2]) if parts[0] in ("stream", "connection") else parts[0]


def words_of(error: str) -> str:
    """What a failure says beside its kind; of an answer in OpenAI's shape the message alone."""
    said = error.removeprefix(error_kind(error)).removeprefix(":").strip()
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(said)["error"]["message"])
    return " ".join(said.split())


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {f"p{point}": float(value) for point, value in zip(POINTS, np.percentile(values, POINTS), strict=True)}


def wilson_interval(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Where a share measured as hits / total lies with 95 % confidence."""
    share, spread = hits / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
