"""How requests come in: those under a grammar wait outside of the engine until it is compiled, and hold up nobody."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from triptych.engine.mailbox import Mailbox, as_triptych
from triptych.errors import Cancelled, DeadlineExceeded, InvalidRequest, Overloaded, TriptychError
from triptych.grammar.compiler import COMPILE_SECONDS, GrammarCompiler
from triptych.grammar.matcher import GrammarMatcher
from triptych.journey import RequestId
from triptych.sampling import Sampling

Take = Callable[[Sequence[GrammarMatcher]], None]
Failed = Callable[[TriptychError], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A request whose grammar is being compiled; whoever takes it out of the set tells what becomes of it."""

    request_id: RequestId
    take: Take
    failed: Failed
    timer: threading.Timer


class Reception:
    """Lets requests into the engine's mailbox, those with a grammar once it is compiled. Any thread; never blocks."""

    def __init__(self, mailbox: Mailbox, compiler: GrammarCompiler | None) -> None:
        self._mailbox = mailbox
        self._compiler = compiler
        self._lock = threading.RLock()  # a sink that is told of an end may end others
        self._waiting: set[_Waiting] = set()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def expect(self, sampling: Sampling) -> None:
        """A request like this will come: its grammar may be compiled meanwhile."""
        if sampling.grammar is not None and self._compiler is not None:
            self._compiler.expect(sampling.grammar)

    def let_in(
        self,
        request_id: RequestId,
        sampling: Sampling,
        stems: Sequence[Sequence[int]],
        deadline: float,
        take: Take,
        failed: Failed,
    ) -> None:
        """Have `take` called by the engine's thread, with a matcher for each of these beginnings of an answer; none
        without a grammar. `failed` is called, and nothing else, when that cannot be.
        """
        if sampling.grammar is None:
            self._mailbox.post(lambda: take(()), failed)
            return
        try:
            made = self._matchers(sampling, stems)
        except TriptychError as error:
            failed(error)
            return
        seconds = max(0.0, min(deadline - time.monotonic(), COMPILE_SECONDS))
        timer = threading.Timer(seconds, lambda: self._overdue(waiting, seconds))
        timer.daemon = True
        waiting = _Waiting(request_id, take, failed, timer)
        with self._lock:
            self._waiting.add(waiting)
        made.add_done_callback(lambda done: self._compiled(waiting, done))
        if waiting in self._waiting:
            timer.start()
            if waiting not in self._waiting:  # settled between the two lines
                timer.cancel()

    def cancel(self, request_id: RequestId) -> None:
        """Requests of this name that are not taken in yet never will be."""
        self._end([each for each in tuple(self._waiting) if each.request_id == request_id], Cancelled("cancelled"))

    def close(self, error: TriptychError) -> None:
        self._end(tuple(self._waiting), error)

    def _matchers(self, sampling: Sampling, stems: Sequence[Sequence[int]]) -> Future[list[GrammarMatcher]]:
        if self._compiler is None:
            raise InvalidRequest("this worker follows no grammars: it was given no tokenizer")
        if not sampling.stop_token_ids:
            raise InvalidRequest("an answer with a grammar needs a stop token to end with")
        try:
            return self._compiler.matchers(sampling, stems)
        except RuntimeError as error:  # its threads have ended
            raise Overloaded("this worker is stopping") from error

    def _compiled(self, waiting: _Waiting, done: Future[list[GrammarMatcher]]) -> None:
        # The lock is held over the post, so that a cancel is posted either behind it or finds the request waiting.
        with self._lock:
            if waiting not in self._waiting:
                return
            self._waiting.discard(waiting)
            waiting.timer.cancel()
            try:
                matchers = done.result()
            except CancelledError:
                waiting.failed(Overloaded("this worker is stopping"))
            except Exception as error:
                waiting.failed(as_triptych(error))
            else:
                self._mailbox.post(lambda: waiting.take(matchers), waiting.failed)

    def _overdue(self, waiting: _Waiting, seconds: float) -> None:
        self._end([waiting], DeadlineExceeded(f"the grammar was not compiled within {seconds:.1f} s"))

    def _end(self, waiting: Iterable[_Waiting], error: TriptychError) -> None:
        for each in waiting:
            with self._lock:
                is_mine = each in self._waiting
                self._waiting.discard(each)
            if is_mine:
                each.timer.cancel()
                each.failed(error)
