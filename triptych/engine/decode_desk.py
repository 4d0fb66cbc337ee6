"""Decoding requests as their callers see them: from a reservation to the last token of the last branch.

As in prefill_desk: decisions of the scheduler become news here, and every request is told its end exactly once.
Not thread-safe: the engine calls it under its lock.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from triptych.engine.jobs import DecodeJob, DecodeSink, Reserved, check_branches, check_decode, require_newer
from triptych.engine.mailbox import News, NewsQueue
from triptych.engine.plan import Admitted
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, Reservation
from triptych.errors import (
    Cancelled,
    ClaimExpired,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    InvariantViolation,
    LayoutMismatch,
    Overloaded,
    Preempted,
    TriptychError,
)
from triptych.grammar.matcher import GrammarMatcher
from triptych.journey import RequestId, Token

STILL_HERE_SECONDS = 5.0  # between news of one that makes room; whoever waits for it gives up after some ten times that

OnReserved = Callable[[Reserved | TriptychError], None]
SinkEntry = tuple[RequestId, int, Token]  # request, attempt, token


@dataclass(slots=True, eq=False)
class DecodeTask:
    """One request with whoever waits for it."""

    reservation: Reservation
    reserve_deadline: float  # for waiting alone: once granted, a reservation lasts until it is used or cancelled
    waiting: list[OnReserved] = field(default_factory=list)  # not told yet whether it is granted
    is_granted: bool = False
    job: DecodeJob | None = None
    sink: DecodeSink | None = None

    @property
    def deadline(self) -> float:
        """On time.monotonic."""
        if self.job is not None:
            return self.job.deadline
        return math.inf if self.is_granted else self.reserve_deadline


class DecodeDesk:
    """Intake, tokens and ends of all decoding requests of one engine."""

    def __init__(self, scheduler: Scheduler, vocab_size: int, news: NewsQueue) -> None:
        self._scheduler = scheduler
        self._vocab_size = vocab_size
        self._news = news
        self._tasks: dict[RequestId, DecodeTask] = {}
        self._told_at = -math.inf  # on time.monotonic: of those that make room, that they are still here

    @property
    def is_empty(self) -> bool:
        return not self._tasks

    def reserve(self, reservation: Reservation, deadline: float, on_done: OnReserved) -> None:
        """Queue for blocks. Repeating it is safe; a newer attempt ends an older one.

        Raises a TriptychError for a reservation that can never be granted, or comes too late.
        """
        held = self._tasks.get(reservation.request_id)
        if held is not None and held.job is None and held.reservation.attempt == reservation.attempt:
            held.waiting.append(on_done)
            if held.is_granted:
                self._tell_granted(held)
            return
        if held is not None:
            require_newer(held.reservation.attempt, reservation.attempt)
            self.end(reservation.request_id, Cancelled(f"attempt {reservation.attempt} has come for this request"))
        _check_reservation(reservation, self._scheduler.limits.max_model_len)
        self._scheduler.add_reservation(reservation)
        self._tasks[reservation.request_id] = DecodeTask(reservation, deadline, [on_done])

    def grant(self, admitted: Admitted) -> None:
        """Tell who got room, and whose request has ended for it."""
        for request_id in admitted.ended:
            self.end(request_id, Preempted("its KV blocks were needed by those before it; prefill what it has again"))
        for reservation in admitted.reservations:
            task = self._tasks[reservation.request_id]
            task.is_granted = True
            self._tell_granted(task)

    def start(
        self, job: DecodeJob, sink: DecodeSink, matchers: Sequence[GrammarMatcher] = ()
    ) -> Sequence[tuple[int, int]]:
        """Decode in the reserved blocks; the block copies, (from, to), that must be made before the next step.

        matchers: of the branches that go on, where there is a grammar
        Its prompt's KV has landed, and was verified: the full blocks of it go into the prefix cache.
        Raises ClaimExpired when the request has no reservation here, and another TriptychError for a job that does
        not fit it; then the reservation is gone.
        """
        task = self._tasks.get(job.request_id)
        if task is None or not task.is_granted or task.job is not None or task.reservation.attempt != job.attempt:
            raise ClaimExpired(f"attempt {job.attempt} of this request has no reservation here; reserve again")
        try:
            check_decode(job, self._vocab_size)
            _check_reserved(job, task.reservation, self._scheduler.limits.max_model_len)
        except TriptychError:
            self._forget(job.request_id)
            raise
        self._scheduler.prompt_landed(task.reservation)
        branches = _unfinished_branches(job)
        for branch, matcher in zip(branches, matchers, strict=False):
            branch.matcher = matcher
        if not branches:
            self._forget(job.request_id)
            return ()
        task.job, task.sink = job, sink
        copies = task.reservation.tail_copies([branch.branch for branch in branches])
        self._scheduler.start_decode(branches)
        return copies

    def publish(self, entries: Sequence[SinkEntry]) -> None:
        """A step's tokens, to each sink its own. Finished branches have left the scheduler already."""
        batches: dict[int, tuple[DecodeSink, list[SinkEntry]]] = {}
        for entry in entries:
            sink = self._tasks[entry[0]].sink
            if sink is not None:
                batches.setdefault(id(sink), (sink, []))[1].append(entry)
        for sink, batch in batches.values():
            request_ids = {request_id for request_id, _, _ in batch}
            self._news.append(News(partial(sink.tokens, batch), partial(self._refused, request_ids)))
        for request_id in {request_id for request_id, _, _ in entries}:
            if not self._scheduler.is_decoding(request_id):
                del self._tasks[request_id]

    def end(self, request_id: RequestId, error: TriptychError) -> None:
        """Free everything and tell why; nothing for a request that is not here.

        Behind an InternalError the KV of its prompt may be wrong: nobody finds it in the prefix cache any more.
        """
        task = self._tasks.get(request_id)
        if task is None:
            return
        self._forget(request_id, spoiled=isinstance(error, InternalError))
        self._news.extend(News(partial(on_done, error)) for on_done in task.waiting)
        if task.sink is not None:
            self._news.append(News(partial(task.sink.failed, request_id, task.reservation.attempt, error)))

    def end_all(self, error: TriptychError) -> None:
        for request_id in tuple(self._tasks):
            self.end(request_id, error)

    def expire(self, now: float) -> None:
        """End the requests whose time is up, and those that would be decoded behind KV that may be wrong."""
        for request_id in self._scheduler.baseless():
            self.end(request_id, _baseless())
        for task in [task for task in self._tasks.values() if task.deadline <= now]:
            error: TriptychError = DeadlineExceeded("the request's deadline has passed while it was decoding")
            if task.job is None:
                blocks, pool = task.reservation.num_blocks, self._scheduler.ledger.pool
                free = f"{pool.num_free_blocks} of {pool.num_blocks} are free"
                error = Overloaded(f"no room before the deadline: {blocks} KV blocks are needed, {free}")
            self.end(task.reservation.request_id, error)
        if now >= self._told_at + STILL_HERE_SECONDS:
            self._told_at = now
            for request_id in self._scheduler.aside_ids():
                task = self._tasks[request_id]
                if task.sink is not None:
                    self._news.append(News(partial(task.sink.waiting, request_id, task.reservation.attempt)))

    def next_deadline(self) -> float:
        """On time.monotonic; infinite when nothing is due."""
        due = min((task.deadline for task in self._tasks.values()), default=math.inf)
        return min(due, self._told_at + STILL_HERE_SECONDS) if self._scheduler.aside_ids() else due

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        mine, theirs = set(self._tasks), self._scheduler.decode_ids()
        if mine != theirs:
            raise InvariantViolation(f"{len(mine)} requests are known to sinks, {len(theirs)} to the scheduler")

    def _tell_granted(self, task: DecodeTask) -> None:
        for on_done in task.waiting:
            held = task.reservation
            call = partial(on_done, Reserved(held.num_blocks, held.num_cached_blocks * held.block_size))
            self._news.append(News(call, partial(self._refused, {task.reservation.request_id})))
        task.waiting.clear()

    def _refused(self, request_ids: Iterable[RequestId]) -> None:
        for request_id in request_ids:
            self.end(request_id, InternalError("whoever waits for this request failed to take the news"))

    def _forget(self, request_id: RequestId, spoiled: bool = False) -> None:
        del self._tasks[request_id]
        self._scheduler.drop_decode(request_id, spoiled)


