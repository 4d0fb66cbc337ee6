"""POST /admin/embeddings/...: operators' hands on the encoders' caches. Every ready encoder is asked and must do it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request as HTTPRequest

from triptych.errors import InvalidRequest, NoWorker, PermissionDenied
from triptych.journey import Item, Role, new_request_id
from triptych.pb import encoder_pb2
from triptych.router.admin.encode_alone import encode_alone
from triptych.router.api.schema import Chat, invalid_request
from triptych.router.edge.body import read_body, unless_gone
from triptych.router.edge.caller import Caller, caller_of
from triptych.router.fleet.calls import worker_errors
from triptych.router.fleet.link import WorkerLink
from triptych.router.media.shelf import MediaShelf
from triptych.router.model_set import ModelSet
from triptych.router.observe.timeline import Timeline
from triptych.router.router import Router
from triptych.router.tasks import all_or_first_error

ACTIONS = {
    "pin": encoder_pb2.CacheRequest.PIN,
    "unpin": encoder_pb2.CacheRequest.UNPIN,
    "clear": encoder_pb2.CacheRequest.CLEAR,
}
_MOST_DIGESTS = 4096
_CONTROL_SECONDS = 10.0

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class DigestsRequest(BaseModel):
    """Digests of items, as warming has told them. Other keys are refused: a slip must not make `clear` clear all."""

    model_config = ConfigDict(extra="forbid")

    digests: Annotated[list[Digest], Field(min_length=1, max_length=_MOST_DIGESTS)] | None = None


class EmbeddingsAdmin:
    """Refused altogether where no API key is set: whoever can reach the router could empty its caches."""

    def __init__(self, router: Router, has_key: Callable[[str], bool]) -> None:
        """has_key: whether a tenant of this name has one"""
        self._router = router
        self._has_key = has_key

    async def control(self, http: HTTPRequest, action: str) -> dict[str, Any]:
        """Pin, unpin or clear by digests; `clear` without any is for all. Items and bytes found, by worker.

        Raises Overloaded where pins would leave an encoder too little room.
        """
        digests = _read_digests(await self._body(http))
        if digests is None and action != "clear":
            raise InvalidRequest(f"digests are missing: which items to {action}?", param="digests")
        found: dict[str, encoder_pb2.CacheReply] = {}

        async def ask(link: WorkerLink) -> None:
            envelope = link.envelope(new_request_id(), 0, _CONTROL_SECONDS)
            request = encoder_pb2.CacheRequest(envelope=envelope, action=ACTIONS[action], digests=digests)
            with worker_errors():
                found[link.worker_id] = await link.calls.cache(request, timeout=_CONTROL_SECONDS)

        await all_or_first_error(link.hold(ask(link)) for link in _encoders(self._router.serving))
        return _told(action, [(name, {"items": one.items, "bytes": one.num_bytes}) for name, one in found.items()])

    async def warm(self, http: HTTPRequest) -> dict[str, Any]:
        """Encode a chat request's images at every encoder, generate nothing, and tell the items' digests in order.

        The rows are for requests of the tenant that the query names, without one for those of the same key; or of all
        keys where tenants are not kept apart.
        """
        router, caller = self._router, self._warms_for(http)
        with router.budget.holding() as holding:
            body = await self._body(http)
            chat = await asyncio.get_running_loop().run_in_executor(
                router.threads.parsing, Chat.parse, body, router.settings.router.max_images_per_prompt
            )
            served = router.serving
            prepared = await router.prepare(chat, holding, Timeline(), caller, served)
            items = list({item.digest: item for item in prepared.layout.items}.values())
            shelf = MediaShelf(prepared.media)
            warmings = [Warming(link, shelf, router) for link in _encoders(served)]
            try:
                await unless_gone(http.receive, all_or_first_error(warming.run(items) for warming in warmings))
            finally:
                shelf.close()
        counts = [(one.link.worker_id, {"items": one.num_items, "cached": one.num_cached}) for one in warmings]
        return _told("warm", counts) | {"digests": [item.digest.hex() for item in prepared.layout.items]}

    def _warms_for(self, http: HTTPRequest) -> Caller:
        """Raises InvalidRequest for a tenant that nobody could ask as."""
        tenant = http.query_params.get("tenant")
        if tenant is None:
            return caller_of(http.scope)
        require_admin(http)  # who there is, is not for everybody
        if not self._has_key(tenant):
            raise InvalidRequest(f"there is no key of a tenant {tenant[:64]!r}", param="tenant")
        return replace(caller_of(http.scope), tenant=tenant)

    async def _body(self, http: HTTPRequest) -> bytes:
        limits = self._router.settings.router
        require_admin(http)
        with self._router.budget.holding() as of_body:
            return (await read_body(http, limits.max_body_bytes, limits.stage_timeout_seconds, of_body)).data


class Warming:
    """One encoder being warmed: item by item, so that its arena never holds more of this than one."""

    def __init__(self, link: WorkerLink, shelf: MediaShelf, router: Router) -> None:
        self.link = link
        self.num_items = 0
        self.num_cached = 0  # of these, whose rows were there
        self._shelf = shelf
        self._lease_seconds = router.settings.transfer.lease_seconds
        self._ends_at = time.monotonic() + router.settings.router.request_timeout_seconds

    async def run(self, items: Sequence[Item]) -> None:
        """Raises why an item cannot be encoded."""
        for item in items:
            seconds = max(0.001, self._ends_at - time.monotonic())
            reply = await encode_alone(self.link, item, self._shelf, self._lease_seconds, seconds)
            self.num_items += 1
            self.num_cached += reply.cached


def _encoders(served: ModelSet) -> list[WorkerLink]:
    links = [link for link in served.fleet.links if link.takes(Role.ENCODE)]
    if not links:
        raise NoWorker("no encode worker is ready")
    return links


def require_admin(http: HTTPRequest) -> None:
    """Raises PermissionDenied where there are no keys, so that nobody is an operator: no other key would help."""
    if not http.scope["state"].get("is_admin"):  # the edge asks for an admin's key wherever there are keys
        raise PermissionDenied(
            "this server has no keys, so nobody may do what operators do; set router.api_key or router.api_keys_file"
        )


def _read_digests(body: bytes) -> list[bytes] | None:
    """None where the body names none; it may be empty then."""
    if not body:
        return None
    try:
        digests = DigestsRequest.model_validate_json(body).digests
    except ValidationError as error:
        raise invalid_request(error) from None
    return None if digests is None else [bytes.fromhex(digest) for digest in digests]


def _told(action: str, counts: Sequence[tuple[str, dict[str, int]]]) -> dict[str, Any]:
    workers = [{"worker_id": worker_id, **numbers} for worker_id, numbers in sorted(counts, key=lambda each: each[0])]
    return {"object": "embeddings", "action": action, "workers": workers}
