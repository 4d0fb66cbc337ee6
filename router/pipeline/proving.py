"""Workers take nothing before a known image has gone through them and come out right."""

import asyncio
import dataclasses
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from weakref import WeakSet

from triptych.errors import ContextTooLong, MediaTooLarge, TriptychError
from triptych.journey import Role, Token, new_request_id
from triptych.router.admin.encode_alone import encode_alone
from triptych.router.fleet.fleet import Fleet
from triptych.router.fleet.link import WorkerLink
from triptych.router.fleet.link_state import LinkState
from triptych.router.media.shelf import MediaShelf
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline import self_test
from triptych.router.pipeline.request import Prepared, Request
from triptych.router.pipeline.stage_tools import Placing

logger = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS = 0.5  # before workers that have failed are tried again; twice as long each time
_LONGEST_WAIT_SECONDS = 30.0
_ENCODE_SECONDS = 30.0, 60.0  # lease, and time limit
TEST_SECONDS = 120.0  # for all of a self-test: a first one may wait for kernels that are compiled
_AT_ONCE = 4  # self-tests under way, and as many of workers that requests wait for

# The question, laid out under a salt of its own. Raises what makes it impossible here.
Prepare = Callable[[str], Awaitable[Prepared]]
# Takes a request to one of its ends by way of these workers.
Take = Callable[[Request, Placing], Awaitable[None]]


class _Wrong(Exception):
    """An answer that is not the right one."""


class _Unsure(Exception):
    """An answer that only a longer way can judge."""


class Course:
    """The workers that one self-test goes through, in the fleet's place."""

    def __init__(self, links: Mapping[Role, WorkerLink], *, is_needed: bool) -> None:
        """is_needed: a role of the worker that it is for has nobody else"""
        self.links = links
        self.is_needed = is_needed

    @property
    def workers(self) -> Collection[WorkerLink]:
        return set(self.links.values())

    def covers(self, link: WorkerLink) -> bool:
        """Whether the worker is asked for all that it can do."""
        return all(self.links.get(role) is link for role in link.roles)

    async def encoders_for(self, encoder_tokens: Sequence[int], avoid: Collection[WorkerLink] = ()) -> list[WorkerLink]:
        return [self.links[Role.ENCODE]] * len(encoder_tokens)

    async def prefill_for(self, avoid: Collection[WorkerLink] = (), decodes: WorkerLink | None = None) -> WorkerLink:
        return self.links[Role.PREFILL]

    async def decode_for(self, avoid: Collection[WorkerLink] = ()) -> WorkerLink:
        return self.links[Role.DECODE]

    def __str__(self) -> str:
        return ", ".join(sorted(link.worker_id for link in self.workers))


