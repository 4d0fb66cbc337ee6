"""The threads that pull: every owner's pulls in order, and always a thread left for the other owners'."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future

from triptych.journey import Endpoint

Work = Callable[[], None]
_Entry = tuple[Future[None], Work]


class PullPool:
    """Thread-safe. An owner that hangs holds the threads of its own pulls until their deadline, and no others'.

    num_threads: at least 2; one owner gets all but one of them
    Threads are there from the start, so that a process under load holds no more of them later; they end with `stop`.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._num_threads = num_threads
        self._changed = threading.Condition()
        self._waiting: OrderedDict[Endpoint, deque[_Entry]] = OrderedDict()  # who has waited longest for a turn first
        self._running: dict[Endpoint, int] = {}
        self._stopped = False
        for number in range(num_threads):
            threading.Thread(target=self._run, name=f"{name}-{number + 1}", daemon=True).start()

    def submit(self, owner: Endpoint, work: Work) -> Future[None]:
        """`work` runs on one of the threads; its future can be cancelled until then. Once stopped, it is at once."""
        future: Future[None] = Future()
        with self._changed:
            if self._stopped:
                future.cancel()
                return future
            self._waiting.setdefault(owner, deque()).append((future, work))
            self._changed.notify()
        return future

    def stop(self) -> None:
        """Begins nothing more; what waits is cancelled, what runs goes on."""
        with self._changed:
            self._stopped = True
            left = [entry for entries in self._waiting.values() for entry in entries]
            self._waiting.clear()
            self._changed.notify_all()
        for future, _ in left:
            future.cancel()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            owner, (future, work) = taken
            try:
                if future.set_running_or_notify_cancel():
                    _finish(future, work)
            finally:
                self._give_back(owner)

    def _take(self) -> tuple[Endpoint, _Entry] | None:
        """The next work, in turns by owner; None once stopped."""
        with self._changed:
            while not self._stopped:
                owner = next((owner for owner in self._waiting if self._may_run(owner)), None)
                if owner is not None:
                    entries = self._waiting.pop(owner)
                    entry = entries.popleft()
                    if entries:  # to the end of the line
                        self._waiting[owner] = entries
                    self._running[owner] = self._running.get(owner, 0) + 1
                    return owner, entry
                self._changed.wait()
            return None

    def _may_run(self, owner: Endpoint) -> bool:
        return self._running.get(owner, 0) < self._num_threads - 1

    def _give_back(self, owner: Endpoint) -> None:
        with self._changed:
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]
            self._changed.notify()


def _finish(future: Future[None], work: Work) -> None:
    try:
        work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)
