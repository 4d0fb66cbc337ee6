"""What those who watch a server ask it."""

from collections.abc import Collection
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from triptych.journey import Role
from triptych.router.model_set import count_roles
from triptych.router.router import Router


def add_probes(app: FastAPI, router: Router) -> None:
    @app.get("/health", response_model=None)
    async def health() -> Response:
        """Whether every role has a worker"""
        roles = _roles(router)
        healthy = all(roles.values())
        body = {"status": "ok" if healthy else "unavailable", "roles": roles}
        return JSONResponse(body, status_code=200 if healthy else 503)

    @app.get("/ready", response_model=None)
    async def ready() -> Response:
        """Whether a picture has gone through every role and come out right; if not, which roles are missing, and why"""
        missing = [role for role, has_worker in _roles(router).items() if not has_worker]
        if missing:
            why = {role: _why(router, Role(role)) for role in missing}
            return JSONResponse({"status": "not ready", "missing": missing, "why": why}, status_code=503)
        return JSONResponse({"status": "ready", "missing": []})

    @app.get("/live", response_model=None)
    async def live() -> dict[str, str]:
        """That the process runs"""
        return {"status": "ok"}

    @app.get("/version", response_model=None)
    async def tell_version() -> dict[str, str]:
        """The server's version"""
        return {"version": version("triptych")}

    @app.get("/v1/cluster", response_model=None)
    async def cluster() -> dict[str, Any]:
        """Every worker as the router sees it, those that are to come, and how many are wanted of each role"""
        sets = sorted(router.sets.values(), key=lambda each: each.number)
        workers = [{**worker, "set": each.number} for each in sets for worker in each.fleet.describe()]
        told = [{**each.describe(), "serving": each is router.serving} for each in sets]
        roles, coming = count_roles(sets, router.coming), _coming(router, {each["worker_id"] for each in workers})
        return {
            "object": "cluster",
            "model": router.name,
            "sets": told,
            "workers": workers,
            "coming": coming,
            "roles": roles,
        }


def _why(router: Router, role: Role) -> dict[str, str]:
    """By worker: what keeps each of the role; of one that the router has not met, how far it is."""
    coming = {worker_id: note for worker_id, (roles, note) in router.coming.items() if role in roles}
    known = {link.worker_id for link in router.fleet.links}
    return router.fleet.why_not_ready(role) | {name: note for name, note in coming.items() if name not in known}


def _coming(router: Router, met: Collection[str]) -> list[dict[str, Any]]:
    """Workers that this router has not met yet, and how far each is."""
    return [
        {"worker_id": worker_id, "roles": sorted(roles), "note": note}
        for worker_id, (roles, note) in router.coming.items()
        if worker_id not in met
    ]


def _roles(router: Router) -> dict[str, bool]:
    return {str(role): router.fleet.is_ready(role) for role in Role}
