"""A cluster under load with a Prometheus that watches it: what boards, alerts and pictures of them are held against."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from tests.checkpoints import EMBEDDED
from tests.dashboards.gpus import GpuExporter
from tests.dashboards.prometheus import SCRAPE_SECONDS, Prometheus
from tests.faults.cluster import FaultyCluster, Tables
from tests.faults.nursery import Nursery
from tests.journey.conversations import picture, png
from tests.journey.messages import image, user
from tests.web import QuietHandler, WebServer
from triptych.config import MIB, Settings
from triptych.config.slo import ServiceClass, SLOSettings
from triptych.journey import Role

STREAMS = 3
PATIENCE_SECONDS = 30.0
LARGEST_BODY_BYTES = 2 * MIB
# A class that is kept, and one that nobody can keep: its misses must show, and its alert fire.
CLASSES = (
    ServiceClass("interactive", ttft_seconds=20.0, tpot_seconds=5.0, target=0.99),
    ServiceClass("strict", e2e_seconds=0.001, target=0.99),
)


class WatchedCluster(FaultyCluster):
    """With classes of service, and workers that prove themselves."""

    @property
    def settings(self) -> Settings:
        settings = super().settings
        router = replace(
            settings.router,
            self_test=True,
            allow_media_cidrs=("127.0.0.0/8",),
            media_cache_bytes=MIB,
            max_body_bytes=LARGEST_BODY_BYTES,
        )
        return replace(settings, router=router, slo=SLOSettings(default="interactive", classes=CLASSES))


@dataclass(frozen=True)
class Live:
    """What has been seen: from `began` to `ended`, seconds since 1970."""

    prometheus: Prometheus
    cluster: WatchedCluster
    began: float
    ended: float


@contextmanager
def live_cluster(folder: Path, seconds: float) -> Iterator[Live]:
    """One that has been under load for so long, about, and has lost each of its decode workers for a while."""
    with ExitStack() as stack:
        nursery = Nursery()
        stack.callback(nursery.close)
        counts = {Role.ENCODE: 1, Role.PREFILL: 1, Role.DECODE: 2}
        tables: Tables = {"encoder": {"host_cache_bytes": MIB}, "language": {"prefix_cache": True}}
        cluster = WatchedCluster(nursery, folder / "cluster", str(EMBEDDED), counts, tables)
        stack.callback(cluster.stop)
        gpus = stack.enter_context(GpuExporter())
        site = stack.enter_context(WebServer(_Picture))
        addresses = {"127.0.0.1:8000": _address(cluster.url), "127.0.0.1:9400": _address(gpus.url)}
        prometheus = stack.enter_context(Prometheus(folder / "prometheus", addresses))
        _wait(lambda: len(prometheus.now("up == 1")) == len(cluster.workers) + 2, prometheus)  # router and GPUs
        began = time.time()
        _load(cluster, site.url, seconds)
        yield Live(prometheus, cluster, began, _seen_to_the_end(prometheus))


def _address(url: str) -> str:
    return url.removeprefix("http://")


class _Picture(QuietHandler):
    """The same at every path, which may be kept."""

    def do_GET(self) -> None:
        self.answer(200, {"content-type": "image/png", "cache-control": "max-age=60"}, png(picture(1, (112, 112))))


def _load(cluster: WatchedCluster, site: str, seconds: float) -> None:
    """Streams of requests until the time is over; each decode worker dies, and is away for a quarter of it."""
    over = threading.Event()
    with ThreadPoolExecutor(STREAMS) as threads:
        streams = [threads.submit(_stream, cluster.url, site, number, over) for number in range(STREAMS)]
        try:
            for worker_id in cluster.of_role(Role.DECODE):
                time.sleep(seconds / 4)
                _kill_while_it_decodes(cluster, worker_id)
                time.sleep(seconds / 4)
                cluster.restart([worker_id])
        finally:
            over.set()
        for stream in streams:
            stream.result()


def _kill_while_it_decodes(cluster: WatchedCluster, worker_id: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(gauge.name == "decode_sequences" and gauge.value for gauge in cluster.status(worker_id).gauges):
        assert time.monotonic() < deadline, f"{worker_id} never gets a sequence"
    cluster.workers[worker_id].kill()


def _stream(url: str, site: str, number: int, over: threading.Event) -> None:
    """Requests one after another: new images, known ones, one by URL, text; some that are refused."""
    turn = 0
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        while not over.is_set():
            turn += 1
            seed = 0 if turn % 3 else 1000 * number + turn  # the same for all streams, or one that nobody has seen
            shown = image(png(picture(seed, (224, 224)))) | {"uuid": f"picture-{seed}"}
            parts = ("Say something about the weather.",) if turn % 4 == 0 else (shown, "What is this?")
            if turn % 5 == 0:
                parts = ({"type": "image_url", "image_url": {"url": f"{site}/{turn % 2}.png"}}, "And this?")
            body = {"model": "m", "messages": [user(*parts)], "max_tokens": 48, "ignore_eos": True, "stream": True}
            headers = {"x-triptych-slo": "strict"} if turn % 2 else {}
            assert http.post("/v1/chat/completions", json=body, headers=headers).is_success
            if turn % 6 == 0:
                assert http.post("/v1/chat/completions", json={"model": "m", "messages": "?"}).status_code == 400
            if turn % 6 == 1:
                assert http.post("/v1/chat/completions", content=bytes(LARGEST_BODY_BYTES + 1)).status_code == 413


def _seen_to_the_end(prometheus: Prometheus) -> float:
    """The moment of the scrape after which all that has happened is known."""
    ended = time.time()
    _wait(
        lambda: all(point > ended for each in prometheus.now("timestamp(up)") for _, point in each.points), prometheus
    )
    return time.time()


def _wait(holds: Callable[[], bool], prometheus: Prometheus) -> None:
    """Until Prometheus has looked again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, prometheus.targets_down()
        time.sleep(SCRAPE_SECONDS / 10)
