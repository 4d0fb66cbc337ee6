"""The router as a server in a thread of its own, for whoever starts it."""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import uvicorn
import uvloop
from starlette.types import ASGIApp

from triptych.config import Settings
from triptych.errors import ConfigError, InternalError
from triptych.models.card import ModelCard, load_card
from triptych.router.acceptor import Acceptor
from triptych.router.admin.supervision import Supervision
from triptych.router.app import build_apps
from triptych.router.commons import Commons
from triptych.router.edge.connection import connection_class
from triptych.router.fleet.link import KnownWorker, WorkerLink
from triptych.router.fleet.link_state import LinkState
from triptych.router.model_set import FIRST, Common, KnownSet, ModelSet
from triptych.router.pulses import keep_beating
from triptych.router.router import Router
from triptych.router.threads import media_threads

logger = logging.getLogger(__name__)

_LAST_WORDS_SECONDS = 2.0  # beside what the settings give, for answers that have failed to say so
KEEP_ALIVE_SECONDS = 75  # longer than clients keep an idle connection, so that they close it and not we under them
START_SECONDS = 60.0
_BACKLOG = 2048


class RouterServer:
    """Started and stopped from any thread; requests run on an event loop in its own."""

    def __init__(
        self,
        settings: Settings,
        card: ModelCard,
        workers: Sequence[KnownWorker] | None = (),
        listener: socket.socket | None = None,
        commons: Commons | None = None,
        index: int = 0,
        supervision: Supervision | None = None,
        number: int = FIRST,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """listener: bound already, and owned by this from now on; None: one is made, as the settings say

        workers: None where `update` or `tell` will tell of them; number: of the set that they are
        commons: with other routers, which listen on it as well; index: this one's place among them
        supervision: by whom the workers are kept, if by anybody
        beat: called once in a while for as long as the event loop turns
        """
        self._supervision = supervision
        self._beat = beat
        self._commons = commons
        self._index = index
        self._acceptor = Acceptor(commons.loads, index) if commons is not None else None
        self.settings = settings
        self._listener = listener
        self._card = card
        self._workers = workers
        self._number = number
        self._met = {number}  # sets that were made, or could not be
        self._unusable: dict[int, str] = {}  # why, by number
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._admin_listener: socket.socket | None = None
        self._router: Router | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None

    def start(self) -> int:
        """The port it listens on. Raises ConfigError where it cannot listen, and what else keeps it from starting."""
        limits, is_one_of_many = self.settings.router, self.settings.serve.routers > 1
        if limits.admin_port:
            # Any of several routers answers an operator: what they tell is all routers' or the workers'.
            self._admin_listener = _listen(limits.admin_host, limits.admin_port, shared=is_one_of_many)
        try:
            listener = self._listener or _listen(limits.host, limits.port)
        except ConfigError:
            self._close_admin()
            raise
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="router", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise InternalError(f"the router did not start within {START_SECONDS:g} s")
        if self._error is not None:
            raise self._error
        port: int = listener.getsockname()[1]
        return port

    def update(self, workers: Sequence[KnownWorker]) -> None:
        """Who there is from now on, of the one set; anything with a worker's id, endpoint and roles will do."""
        self._workers = [KnownWorker(each.worker_id, each.endpoint, each.roles) for each in workers]
        if self._loop is not None and self._router is not None:
            self._loop.call_soon_threadsafe(self._router.fleet.update, self._workers)

    def tell_coming(self, coming: Mapping[str, tuple[Collection[str], str]]) -> None:
        """Workers that may not be among those of `update` yet: by id, their roles and how far each is."""
        if self._loop is not None and self._router is not None:
            self._loop.call_soon_threadsafe(setattr, self._router, "coming", coming)

    def tell(self, sets: Sequence[KnownSet], serving: int, turn: int) -> None:
        """Which sets there are from now on, and with which one new requests begin; a new one's model is read here.

        turn: as of `Router.tell`
        From one thread, once the server has started.
        """
        router, loop = self._router, self._loop
        assert router is not None
        assert loop is not None
        new = [made for each in sets if each.number not in self._met and (made := self._make(each, router.common))]
        workers = {each.number: each.workers for each in sets}
        loop.call_soon_threadsafe(router.tell, workers, serving, turn, new)

    def told_of_sets(self) -> dict[str, Any]:
        """As JSON values: what each set's workers are to this router, and how many requests it has with them."""
        router = self._router
        assert router is not None
        turn = router.turn  # looked at first: from then on none has begun with another set than that turn's
        sets = [each.told() for each in list(router.sets.values())]
        unusable = [{"set": number, "reason": reason} for number, reason in self._unusable.items()]
        return {"turn": turn, "sets": sets, "unusable": unusable}

    def worker_states(self) -> dict[str, str]:
        """What each worker is to this router."""
        return {link.worker_id: str(link.state) for link in self._links()}

    def worker_reasons(self) -> dict[str, str]:
        """Why this router gives a worker nothing, of those to which that applies."""
        return {link.worker_id: link.reason for link in self._links() if link.reason}

    def _links(self) -> list[WorkerLink]:
        sets = list(self._router.sets.values()) if self._router is not None else []
        return [link for each in sets for link in each.fleet.links]

    def _make(self, known: KnownSet, common: Common) -> ModelSet | None:
        """None for a model that this router cannot read; why is told to whoever asks."""
        self._met.add(known.number)
        serve, precision = self.settings.serve, self.settings.language.precision
        try:
            card = load_card(known.model, serve.dtype, load_format=serve.load_format, precision=precision)
            return ModelSet(known.number, card, common)
        except Exception as error:  # whatever is in that folder, this router goes on with the model that it has
            is_told = isinstance(error, ConfigError)
            logger.error("the model %s cannot be served: %s", known.model, error, exc_info=not is_told)
            self._unusable[known.number] = str(error) if is_told else repr(error)
            return None

    def faulty_workers(self) -> dict[str, tuple[int, str]]:
        """Those that the self-test has refused: incarnation, and why."""
        links = self._links()
        return {link.worker_id: (link.incarnation, link.reason) for link in links if link.state is LinkState.FAULTY}

    def stop(self) -> None:
        """Takes no new requests, lets those in flight finish for as long as settings say, then fails them."""
        if self._server is not None:
            self._server.should_exit = True
        self.wait()

    def wait(self) -> None:
        """Until it has stopped."""
        if self._thread is not None:
            self._thread.join()

    def _serve(self, listener: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._run(listener))
        except BaseException as error:  # the thread that starts us is told; nobody else would be
            self._error = error
            if not isinstance(error, ConfigError):  # which says all that there is to know
                logger.exception("the router ended")
        finally:
            listener.close()
            self._close_admin()
            self._ready.set()

    def _close_admin(self) -> None:
        if self._admin_listener is not None:
            self._admin_listener.close()

    async def _run(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(media_threads())
        self._beating = self._loop.create_task(keep_beating(self._beat))
        self._router = Router(
            self.settings, self._card, self._workers, commons=self._commons, index=self._index, number=self._number
        )
        apps = build_apps(self._router, self._supervision)
        self._server = _Server(
            *(self._config(apps.main, "on"), self._ready, self._acceptor, lambda: apps.live.end(False)),
            *(self._router.give_up, self.settings.router.drain_seconds),
        )
        if apps.admin is None or self._admin_listener is None:
            await self._server.serve(sockets=[listener])
            return
        admin = uvicorn.Server(self._config(apps.admin, "off"))
        serving = asyncio.create_task(admin.serve(sockets=[self._admin_listener]))
        try:
            await self._server.serve(sockets=[listener])
        finally:
            apps.live.end(True)
            admin.should_exit = True  # last: operators may watch how requests in flight come to an end
            await serving

    def _config(self, app: ASGIApp, lifespan: Literal["on", "off"]) -> uvicorn.Config:
        limits = self.settings.router
        assert self._router is not None
        return uvicorn.Config(
            app,
            http=connection_class(limits.max_connections, self._router.metrics),
            ws="none",
            lifespan=lifespan,
            access_log=False,
            log_level=limits.log_level,
            log_config=None,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=limits.drain_seconds + _LAST_WORDS_SECONDS,  # type: ignore[arg-type]  # any number
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=limits.max_head_bytes,
        )


class _Server(uvicorn.Server):
    """Tells when it listens; shares its listener fairly where it has an acceptor."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: threading.Event,
        acceptor: Acceptor | None,
        ending: Callable[[], None],
        give_up: Callable[[], None],
        drain_seconds: float,
    ) -> None:
        """ending: called ahead of waiting for the answers that are being written

        give_up: fails those that take longer than so many seconds
        """
        super().__init__(config)
        self._give_up = give_up
        self._drain_seconds = drain_seconds
        self._ending = ending
        self._ready = ready
        self._acceptor = acceptor

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets if self._acceptor is None else [])
        if self._acceptor is not None:
            [listener] = sockets or []
            self._acceptor.start(listener, self.server_state, self._protocol, _BACKLOG)
        self._ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
        self._ending()
        last = asyncio.get_running_loop().call_later(self._drain_seconds, self._give_up)
        try:
            await super().shutdown(sockets)
        finally:
            last.cancel()

    def _protocol(self) -> asyncio.Protocol:
        """As uvicorn makes one for a connection that it has accepted itself."""
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


def _listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """shared: with other processes of ours"""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    return listener
