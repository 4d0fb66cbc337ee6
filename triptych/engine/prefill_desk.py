"""Prompts as their callers see them: from a job's arrival to its first tokens, or to the one error that ends it.

The scheduler decides by counts; the desk keeps sinks and deadlines beside it and turns decisions into news. It never
calls a sink itself. Not thread-safe: the engine calls it under its lock.
"""

import math
from dataclasses import dataclass, field
from functools import partial

from triptych.engine.block_keys import BlockKeys, root_key
from triptych.engine.device_errors import is_device_lost
from triptych.engine.jobs import PrefillJob, PrefillSink, Window, check_prefill, require_newer
from triptych.engine.landing import LandingMemory
from triptych.engine.mailbox import News, NewsQueue
from triptych.engine.plan import Admitted, Announcement, Chunk
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import PrefillSequence
from triptych.errors import Cancelled, DeadlineExceeded, InternalError, InvariantViolation, Overloaded, TriptychError
from triptych.grammar.matcher import GrammarMatcher
from triptych.journey import BlockRef, RequestId, Token
from triptych.multimodal.rows import RowMap
from triptych.stages import StageSpan

_MOST_STEPS = 64


@dataclass(slots=True, eq=False)
class PrefillTask:
    """One prompt with its sink; times on time.monotonic."""

    job: PrefillJob
    sink: PrefillSink
    sequence: PrefillSequence
    arrived: float
    matcher: GrammarMatcher | None = None  # behind what was generated before
    admitted: float = math.nan
    steps: list[tuple[float, float]] = field(default_factory=list)  # those that it took part in: begin and end

    def add_step(self, begin: float, end: float) -> None:
        """Of very many, the last ones count as one."""
        if len(self.steps) < _MOST_STEPS:
            self.steps.append((begin, end))
        else:
            self.steps[-1] = (self.steps[-1][0], end)

    def times(self, now: float) -> tuple[StageSpan, ...]:
        spans = [StageSpan("prefill_queue", self.arrived, self.admitted)]
        at = self.admitted
        for begin, end in self.steps:
            if begin > at:
                spans.append(StageSpan("prefill_wait", at, begin))
            spans.append(StageSpan("prefill", max(at, begin), end))
            at = end
        if now > at:
            spans.append(StageSpan("prefill_wait", at, now))
        return tuple(spans)


