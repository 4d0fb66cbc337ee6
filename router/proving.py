"""Workers take nothing before a known image has gone through them and come out right."""

import asyncio
import dataclasses
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from triptych.errors import ContextTooLong, MediaTooLarge, TriptychError
from triptych.journey import Role, Token, new_request_id
from triptych.router import self_test
from triptych.router.fleet import Fleet
from triptych.router.link import WorkerLink
from triptych.router.link_state import LinkState
from triptych.router.request import Prepared, Request
from triptych.router.stage_tools import Placing
from triptych.router.timeline import Timeline

logger = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS = 0.5  # before workers that have failed are tried again; twice as long each time
_LONGEST_WAIT_SECONDS = 30.0

# The question, laid out under a salt of its own. Raises what makes it impossible here.
Prepare = Callable[[str], Awaitable[Prepared]]
# Takes a request to one of its ends by way of these workers.
Take = Callable[[Request, Placing], Awaitable[None]]


class _Wrong(Exception):
    """An answer that is not the right one."""


class Course:
    """The workers that one self-test goes through, in the fleet's place."""

    def __init__(self, links: Mapping[Role, WorkerLink]) -> None:
        self._links = links

    @property
    def links(self) -> Collection[WorkerLink]:
        return set(self._links.values())

    def covers(self, link: WorkerLink) -> bool:
        """Whether the worker is asked for all that it can do."""
        return all(self._links[role] is link for role in link.roles)

    async def encoders_for(self, encoder_tokens: Sequence[int], avoid: Collection[WorkerLink] = ()) -> list[WorkerLink]:
        return [self._links[Role.ENCODE]] * len(encoder_tokens)

    async def prefill_for(self, avoid: Collection[WorkerLink] = ()) -> WorkerLink:
        return self._links[Role.PREFILL]

    async def decode_for(self, avoid: Collection[WorkerLink] = ()) -> WorkerLink:
        return self._links[Role.DECODE]

    def __str__(self) -> str:
        return ", ".join(sorted(link.worker_id for link in self.links))


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

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            course = self._next_course()
            if course is not None:
                await self._try(course)
            else:
                await self._fleet.wait_news(self._seconds_to_wait())

    def _next_course(self) -> Course | None:
        """Whoever has been tried least often comes first, together with others who wait, or else with proven ones."""
        waiting = sorted(self._waiting(), key=lambda link: (link.trial.tries, link.worker_id))
        due = [link for link in waiting if link.trial.next_at <= self._now()]
        if not due:
            return None
        first = due[0]
        links = dict.fromkeys(first.roles, first)
        for role in set(Role) - first.roles:
            others = [link for link in due if role in link.roles]
            others += [link for link in self._fleet.links if link.takes(role)]
            if not others:
                return None
            links[role] = others[0]
        return Course(links)

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
            answer = await self._answer(course)
        except (ContextTooLong, MediaTooLarge) as error:
            logger.warning("workers are let in untested, since no picture fits what they can hold: %s", error)
        except _Wrong as wrong:
            self._refuse(course, f"it gave a wrong answer: {wrong}")
            return
        except TriptychError as error:
            logger.warning("the self-test of %s failed and will be tried again: %s", course, error)
            self._postpone(course, f"the self-test failed: {type(error).__name__}")
            return
        except Exception as error:  # a bug of ours; nobody is let in by it
            logger.exception("the self-test of %s could not be carried out", course)
            self._postpone(course, f"the self-test could not be carried out: {type(error).__name__}")
            return
        else:
            self._right = self._right or tuple(token.id for token in answer)
            logger.info("the self-test of %s passed in %.0f ms", course, 1000 * (self._now() - began))
        for link in course.links:
            if course.covers(link):
                link.prove()

    async def _answer(self, course: Course) -> Sequence[Token]:
        """The answer, found to be right. Raises _Wrong, and whatever keeps it from being given."""
        prepared = await self._prepare(f"self-test {secrets.token_hex(16)}")
        prepared = dataclasses.replace(prepared, checksums=True)
        answer = await self._ask(course, prepared)
        if flaw := self_test.difference(self._right, answer):
            raise _Wrong(flaw)
        again = dataclasses.replace(prepared, cache_salt=secrets.token_bytes(32))  # the rows are there, the KV is not
        for position in (1, len(answer) - 1):
            ids = [token.id for token in answer[:position]]
            next_token, *_ = await self._ask(course, again, ids)
            if not self_test.is_as_good(answer[position].id, next_token):
                found, wanted = answer[position].id, next_token.id
                raise _Wrong(f"decode went on with token {found} where prefill says {wanted}")
        return answer

    async def _ask(self, course: Course, prepared: Prepared, so_far: Sequence[int] = ()) -> Sequence[Token]:
        """All tokens of an answer, or the one behind those that there are."""
        if so_far:
            sampling = dataclasses.replace(prepared.sampling, max_tokens=len(so_far) + 1)
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
        new = [link for link in course.links if link.state is LinkState.TESTING]
        logger.critical("WRONG ANSWER in the self-test of %s, no request goes there: %s", course, reason)
        if len(new) == 1:
            new[0].condemn(reason)
        else:
            self._postpone(course, f"with {course}: {reason}")

    def _postpone(self, course: Course, reason: str) -> None:
        for link in course.links:
            if link.state is LinkState.TESTING:
                waits = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(link.trial.tries, 10))
                link.postpone(reason, self._now() + waits)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
