"""Where Prometheus finds a server's routers and workers: the body of its HTTP service discovery."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from triptych.config.addresses import host_and_port
from triptych.router.fleet.link import WorkerLink
from triptych.router.fleet.link_state import LinkState
from triptych.router.fleet.reported import tier
from triptych.router.router import Router

_PATH = "/metrics"
_HOST = re.compile(r"[A-Za-z0-9._\[\]:-]{1,255}")
_SILENT = frozenset({LinkState.UNKNOWN, LinkState.LOST})


def add_discovery(app: FastAPI, router: Router) -> None:
    @app.head(_PATH, response_model=None, include_in_schema=False)
    @app.get(_PATH, response_model=None)
    async def metrics(part: str = "", worker: str = "") -> Response:
        """Prometheus text: of all, of the routers alone (part=routers), or of one worker"""
        return Response(_text(router, part, worker), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/cluster/http_sd", response_model=None)
    async def http_sd(http: Request) -> list[dict[str, Any]]:
        """Targets for Prometheus: one for the routers, one for each worker"""
        return targets(_links(router), address_of(http), http.url.scheme, router.name)


def targets(links: Iterable[WorkerLink], address: str, scheme: str, model_name: str) -> list[dict[str, Any]]:
    """All are scraped at `address`, which answers for workers that only the routers can reach.

    So that no two are one target, and none tells what another tells, each names its part. The model's name is a label
    of all that is scraped, as dashboards made for other servers select by it.
    """
    common = {"__scheme__": scheme, "__metrics_path__": _PATH, "model_name": model_name}
    found: list[tuple[Mapping[str, str], str]] = [({"__param_part": "routers"}, "router")]
    for link in links:
        labels = {
            "__param_worker": link.worker_id,
            "instance": link.worker_id,
            "__meta_triptych_worker_id": link.worker_id,
            "__meta_triptych_worker_type": tier(link),
            "__meta_triptych_state": str(link.state),
        }
        found.append((labels, "worker"))
    return [
        {"targets": [address], "labels": {**common, "__meta_triptych_kind": kind, **labels}} for labels, kind in found
    ]


def address_of(http: Request) -> str:
    """By which whoever asks has reached this server, and will again."""
    told = http.headers.get("host", "")
    if _HOST.fullmatch(told):
        return told
    host, port = http.scope.get("server") or ("localhost", 80)
    return host_and_port(host, port)


def _text(router: Router, part: str, worker: str) -> bytes:
    """Raises HTTPException for what is not there, which Prometheus takes for a target that is down."""
    if part not in ("", "routers"):
        raise HTTPException(404, f"there is no part {part[:40]!r}, only routers")
    router.refresh_metrics()
    if not worker:
        return router.metrics.expose_routers() if part else router.metrics.expose()
    states = {link.worker_id: link.state for link in _links(router)}
    if worker not in states:
        raise HTTPException(404, f"there is no worker {worker[:40]!r}")
    if states[worker] in _SILENT:
        raise HTTPException(503, f"the worker {worker} does not answer")
    return router.metrics.expose_worker(worker)


def _links(router: Router) -> list[WorkerLink]:
    return [link for each in router.sets.values() for link in each.fleet.links]
