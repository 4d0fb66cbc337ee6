"""The router without its HTTP: what it is made of, and a request's way through it."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from triptych.config import Settings
from triptych.errors import DeadlineExceeded, Stopping, UnknownModel
from triptych.journey import new_request_id
from triptych.metrics import RouterMetrics
from triptych.models.card import ModelCard
from triptych.router.api.schema import Chat
from triptych.router.api.usage import Usage, usage_of
from triptych.router.commons import Commons
from triptych.router.edge.budget import ByteBudget, Holding
from triptych.router.edge.caller import NOBODY, Caller
from triptych.router.edge.limit_books import LimitBooks
from triptych.router.edge.turnstile import Turnstile
from triptych.router.fleet.fleet import Fleet
from triptych.router.fleet.link import KnownWorker
from triptych.router.media.errors import too_late
from triptych.router.media.fetch import MediaFetcher
from triptych.router.media.loader import MediaLoader
from triptych.router.media.names import MediaNames, Names
from triptych.router.model_set import FIRST, Common, ModelSet, count_workers
from triptych.router.observe.recent import Entry, RecentRequests
from triptych.router.observe.request_figures import RequestSeconds
from triptych.router.observe.router_books import REFRESH_SECONDS, RouterBooks
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline.prompt import PromptBuilder
from triptych.router.pipeline.request import Prepared, Request
from triptych.router.tasks import Background
from triptych.router.threads import WorkThreads

logger = logging.getLogger(__name__)

_LAST_SECONDS = 1.0  # for sets that have just ended


class Router:
    """Lives on one event loop, from `start` to `stop`; `tell` says which models it has, and their workers.

    New requests begin with the set that serves; each ends with the one it has begun with.
    """

    def __init__(
        self,
        settings: Settings,
        card: ModelCard,
        workers: Sequence[KnownWorker] | None = (),
        *,
        media_by_memfd: bool = True,
        commons: Commons | None = None,
        index: int = 0,
        number: int = FIRST,
    ) -> None:
        """card, workers, number: of the set that serves first

        commons: with the other routers of the server, where it is one of several; index: its place among them
        """
        self.settings = settings
        self.index = index
        self.name = settings.serve.served_name or card.name  # of whatever model is served
        # Workers that there may be none of yet: by id, their roles and how far each is.
        self.coming: Mapping[str, tuple[Collection[str], str]] = {}
        self.metrics = RouterMetrics()
        self.budget = ByteBudget(
            settings.router.media_budget_bytes, lambda held: self.metrics.set("triptych:media_bytes", held)
        )
        self.threads = WorkThreads()
        self.turnstile = Turnstile()
        self._fetcher = MediaFetcher(settings.router, budget=self.budget, metrics=self.metrics)
        loader = MediaLoader(settings.router, self._fetcher, self._names(commons))
        self.common = Common(settings, self.name, self.metrics, loader, self.budget, self.threads)
        self.serving = ModelSet(number, card, self.common, workers, media_by_memfd=media_by_memfd)
        self.sets = {number: self.serving}
        self.turn = 0
        self.limit_books = commons.limits(index) if commons is not None else LimitBooks()
        self.books = RouterBooks(settings, self.metrics, self.name)
        self._refreshing: asyncio.Task[None] | None = None
        observe = settings.observe
        self.recent = RecentRequests(observe.timelines, observe.timeline_bytes)
        self.on_end: list[Callable[[Ended], None]] = []  # called for each; must not raise, nor wait
        self._background = Background()

    async def start(self) -> None:
        await self.serving.start()
        self._refreshing = asyncio.create_task(self._refresh())

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        await asyncio.gather(*(each.stop() for each in self.sets.values()))
        await self._background.finish(within_seconds=_LAST_SECONDS)
        await self._fetcher.close()
        self.threads.close()

    @property
    def fleet(self) -> Fleet:
        """Of the set that serves, as the following: what awaits in between may find another one."""
        return self.serving.fleet

    @property
    def card(self) -> ModelCard:
        return self.serving.card

    @property
    def prompts(self) -> PromptBuilder:
        return self.serving.prompts

    def tell(
        self,
        workers: Mapping[int, Sequence[KnownWorker]],
        serving: int,
        turn: int = 0,
        new: Sequence[ModelSet] = (),
    ) -> None:
        """Which sets there are from now on, by number, with their workers, and which one new requests begin with.

        turn: changes whenever the latter does, so that whoever asks knows what an answer is about
        new:  sets that were not there before. One that is not named any more ends, with whatever it still has.
        """
        for each in new:
            self.sets[each.number] = each
            self._background.start(each.start())
        for number, known in workers.items():
            if number in self.sets:
                self.sets[number].fleet.update(known)
        if serving in self.sets:
            self.serving, self.turn = self.sets[serving], turn
        for number in self.sets.keys() - workers.keys() - {self.serving.number}:
            self._background.start(self.sets.pop(number).stop())

    def give_up(self) -> None:
        """Fails whatever is under way: the server is being stopped, and has waited for long enough."""
        for each in self.sets.values():
            each.pipeline.give_up(Stopping("the server is being stopped; try again"))

    async def prepare(
        self,
        chat: Chat,
        holding: Holding,
        timeline: Timeline,
        caller: Caller = NOBODY,
        model_set: ModelSet | None = None,
    ) -> Prepared:
        """model_set: with whose model; None: with that which serves now

        Raises UnknownModel, and whatever else the client has to change.
        """
        if chat.request.model != self.name:
            raise UnknownModel(f"the model {chat.request.model[:100]!r} does not exist", param="model")
        seconds = self.settings.router.stage_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await (model_set or self.serving).prepare(chat, holding, timeline, caller)
        except TimeoutError:
            if timeline.hosts_seconds > seconds / 2:
                raise too_late(seconds) from None
            raise DeadlineExceeded("the request took too long to be laid out") from None

    async def begin(
        self,
        chat: Chat,
        timeline: Timeline,
        caller: Caller = NOBODY,
        on_placed: Callable[[], None] = lambda: None,
        model_set: ModelSet | None = None,
    ) -> "Run":
        """Prepares a request and sets it on its way; the caller reads its tokens, and closes the run in any case.

        on_placed: called once its prompt is with a worker
        model_set: by which it is answered; None: by that which serves now
        """
        holding, model_set = self.budget.holding(), model_set or self.serving
        model_set.requests += 1
        try:
            prepared = await self.prepare(chat, holding, timeline, caller, model_set)
            request = Request(new_request_id(), prepared, timeline)
        except BaseException:
            model_set.requests -= 1
            holding.close()
            raise
        request.on_placed = on_placed
        self.books.began(request)
        self._name(request, caller)

        def ended(run: Run, error: BaseException | None) -> None:
            holding.close()
            model_set.requests -= 1
            seconds = self.books.ended(request)
            usage = usage_of(request, run.completion_tokens())
            entry = self.recent.end(request, usage, error)
            ending = Ended(caller, request, usage, error, seconds, entry)
            for tell in self.on_end:
                tell(ending)

        return Run(request, caller, asyncio.create_task(model_set.pipeline.run(request)), ended, model_set)

    @property
    def running(self) -> int:
        """Requests in flight."""
        return len(self.books.requests)

    def _name(self, request: Request, caller: Caller) -> None:
        """By what its client, logs and timelines know it."""
        request.log_id = caller.request_id or request.log_id
        entry = self.recent.begin(request, request.log_id, caller.tenant, caller.endpoint)
        account, trace = caller.account, caller.trace
        if trace is not None:
            if account is not None and account.entry is not None:  # another of the same client's request's prompts
                trace = trace.beside()
            request.traceparent, entry.trace = trace.traceparent, trace
        if account is not None:
            account.entry = entry

    def expose_metrics(self) -> bytes:
        """The body of /metrics, all of it as it is now."""
        self.refresh_metrics()
        return self.metrics.expose()

    def refresh_metrics(self) -> None:
        """Gauges say how things stand now."""
        # Each set has a budget of its own: what matters is the one that runs out.
        self.metrics.set("triptych:retry_budget", min(each.pipeline.retry_room for each in self.sets.values()))
        self.books.refresh(count_workers(self.sets.values(), self.coming))

    async def _refresh(self) -> None:
        """For the other routers of the server, any of which may be asked what all have to tell."""
        while True:
            try:
                self.refresh_metrics()
            except OSError as error:  # the files that routers count in: a full disk must not stop the rest for good
                logger.warning("metrics are not as they should be: %s", error)
            await asyncio.sleep(REFRESH_SECONDS)

    def _names(self, commons: Commons | None) -> Names:
        def changed(held: int) -> None:
            self.metrics.set("triptych:media_names_bytes", held)

        if commons is not None:
            return commons.names(changed)
        return MediaNames(self.settings.router.media_names_bytes, changed)


@dataclass(frozen=True, slots=True)
class Ended:
    """A request whose answer has ended, for those who keep account.

    usage: what it has taken, an answer that was broken off included
    error: what it failed with; None where it was answered to the end
    entry: what is kept of it
    """

    caller: Caller
    request: Request
    usage: Usage
    error: BaseException | None
    seconds: RequestSeconds
    entry: Entry


class Run:
    """A request on its way, and the task that drives it."""

    def __init__(
        self,
        request: Request,
        caller: Caller,
        task: asyncio.Task[None],
        ended: Callable[["Run", BaseException | None], None],
        model_set: ModelSet,
    ) -> None:
        """model_set: by which the request is answered"""
        self.model_set = model_set
        self.request = request
        self.caller = caller
        self.completion_tokens: Callable[[], int] = lambda: 0  # that the client has been told
        self._task = task
        self._ended: Callable[[Run, BaseException | None], None] | None = ended

    async def close(self, error: BaseException | None = None) -> None:
        """Ends the request if it has not ended; its workers are told. Closing again does nothing.

        error: why its answer was not given to the end
        """
        self._task.cancel()
        try:
            await asyncio.wait({self._task})
        finally:  # also where the client leaves at this very moment, and whoever closes is cancelled
            ended, self._ended = self._ended, None
            if ended is not None:
                ended(self, error)


async def close_all(runs: Sequence[Run], error: BaseException | None = None) -> None:
    """Closes each of them, whatever becomes of another, and also where this is cancelled meanwhile."""
    async with AsyncExitStack() as closing:
        for run in runs:
            closing.push_async_callback(run.close, error)
