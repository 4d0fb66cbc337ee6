"""Which neighbours' arenas are open, each opened once, and closed after the last copy out of it."""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from triptych.errors import TransferFailed, TriptychError
from triptych.journey import Endpoint
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.mapping import Mapping

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

Connect = Callable[[Endpoint], Sequence[ArenaInfo]]
OpenArena = Callable[[ArenaInfo], Mapping]


class OncePerKey(Generic[Key, Value]):
    """Values made on demand, each by whoever asks first; the others wait for it, and share its error if it fails.

    A failure is not kept: the next one to ask tries again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[Key, Future[Value]] = {}

    def get(self, key: Key, make: Callable[[], Value], deadline: float) -> Value:
        """Raises what `make` raised, or TransferFailed when another's `make` is not done at the deadline."""
        with self._lock:
            future = self._futures.get(key)
            mine = future is None
            if future is None:
                future = self._futures[key] = Future()
        if mine:
            self._make(key, future, make)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise TransferFailed(f"opening {key} is overdue") from error

    def pop(self, key: Key) -> Value | None:
        """The finished value, now forgotten; None when there is none yet."""
        with self._lock:
            future = self._futures.get(key)
            if future is None or not _succeeded(future):
                return None
            del self._futures[key]
            return future.result()

    def values(self) -> dict[Key, Value]:
        """The finished ones."""
        with self._lock:
            return {key: future.result() for key, future in self._futures.items() if _succeeded(future)}

    def _make(self, key: Key, future: Future[Value], make: Callable[[], Value]) -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            with self._lock:
                del self._futures[key]
            if isinstance(error, Exception):
                future.set_exception(error)
                return
            # This thread is being torn down; whoever waits for it still gets an answer.
            future.set_exception(TransferFailed(f"opening {key} was interrupted"))
            raise


def _succeeded(future: Future[Value]) -> bool:
    return future.done() and future.exception() is None


class Peer:
    """One neighbour process: what it exports, and the mappings opened so far."""

    def __init__(self, endpoint: Endpoint, arenas: Sequence[ArenaInfo], open_arena: OpenArena) -> None:
        self.endpoint = endpoint
        self._arenas = {arena.id: arena for arena in arenas}
        self._open_arena = open_arena
        self._mappings: OncePerKey[int, Mapping] = OncePerKey()
        self._lock = threading.Lock()
        self._num_loans = 0
        self._forgotten = False

    def enter(self) -> bool:
        """Whether the peer is still ours to use; if so, it stays open until the matching `leave`."""
        with self._lock:
            if self._forgotten:
                return False
            self._num_loans += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._num_loans -= 1
            last = self._forgotten and self._num_loans == 0
        if last:
            self._close()

    def forget(self) -> None:
        """No new loans; the mappings close once the last one has ended."""
        with self._lock:
            last = not self._forgotten and self._num_loans == 0
            self._forgotten = True
        if last:
            self._close()

    def mapping(self, arena_id: int, deadline: float) -> Mapping:
        """Raises TransferFailed for an arena the peer does not have, or that no transport reaches."""
        info = self._arenas.get(arena_id)
        if info is None:
            known = ", ".join(f"{arena.id} ({arena.kind})" for arena in self._arenas.values()) or "none"
            raise TransferFailed(f"{self.endpoint.address} has no arena {arena_id}, it has {known}")
        return self._mappings.get(arena_id, lambda: self._open_arena(info), deadline)

    def transports(self) -> tuple[str, ...]:
        return tuple(sorted({mapping.transport for mapping in self._mappings.values().values()}))

    def open_all(self, deadline: float) -> None:
        for arena_id in self._arenas:
            self.mapping(arena_id, deadline)

    def _close(self) -> None:
        for mapping in self._mappings.values().values():
            mapping.close()
        log.info("closed the arenas of %s, incarnation %d", self.endpoint.address, self.endpoint.incarnation)


class Loan:
    """A peer held open for one copy. `end` it once, after the copy."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def end(self) -> None:
        self.peer.leave()


class Connections:
    """All neighbours of one reader. Thread-safe; asking one neighbour never waits for another."""

    def __init__(self, connect: Connect, open_arena: OpenArena) -> None:
        self._connect = connect
        self._open_arena = open_arena
        self._peers: OncePerKey[Endpoint, Peer] = OncePerKey()

    def borrow(self, endpoint: Endpoint, deadline: float) -> Loan:
        """The peer, connected if it was not, and held open until the loan ends.

        Raises what connecting raised as far as it is one of ours, else TransferFailed.
        """
        while True:
            peer = self._peers.get(endpoint, lambda: self._meet(endpoint), deadline)
            if peer.enter():
                return Loan(peer)

    def forget(self, endpoint: Endpoint) -> None:
        """Unknown endpoints are fine. A later ref of this endpoint connects anew."""
        peer = self._peers.pop(endpoint)
        if peer is not None:
            peer.forget()

    def forget_all(self) -> None:
        for endpoint in self._peers.values():
            self.forget(endpoint)

    def transports(self, endpoint: Endpoint) -> tuple[str, ...]:
        """The transports of the arenas opened so far, most often one."""
        peer = self._peers.values().get(endpoint)
        return peer.transports() if peer is not None else ()

    def _meet(self, endpoint: Endpoint) -> Peer:
        try:
            arenas = self._connect(endpoint)
        except TriptychError:
            raise
        except Exception as error:
            raise TransferFailed(f"cannot connect to {endpoint.address}: {error}") from error
        self._forget_predecessors(endpoint)
        return Peer(endpoint, arenas, self._open_arena)

    def _forget_predecessors(self, endpoint: Endpoint) -> None:
        """The process that answers has replaced whoever answered at this address before."""
        for other in self._peers.values():
            if other.address == endpoint.address and other.incarnation != endpoint.incarnation:
                self.forget(other)
