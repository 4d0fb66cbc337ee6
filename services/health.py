"""gRPC's own health service, for probes that know nothing of us but our certificates."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthServicer

from triptych.journey import Role
from triptych.services.guard import Door

WORKER = "triptych.Worker"
SERVICES = {Role.ENCODE: "triptych.Encoder", Role.PREFILL: "triptych.Prefill", Role.DECODE: "triptych.Decode"}
_LOOK_SECONDS = 0.5

_SERVING = pb.HealthCheckResponse.SERVING
_NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService(HealthServicer):
    """Answered by the control loop, never behind a device's step, by the names of the worker's services.

    "" and triptych.Worker: whether the process works; a role's: whether it takes new work, too.
    """

    def __init__(self, roles: Collection[Role], door: Door, is_hung: Callable[[], bool]) -> None:
        self._names = {"", WORKER, *(SERVICES[role] for role in roles)}
        self._door = door
        self._is_hung = is_hung

    async def Check(self, request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:
        status = self._status(request.service)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this worker has no such service")
        return pb.HealthCheckResponse(status=status)

    async def Watch(self, request: pb.HealthCheckRequest, context: Any) -> AsyncIterator[pb.HealthCheckResponse]:
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield pb.HealthCheckResponse(status=status)
            await asyncio.sleep(_LOOK_SECONDS)

    def _status(self, service: str) -> int:
        if service not in self._names:
            return _UNKNOWN
        takes_work = service in ("", WORKER) or not self._door.draining
        return _NOT_SERVING if self._is_hung() or not takes_work else _SERVING
