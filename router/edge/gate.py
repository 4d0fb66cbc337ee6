"""Who may pass the edge, how often, and what is written down of it: what all of a server's edges share."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from starlette.types import Scope

from triptych.errors import ConfigError, RequestError, TriptychError, Unauthorized
from triptych.router.edge.account import Account
from triptych.router.edge.auth import Key, KeyFile
from triptych.router.edge.limits import Limiter, Meter
from triptych.router.edge.pace import Pace
from triptych.router.edge.sites import Sites
from triptych.router.edge.usage_log import UsageLog
from triptych.router.observe.request_log import RequestLog
from triptych.router.observe.trace_context import TraceContext, read_traceparent
from triptych.router.observe.traces import Traces
from triptych.router.router import Ended, Router

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class Gate:
    """From `start` to `stop` it looks whether the keys have changed. Everything else takes microseconds."""

    def __init__(self, router: Router, now: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError for unreadable keys, a usage log that cannot be written, traces without their packages."""
        settings = router.settings
        self._router = router
        self._now = now
        self._keys = KeyFile(settings.router, settings.slo)
        self.sites = Sites(settings.router)  # whose pages may ask where there are no keys
        self._limiter = Limiter(router.limit_books)
        self._limiter.update(self._keys.ring.limits_by_tenant)
        log_path = settings.router.usage_log
        self._usage_log = UsageLog(Path(log_path), self._counting("usage_log_dropped_total")) if log_path else None
        observe = settings.observe
        lines, spans = self._counting("request_log_dropped_total"), self._counting("trace_spans_dropped_total")
        self._request_log = RequestLog(observe, dropped=lines) if observe.log_format == "json" else None
        self._traces = Traces(observe, router.name, dropped=spans) if observe.otlp_endpoint else None
        self._pace = Pace()
        self._watching: asyncio.Task[None] | None = None
        router.on_end.append(self._ended)

    def start(self) -> None:
        if self._usage_log is not None:
            self._usage_log.start()
        if self._request_log is not None:
            self._request_log.start()
        if self._traces is not None:
            self._traces.start()
        if self._keys.changes:
            self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Once the last requests have ended."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        if self._usage_log is not None:
            await asyncio.to_thread(self._usage_log.close)
        if self._request_log is not None:
            await asyncio.to_thread(self._request_log.close)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    @property
    def has_keys(self) -> bool:
        """Whether anybody is asked for one. A server whose file of keys is empty lets nobody in."""
        return self._keys.changes or bool(self._keys.ring)

    def admit(self, presented: bytes) -> Key:
        """Raises Unauthorized."""
        key = self._keys.ring.find(presented) if presented else None
        if key is None:
            raise Unauthorized("the API key is missing or wrong")
        return key

    def has_key(self, tenant: str) -> bool:
        return tenant in self._keys.ring.limits_by_tenant

    def enter(self, tenant: str) -> Meter | None:
        """The meter that the request has entered, and has to leave. Raises RateLimited."""
        meter = self._limiter.meter(tenant)
        if meter is not None:
            meter.enter(self._now())
        return meter

    def leave(self, meter: Meter, account: Account) -> None:
        meter.leave(account.num_tokens, self._now())

    def headers(self, meter: Meter) -> list[tuple[bytes, bytes]]:
        return meter.headers(self._now())

    def seconds_until_room(self) -> float:
        return self._pace.seconds_until_room(self._router.running)

    def write_down(
        self, tenant: str, request_id: str, trace_id: str, endpoint: str, status: int, account: Account, began: float
    ) -> None:
        """began: on the monotonic clock of `time`"""
        if self._request_log is not None:
            told = {
                "request_id": request_id,
                "trace_id": trace_id,
                "tenant": tenant,
                "endpoint": endpoint,
                "model": account.model,
                "status": status,
                "error": account.error,
                "seconds": round(time.monotonic() - began, 6),
                **(account.tokens if account.entry is not None else {}),  # of several prompts all together
            }
            self._request_log.write(told, status, account.entry)
        if self._usage_log is not None:
            self._usage_log.write(
                {
                    "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                    "request_id": request_id,
                    "tenant": tenant,
                    "endpoint": endpoint,
                    "model": account.model,
                    "status": status,
                    "error": account.error or None,
                    **account.tokens,
                    "seconds": round(time.monotonic() - began, 4),
                }
            )

    def trace_of(self, scope: Scope) -> TraceContext | None:
        """Which trace a request belongs to, if to any."""
        told = [value for name, value in scope["headers"] if name == b"traceparent"]
        if len(told) == 1 and (trace := read_traceparent(told[0].decode("latin-1"))) is not None:
            return trace  # of several nobody can say which one is meant
        return self._traces.begin() if self._traces is not None and scope["method"] == "POST" else None

    def service_class(self, told: str, of_key: str = "") -> str:
        """Name of the class of service: the header's, else the key's. Raises InvalidRequest where there is none."""
        return self._router.books.levels.choose(told, of_key).name

    def class_in_a_crowd(self, presented: bytes, told: str) -> str:
        """Of a request that is turned away unread; empty where it would not have got in anyway."""
        try:
            key = self.admit(presented) if self.has_keys else None
            return self.service_class(told, key.slo if key else "")
        except RequestError:
            return ""

    def refused(self, service_class: str, account: Account, error: TriptychError) -> None:
        """A question whose answer never began."""
        if service_class and not account.is_judged:
            account.is_judged = True
            self._router.books.levels.failed(service_class, error)

    def _ended(self, ending: Ended) -> None:
        if self._traces is not None:
            self._traces.add(ending.entry)
        self._pace.ended(ending.request.timeline.since_start())
        self._judge(ending)
        account = ending.caller.account
        if account is not None:
            usage = ending.usage
            account.model = self._router.name
            account.prompt_tokens += usage.prompt_tokens
            account.image_tokens += usage.image_tokens
            account.completion_tokens += usage.completion_tokens
            account.cached_tokens += usage.cached_tokens
            account.error = type(ending.error).__name__ if ending.error is not None else ""

    def _judge(self, ending: Ended) -> None:
        levels, caller, seconds = self._router.books.levels, ending.caller, ending.seconds
        if not caller.service_class:
            return
        if caller.account is not None:
            caller.account.is_judged = True
        if ending.error is None:
            num_tokens = ending.usage.completion_tokens
            levels.answered(caller.service_class, seconds.ttft, seconds.tpot, seconds.e2e, num_tokens, seconds.hosts)
        else:
            levels.failed(caller.service_class, ending.error)

    def _counting(self, name: str) -> Callable[[int], None]:
        return lambda num_lost: self._router.metrics.count(f"triptych:{name}", num_lost)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                changed = await asyncio.to_thread(self._keys.reload)
            except ConfigError as error:
                logger.error("the keys stay as they were: %s", error)
                continue
            if changed:
                self._limiter.update(self._keys.ring.limits_by_tenant)
                logger.info("there are %d keys now", len(self._keys.ring))
