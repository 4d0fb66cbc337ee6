"""From a prepared request to its tokens: attempts, retries, time limits, and tidying up after each of them."""

import asyncio
import itertools
import logging
import time

from triptych.config import RouterSettings
from triptych.errors import Draining, InternalError, NoWorker, Preempted, TriptychError
from triptych.journey import Role
from triptych.metrics import RouterMetrics
from triptych.router.fleet.fleet import Fleet
from triptych.router.fleet.link import WorkerLink
from triptych.router.media.shelf import MediaShelf
from triptych.router.observe.encode_books import EncodeBooks
from triptych.router.observe.timeline import Retried
from triptych.router.pipeline.attempt import Attempt
from triptych.router.pipeline.claims import ClaimKeeper
from triptych.router.pipeline.request import Request
from triptych.router.pipeline.retries import Retries, RetryBudget
from triptych.router.pipeline.stage_tools import Placing, StageTools
from triptych.router.tasks import Background, all_or_first_error
from triptych.stages import Stage

logger = logging.getLogger(__name__)

TIDY_SECONDS = 2.0  # within which workers have been told that a request is over


class Pipeline:
    """Runs requests; each `run` is one task, and cancelling it is how a client leaves."""

    def __init__(self, fleet: Fleet, settings: RouterSettings, lease_seconds: float, metrics: RouterMetrics) -> None:
        self._fleet = fleet
        self._settings = settings
        self._lease_seconds = lease_seconds
        self._claims = ClaimKeeper(lease_seconds)
        self._budget = RetryBudget(metrics)
        self._metrics = metrics
        self._encodes = EncodeBooks(metrics)
        self._background = Background()
        self._under_way: set[Request] = set()

    async def start(self) -> None:
        self._background.start(self._claims.run())

    async def stop(self) -> None:
        await self._background.finish(within_seconds=0)

    async def run(self, request: Request, placing: Placing | None = None) -> None:
        """Takes the request to one of its ends; never raises, except that it was cancelled.

        placing: who chooses its workers in the fleet's place
        """
        shelf = MediaShelf(request.prepared.media)
        self._under_way.add(request)
        try:
            settings = self._settings
            async with request.time_limits(settings.request_timeout_seconds, settings.stage_timeout_seconds):
                await self._attempts(request, shelf, placing or self._fleet)
            request.end(Stage.FINISHED)
        except asyncio.CancelledError:
            request.end(Stage.CANCELLED)
            raise
        except TriptychError as error:
            request.end(Stage.FAILED, error)
        except Exception as error:  # a bug of ours must end this request alone, and be seen
            logger.exception("request %s failed", request.log_id)
            request.end(Stage.FAILED, InternalError(repr(error)))
        finally:
            self._under_way.discard(request)
            shelf.close()

    @property
    def retry_room(self) -> float:
        """Retries that its requests may make at once."""
        return self._budget.room

    def give_up(self, error: TriptychError) -> None:
        """Ends whatever is under way with this error."""
        for request in list(self._under_way):
            request.give_up(error)

    async def _attempts(self, request: Request, shelf: MediaShelf, placing: Placing) -> None:
        ends_at = time.monotonic() + self._settings.request_timeout_seconds
        retries = Retries(self._budget)
        avoid: set[WorkerLink] = set()
        encoders: dict[bytes, WorkerLink] = {}
        for number in itertools.count():
            tools = StageTools(
                request=request,
                number=number,
                num_generated=len(request.generated[0]),
                fleet=placing,
                shelf=shelf,
                claims=self._claims,
                retries=retries,
                lease_seconds=self._lease_seconds,
                seconds_left=lambda: max(0.001, ends_at - time.monotonic()),
                stage_seconds=self._settings.stage_timeout_seconds,
                used=set(),
                encoders=encoders,
                encodes=self._encodes,
            )
            attempt = Attempt(tools, avoid)
            error = await self._once(attempt, tools)
            if error is None:
                return
            if attempt.blamed is not None and (attempt.blamed is not Role.ENCODE or isinstance(error, NoWorker)):
                name = type(error).__name__  # what encoders fail with they are noted for one by one
                self._metrics.count("triptych:stage_errors_total", stage=attempt.blamed, error=name)
            tidying = self._tidy(tools)
            if request.all_finished.is_set():
                return  # the client has all it asked for; what broke behind it is nobody's loss
            if not _may_go_on(request, attempt.blamed, error, retries, tools.num_generated):
                raise error
            timeline, stage = request.timeline, str(attempt.blamed or "")
            timeline.retried.append(Retried(stage, type(error).__name__, timeline.since_start()))
            level = logging.INFO if isinstance(error, Draining | Preempted) else logging.WARNING
            logger.log(level, "request %s: %s is tried again: %s", request.log_id, attempt.blamed, error)
            await asyncio.wait({tidying})  # workers must have let go before they are asked again
            if attempt.failed_at is not None and not isinstance(error, Preempted):
                avoid.add(attempt.failed_at)  # one that is full is no worse than others, and keeps the request's place

    async def _once(self, attempt: Attempt, tools: StageTools) -> TriptychError | None:
        """What the attempt failed with; None where it did not."""
        try:
            await attempt.run()
        except TriptychError as error:
            return error
        except BaseException:
            self._tidy(tools)
            raise
        if attempt.leaves_work:
            self._tidy(tools)
        return None

    def _tidy(self, tools: StageTools) -> asyncio.Task[None]:
        """Tells every worker that was asked for something that it is not wanted any more."""
        request_id, number = tools.request.id, tools.number
        return self._background.start(all_or_first_error(link.cancel(request_id, number) for link in tools.used))


def _may_go_on(
    request: Request, blamed: Role | None, error: TriptychError, retries: Retries, num_generated: int
) -> bool:
    """Whether another attempt can continue where this one, begun behind so many tokens, has ended, and is worth it."""
    if request.has_tokens and request.prepared.branches > 1:
        return False  # several choices would have to be continued from one prompt each
    if isinstance(error, Preempted) and len(request.generated[0]) > num_generated:
        return True  # nothing was wrong, so no retry is spent; each time it is a token nearer to its end
    return blamed in (Role.PREFILL, Role.DECODE) and retries.allow(blamed, error)