class Prover:
    """Runs for as long as the router does; workers that have answered it for the first time wait for it.

    What is right: the tokens that the model's folder gives, if it does; what the first workers have said that were let
    in; and in any case what prefill alone, from the prompt and the tokens so far, finds to be the next token, where
    decode has come to it step by step over KV that was handed over.
    """

    def __init__(self, fleet: Fleet, prepare: Prepare, take: Take, known: Sequence[int] = ()) -> None:
        """known: the right answer's tokens, as far as they are"""
        self._fleet = fleet
        self._prepare = prepare
        self._take = take
        self._right = tuple(known)
        self._sums: set[bytes] = set()  # of the picture's rows, of encoders that were let in
        self._strange: WeakSet[WorkerLink] = WeakSet()  # whose rows have another sum
        self._under_way: dict[asyncio.Task[None], Course] = {}

    async def run(self) -> None:
        """Until cancelled. Some self-tests at once: a newcomer that takes its time holds up nobody else."""
        try:
            while True:
                while (course := self._next_course()) is not None:
                    self._under_way[asyncio.create_task(self._try(course))] = course
                news = asyncio.create_task(self._fleet.wait_news(self._seconds_to_wait()))
                try:
                    done, _ = await asyncio.wait({news, *self._under_way}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                for task in done - {news}:
                    del self._under_way[task]
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    def _next_course(self) -> Course | None:
        """Whoever has a role that nobody is ready for comes first, then whoever has been tried least often."""
        waiting = sorted(
            self._waiting(), key=lambda link: (not self._is_needed(link), link.trial.tries, link.worker_id)
        )
        busy = {link for course in self._under_way.values() for link in course.workers}
        due = [link for link in waiting if link.trial.next_at <= self._now()]
        free = [link for link in due if link not in busy and self._has_room(self._is_needed(link))]
        return next(filter(None, (self._course_of(link, due, busy) for link in free)), None)

    def _is_needed(self, link: WorkerLink) -> bool:
        return not all(map(self._fleet.is_ready, link.roles))

    def _has_room(self, is_needed: bool) -> bool:
        """Whether one more may be under way; those that requests wait for never wait for the others."""
        alike = sum(course.is_needed or not is_needed for course in self._under_way.values())
        return alike < _AT_ONCE

    def _course_of(self, first: WorkerLink, due: Sequence[WorkerLink], busy: Collection[WorkerLink]) -> Course | None:
        """With proven workers, or else others who wait, whom another course may have as well.

        None while a role that is needed has nobody.
        """
        links = dict.fromkeys(first.roles, first)
        for role in self._needed(first) - first.roles:
            others = [link for link in self._fleet.links if link.takes(role)]
            others += sorted((link for link in due if role in link.roles), key=lambda link: link in busy)
            if not others:
                return None
            links[role] = others[0]
        return Course(links, is_needed=self._is_needed(first))

    def _needed(self, link: WorkerLink) -> set[Role]:
        """Roles that its test goes through.

        Requests hold room at decode while they wait for prefill, and at both while they wait for an encoder. The test
        of one that they wait for must not wait for that room, so it needs nobody that they come to earlier.
        """
        if not self._sums or Role.DECODE in link.roles or link in self._strange:
            return set(Role)
        return {Role.PREFILL, Role.ENCODE} if Role.PREFILL in link.roles else {Role.ENCODE}

    def _waiting(self) -> list[WorkerLink]:
        links = self._fleet.links
        return [link for link in links if link.state is LinkState.TESTING and link.listed and link.can_answer]

    def _seconds_to_wait(self) -> float:
        """Until one that has failed is due again; those that are due already wait for company, which is news."""
        now = self._now()
        return min((link.trial.next_at - now for link in self._waiting() if link.trial.next_at > now), default=math.inf)

    async def _try(self, course: Course) -> None:
        began = self._now()
        try:
            async with asyncio.timeout(TEST_SECONDS):
                await self._test(course)
        except (ContextTooLong, MediaTooLarge) as error:
            logger.warning("workers are let in untested, since no picture fits what they can hold: %s", error)
        except _Unsure as doubt:
            logger.info("the self-test of %s takes in the other roles: %s", course, doubt)
            return
        except _Wrong as wrong:
            self._refuse(course, f"it gave a wrong answer: {wrong}")
            return
        except TimeoutError:
            logger.warning("the self-test of %s was not through within %g s", course, TEST_SECONDS)
            self._count("failed")
            self._postpone(course, f"the self-test was not through within {TEST_SECONDS:g} s")
            return
        except TriptychError as error:
            logger.warning("the self-test of %s failed and will be tried again: %s", course, error)
            self._count("failed")
            self._postpone(course, f"the self-test failed: {type(error).__name__}")
            return
        except Exception as error:  # a bug of ours; nobody is let in by it
            logger.exception("the self-test of %s could not be carried out", course)
            self._count("failed")
            self._postpone(course, f"the self-test could not be carried out: {type(error).__name__}")
            return
        else:
            self._count("passed")
            logger.info("the self-test of %s passed in %.0f ms", course, 1000 * (self._now() - began))
        for link in course.workers:
            if course.covers(link):
                link.prove()

    async def _test(self, course: Course) -> None:
        """Returns once what came out was right. Raises _Wrong, and whatever keeps anything from coming out."""
        prepared = await self._fresh()
        rows = await self._encode(course.links[Role.ENCODE], prepared)
        if Role.DECODE in course.links:
            await self._test_all(course, prepared)
            self._sums.add(rows)
        elif Role.PREFILL in course.links:
            for position in {0, len(self._right) - 1}:
                await self._check_next(course, prepared, self._right[:position], self._right[position], "known")
        elif (
            rows not in self._sums
            and await self._encode(course.links[Role.ENCODE], await self._fresh()) not in self._sums
        ):
            # Not wrong for that: other devices round differently, and so may a batch with another router's picture,
            # which is not to be expected twice.
            self._strange.add(course.links[Role.ENCODE])
            raise _Unsure("its rows are none that are known to be right")

    async def _fresh(self) -> Prepared:
        """The question, under a salt that nobody has used."""
        return dataclasses.replace(await self._prepare(f"self-test {secrets.token_hex(16)}"), checksums=True)

    async def _test_all(self, course: Course, prepared: Prepared) -> None:
        answer = await self._ask(course, prepared)
        if flaw := self_test.difference(self._right, answer):
            raise _Wrong(flaw)
        ids = tuple(token.id for token in answer)
        again = dataclasses.replace(prepared, cache_salt=secrets.token_bytes(32))  # the rows are there, the KV is not
        for position in (1, len(ids) - 1):
            await self._check_next(course, again, ids[:position], ids[position], "decoded")
        self._right = self._right or ids

    async def _check_next(
        self, course: Course, prepared: Prepared, so_far: Sequence[int], wanted: int, by_whom: str
    ) -> None:
        """Whether prefill alone comes to this token behind those."""
        found, *_ = await self._ask(course, prepared, so_far, max_tokens=len(so_far) + 1)
        if not self_test.is_as_good(wanted, found):
            raise _Wrong(f"token {len(so_far)} is {wanted} as {by_whom}, prefill says {found.id}")

    async def _encode(self, link: WorkerLink, prepared: Prepared) -> bytes:
        """The checksum of the rows that the encoder has made; they are in its cache from now on."""
        shelf = MediaShelf(prepared.media)
        try:
            (item,) = prepared.layout.items
            reply = await encode_alone(link, item, shelf, *_ENCODE_SECONDS, checksums=True)
        finally:
            shelf.close()
        return reply.ref.checksum

    async def _ask(
        self, course: Course, prepared: Prepared, so_far: Sequence[int] = (), max_tokens: int = self_test.NUM_TOKENS
    ) -> Sequence[Token]:
        """What comes behind these tokens of an answer of so many."""
        sampling = dataclasses.replace(prepared.sampling, max_tokens=max_tokens)
        prepared = dataclasses.replace(prepared, sampling=sampling)
        request = Request(new_request_id(), prepared, Timeline())
        request.generated[0].extend(so_far)
        await self._take(request, course)
        tokens = []
        while some := request.take():  # raises, behind the last tokens, what the request has ended with
            tokens += some
        if not tokens:
            raise _Wrong("there was none")
        return tokens

    def _refuse(self, course: Course, reason: str) -> None:
        """Where only one of them is new, the blame is its own; else the next ones are tried in other company."""
        new = [link for link in course.workers if link.state is LinkState.TESTING]
        self._count("wrong")
        logger.critical("WRONG ANSWER in the self-test of %s, no request goes there: %s", course, reason)
        if len(new) == 1:
            new[0].condemn(reason)
        else:
            self._postpone(course, f"with {course}: {reason}")

    def _count(self, outcome: str) -> None:
        self._fleet.metrics.count("triptych:self_tests_total", outcome=outcome)

    def _postpone(self, course: Course, reason: str) -> None:
        for link in course.workers:
            if link.state is LinkState.TESTING:
                waits = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(link.trial.tries, 10))
                link.postpone(reason, self._now() + waits)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
