"""What counting one request takes, with nothing around it: python -m bench.metrics_alone [--output FILE].

A request of 20 stages and 32 tokens has ended; all that is counted of it is counted, its pace and its class of service
among it, and once for a hundred of them what a second brings. Processor time of this thread, so that a busy machine
does not show. `files` is as one of several routers counts. bench/metrics_cost.py has the same from outside, where the
noise of a whole router is larger than what is measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from triptych.config import Settings
from triptych.journey import Token, new_request_id
from triptych.loadgen.provenance import provenance
from triptych.metrics import FOLDER_VARIABLE, RouterMetrics
from triptych.multimodal.layout import TextPart, lay_out
from triptych.router.observe.router_books import RouterBooks
from triptych.router.observe.timeline import Span, Timeline
from triptych.router.pipeline.request import Prepared, Request
from triptych.sampling import Sampling
from triptych.stages import TIMED_STAGES, Stage

NUM_TOKENS = 32
A_SECOND = 100  # requests


def main() -> int:
    options = read_arguments()
    if options.child:
        print(seconds_per_request(options.requests))
        return 0
    figures = {"on": child(options.requests, ""), "files": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        figures["files"] = child(options.requests, folder)
    report: dict[str, Any] = {
        "what": {"requests": options.requests, "tokens": NUM_TOKENS, "requests_a_second": A_SECOND},
        "cpu_seconds_per_request": {name: round(seconds, 7) for name, seconds in figures.items()},
        **provenance(),
    }
    print(json.dumps(report["cpu_seconds_per_request"]))
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", action="store_true", help="be the process that is measured")
    return parser.parse_args()


def child(num_requests: int, folder: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != FOLDER_VARIABLE}
    if folder:
        environment[FOLDER_VARIABLE] = folder
    command = [sys.executable, "-m", "bench.metrics_alone", "--child", "--requests", str(num_requests)]
    return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout)


def seconds_per_request(count: int) -> float:
    metrics = RouterMetrics()
    books = RouterBooks(Settings(), metrics, "model")
    ended = [ended_request() for _ in range(count)]
    books.requests.add(ended_request())  # a busy router: one that is idle books what there is with each end
    began = time.thread_time()
    for number, request in enumerate(ended):
        books.began(request)
        for _ in range(NUM_TOKENS - 1):
            metrics.observe("triptych:inter_token_latency_seconds", 0.01)
        metrics.observe("triptych:time_to_first_token_seconds", 0.2)
        seconds = books.ended(request)
        books.levels.answered("interactive", seconds.ttft, seconds.tpot, seconds.e2e, NUM_TOKENS)
        if number % A_SECOND == A_SECOND - 1:
            books.refresh({("encode", "ready"): 1, ("prefill", "ready"): 1, ("decode", "ready"): 1})
    return (time.thread_time() - began) / count


def ended_request() -> Request:
    prepared = Prepared(lay_out([TextPart(tuple(range(1, 60)))]), (), Sampling(max_tokens=NUM_TOKENS), 1, ())
    request = Request(new_request_id(), prepared, Timeline())
    request.timeline.spans += [
        Span(stage.name, 0.01 * number, 0.01 * number + 0.005) for number, stage in enumerate(TIMED_STAGES[:20])
    ]
    last = NUM_TOKENS - 1
    request.deliver(
        [
            Token(id=7, logprob=-0.5, choice=0, position=place, finish_reason="" if place < last else "length")
            for place in range(NUM_TOKENS)
        ]
    )
    request.stage = Stage.DECODING
    request.end(Stage.FINISHED)
    return request


if __name__ == "__main__":
    sys.exit(main())
