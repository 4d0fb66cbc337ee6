"""What one router tells of itself: requests in flight, those that have ended, and how well it serves them."""

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version

from triptych.config import Settings
from triptych.metrics import RouterMetrics
from triptych.router.observe.request_figures import RequestSeconds, is_waiting, observe_end, observe_start
from triptych.router.observe.service_levels import ServiceLevels
from triptych.router.pipeline.request import Request
from triptych.stages import Stage

REFRESH_SECONDS = 1.0  # how old what another router tells of this one may be


class RouterBooks:
    """All methods belong to the router's event loop.

    Gauges that change with every request are written by `refresh`, not by requests.
    """

    def __init__(self, settings: Settings, metrics: RouterMetrics, model_name: str) -> None:
        self.levels = ServiceLevels(settings, metrics)
        self.requests: set[Request] = set()  # in flight
        self._metrics = metrics
        self._worker_labels: set[tuple[str, str]] = set()
        metrics.set("triptych:build_info", 1, version=version("triptych"), model_name=model_name)
        metrics.set("triptych:media_budget_bytes", settings.router.media_budget_bytes)

    def began(self, request: Request) -> None:
        self.requests.add(request)
        self._metrics.set("triptych:num_requests_running", len(self.requests))
        observe_start(self._metrics, request)

    def ended(self, request: Request) -> RequestSeconds:
        self.requests.discard(request)
        seconds = RequestSeconds(request)
        observe_end(self._metrics, request, seconds)
        if not self.requests:
            self._metrics.book()  # whoever sees that nothing runs sees all that was observed
        self._metrics.set("triptych:num_requests_running", len(self.requests))
        return seconds

    def refresh(self, workers: Mapping[tuple[str, str], int]) -> None:
        """workers: by tier and state"""
        self._metrics.book()
        self._worker_labels.update(workers)
        for worker_type, state in self._worker_labels:  # a state that nobody is in any more counts 0
            count = workers.get((worker_type, state), 0)
            self._metrics.set("triptych:workers", count, worker_type=worker_type, state=state)
        by_stage = Counter(request.stage for request in self.requests)
        for stage in Stage:
            self._metrics.set("triptych:requests_by_stage", by_stage[stage], stage=stage)
        waiting = sum(count for stage, count in by_stage.items() if is_waiting(stage))
        self._metrics.set("triptych:num_requests_waiting", waiting)
        self.levels.refresh()
