"""The router without its HTTP: what it is made of, and a request's way through it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triptych.config import Settings
from triptych.errors import DeadlineExceeded, UnknownModel
from triptych.journey import new_request_id
from triptych.metrics import RouterMetrics
from triptych.models.card import ModelCard
from triptych.router.budget import ByteBudget, Holding
from triptych.router.caller import NOBODY, Caller
from triptych.router.commons import Commons
from triptych.router.detokenize import Detokenizer
from triptych.router.fetch import MediaFetcher
from triptych.router.fleet import Fleet
from triptych.router.limit_books import LimitBooks
from triptych.router.link import KnownWorker
from triptych.router.media import MediaLoader
from triptych.router.media_names import MediaNames, Names
from triptych.router.pipeline import Pipeline
from triptych.router.prepare import Preparer
from triptych.router.prompt import PromptBuilder
from triptych.router.proving import Prover
from triptych.router.request import Prepared, Request
from triptych.router.schema import Chat
from triptych.router.self_test import body, known_answer
from triptych.router.tasks import Background
from triptych.router.threads import WorkThreads
from triptych.router.timeline import Timeline
from triptych.router.turnstile import Turnstile
from triptych.router.usage import Usage, usage_of
from triptych.wire.membership import Membership


class Router:
    """Lives on one event loop, from `start` to `stop`; `fleet.update` tells it its workers."""

    def __init__(
        self,
        settings: Settings,
        card: ModelCard,
        workers: Sequence[KnownWorker] | None = (),
        *,
        media_by_memfd: bool = True,
        commons: Commons | None = None,
        index: int = 0,
    ) -> None:
        """commons: with the other routers of the server, where it is one of several; index: its place among them"""
        self.settings = settings
        self.index = index
        self.card = card
        self.name = settings.serve.served_name or card.name
        self.metrics = RouterMetrics()
        self.fleet = Fleet(
            *(settings.router, card.fingerprint, self.metrics, workers),
            media_by_memfd=media_by_memfd,
            membership=Membership(settings.serve.cluster_secret),
            self_test=settings.router.self_test,
        )
        self.budget = ByteBudget(
            settings.router.media_budget_bytes, lambda held: self.metrics.set("triptych:media_bytes", held)
        )
        self.threads = WorkThreads()
        self.turnstile = Turnstile()
        self.prompts = PromptBuilder(card, settings.router.chat_template)
        self.detokenizer = Detokenizer(self.prompts.tokenizer, card.vocab_size)
        self._fetcher = MediaFetcher(settings.router, budget=self.budget, metrics=self.metrics)
        self._preparer = Preparer(
            card,
            self.prompts,
            MediaLoader(settings.router, self._fetcher, self._names(commons)),
            self.fleet,
            settings.router.default_max_tokens,
            self.threads,
            isolate_tenants=settings.router.isolate_tenants,
        )
        self.limit_books = commons.limits(index) if commons is not None else LimitBooks()
        self.running = 0  # requests in flight
        self.on_begin: list[Callable[[Run], None]] = []  # called for each, as the following
        self.on_end: list[Callable[[Ended], None]] = []  # called for each; must not raise, nor wait
        self._worker_labels: set[tuple[str, str]] = set()
        self._pipeline = Pipeline(self.fleet, settings.router, settings.transfer.lease_seconds, self.metrics)
        self._prover = Prover(self.fleet, self._self_test, self._pipeline.run, known_answer(card.folder))
        self._background = Background()

    async def start(self) -> None:
        await self.fleet.start()
        await self._pipeline.start()
        if self.settings.router.self_test:
            self._background.start(self._prover.run())

    async def stop(self) -> None:
        await self._background.finish(within_seconds=0)
        await self._pipeline.stop()
        await self.fleet.stop()
        await self._fetcher.close()
        self.threads.close()

    async def prepare(self, chat: Chat, holding: Holding, timeline: Timeline, caller: Caller = NOBODY) -> Prepared:
        """Raises UnknownModel, and whatever else the client has to change."""
        if chat.request.model != self.name:
            raise UnknownModel(f"the model {chat.request.model[:100]!r} does not exist", param="model")
        seconds = self.settings.router.stage_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._preparer.prepare(chat, holding, timeline, caller)
        except TimeoutError:
            raise DeadlineExceeded("the request's images took too long to arrive") from None

    async def begin(
        self,
        chat: Chat,
        timeline: Timeline,
        caller: Caller = NOBODY,
        on_placed: Callable[[], None] = lambda: None,
    ) -> "Run":
        """Prepares a request and sets it on its way; the caller reads its tokens, and closes the run in any case.

        on_placed: called once its prompt is with a worker
        """
        holding = self.budget.holding()
        try:
            request = Request(new_request_id(), await self.prepare(chat, holding, timeline, caller), timeline)
        except BaseException:
            holding.close()
            raise
        request.on_placed = on_placed
        self._count_start(request.prepared)

        def ended(run: Run, error: BaseException | None) -> None:
            holding.close()
            self._count_end(request)
            ending = Ended(caller, request, usage_of(request, run.completion_tokens()), error)
            for tell in self.on_end:
                tell(ending)

        run = Run(request, caller, asyncio.create_task(self._pipeline.run(request)), ended)
        for tell in self.on_begin:
            tell(run)
        return run

    async def _self_test(self, salt: str) -> Prepared:
        """Its one picture is kept by whoever holds it, and counts in no budget."""
        with self.budget.holding() as holding:
            return await self.prepare(Chat.parse(body(self.name, salt)), holding, Timeline())

    def expose_metrics(self) -> bytes:
        """The body of /metrics, workers as they are now."""
        counts = self.fleet.count_by_state()
        self._worker_labels.update(counts)
        for worker_type, state in self._worker_labels:  # a state that nobody is in any more counts 0
            self.metrics.set("triptych:workers", counts[worker_type, state], worker_type=worker_type, state=state)
        return self.metrics.expose()

    def _names(self, commons: Commons | None) -> Names:
        def changed(held: int) -> None:
            self.metrics.set("triptych:media_names_bytes", held)

        if commons is not None:
            return commons.names(changed)
        return MediaNames(self.settings.router.media_names_bytes, changed)

    def _count_start(self, prepared: Prepared) -> None:
        self.running += 1
        self.metrics.set("triptych:num_requests_running", self.running)
        self.metrics.count("triptych:prompt_tokens_total", prepared.layout.num_tokens)
        self.metrics.count("triptych:images_total", len(prepared.layout.items))

    def _count_end(self, request: Request) -> None:
        self.running -= 1
        self.metrics.set("triptych:num_requests_running", self.running)
        self.metrics.count("triptych:generation_tokens_total", sum(map(len, request.generated)))
        self.metrics.observe("triptych:e2e_request_latency_seconds", request.timeline.since_start())
        for stage, seconds in request.timeline.seconds.items():
            self.metrics.observe("triptych:stage_duration_seconds", seconds, stage=stage)


@dataclass(frozen=True, slots=True)
class Ended:
    """A request whose answer has ended, for those who keep account.

    usage: what it has taken, an answer that was broken off included
    error: what it failed with; None where it was answered to the end
    """

    caller: Caller
    request: Request
    usage: Usage
    error: BaseException | None


class Run:
    """A request on its way, and the task that drives it."""

    def __init__(
        self,
        request: Request,
        caller: Caller,
        task: asyncio.Task[None],
        ended: Callable[["Run", BaseException | None], None],
    ) -> None:
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
        await asyncio.wait({self._task})
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self, error)
