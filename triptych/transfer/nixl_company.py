"""Small pulls out of one slab that are asked for side by side: one of their threads reads for all of them.

Each READ and each fetching of words costs its own time, whatever it brings. And threads that read side by side take
turns on the interpreter at each of their steps: sixteen images' rows took four threads twice as long as one alone.

    first to come ─▶ leads: reads its own and whatever waits by then ─▶ calls the first of those that came meanwhile
    others        ─▶ wait, asleep, until their words are there, or they are called to lead

A company's failure is its leader's alone: the others are sent on, each to read by itself.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.pull import CopyAbandoned, Pull

_LEAST_SECONDS = 1.0  # who has less left goes alone: others' pulls must not end with its own
_NEAR_SECONDS = 0.5  # whose deadline is not earlier than a leader's by more goes along
_GRACE_SECONDS = 1.0  # for a leader, whose deadline is later by no more than that, to tell what became of it
_ROOM_STEP_BYTES = 256  # copies between GPU addresses that are less aligned are slower


@dataclass(frozen=True, slots=True)
class NotRead:
    """Instead of words. Nothing of the pull is under way.

    unwritten: the owner's event had not come to pass; else the company failed, and whoever was with it goes alone
    """

    unwritten: bool


Outcome = Int64Array | NotRead | CopyAbandoned
ReadTogether = Callable[[Sequence[Pull]], Sequence[Int64Array | NotRead]]


@dataclass(slots=True, eq=False)
class Turn:
    """One pull in a company, or on its way into one. Under the company's lock but for `called` and `outcome`."""

    pull: Pull
    deadline: float
    num_words: int
    called: threading.Event = field(default_factory=threading.Event)  # its outcome is there, or it is to lead
    leads: bool = False
    is_waiting: bool = False
    outcome: Outcome | None = None

    def has_ended(self) -> bool:
        """Whether nothing is read for it any more: its leader may have given the copy of all up that still runs."""
        return self.called.is_set() and (not isinstance(self.outcome, CopyAbandoned) or self.outcome.ended())


def room_of(num_bytes: int) -> int:
    """What a pull takes of a window that others' bytes land in too."""
    return -(-num_bytes // _ROOM_STEP_BYTES) * _ROOM_STEP_BYTES


class Company:
    """Who reads small pulls out of one slab, and who waits to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Turn] = deque()
        self._is_led = False

    def enter(self, pull: Pull, deadline: float, num_words: int) -> Turn:
        """`wait` for it next; if it leads, be in `leading` until `read` is done. num_words: that vouch for the pull"""
        turn = Turn(pull, deadline, num_words)
        with self._lock:
            if self._is_led:
                self._waiting.append(turn)
                turn.is_waiting = True
            else:
                self._is_led = turn.leads = True
        return turn

    def wait(self, turn: Turn) -> Outcome | None:
        """What became of it; None where its thread is to lead now.

        Raises TransferFailed at the deadline while nothing is read for it, and CopyAbandoned when something is.
        """
        if turn.leads:
            return None
        turn.called.wait(max(0.0, turn.deadline - time.monotonic()))
        with self._lock:
            if turn.is_waiting:
                self._waiting.remove(turn)
                raise TransferFailed("reading is overdue: it waited for others' reads of the same arena")
        if not turn.called.wait(_GRACE_SECONDS):
            raise CopyAbandoned("reading is overdue, as others' reads beside it are", turn.has_ended)
        return None if turn.leads else turn.outcome

    @contextmanager
    def leading(self, turn: Turn) -> Iterator[None]:
        """Whatever happens inside, another one leads afterwards."""
        assert turn.leads
        try:
            yield
        finally:
            self._call_next()

    def read(self, first: Turn, most_bytes: int, most_words: int, read: ReadTogether) -> Int64Array | NotRead:
        """What becomes of a leader's pull, read along with those that wait and fit in beside it. Raises as `read`."""
        others = self._take(first, most_bytes, most_words)
        outcomes: Sequence[Outcome] = [NotRead(unwritten=False)] * len(others)
        try:
            mine, *outcomes = read([first.pull, *(other.pull for other in others)])
        except CopyAbandoned as error:
            outcomes = [CopyAbandoned(error.message, error.ended) for _ in others]
            raise
        finally:
            for other, outcome in zip(others, outcomes, strict=True):
                other.outcome = outcome
                other.called.set()
        return mine

    def num_waiting(self) -> int:
        with self._lock:
            return len(self._waiting)

    def _take(self, first: Turn, most_bytes: int, most_words: int) -> list[Turn]:
        taken: list[Turn] = []
        if first.deadline - time.monotonic() < _LEAST_SECONDS:
            return taken
        room, words = most_bytes - room_of(first.pull.num_bytes), most_words - first.num_words
        with self._lock:
            while self._waiting:
                turn = self._waiting[0]
                room, words = room - room_of(turn.pull.num_bytes), words - turn.num_words
                if room < 0 or words < 0 or turn.deadline < first.deadline - _NEAR_SECONDS:
                    break
                taken.append(self._waiting.popleft())
                turn.is_waiting = False
        return taken

    def _call_next(self) -> None:
        with self._lock:
            if not self._waiting:
                self._is_led = False
                return
            turn = self._waiting.popleft()
            turn.is_waiting = False
            turn.leads = True
            turn.called.set()
