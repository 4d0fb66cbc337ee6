"""/admin/scale, /admin/role, /admin/reload: how many workers there are, and with which model, while requests go on."""

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, TypeAdapter, ValidationError
from starlette.requests import Request as HTTPRequest

from triptych.errors import InvalidRequest
from triptych.router.admin.embeddings import require_admin
from triptych.router.admin.supervision import Supervision
from triptych.router.api.schema import invalid_request
from triptych.router.edge.body import read_body
from triptych.router.router import Router

RELOAD_SECONDS = 600.0  # that a new set has to be ready, unless something else is asked for
_MOST_BYTES = 8192

Name = Annotated[str, Field(min_length=1, max_length=64)]
_COUNTS = TypeAdapter(Annotated[dict[Name, StrictInt], Field(max_length=16)])


def _refuse_twice(body: bytes) -> None:
    """Raises InvalidRequest where a name stands twice: each reader of JSON would take another one of the two."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, number in Counter(name for name, _ in pairs).items():
            if number > 1:
                raise InvalidRequest(f"{name[:64]!r} stands {number} times in the body", param=name[:64])
            if not name:
                raise InvalidRequest("a name in the body is empty")
        return dict(pairs)

    with contextlib.suppress(ValueError, RecursionError):  # no JSON: whoever reads it says so
        json.loads(body, object_pairs_hook=once)


class SwitchRequest(BaseModel):
    """Which worker is to make room for one of another role."""

    model_config = ConfigDict(extra="forbid")

    worker: Name
    role: Name


Seconds = Annotated[float, Field(ge=0, le=7 * 24 * 3600, allow_inf_nan=False)]


class ReloadRequest(BaseModel):
    """Either a model that is to serve in place of the present one, or the way back to the one before."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    back: StrictBool = False
    deadline_seconds: Seconds = RELOAD_SECONDS
    keep_seconds: Seconds = 0.0


class ScaleAdmin:
    """What may be wished for, the supervisor knows; here it is only read."""

    def __init__(self, router: Router, supervision: Supervision) -> None:
        self._router = router
        self._supervision = supervision

    async def show(self, http: HTTPRequest) -> dict[str, Any]:
        """Workers wanted and there, by group, and whether the one is the other."""
        require_admin(http)
        return await self._supervision.wish({"show": True})

    async def scale(self, http: HTTPRequest) -> dict[str, Any]:
        """The body is a number for each role to be changed. Raises InvalidRequest for what cannot be."""
        body = await self._body(http)
        try:
            counts: Mapping[str, int] = _COUNTS.validate_json(body)
        except ValidationError as error:
            raise invalid_request(error) from None
        return await self._supervision.wish({"scale": counts})

    async def switch(self, http: HTTPRequest) -> dict[str, Any]:
        """The body names a worker and a role. Raises InvalidRequest for what cannot be."""
        body = await self._body(http)
        try:
            asked = SwitchRequest.model_validate_json(body)
        except ValidationError as error:
            raise invalid_request(error) from None
        return await self._supervision.wish({"switch": {"worker": asked.worker, "role": asked.role}})

    async def reload(self, http: HTTPRequest) -> dict[str, Any]:
        """The body names a model, or asks for the one before. Raises InvalidRequest for what cannot be."""
        body = await self._body(http)
        try:
            asked = ReloadRequest.model_validate_json(body)
        except ValidationError as error:
            raise invalid_request(error) from None
        if (asked.model is None) is not asked.back:
            raise InvalidRequest("name either a model, or back: true", param="model")
        if asked.back:
            return await self._supervision.wish({"back": {"seconds": asked.deadline_seconds}})
        seconds = {"seconds": asked.deadline_seconds, "keep_seconds": asked.keep_seconds}
        return await self._supervision.wish({"reload": {"model": asked.model, **seconds}})

    async def _body(self, http: HTTPRequest) -> bytes:
        require_admin(http)
        with self._router.budget.holding() as of_body:
            seconds = self._router.settings.router.stage_timeout_seconds
            body = (await read_body(http, _MOST_BYTES, seconds, of_body)).data
        _refuse_twice(body)
        return body
