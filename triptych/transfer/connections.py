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
from triptych.transfer.protocol.peering import CloseArenas, Neighbourhood, OpenArena, PeerActions, PeerMachine

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

Connect = Callable[[Endpoint], Sequence[ArenaInfo]]
OpenMapping = Callable[[Endpoint, ArenaInfo], Mapping]


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
    """One neighbour process: what it exports, and the mappings opened so far. Its machine decides, under a lock."""

    def __init__(self, machine: PeerMachine, arenas: Sequence[ArenaInfo], open_arena: OpenMapping) -> None:
        self.endpoint = machine.peer
        self._machine = machine
        self._arenas = {arena.id: arena for arena in arenas}
        self._open_arena = open_arena
        self._mappings: OncePerKey[int, Mapping] = OncePerKey()
        self._lock = threading.Lock()

    def enter(self) -> bool:
        """Whether the peer is still ours to use; if so, it stays open until the matching `leave`."""
        with self._lock:
            return self._machine.lend(time.monotonic())

    def leave(self) -> None:
        with self._lock:
            actions = self._machine.returned(time.monotonic())
        self._do(actions)

    def forget(self) -> None:
        """No new loans; the mappings close once the last one has ended."""
        with self._lock:
            actions = self._machine.forget(time.monotonic())
        self._do(actions)

    def mapping(self, arena_id: int, deadline: float) -> Mapping:
        """Raises TransferFailed for an arena the peer does not have, or that no transport reaches."""
        return self._mappings.get(arena_id, lambda: self._open(arena_id), deadline)

    def transports(self) -> tuple[str, ...]:
        with self._lock:
            return self._machine.transports

    def open_all(self, deadline: float) -> None:
        for arena in self._arenas.values():
            if arena.kind != "staging":  # read only while a claim that is packed there is read
                self.mapping(arena.id, deadline)

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        with self._lock:
            self._machine.check()

    def _open(self, arena_id: int) -> Mapping:
        with self._lock:
            actions = self._machine.arena_wanted(time.monotonic(), arena_id)
        if actions != (OpenArena(self.endpoint, arena_id),):
            known = ", ".join(f"{arena.id} ({arena.kind})" for arena in self._arenas.values()) or "none"
            raise TransferFailed(f"{self.endpoint.address} has no arena {arena_id}, it has {known}")
        try:
            mapping = self._open_arena(self.endpoint, self._arenas[arena_id])
        except BaseException as error:
            with self._lock:
                self._machine.unreachable(time.monotonic(), arena_id, (("any", str(error)),))
            raise
        with self._lock:
            actions = self._machine.opened(time.monotonic(), arena_id, mapping.transport)
        if actions:  # nobody borrowed the peer for this, and it was forgotten meanwhile
            mapping.close()
            raise TransferFailed(f"{self.endpoint.address} was forgotten while its arena {arena_id} was opened")
        return mapping

    def _do(self, actions: PeerActions) -> None:
        for action in actions:
            if isinstance(action, CloseArenas):
                for arena_id in action.arenas:
                    mapping = self._mappings.pop(arena_id)
                    if mapping is not None:
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

    def __init__(self, connect: Connect, open_arena: OpenMapping) -> None:
        self._connect = connect
        self._open_arena = open_arena
        self._peers: OncePerKey[Endpoint, Peer] = OncePerKey()
        self._lock = threading.Lock()
        self._near = Neighbourhood()

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
        with self._lock:  # both at once: whoever meets it in between would be given the machine that ends below
            peer = self._peers.pop(endpoint)
            if peer is not None:
                self._near.drop(endpoint)
        if peer is not None:
            peer.forget()

    def known(self) -> Sequence[Endpoint]:
        """Those that are connected."""
        return tuple(self._peers.values())

    def forget_all(self) -> None:
        for endpoint in self.known():
            self.forget(endpoint)

    def transports(self, endpoint: Endpoint) -> tuple[str, ...]:
        """The transports of the arenas opened so far, most often one."""
        peer = self._peers.values().get(endpoint)
        return peer.transports() if peer is not None else ()

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        for peer in self._peers.values().values():
            peer.check()

    def _meet(self, endpoint: Endpoint) -> Peer:
        with self._lock:
            machine = self._near.find(endpoint)
            machine.wanted(time.monotonic())
        try:
            arenas = self._connect(endpoint)
        except BaseException as error:
            kind = type(error) if isinstance(error, TriptychError) else TransferFailed
            with self._lock:
                machine.refused(time.monotonic(), kind, str(error))
                self._near.drop(endpoint)
            if isinstance(error, TriptychError) or not isinstance(error, Exception):
                raise
            raise TransferFailed(f"cannot connect to {endpoint.address}: {error}") from error
        with self._lock:
            machine.met(time.monotonic(), [arena.id for arena in arenas])
            replaced = self._near.replaced_by(endpoint)
        for other in replaced:
            self.forget(other.peer)
        return Peer(machine, arenas, self._open_arena)
