"""Who hears of prefills, tokens and reservations in tests, and writes down what."""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.engine.jobs import Reserved, Window
from triptych.errors import TriptychError
from triptych.journey import BlockRef, RequestId, Token
from triptych.stages import StageSpan

PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class KVReady:
    """One call of kv_ready."""

    blocks: tuple[BlockRef, ...]
    tokens_begin: int
    tokens_end: int
    last: bool

    @property
    def ids(self) -> list[int]:
        return [block.id for block in self.blocks]


class PromptSink:
    """Hears of one prefill; `events` are the names of the calls, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.windows: list[Window] = []
        self.kv: list[KVReady] = []
        self.tokens: tuple[Token, ...] = ()
        self.times: Sequence[StageSpan] = ()
        self.error: TriptychError | None = None
        self.was_granted = threading.Event()
        self.has_ended = threading.Event()
        self._unseen: queue.SimpleQueue[Window | None] = queue.SimpleQueue()  # None: the end

    @property
    def num_cached(self) -> int:
        """Tokens whose KV was there already."""
        return self.windows[0].cached_tokens

    def granted(self, window: Window) -> None:
        self.events.append("granted")
        self.windows.append(window)
        self.was_granted.set()
        self._unseen.put(window)

    def next_window(self) -> Window | None:
        """The next one nobody has asked for; None when the prefill has ended."""
        return self._unseen.get(timeout=PATIENCE_SECONDS)

    def kv_ready(self, blocks: tuple[BlockRef, ...], tokens_begin: int, tokens_end: int, last: bool) -> None:
        self.events.append("kv_ready")
        self.kv.append(KVReady(blocks, tokens_begin, tokens_end, last))

    def first_tokens(self, tokens: tuple[Token, ...], times: Sequence[StageSpan]) -> None:
        self.events.append("first_tokens")
        self.tokens, self.times = tokens, times
        self._unseen.put(None)
        self.has_ended.set()

    def failed(self, error: TriptychError) -> None:
        self.events.append("failed")
        self.error = error
        self.was_granted.set()
        self._unseen.put(None)
        self.has_ended.set()

    def result(self) -> tuple[Token, ...]:
        """The first tokens; raises what the prefill failed with."""
        assert self.has_ended.wait(PATIENCE_SECONDS), "the prefill never ended"
        if self.error is not None:
            raise self.error
        return self.tokens


class TokenSink:
    """Hears of all decoding requests, as one router does."""

    def __init__(self) -> None:
        self.batches: list[Sequence[tuple[RequestId, int, Token]]] = []
        self.errors: dict[RequestId, TriptychError] = {}
        self.waits: list[RequestId] = []  # of those that make room, each time they are told of
        self._answers: dict[RequestId, dict[int, list[Token]]] = {}  # by choice
        self._changed = threading.Condition()

    def tokens(self, batch: Sequence[tuple[RequestId, int, Token]]) -> None:
        with self._changed:
            self.batches.append(batch)
            for request_id, _, token in batch:
                self._answers.setdefault(request_id, {}).setdefault(token.choice, []).append(token)
            self._changed.notify_all()

    def waiting(self, request_id: RequestId, attempt: int) -> None:
        with self._changed:
            self.waits.append(request_id)
            self._changed.notify_all()

    def failed(self, request_id: RequestId, attempt: int, error: TriptychError) -> None:
        with self._changed:
            self.errors[request_id] = error
            self._changed.notify_all()

    def answer(self, request_id: RequestId, first: Sequence[Token]) -> dict[int, list[Token]]:
        """All tokens by choice, once every branch has finished; raises what the request failed with."""
        open_choices = [token.choice for token in first if not token.finish_reason]

        def has_ended() -> bool:
            got = self._answers.get(request_id, {})
            finished = (choice in got and got[choice][-1].finish_reason for choice in open_choices)
            return request_id in self.errors or all(finished)

        with self._changed:
            assert self._changed.wait_for(has_ended, PATIENCE_SECONDS), "decoding never ended"
            if request_id in self.errors:
                raise self.errors[request_id]
            got = self._answers.get(request_id, {})
            return {token.choice: [token, *got.get(token.choice, ())] for token in first}

    def heard(self, request_id: RequestId) -> list[Token]:
        """Of the one choice of a request, so far."""
        with self._changed:
            return [token for tokens in self._answers.get(request_id, {}).values() for token in tokens]

    def wait_for_tokens(self, request_id: RequestId, count: int) -> None:
        def has_enough() -> bool:
            got = self._answers.get(request_id, {})
            return request_id in self.errors or sum(map(len, got.values())) >= count

        with self._changed:
            assert self._changed.wait_for(has_enough, PATIENCE_SECONDS), "the tokens never came"


class Outcome:
    """Hears of one reservation."""

    def __init__(self) -> None:
        self.calls: list[Reserved | TriptychError] = []
        self._called = threading.Event()

    def __call__(self, outcome: Reserved | TriptychError) -> None:
        self.calls.append(outcome)
        self._called.set()

    @property
    def is_pending(self) -> bool:
        return not self.calls

    def result(self) -> int:
        """Blocks."""
        return self.granted().num_blocks

    def granted(self) -> Reserved:
        assert self._called.wait(PATIENCE_SECONDS), "the reservation was never answered"
        outcome = self.calls[-1]
        if isinstance(outcome, TriptychError):
            raise outcome
        return outcome
