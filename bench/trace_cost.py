"""What making and sending one request's spans takes: python -m bench.trace_cost [--output FILE].

A request with an image has ended: 23 stages and 4 calls, so 28 spans. They are made, encoded and posted to a collector
on loopback, for requests one by one and for as many as a busy router sends at once. Processor time of the thread that
sends, so that the collector does not show.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench.timeline_cost import Collector
from tests.web import WebServer
from triptych.loadgen.provenance import provenance
from triptych.router.observe.otlp import OtlpSender
from triptych.router.observe.recent import Entry
from triptych.router.observe.timeline import Call, Span, Timeline
from triptych.router.observe.trace_context import TraceContext, new_trace
from triptych.stages import TIMED_STAGES, Tier

AT_ONCE = (1, 32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with WebServer(Collector) as collector:
        sender = OtlpSender(f"{collector.url}/v1/traces", "model")
        figures = {count: seconds_per_request(sender, count, options.rounds) for count in AT_ONCE}
        sender.close()
    report: dict[str, Any] = {
        "what": {"rounds": options.rounds, "spans": 1 + len(ended().timeline.spans) + len(ended().timeline.calls)},
        "cpu_seconds_per_request_by_requests_at_once": {count: round(each, 7) for count, each in figures.items()},
        **provenance(),
    }
    print(json.dumps(report["cpu_seconds_per_request_by_requests_at_once"]))
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def seconds_per_request(sender: OtlpSender, count: int, rounds: int) -> float:
    """Median of the rounds."""
    batch: list[tuple[Entry, TraceContext]] = [(ended(), new_trace()) for _ in range(count)]
    seconds = []
    for _ in range(rounds):
        began = time.thread_time()
        assert sender.send(batch)
        seconds.append((time.thread_time() - began) / count)
    return statistics.median(seconds)


def ended() -> Entry:
    """Each stage once, as a worker of its tier tells it."""
    timeline = Timeline()
    for number, stage in enumerate(TIMED_STAGES[:-1]):
        began = 0.02 * number
        worker = "" if stage.tier is Tier.ROUTER else f"{stage.tier}-0"
        timeline.spans.append(Span(stage.name, began, began + 0.01, worker, 0 if stage.tier is Tier.ENCODE else -1))
    timeline.calls += [Call(role, f"{role}-0", 0.1, 0.6, 0.001) for role in ("encode", "prefill", "decode", "decode")]
    timeline.first_token = 0.3
    return Entry("0123456789abcdef", "tenant", "/v1/chat/completions", timeline, None, 1, 99_999, 300, 100, seconds=0.6)


if __name__ == "__main__":
    sys.exit(main())