class PrefillDesk:
    """Intake, progress and ends of all prompts of one engine."""

    def __init__(
        self,
        scheduler: Scheduler,
        landing: LandingMemory,
        vocab_size: int,
        news: NewsQueue,
        fingerprint: bytes | None = None,
    ) -> None:
        """fingerprint: of the model, for the keys of cached KV; None: no KV is used twice"""
        self._scheduler = scheduler
        self._fingerprint = fingerprint
        self._landing = landing
        self._vocab_size = vocab_size
        self._news = news
        self._tasks: dict[RequestId, PrefillTask] = {}

    @property
    def is_empty(self) -> bool:
        return not self._tasks

    def take(self, job: PrefillJob, sink: PrefillSink, now: float, matcher: GrammarMatcher | None = None) -> None:
        """Queue a prompt; a newer attempt ends an older one. Raises a TriptychError for a job that cannot be done."""
        older = self._tasks.get(job.request_id)
        if older is not None:
            require_newer(older.job.attempt, job.attempt)
            self.end(job.request_id, Cancelled(f"attempt {job.attempt} has come for this prompt"))
        check_prefill(job, self._vocab_size, self._scheduler.limits.max_model_len)
        rows = RowMap(job.layout)
        keys = self._keys(job)
        sequence = PrefillSequence(job.request_id, job.layout, rows, job.generated, job.keep_kv, keys)
        sequence.num_announced_blocks = job.kv_begin // self._scheduler.limits.block_size
        self._scheduler.add_prefill(sequence)
        self._tasks[job.request_id] = PrefillTask(job, sink, sequence, arrived=now, matcher=matcher)

    def admit(self, admitted: Admitted, now: float) -> None:
        """Make landing memory for the windows that have got room, and tell their sinks."""
        for sequence in admitted.prefills:
            self._tasks[sequence.request_id].admitted = now
        for sequence, window in admitted.windows:
            task = self._tasks.get(sequence.request_id)
            if task is not None:  # else an earlier window of it has failed
                self._open(task, window)

    def landed(self, request_id: RequestId, item_index: int) -> None:
        """An item's rows are in its landing memory. Rows of a prompt that has ended are nobody's any more."""
        task = self._tasks.get(request_id)
        if task is None or item_index in task.sequence.ready_items:
            return
        try:
            self._landing.view(request_id, item_index)
        except TriptychError as error:
            self.end(request_id, error)
        else:
            task.sequence.mark_ready(item_index)

    def computed(self, chunk: Chunk) -> None:
        """The chunk's work is launched: drop the rows it has fused, hand the blocks it fills to the sink."""
        request_id = chunk.sequence.request_id
        announcement = self._scheduler.advance(chunk)
        num_bytes = self._landing.drop_fused(request_id, chunk.sequence.layout, chunk.end)
        self._scheduler.release_landing(request_id, num_bytes)
        if announcement is not None:
            self._announce(self._tasks[request_id], announcement)

    def add_step(self, chunk: Chunk, begin: float, end: float) -> None:
        self._tasks[chunk.sequence.request_id].add_step(begin, end)

    def job(self, request_id: RequestId) -> PrefillJob:
        return self._tasks[request_id].job

    def matcher(self, sequence: PrefillSequence) -> GrammarMatcher | None:
        """None without a grammar, and for an attempt that is not wanted any more."""
        return self._tasks[sequence.request_id].matcher if self.holds(sequence) else None

    def holds(self, sequence: PrefillSequence) -> bool:
        """Whether this very attempt is still wanted."""
        task = self._tasks.get(sequence.request_id)
        return task is not None and task.sequence is sequence

    def finish(self, request_id: RequestId, tokens: tuple[Token, ...], now: float) -> None:
        task = self._tasks[request_id]
        self._forget(request_id)
        self._news.append(News(partial(task.sink.first_tokens, tokens, task.times(now))))

    def end(self, request_id: RequestId, error: TriptychError) -> None:
        """Free everything and tell why; nothing for a request that is not here.

        Behind an InternalError its KV may be wrong: nobody finds it in the prefix cache any more.
        """
        task = self._tasks.get(request_id)
        if task is not None:
            self._forget(request_id, spoiled=isinstance(error, InternalError))
            self._news.append(News(partial(task.sink.failed, error)))

    def end_all(self, error: TriptychError) -> None:
        for request_id in tuple(self._tasks):
            self.end(request_id, error)

    def expire(self, now: float) -> None:
        """End the prompts whose time is up."""
        for task in [task for task in self._tasks.values() if task.job.deadline <= now]:
            done, whole = task.sequence.num_computed, task.sequence.num_tokens
            place = "while it waited for room" if math.isnan(task.admitted) else f"with {done} tokens computed"
            error = DeadlineExceeded(f"the deadline of a prompt of {whole} tokens has passed {place}")
            self.end(task.job.request_id, error)

    def next_deadline(self) -> float:
        """On time.monotonic; infinite when nothing is due."""
        return min((task.job.deadline for task in self._tasks.values()), default=math.inf)

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        self._landing.check(self._scheduler.landing_bytes)
        mine, theirs = set(self._tasks), self._scheduler.prefill_ids()
        if mine != theirs:
            raise InvariantViolation(f"{len(mine)} prompts are known to sinks, {len(theirs)} to the scheduler")

    def _open(self, task: PrefillTask, window: Window) -> None:
        layout = task.sequence.layout
        items = [item for item in layout.items if item.index in window.items]
        try:
            self._landing.open(task.job.request_id, items)
        except RuntimeError as error:  # the device is fuller than our own accounts say
            if is_device_lost(error):
                raise
            rows = sum(item.rows for item in items)
            self.end(task.job.request_id, Overloaded(f"no memory for {rows} rows: {error}"))
        else:
            self._news.append(News(partial(task.sink.granted, window), partial(self._refused, task)))

    def _keys(self, job: PrefillJob) -> BlockKeys | None:
        if self._fingerprint is None:
            return None
        root = root_key(self._fingerprint, job.cache_salt)
        keys = BlockKeys(job.layout, job.generated, self._scheduler.limits.block_size, root)
        held = self._scheduler.reservation(job.request_id)
        if held is not None and held.keys is not None and held.keys.equal(keys):
            return held.keys  # computed already, on another thread
        return keys

    def _announce(self, task: PrefillTask, announcement: Announcement) -> None:
        blocks = announcement.blocks
        begin, end, last = announcement.tokens_begin, announcement.tokens_end, announcement.last
        call = partial(task.sink.kv_ready, blocks, begin, end, last)
        self._news.append(News(call, partial(self._blocks_refused, task, blocks)))

    def _blocks_refused(self, task: PrefillTask, blocks: tuple[BlockRef, ...]) -> None:
        self._scheduler.take_back([block.id for block in blocks])
        self._refused(task)

    def _refused(self, task: PrefillTask) -> None:
        if self._tasks.get(task.job.request_id) is task:
            self.end(task.job.request_id, InternalError("whoever waits for this prompt failed to take the news"))

    def _forget(self, request_id: RequestId, spoiled: bool = False) -> None:
        del self._tasks[request_id]
        self._scheduler.drop_prefill(request_id, spoiled)
        self._landing.close(request_id)