def _check_reservation(reservation: Reservation, max_model_len: int) -> None:
    """Raises ContextTooLong, InvalidRequest or LayoutMismatch for one that makes no sense."""
    if reservation.prompt_tokens >= max_model_len:
        raise ContextTooLong(
            f"the prompt has {reservation.prompt_tokens} tokens, the context takes {max_model_len - 1} and an answer"
        )
    if min(reservation.prompt_tokens, reservation.max_tokens) < 1:
        raise InvalidRequest(f"{reservation.max_tokens} tokens behind {reservation.prompt_tokens}, expected both > 0")
    check_branches(reservation.branches)
    if reservation.keys is not None and reservation.keys.num_tokens != reservation.prompt_tokens:
        raise LayoutMismatch(
            f"blocks for {reservation.prompt_tokens} tokens are asked for a prompt of {reservation.keys.num_tokens}"
        )


def _check_reserved(job: DecodeJob, reservation: Reservation, max_model_len: int) -> None:
    """Raises LayoutMismatch or InvalidRequest unless the job is what the blocks were reserved for.

    Raises ClaimExpired when it would be decoded behind KV that may be wrong.
    """
    prompt_tokens = job.layout.num_tokens + len(job.generated)
    if prompt_tokens != reservation.prompt_tokens or job.branches != reservation.branches:
        raise LayoutMismatch(
            f"blocks are reserved for {reservation.branches} branches behind {reservation.prompt_tokens} tokens, "
            f"{job.branches} came behind {prompt_tokens}"
        )
    if reservation.keys is not None and not reservation.keys.are_of(job.layout, job.generated):
        raise LayoutMismatch(f"blocks are reserved for another prompt than the one of {prompt_tokens} tokens that came")
    if reservation.is_baseless:
        raise _baseless()
    still = min(job.sampling.max_tokens - len(job.generated), max_model_len - prompt_tokens)
    if still > reservation.max_tokens:
        raise InvalidRequest(f"{still} tokens may follow, blocks are reserved for {reservation.max_tokens}")


def _baseless() -> ClaimExpired:
    return ClaimExpired("a step with the cached blocks that this reservation begins with has failed; reserve again")


def _unfinished_branches(job: DecodeJob) -> list[DecodeSequence]:
    return [
        DecodeSequence(
            request_id=job.request_id,
            attempt=job.attempt,
            branch=branch,
            choice=token.choice,
            layout=job.layout,
            sampling=job.sampling,
            tokens=[*job.generated, token.id],
        )
        for branch, token in enumerate(job.first)
        if not token.finish_reason
    ]
