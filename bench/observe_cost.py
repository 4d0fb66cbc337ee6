"""What all that is told of requests costs a whole server: python -m bench.observe_cost.

Three routers are up at the same time, before the same encode, prefill and decode worker with the embedded model:

    off  counts nothing and measures no stage, as in bench/metrics_cost.py and bench/timeline_cost.py together
    on   as a router is served by default: metrics, service levels, a timeline of every request
    all  a line of JSON for each request and its spans to a collector, as well, and metrics asked for every ten seconds

bench/routers_in_turns.py says how they are compared. Routers, workers, clients and collector share the machine's
processors, so that whatever a router spends is missing elsewhere, as on a machine that is full.
"""

import os
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from bench.metrics_cost import count_nothing
from bench.router_cpu import MODEL, _line, _process
from bench.routers_in_turns import Router, compare, read_arguments
from bench.timeline_cost import Collector, measure_nothing
from tests.web import WebServer
from triptych.router.__main__ import main as serve_router

VARIANTS = ("off", "on", "all")
ROLES = ("encode", "prefill", "decode")
SCRAPE_SECONDS = 10.0  # as deploy/prometheus/prometheus.yml asks


def main() -> int:
    options = read_arguments(VARIANTS, __doc__)
    if options.router:
        if options.router == "off":
            count_nothing()
            measure_nothing()
        workers = [word for address in options.worker.split(",") for word in ("--worker", address)]
        serve_router(["--model", MODEL, "--dtype", "auto", *workers, "--port", "0"])
        return 0
    with ExitStack() as stack:
        collector = stack.enter_context(WebServer(Collector))
        workers = [stack.enter_context(running_worker(role)) for role in ROLES]
        told = ",".join(workers)
        routers = {name: stack.enter_context(running(name, told, collector.url)) for name in VARIANTS}
        compare(routers, options, lambda name, url: scraped(url) if name == "all" else nullcontext())
    return 0


@contextmanager
def running_worker(role: str) -> Iterator[str]:
    """Its address."""
    with _process(["-m", "triptych.cluster.worker", "--roles", role, "--model", MODEL], None) as process:
        yield _line(process, r"ready (\S+)")[1]


@contextmanager
def running(name: str, workers: str, collector: str) -> Iterator[Router]:
    told = {"TRIPTYCH_OBSERVE_LOG_FORMAT": "json", "TRIPTYCH_OBSERVE_OTLP_ENDPOINT": collector}
    if name == "all":
        os.environ.update(told)
    with _process(["-m", "bench.observe_cost", "--router", name, "--worker", workers], None) as process:
        for variable in told:
            os.environ.pop(variable, None)
        yield _line(process, r"(http://\S+)")[1], process.pid


@contextmanager
def scraped(url: str) -> Iterator[None]:
    """As by a Prometheus that is in a hurry."""
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(SCRAPE_SECONDS):
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
